"""Which axes a node reads and writes, with the views between nodes taken out.

A view never becomes an operation of a program: an operand is followed backwards through reshapes, permutes and
expands to the tensor that holds the data (its *base*), and the axes are rewritten on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from weft.capture.refine import Axis, Extent, MisalignedError, Refinement, extent

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


def shape_of(node: fx.Node) -> tuple[Extent, ...]:
    """Sizes of the tensor a node returns (of the first one, if it returns several)."""
    value = node.meta["val"]
    if isinstance(value, list | tuple):
        value = value[0]
    return tuple(extent(size) for size in value.shape)


def tensor_args(node: fx.Node) -> list[fx.Node]:
    """The tensor operands of a node in the order of its arguments."""
    return [arg for arg in node.args if isinstance(arg, fx.Node) and isinstance(arg.meta.get("val"), torch.Tensor)]


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
    source = node.args[0]
    assert isinstance(source, fx.Node)
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
    while node.op == "call_function" and (inverse := VIEWS.get(node.target)) is not None:
        source = node.args[0]
        assert isinstance(source, fx.Node)
        try:
            with refinement.transaction():
                axes = inverse(node, source, axes, refinement)
        except MisalignedError:
            break
        node = source
    return Operand(position, node, axes, argument, argument_axes)


Inverse = Callable[[fx.Node, fx.Node, tuple[Axis, ...], Refinement], tuple[Axis, ...]]


def _reshape(node: fx.Node, source: fx.Node, axes: tuple[Axis, ...], refinement: Refinement) -> tuple[Axis, ...]:
    del node
    return tuple(refinement.regroup(axes, shape_of(source)))


def _permute(node: fx.Node, source: fx.Node, axes: tuple[Axis, ...], refinement: Refinement) -> tuple[Axis, ...]:
    del refinement
    rank = len(shape_of(source))
    dims = [int(d) % rank for d in node.args[1]]  # type: ignore[union-attr,arg-type]
    return tuple(axes[dims.index(i)] for i in range(rank))


def _transpose(node: fx.Node, source: fx.Node, axes: tuple[Axis, ...], refinement: Refinement) -> tuple[Axis, ...]:
    del refinement
    rank = len(shape_of(source))
    swapped = list(axes)
    if rank > 1:
        first, second = (int(d) % rank for d in (node.args[1:] or (0, 1)))  # type: ignore[arg-type]
        swapped[first], swapped[second] = swapped[second], swapped[first]
    return tuple(swapped)


def _expand(node: fx.Node, source: fx.Node, axes: tuple[Axis, ...], refinement: Refinement) -> tuple[Axis, ...]:
    del node, refinement
    own = shape_of(source)
    return tuple(() if size == 1 else axis for size, axis in zip(own, axes[len(axes) - len(own) :], strict=True))


def _same(node: fx.Node, source: fx.Node, axes: tuple[Axis, ...], refinement: Refinement) -> tuple[Axis, ...]:
    del node, source, refinement
    return axes


VIEWS: dict[object, Inverse] = {
    aten.reshape.default: _reshape,
    aten.view.default: _reshape,
    aten._unsafe_view.default: _reshape,
    aten.unsqueeze.default: _reshape,
    aten.squeeze.default: _reshape,
    aten.squeeze.dim: _reshape,
    aten.squeeze.dims: _reshape,
    aten.permute.default: _permute,
    aten.transpose.int: _transpose,
    aten.t.default: _transpose,
    aten.expand.default: _expand,
    aten.alias.default: _same,
    aten.detach.default: _same,
}


def is_view(node: fx.Node) -> bool:
    """Whether a node is another shape of what it reads, in the same memory as far as its reader is concerned."""
    return node.op == "call_function" and node.target in VIEWS


def viewed(node: fx.Node) -> fx.Node:
    """What a node is a view of, through all of its views; any other node itself."""
    while is_view(node):
        node = node.all_input_nodes[0]
    return node


ORDERS = (aten.permute.default, aten.transpose.int, aten.t.default)


def axis_of(cat: fx.Node) -> int:
    """The axis along which a ``cat`` puts its operands together."""
    axis: Any = cat.args[1] if len(cat.args) > 1 else cat.kwargs.get("dim", 0)
    return int(axis) % len(shape_of(cat))


def order_of(node: fx.Node) -> list[int]:
    """The axes of its operand, in the order in which one of ``ORDERS`` has them."""
    rank = len(shape_of(node))
    order = list(range(rank))
    if node.target is aten.permute.default:
        return [int(axis) % rank for axis in node.args[1]]  # type: ignore[union-attr,arg-type]
    if rank > 1:
        first, second = (int(axis) % rank for axis in (node.args[1:] or (0, 1)))  # type: ignore[arg-type]
        order[first], order[second] = second, first
    return order
