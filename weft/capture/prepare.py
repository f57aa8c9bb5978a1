"""What is done to a graph before regions are looked for; its results stay the same."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from weft.capture.lower import POINTWISE, REDUCTIONS
from weft.capture.nodes import leaves, shape_of, storage_bytes, strides_of, viewed
from weft.capture.parts import Part, behind, joined, slice_of, written_part
from weft.capture.pieces import Made, is_zero, made_of, scatters_of
from weft.capture.refine import same_extent
from weft.capture.slices import erase_unread, insert_before, insert_behind, read_parts_of_inputs, slice_inputs
from weft.capture.stacked import LEAST_BYTES, sum_parts
from weft.capture.taken import take_early

aten, prims = torch.ops.aten, torch.ops.prims


def prepare(graph: fx.Graph) -> None:
    """Leave out what does nothing, stack what is scattered into zeros or choose between the two, take parts of values
    early, read rotations by parts, and copy what lies beside them."""
    _erase_empty_parts(graph)
    _stack_what_is_scattered(graph)
    _choose_what_is_scattered(graph)
    take_early(graph)
    sum_parts(graph)
    read_parts_of_inputs(graph)
    _cast_parts(graph)
    _copy_what_is_beside(graph)


def _erase_empty_parts(graph: fx.Graph) -> None:
    """Without slices of no elements put into a tensor, and zeros added to one: the gradient of a slice that was empty,
    as where all of a head is turned and what is behind that part is handed on."""
    for node in [*graph.nodes]:
        same: Any = None
        if node.target is aten.slice_scatter.default and 0 in shape_of(node.args[1]):  # type: ignore[arg-type]
            same = node.args[0]
        elif node.target is aten.add.Tensor and not node.kwargs:
            first, second = node.args
            same = first if is_zero(second) else second if is_zero(first) else None
        if isinstance(same, fx.Node) and _is_alike(same, node) and not leaves(node):
            node.replace_all_uses_with(same)
            erase_unread(node)


def _stack_what_is_scattered(graph: fx.Graph) -> None:
    """A sum of tensors that are put into zeros at all places of an axis, one each, is a stack of them: the gradient of
    what was read step by step. TorchInductor adds up as many choices for each element of each, and a region would read
    as many tensors. What is small is faster read several times than stored part by part."""
    for node in reversed([*graph.nodes]):
        if node.target is not aten.add.Tensor or not node.users or storage_bytes(node) < LEAST_BYTES:
            continue
        if (parts := _each_place(node)) is None:
            continue
        axis, sources = parts
        wide = [insert_before(node, aten.unsqueeze.default, (source, axis)) for source in sources]
        stacked = insert_before(node, aten.cat.default, (wide, axis))
        _replace(node, stacked)


def _each_place(node: fx.Node) -> tuple[int, list[Any]] | None:
    """The axis along which a sum has one scattered tensor at each place, and these in order."""
    scatters = [term for term in scatters_of(node) or () if term.target is not aten.add.Tensor]
    if not scatters or any(scatter.target is not aten.select_scatter.default for scatter in scatters):
        return None
    sources = {written_part(scatter): scatter.args[1] for scatter in scatters}
    axis = int(scatters[0].args[2]) % len(shape_of(node))  # type: ignore[arg-type]
    places = [Part(axis, at, at + 1) for at in range(len(scatters))]
    if sources.keys() != {*places} or shape_of(node)[axis] != len(places):
        return None
    return axis, [sources[place] for place in places]


def _choose_what_is_scattered(graph: fx.Graph) -> None:
    """A tensor put into zeros at one place of an axis, the gradient of a token that was taken, is a choice for each
    element: a kernel that reads it makes the zeros where it needs them. Those that are added up stay, as they may be
    parts of one tensor."""
    for node in graph.find_nodes(op="call_function", target=aten.select_scatter.default):
        zeros, source, axis, index = node.args
        shape = shape_of(node)
        axis %= len(shape)
        size = shape[axis]
        if not is_zero(zeros) or not isinstance(size, int) or _is_one_of_several(node):
            continue
        device = node.meta["val"].device
        numbers = {"start": 0, "step": 1, "dtype": torch.int64, "device": device, "requires_grad": False}
        places = insert_before(node, prims.iota.default, (size,), numbers)
        places = insert_before(node, aten.reshape.default, (places, [-1] + [1] * (len(shape) - 1 - axis)))
        is_there = insert_before(node, aten.eq.Scalar, (places, index % size))
        wide = insert_before(node, aten.unsqueeze.default, (source, axis))
        zero = insert_before(node, aten.full.default, ([], 0), {"dtype": node.meta["val"].dtype, "device": device})
        _replace(node, insert_before(node, aten.where.self, (is_there, wide, zero)))


def _replace(node: fx.Node, made: fx.Node) -> None:
    """Put what was made in the place of a node, unless it lies in memory in another way, which a reader may rely on."""
    kept, other = (made, node) if _is_alike(made, node) else (node, made)
    other.replace_all_uses_with(kept)
    erase_unread(other)


def _is_one_of_several(scatter: fx.Node) -> bool:
    """Whether something else that is scattered is added, or this once more."""
    sums: list[Any] = [user.args for user in scatter.users if user.target is aten.add.Tensor]
    others = [operands[operands[0] is scatter] for operands in sums]
    return any(isinstance(other, fx.Node) and scatters_of(other) for other in others)


def _is_alike(one: fx.Node, other: fx.Node) -> bool:
    """Whether two tensors are proved to have one layout; nothing is asked of sizes that are known at run time only."""
    a, b = one.meta["val"], other.meta["val"]
    if a.dim() != b.dim() or (a.dtype, a.device) != (b.dtype, b.device):
        return False
    pairs = [*zip(shape_of(one), shape_of(other), strict=True), *zip(strides_of(one), strides_of(other), strict=True)]
    return all(same_extent(*pair) for pair in pairs)


def _cast_parts(graph: fx.Graph) -> None:
    """Casts of a tensor that something turned is put together with become casts of its parts."""
    for node in [*graph.nodes]:
        joining: Any = node.args[0] if node.target is prims.convert_element_type.default else None
        if joining is None or joining.target is not aten.cat.default or len(joining.users) > 1:
            continue
        if joined(joining) is not None or not any(map(_is_turned, joining.args[0])):
            continue
        parts = [insert_behind(part, node.target, (part, *node.args[1:])) for part in joining.args[0]]
        node.target, node.args = joining.target, (parts, *joining.args[1:])
        node.kwargs = joining.kwargs
        graph.erase_node(joining)


def _copy_what_is_beside(graph: fx.Graph) -> None:
    """Where something turned is put together with what is in memory, as the gradients of queries, keys and values are,
    that becomes a copy of it, which a kernel can write into its place."""
    for node in reversed([*graph.nodes]):
        if (made := _beside_turned(node)) is None:
            continue
        found = [each for piece in made.pieces for each in behind([piece.source])]
        slice_inputs(graph, dict.fromkeys(each for each in found if slice_of(each) is not None))
        made = _beside_turned(node) or made
        for source in {piece.source: None for piece in made.pieces if _is_in_memory(piece.source)}:
            copy = insert_behind(source, aten.clone.default, (source,))
            for user in (node, *made.absorbed):
                user.replace_input_with(source, copy)


def _beside_turned(node: fx.Node) -> Made | None:
    """How a tensor is put together, if something turned is among its pieces."""
    made = None if joined(node) is not None else made_of(node)
    return made if made is not None and any(_is_turned(piece.source) for piece in made.pieces) else None


def _is_turned(node: fx.Node) -> bool:
    """Whether a value is computed from parts that change places."""
    return any(joined(each) is not None for each in behind([node]))


def _is_in_memory(node: fx.Node) -> bool:
    """Whether a value is a view of what nothing computes that a program can have."""
    base = viewed(node)
    return base.target not in POINTWISE and base.target not in REDUCTIONS and made_of(base) is None
