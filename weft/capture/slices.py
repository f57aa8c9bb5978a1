"""Has slices of pointwise values computed from slices of what these are made from.

What a program reads by parts (``parts.py``) is in memory: a slice of an input is a view of it, a slice of a value is
not. ``f(x, y)[..., :n]`` is ``f(x[..., :n], y[..., :n])``, and so on through views, up to what is no pointwise value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from weft.capture.lower import POINTWISE, is_dear, reduced_axes
from weft.capture.nodes import ALIASES, ORDERS, RESHAPES, axis_of, order_of, shape_of
from weft.capture.parts import MOST_PARTS, SPLITS, Part, drops_axis, joined, slice_of, slices_behind
from weft.capture.refine import Extent, same_extent

aten = torch.ops.aten


def read_parts_of_inputs(graph: fx.Graph) -> None:
    """No slice that a joined tensor is made from is one of a pointwise value afterwards."""
    found = (joined(node) for node in graph.nodes)
    slice_inputs(graph, (part for each in found if each is not None for part in slices_behind(each)))


def slice_inputs(graph: fx.Graph, slices: Iterable[fx.Node], among: Collection[fx.Node] | None = None) -> None:
    """Have slices of pointwise values computed from slices of what these are made from. among: the values, others are
    there as a whole anyway; by default all."""
    slicing = _Slicing(graph, among)
    for node in slices:
        slicing.replace(node)


class _Slicing:
    """Makes slices of values, each once."""

    def __init__(self, graph: fx.Graph, among: Collection[fx.Node] | None) -> None:
        self.graph, self.among = graph, among
        self.made: dict[tuple[fx.Node, Part], fx.Node] = {}
        self.wanted = 0
        """Elements of the slice that is replaced."""

    def replace(self, node: fx.Node) -> None:
        """Put what a slice takes in its place."""
        found = slice_of(node)
        assert found is not None
        source, part = found
        if source.target not in _RULES:
            return
        self.wanted = elements(node)
        made = self.part(source, part)
        if drops_axis(node):
            made = insert_behind(node, aten.squeeze.dim, (made, part.axis))
        node.replace_all_uses_with(made)
        self._erase(node)

    def _erase(self, node: fx.Node) -> None:
        """Without a node that nobody reads any more, and what only led to it."""
        known = node.target in _RULES or slice_of(node) is not None or node.target in SPLITS
        if known and not node.users and node not in self.made.values():
            operands = node.all_input_nodes
            self.graph.erase_node(node)
            for operand in operands:
                self._erase(operand)

    def part(self, node: fx.Node, part: Part) -> fx.Node:
        """A part of a value."""
        if (node, part) not in self.made:
            # sines of positions that all heads are turned by are better read than computed for each head
            stored = is_dear(node) and elements(node) < self.wanted
            stored = stored or (self.among is not None and node not in self.among)
            rule = None if stored or node.op != "call_function" else _RULES.get(node.target)
            made = None if rule is None else rule(self, node, part)
            self.made[node, part] = made or insert_behind(
                node, aten.slice.Tensor, (node, part.axis, part.start, part.stop)
            )
        return self.made[node, part]


KEPT = ("stack_trace", "nn_module_stack", "fwd_nn_module_stack", "source_fn_stack", "original_aten")
"""Of what a node says about where it comes from."""


def insert_behind(known: fx.Node, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> fx.Node:
    """A new node, right behind another one, whose place in the user's program it has."""
    return _insert(known, known.graph.inserting_after(known), target, args, kwargs)


