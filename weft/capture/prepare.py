"""What is done to a graph before regions are looked for; its results stay the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import fx

from weft.capture.assembly import made_of
from weft.capture.axes import VIEWS
from weft.capture.growth import users_behind_views
from weft.capture.lower import POINTWISE, REDUCTIONS
from weft.capture.parts import MOST_NODES, joined
from weft.capture.slices import KEPT, read_parts_of_inputs

aten = torch.ops.aten


def prepare(graph: fx.Graph) -> None:
    """Leave out what does nothing, read rotations by parts, and copy what lies beside them."""
    _erase_empty_parts(graph)
    read_parts_of_inputs(graph)
    _copy_what_is_beside(graph)


def _erase_empty_parts(graph: fx.Graph) -> None:
    """Without slices of no elements put into a tensor, and zeros added to one: the gradient of a slice that was empty,
    as where all of a head is turned and what is behind that part is handed on."""
    for node in [*graph.nodes]:
        same: Any = None
        if node.target is aten.slice_scatter.default and node.args[1].meta["val"].numel() == 0:
            same = node.args[0]
        elif node.target is aten.add.Tensor and not node.kwargs:
            first, second = node.args
            same = first if _is_zero(second) else second if _is_zero(first) else None
        if isinstance(same, fx.Node) and _is_alike(same, node) and not _leaves(node):
            node.replace_all_uses_with(same)
            _erase_unread(node)


def _leaves(node: fx.Node) -> bool:
    """Whether a graph returns a node or a view of it: in memory of its own, which no other tensor may be in."""
    return any(user.op != "call_function" for user in users_behind_views(node))


def _erase_unread(node: fx.Node) -> None:
    """Without a node that nobody reads, and what only led to it."""
    if node.op == "call_function" and not node.users and not node.is_impure():
        operands = node.all_input_nodes
        node.graph.erase_node(node)
        for operand in operands:
            _erase_unread(operand)


def _is_zero(node: Any) -> bool:
    return isinstance(node, fx.Node) and node.target is aten.full.default and bool(node.args[1] == 0)


def _is_alike(one: fx.Node, other: fx.Node) -> bool:
    a, b = one.meta["val"], other.meta["val"]
    return (a.shape, a.dtype, a.device, a.stride()) == (b.shape, b.dtype, b.device, b.stride())


def _copy_what_is_beside(graph: fx.Graph) -> None:
    """Where something turned is put together with what is in memory, as the gradients of queries, keys and values are,
    that becomes a copy of it, which a kernel can write into its place."""
    for node in reversed([*graph.nodes]):
        made = None if joined(node) is not None else made_of(node)
        if made is None or not any(_is_turned(piece.source) for piece in made.pieces):
            continue
        for source in {piece.source: None for piece in made.pieces if _is_in_memory(piece.source)}:
            with graph.inserting_after(source):
                copy = graph.call_function(aten.clone.default, (source,))
            copy.meta = {key: value for key, value in source.meta.items() if key in KEPT}
            with getattr(source.meta["val"], "fake_mode", None) or nullcontext():
                copy.meta["val"] = source.meta["val"].clone()
            for user in (node, *made.absorbed):
                user.replace_input_with(source, copy)


def _is_turned(node: fx.Node) -> bool:
    """Whether a value is computed from parts that change places."""
    return any(joined(each) is not None for each in _behind(node))


def _is_in_memory(node: fx.Node) -> bool:
    """Whether a value is a view of what nothing computes that a program can have."""
    base: Any = node
    while base.target in VIEWS:
        base = base.args[0]
    return base.target not in POINTWISE and base.target not in REDUCTIONS and made_of(base) is None


def _behind(node: fx.Node) -> Iterator[fx.Node]:
    """The node, and what pointwise operations and views make it from."""
    seen, pending = {node}, [node]
    while pending and len(seen) < MOST_NODES:
        each = pending.pop()
        yield each
        if each.target in POINTWISE or each.target in VIEWS:
            fresh = [operand for operand in each.all_input_nodes if operand not in seen]
            seen.update(fresh)
            pending += fresh
