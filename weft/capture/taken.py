"""Values of which only a few elements are read are computed for these alone.

A classifier reads one token of what its last norm returns, a text encoder one of each sentence. What is taken of a
tensor is no part of a region; without this a region writes all of such a tensor, where TorchInductor, which computes
pointwise values where they are read, writes none of it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from weft.capture.lower import POINTWISE
from weft.capture.nodes import VIEWS, leaves, shape_of
from weft.capture.parts import slice_of
from weft.capture.refine import same_extent
from weft.capture.slices import elements, erase_unread, insert_before, slice_inputs

aten = torch.ops.aten

MOST_TAKEN = 0.5
"""Of the elements of a tensor, for which it is not computed as a whole."""


def take_early(graph: fx.Graph) -> None:
    """Have what is taken of a pointwise value computed from what is taken of its operands, up to what is in memory or
    read by others."""
    unread = _unread(graph)
    takers = [node for node in graph.nodes if _source_of(node) in unread and not leaves(node)]
    for node in takers:
        if node.target is aten.index.Tensor:
            node.replace_all_uses_with(_indexed(node, node.args[0], unread))
            erase_unread(node)
    slice_inputs(graph, [node for node in takers if node.target is not aten.index.Tensor], unread)


def _unread(graph: fx.Graph) -> set[fx.Node]:
    """Pointwise values, and views of these, that nobody reads but for some of their elements."""
    found: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.target not in POINTWISE and node.target not in VIEWS:
            continue
        taken = [user for user in node.users if user not in found]
        if not node.users or any(_source_of(user) is not node or leaves(user) for user in taken):
            continue
        if sum(map(elements, taken)) > MOST_TAKEN * elements(node):
            continue
        if all(_can_index(node, user) for user in taken if user.target is aten.index.Tensor):
            found.add(node)
    return found


def _source_of(node: fx.Node) -> fx.Node | None:
    """What a node takes some elements of."""
    if node.target is aten.index.Tensor and _is_of_first_axes(node):
        return node.args[0]  # type: ignore[return-value]
    found = None if node.target not in (aten.slice.Tensor, aten.select.int) else slice_of(node)
    return None if found is None else found[0]


def _is_of_first_axes(index: fx.Node) -> bool:
    """Whether the first axes are indexed, and those alone."""
    indices: Any = index.args[1]
    taken: Any = index.args[0]
    return all(isinstance(each, fx.Node) and not _is_mask(each) for each in indices) and taken not in indices


def _is_mask(index: fx.Node) -> bool:
    return index.meta["val"].dtype in (torch.bool, torch.uint8)


def _can_index(node: fx.Node, index: fx.Node) -> bool:
    """Whether each operand of a pointwise value has all of the axes that are indexed, or none."""
    count = len(index.args[1])  # type: ignore[arg-type]
    shape = shape_of(node)
    operands = [o for o in node.all_input_nodes if isinstance(o.meta.get("val"), torch.Tensor)]
    return node.target in POINTWISE and all(_has_axes(shape_of(o), shape, count) is not None for o in operands)


def _has_axes(own: Any, shape: Any, count: int) -> bool | None:
    """Whether a tensor of shape ``own`` has the first axes of ``shape``; None if it has some, or single ones."""
    if len(own) <= len(shape) - count:
        return False
    alike = len(own) == len(shape) and all(map(same_extent, own[:count], shape[:count]))
    return True if alike else None


def _indexed(index: fx.Node, node: fx.Node, unread: set[fx.Node]) -> fx.Node:
    """What an index takes of a value, before the index."""
    count = len(index.args[1])  # type: ignore[arg-type]
    if node not in unread or not _can_index(node, index):
        return insert_before(index, aten.index.Tensor, (node, *index.args[1:]))

    def operand(each: fx.Node) -> fx.Node:
        is_tensor = isinstance(each.meta.get("val"), torch.Tensor)
        whole = is_tensor and _has_axes(shape_of(each), shape_of(node), count)
        return _indexed(index, each, unread) if whole else each

    return insert_before(index, node.target, fx.map_arg(node.args, operand), node.kwargs)