def insert_before(known: fx.Node, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> fx.Node:
    """The same, right before it."""
    return _insert(known, known.graph.inserting_before(known), target, args, kwargs)


def _insert(
    known: fx.Node,
    place: AbstractContextManager[Any],
    target: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
) -> fx.Node:
    with place:
        node = known.graph.call_function(target, tuple(args), dict(kwargs or {}))
    node.meta = {key: value for key, value in known.meta.items() if key in KEPT}
    with getattr(known.meta["val"], "fake_mode", None) or nullcontext():
        node.meta["val"] = target(*fx.map_arg(node.args, _value), **fx.map_arg(node.kwargs, _value))
    return node


def erase_unread(node: fx.Node) -> None:
    """Without a node that nobody reads, and what only led to it."""
    if node.op == "call_function" and not node.users and not node.is_impure():
        operands = node.all_input_nodes
        node.graph.erase_node(node)
        for operand in operands:
            erase_unread(operand)


def elements(node: fx.Node) -> int:
    """Number of elements, run-time sizes taken as one."""
    product = 1
    for size in shape_of(node):
        product *= size if isinstance(size, int) else 1
    return product


def _value(node: fx.Node) -> Any:
    return node.meta["val"]


# of each operation, how a part of its result is made; None if a slice of it has to do

Rule = Callable[[_Slicing, fx.Node, Part], fx.Node | None]


def _pointwise(slicing: _Slicing, node: fx.Node, part: Part) -> fx.Node:
    behind = len(shape_of(node)) - part.axis  # axes are aligned at the last one

    def sliced(argument: fx.Node) -> fx.Node:
        shape = shape_of(argument) if isinstance(argument.meta.get("val"), torch.Tensor) else ()
        if len(shape) < behind or shape[-behind] == 1:
            return argument
        return slicing.part(argument, replace(part, axis=len(shape) - behind))

    return insert_behind(node, node.target, fx.map_arg(node.args, sliced), node.kwargs)


def _constant(slicing: _Slicing, node: fx.Node, part: Part) -> fx.Node:
    shape: list[Any] = list(node.args[0])  # type: ignore[arg-type]
    shape[part.axis] = part.length
    return insert_behind(node, node.target, (shape, *node.args[1:]), node.kwargs)


def _permute(slicing: _Slicing, node: fx.Node, part: Part) -> fx.Node:
    source, order = node.all_input_nodes[0], order_of(node)
    made = slicing.part(source, replace(part, axis=order[part.axis]))
    return insert_behind(node, node.target, (made, *node.args[1:]))


def _expand(slicing: _Slicing, node: fx.Node, part: Part) -> fx.Node:
    source = node.all_input_nodes[0]
    own, sizes = shape_of(source), list(node.args[1])  # type: ignore[arg-type]
    axis = part.axis - (len(sizes) - len(own))
    sizes[part.axis] = part.length
    if axis >= 0 and own[axis] != 1:
        source = slicing.part(source, replace(part, axis=axis))
    return insert_behind(node, node.target, (source, sizes))


def _reshape(slicing: _Slicing, node: fx.Node, part: Part) -> fx.Node | None:
    source = node.all_input_nodes[0]
    shape = shape_of(node)
    found = _behind_reshape(shape, shape_of(source), part)
    if found is None:
        return None
    sizes: list[Any] = list(shape)
    if any(not isinstance(size, int) for size in shape):
        if node.target not in RESHAPES:
            return None
        sizes = list(node.args[1])  # type: ignore[arg-type]
    sizes[part.axis] = part.length
    return insert_behind(node, aten.reshape.default, (slicing.part(source, found), sizes))


def _behind_reshape(shape: Sequence[Extent], own: Sequence[Extent], part: Part) -> Part | None:
    """The part of a tensor that becomes a part of another shape, where the axis is one of the tensor's, two of these or
    the first of two that are one of these."""
    at, size = part.axis, shape[part.axis]
    if not isinstance(size, int):
        return None

    def ends_alike(axis: int, behind: int) -> bool:
        return same_extent(_product(own[axis:]), _product(shape[behind:]))

    for axis, have in enumerate(own):
        if have == size and ends_alike(axis + 1, at + 1):
            return replace(part, axis=axis)
        if not isinstance(have, int):
            continue
        if at + 1 < len(shape) and size * shape[at + 1] == have and ends_alike(axis + 1, at + 2):
            return Part(axis, part.start * (have // size), part.stop * (have // size))
        minor = own[axis + 1] if axis + 1 < len(own) else 0
        if not isinstance(minor, int) or have * minor != size or not ends_alike(axis + 2, at + 1):
            continue
        if part.start % minor == 0 == part.length % minor:
            return Part(axis, part.start // minor, part.stop // minor)
    return None


def _product(sizes: Sequence[Any]) -> Any:
    product: Any = 1
    for size in sizes:
        product = product * size
    return product


def _same(slicing: _Slicing, node: fx.Node, part: Part) -> fx.Node:
    source = node.all_input_nodes[0]
    return slicing.part(source, part)


def _concatenated(slicing: _Slicing, node: fx.Node, part: Part) -> fx.Node | None:
    """One of the operands, or parts of all, but not some elements of several."""
    operands: Any = node.args[0]
    axis = axis_of(node)
    if axis != part.axis:
        return insert_behind(node, node.target, ([slicing.part(operand, part) for operand in operands], axis))
    start = 0
    for operand in operands:
        size = shape_of(operand)[axis]
        if not isinstance(size, int):
            return None
        if start <= part.start and part.stop <= start + size:
            found = replace(part, start=part.start - start, stop=part.stop - start)
            return operand if found.length == size else slicing.part(operand, found)
        start += size
    return None


def _slice(slicing: _Slicing, node: fx.Node, part: Part) -> fx.Node | None:
    """A slice of a slice along the same axis is one."""
    found = slice_of(node)
    if found is None or found[1].axis != part.axis or drops_axis(node):
        return None
    source, own = found
    return slicing.part(source, replace(part, start=own.start + part.start, stop=own.start + part.stop))


def _sum(slicing: _Slicing, node: fx.Node, part: Part) -> fx.Node | None:
    """A sum of few elements each, along other axes: what several queries add to the gradient of a key."""
    source = node.all_input_nodes[0]
    shape = shape_of(source)
    dropped = reduced_axes(node, len(shape))
    added = [shape[axis] for axis in dropped]
    if any(not isinstance(size, int) for size in added) or not 0 < math.prod(added) <= MOST_PARTS:  # type: ignore[arg-type]
        return None
    keeps = len(shape_of(node)) == len(shape)
    axis = part.axis if keeps else [axis for axis in range(len(shape)) if axis not in dropped][part.axis]
    if axis in dropped:
        return None
    return insert_behind(
        node, node.target, (slicing.part(source, replace(part, axis=axis)), *node.args[1:]), node.kwargs
    )


_RULES: dict[Any, Rule] = {
    **dict.fromkeys(POINTWISE, _pointwise),
    aten.full.default: _constant,
    **dict.fromkeys(ORDERS, _permute),
    aten.expand.default: _expand,
    **dict.fromkeys((*RESHAPES, aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims), _reshape),
    **dict.fromkeys(ALIASES, _same),
    aten.cat.default: _concatenated,
    aten.sum.dim_IntList: _sum,
    aten.slice.Tensor: _slice,
}
