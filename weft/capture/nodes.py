"""What a node of a graph says of its tensor, and who reads it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from weft.capture.refine import Extent, extent, guess

aten, prims = torch.ops.aten, torch.ops.prims
Strides = tuple[Extent, ...]

RESHAPES = (aten.reshape.default, aten.view.default, aten._unsafe_view.default)
ORDERS = (aten.permute.default, aten.transpose.int, aten.t.default)
ALIASES = (aten.alias.default, aten.detach.default)
VIEWS = {
    *(*RESHAPES, aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims),
    *(*ORDERS, aten.expand.default, *ALIASES),
}
CONSTANTS = (aten.full.default, aten.scalar_tensor.default, prims.iota.default)


def shape_of(node: fx.Node) -> tuple[Extent, ...]:
    """Sizes of the tensor a node returns (of the first one, if it returns several)."""
    value = node.meta["val"]
    return tuple(extent(size) for size in (value[0] if isinstance(value, list | tuple) else value).shape)


def strides_of(node: fx.Node) -> Strides:
    """Strides of the tensor a node returns, in elements."""
    return tuple(extent(stride) for stride in node.meta["val"].stride())


def storage_bytes(node: fx.Node) -> int:
    """Bytes of storage a tensor takes: broadcast axes take none, run-time sizes are taken as large; 0 of anything
    else."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return 0
    product = value.element_size()
    for size, stride in zip(value.shape, value.stride(), strict=True):
        product *= 1 if extent(stride) == 0 else guess(extent(size))
    return product


def tensor_args(node: fx.Node) -> list[fx.Node]:
    """The tensor operands of a node in the order of its arguments."""
    return [arg for arg in node.args if isinstance(arg, fx.Node) and isinstance(arg.meta.get("val"), torch.Tensor)]


def is_constant(node: fx.Node) -> bool:
    """Whether a node makes a tensor from numbers known at compile time (its shape may be known later)."""
    if node.op != "call_function" or node.target not in CONSTANTS:
        return False
    number = node.args[1] if node.target is aten.full.default else node.args[0]
    return node.target is prims.iota.default or not isinstance(number, fx.Node)


def mutates(node: fx.Node) -> bool:
    """Whether a node writes one of its operands."""
    schema = getattr(node.target, "_schema", None)
    return node.op == "call_function" and schema is not None and schema.is_mutable


def is_view(node: fx.Node) -> bool:
    """Whether a node is another shape of what it reads, in the same memory as far as its reader is concerned."""
    return node.op == "call_function" and node.target in VIEWS


def viewed(node: fx.Node) -> fx.Node:
    """What a node is a view of, through all of its views; any other node itself."""
    while is_view(node):
        node = node.all_input_nodes[0]
    return node


def users_behind_views(node: fx.Node) -> Iterator[fx.Node]:
    """Whoever reads the node or a view of it; a view that nobody reads counts for nothing."""
    for user in node.users:
        if is_view(user):
            yield from users_behind_views(user)
        else:
            yield user


def leaves(node: fx.Node) -> bool:
    """Whether a graph returns a node or a view of it: in memory of its own, with the strides that it has."""
    return any(user.op != "call_function" for user in users_behind_views(node))


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
