"""Column sums of a tensor that is put together become those of its parts.

Queries, keys and values that one product makes are packed in one tensor, and so are their gradients: what attention's
backward returns is stacked, copied into the order of the product's columns, and summed up for the bias. As it stands
the sum reads all of it once more. Of each part a kernel can write its columns and sum them up while it has them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from weft.capture.lower import reduced_axes
from weft.capture.nodes import ORDERS, RESHAPES, VIEWS, axis_of, order_of, shape_of, storage_bytes
from weft.capture.refine import same_extent
from weft.capture.slices import erase_unread, insert_before, insert_behind

aten = torch.ops.aten

LEAST_BYTES = 1 << 24
"""Of a whole that is stored part by part. To read it takes about as long, 4 us on an H200, as to start kernels for two
more parts."""


@dataclass(frozen=True)
class _Stack:
    """A copy of what is put together. operands: the parts; is_new: whether the axis that they lie along is none of
    theirs. axis: where that is in what is put together. orders: the permutations between that and the copy, the first
    one first."""

    operands: tuple[fx.Node, ...]
    is_new: bool
    axis: int
    orders: tuple[fx.Node, ...]

    @property
    def copied_axis(self) -> int:
        """The axis of the copy along which the parts lie."""
        axis = self.axis
        for order in self.orders:
            axis = order_of(order).index(axis)
        return axis


def sum_parts(graph: fx.Graph) -> None:
    """Have large tensors that are put together, and summed up along other axes, copied and summed up part by part."""
    for copy in [*graph.find_nodes(op="call_function", target=aten.clone.default)]:
        stack = _stack(copy)
        if stack is None or storage_bytes(copy) < LEAST_BYTES or not copy.meta["val"].is_contiguous():
            continue
        columns = copy.meta["val"].shape[stack.copied_axis :]
        sums = [*_sums(copy, stack.copied_axis)] if all(isinstance(size, int) for size in columns) else []
        if sums:
            _part(copy, stack, sums)


def _stack(copy: fx.Node) -> _Stack | None:
    """How a copy is put together; None if it is not, or somebody reads what is in between."""
    base: Any = copy.args[0]
    orders: list[fx.Node] = []
    while base.target in ORDERS and len(base.users) == 1:
        orders.insert(0, base)
        base = base.args[0]
    reshape = None
    if base.target in RESHAPES and len(base.users) == 1:
        reshape, base = base, base.args[0]
    if base.target is not aten.cat.default or len(base.users) > 1:
        return None
    operands: Any = base.args[0]
    axis = axis_of(base)
    if any(len(shape_of(operand)) != len(shape_of(base)) for operand in operands):
        return None  # an empty one of rank one
    if reshape is not None:
        each = shape_of(operands[0])
        split = (*each[:axis], len(operands), *each[axis:])
        shape = shape_of(reshape)
        if len(shape) != len(split) or not all(map(same_extent, shape, split)):
            return None
        if any(not same_extent(shape_of(operand)[axis], each[axis]) for operand in operands):
            return None
    return _Stack(tuple(operands), reshape is not None, axis, tuple(orders))


def _sums(copy: fx.Node, axis: int) -> Iterator[tuple[fx.Node, fx.Node]]:
    """Sums over what a copy is, in the shape of a view whose last axis begins with the axis of the parts, along other
    axes; each with that view."""
    shape = shape_of(copy)
    pending = [copy]
    while pending:
        view = pending.pop()
        own = shape_of(view)
        is_last = same_extent(math.prod(own[:-1]), math.prod(shape[:axis]))  # type: ignore[arg-type]
        # sizes that are known at run time only are nodes among the arguments of a reshape
        is_said = view.target in RESHAPES or all(isinstance(size, int) for size in own)
        for user in view.users:
            if user.target in RESHAPES and user.target in VIEWS:
                pending.append(user)
                continue
            is_sum = user.target is aten.sum.dim_IntList and len(own) - 1 not in reduced_axes(user, len(own))
            if is_sum and is_last and is_said:
                yield user, view


def _part(copy: fx.Node, stack: _Stack, sums: list[tuple[fx.Node, fx.Node]]) -> None:
    parts: list[fx.Node] = []
    for operand in stack.operands:
        part = insert_behind(operand, aten.unsqueeze.default, (operand, stack.axis)) if stack.is_new else operand
        for order in stack.orders:
            part = insert_behind(part, order.target, (part, *order.args[1:]), order.kwargs)
        parts.append(insert_behind(part, aten.clone.default, (part,), copy.kwargs))
    axis = stack.copied_axis
    for node, view in sums:
        added = [_sum(node, view, part, axis) for part in parts]
        node.replace_all_uses_with(insert_before(node, aten.cat.default, (added, -1)))
    copy.replace_all_uses_with(insert_before(copy, aten.cat.default, (parts, axis)))
    for node in (*(node for node, _ in sums), copy):
        erase_unread(node)


def _sum(node: fx.Node, view: fx.Node, part: fx.Node, axis: int) -> fx.Node:
    """The sum of a part, in the shape of its columns of the view."""
    columns = math.prod(part.meta["val"].shape[axis:])
    sizes: list[Any] = list(view.args[1]) if view.target in RESHAPES else list(view.meta["val"].shape)  # type: ignore[arg-type]
    seen = insert_before(node, aten.reshape.default, (part, [*sizes[:-1], columns]))
    return insert_before(node, node.target, (seen, *node.args[1:]), node.kwargs)
