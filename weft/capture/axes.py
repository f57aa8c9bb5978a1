"""Which axes a node reads and writes, with the views between nodes taken out.

A view never becomes an operation of a program: an operand is followed backwards through reshapes, permutes and
expands to the tensor that holds the data (its *base*), and the axes are rewritten on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx

from weft.capture.nodes import ALIASES, ORDERS, is_view, order_of, shape_of, tensor_args
from weft.capture.refine import Axis, MisalignedError, Refinement

aten = torch.ops.aten


@dataclass(frozen=True)
class Operand:
    """One tensor operand: its position among the node's tensor arguments, the base that holds it, the base's axes; the
    argument itself, which is the base or a view of it, and the argument's axes."""

    position: int
    base: fx.Node
    axes: tuple[Axis, ...]
    argument: fx.Node
    argument_axes: tuple[Axis, ...]


@dataclass(frozen=True)
class Space:
    """The index space of a node (of a reduction: its operand's), the axes of its result and of its operands. opaque:
    the node has no lowering, something else stands for it. numbers: of a tensor put together of parts, the axis that
    counts them."""

    axes: tuple[Axis, ...]
    result: tuple[Axis, ...]
    operands: tuple[Operand, ...]
    opaque: bool = False
    numbers: Axis = ()

    @property
    def reduces(self) -> bool:
        """Whether the result has fewer axes: sums over axes of size one reduce nothing."""
        return sum(map(len, self.result)) < sum(map(len, self.axes))


def pointwise_space(node: fx.Node, refinement: Refinement) -> Space:
    """Every operand is broadcast against the result, aligned at the last axis."""
    sizes = shape_of(node)
    axes = tuple(refinement.fresh_axis(size) for size in sizes)
    operands: list[Operand] = []
    for position, arg in enumerate(tensor_args(node)):
        own = shape_of(arg)
        aligned = axes[len(axes) - len(own) :]
        read = tuple(() if size == 1 else axis for size, axis in zip(own, aligned, strict=True))
        operands.append(follow(position, arg, read, refinement))
    return Space(axes, axes, tuple(operands))


def projection_space(node: fx.Node, refinement: Refinement) -> Space:
    """One of the results of a node that returns several, all of the same shape."""
    axes = tuple(refinement.fresh_axis(size) for size in shape_of(node))
    source = node.all_input_nodes[0]
    return Space(axes, axes, (Operand(0, source, axes, source, axes),))


def reduction_space(node: fx.Node, refinement: Refinement, dims: Sequence[int]) -> Space:
    """The first operand spans the space; any further one (an index) has size one along ``dims`` and its own axes."""
    args = tensor_args(node)
    sizes = shape_of(args[0])
    axes = tuple(refinement.fresh_axis(size) for size in sizes)
    kept = [i for i in range(len(sizes)) if i not in dims]
    keeps_rank = len(shape_of(node)) == len(sizes)
    result = (
        tuple(() if i in dims else axes[i] for i in range(len(sizes))) if keeps_rank else tuple(axes[i] for i in kept)
    )
    operands = [follow(0, args[0], axes, refinement)]
    for position, arg in enumerate(args[1:], 1):
        read = tuple(() if i in dims else axis for i, axis in enumerate(axes))
        operands.append(follow(position, arg, read, refinement))
    return Space(axes, result, tuple(operands))


def follow(position: int, node: fx.Node, axes: tuple[Axis, ...], refinement: Refinement) -> Operand:
    """Walk back through views as far as the shapes align; what stops the walk is the base."""
    argument, argument_axes = node, axes
    while is_view(node):
        try:
            with refinement.transaction():
                axes = _behind(node, axes, refinement)
        except MisalignedError:
            break
        node = node.all_input_nodes[0]
    return Operand(position, node, axes, argument, argument_axes)


def _behind(view: fx.Node, axes: tuple[Axis, ...], refinement: Refinement) -> tuple[Axis, ...]:
    """The axes of what a view is of, of which the view has these."""
    sizes = shape_of(view.all_input_nodes[0])
    if view.target in ALIASES:
        return axes
    if view.target in ORDERS:
        order = order_of(view)
        return tuple(axes[order.index(i)] for i in range(len(sizes)))
    if view.target is aten.expand.default:
        own = axes[len(axes) - len(sizes) :]
        return tuple(() if size == 1 else axis for size, axis in zip(sizes, own, strict=True))
    return tuple(refinement.regroup(axes, sizes))
