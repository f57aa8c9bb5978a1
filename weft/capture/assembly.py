"""Finds tensors that are put together from results of regions, so that kernels write the parts where they belong.

A ``cat`` (a ``stack`` is one) of column sums, or a sum of slices scattered into zeros, is what the gradient of a
``chunk`` or of an indexed parameter looks like. Where every part comes from a region, the parts become slots: outputs
with the strides and the offset they have in the whole, and nothing is left to copy. A large result that is padded with
a few zeros, as the gradient of shifted logits, is a slot as well, and so is each row of zeros.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import fx

from weft.capture.axes import follow
from weft.capture.growth import Growth
from weft.capture.lower import POINTWISE
from weft.capture.nodes import Strides, is_constant, is_view, shape_of, strides_of
from weft.capture.pieces import Piece, made_of
from weft.capture.refine import Axis, Extent, same_extent


@dataclass(frozen=True)
class Assembly:
    """A tensor made of parts that regions write.

    whole: the node that stands for it. absorbed: nodes between the parts and the whole that nobody else reads. parts:
    how many slots there are.
    """

    whole: fx.Node
    absorbed: tuple[fx.Node, ...]
    parts: int


@dataclass(frozen=True)
class Slot:
    """Where a part lies in the whole: one stride for each axis of the part, and the offset, in elements. is_zero: what
    is written there are zeros; along the axis that lacks them the stride is 0."""

    assembly: Assembly
    strides: Strides
    offset: Extent
    is_zero: bool = False


def find_slots(growth: Growth) -> dict[fx.Node, list[Slot]]:
    """The slots of every member of a region that is part of an assembly."""
    found: dict[fx.Node, list[Slot]] = {}
    absorbed: set[fx.Node] = set()
    for node in reversed(growth.order):  # of a sum of sums the last one is the whole
        made = None if node in absorbed or _is_in_region(node, growth) else made_of(node)
        if made is None:
            continue
        assembly = Assembly(node, made.absorbed, len(made.pieces))
        placed = [*filter(None, (_place(piece, assembly, growth) for piece in made.pieces))]
        if len(placed) == len(made.pieces) and _is_worthwhile([member for member, _ in placed], growth):
            absorbed.update(made.absorbed)
            for member, slot in placed:
                found.setdefault(member, []).append(slot)
    return found


def _is_in_region(node: fx.Node, growth: Growth) -> bool:
    """Whether a node is in a region, or a region could compute it again: it is no border then."""
    readers = growth.readers(node) if node.target in POINTWISE else ()
    return any(n in growth.spaces and growth.is_taken(growth.group_of[n]) for n in (node, *readers))


def _is_worthwhile(members: Sequence[fx.Node], growth: Growth) -> bool:
    """Whether all parts come from kernels that are there anyway, or some from a rotation, which TorchInductor would
    compute once more for each element of the other parts."""
    groups = [growth.group_of[member] for member in members]
    return all(map(growth.reduces, groups)) or any(map(growth.joins, groups))


def complete(slots: Iterable[Slot]) -> set[Assembly]:
    """The assemblies of which these are all slots."""
    return {assembly for assembly, count in Counter(slot.assembly for slot in slots).items() if count == assembly.parts}


def is_read_apart(node: fx.Node, slots: Iterable[Slot], inside: Collection[fx.Node]) -> bool:
    """Whether anybody reads a part in any other way than through its assemblies. inside: nodes that only the kernel
    computes that computes the part."""
    known = {*inside, *(n for slot in slots for n in (slot.assembly.whole, *slot.assembly.absorbed))}
    pending = [node]
    while pending:
        for user in pending.pop().users:
            if is_view(user):
                pending.append(user)
            elif user not in known:
                return True
    return False


def _place(piece: Piece, assembly: Assembly, growth: Growth) -> tuple[fx.Node, Slot] | None:
    """The member of a region behind a piece, with its slot; None if there is none, or its kernel would get worse."""
    value = piece.source.meta["val"]
    whole = assembly.whole.meta["val"]
    if value.dtype != whole.dtype or value.device != whole.device:
        return None
    axes = tuple(growth.refine.fresh_axis(size) for size in shape_of(piece.source))
    operand = follow(0, piece.source, axes, growth.refine)
    member = operand.base
    if member not in growth.spaces or not isinstance(member.meta["val"], torch.Tensor):
        return None
    strides = _strides_behind_views(member, operand.axes, axes, piece.strides, growth)
    if strides is None or not (piece.is_zero or _is_as_simple(member, strides, growth)):
        return None
    return member, Slot(assembly, strides, piece.offset, piece.is_zero)


def _strides_behind_views(
    member: fx.Node, own: Sequence[Axis], axes: Sequence[Axis], strides: Strides, growth: Growth
) -> Strides | None:
    """The strides of a member, of which a piece with ``axes`` and ``strides`` is a view. None if the piece is not all
    of the member, each element once, or an axis has no one stride."""
    refine = growth.refine
    steps = _steps(axes, strides, growth)
    atoms = refine.atoms(own)
    if set(atoms) != set(steps) or len(atoms) != len(steps):
        return None
    found: list[Extent] = []
    for axis, unused in zip(own, strides_of(member), strict=True):
        leaves = refine.leaves(axis)
        if any(not same_extent(steps[a], steps[b] * refine.size(b)) for a, b in pairwise(leaves)):
            return None
        found.append(steps[leaves[-1]] if leaves else unused)
    return tuple(found)


def _is_as_simple(member: fx.Node, strides: Strides, growth: Growth) -> bool:
    """Whether a region stays as easy to run if it writes a member with these strides: what is contiguous stays so, and
    no two dimensions have to be kept apart that could be one."""
    space = growth.spaces[member].result
    axes = [
        (axis, size, old, new)
        for axis, size, old, new in zip(space, shape_of(member), strides_of(member), strides, strict=True)
        if size != 1
    ]
    if any(old == 1 and new != 1 for _, _, old, new in axes):
        return False
    if not growth.reduces(growth.group_of[member]):
        return True  # a copy of anything, with an index of some more divisions
    for (major, _, old, new), (minor, size, old_minor, new_minor) in pairwise(axes):
        torn = same_extent(old, old_minor * size) and not same_extent(new, new_minor * size)
        if torn and not _are_apart(major, minor, growth, growth.group_of[member]):
            return False
    return True


def _are_apart(major: Axis, minor: Axis, growth: Growth, group: Sequence[fx.Node]) -> bool:
    """Whether something in a group has one of two neighbouring axes without the other, a third one in between, or reads
    a tensor in which they do not lie as one."""
    refine = growth.refine
    last, inner = refine.leaves(major)[-1], refine.leaves(minor)
    for node in group:
        space = growth.spaces[node]
        for axes in (space.axes, space.result, *(operand.axes for operand in space.operands)):
            leaves = refine.atoms(axes)
            if (last in leaves) != (inner[0] in leaves):
                return True
            if last in leaves and leaves.index(inner[0]) != leaves.index(last) + 1:
                return True
        for operand in space.operands:
            if operand.base not in growth.spaces and not is_constant(operand.base):
                steps = _steps(operand.axes, strides_of(operand.base), growth)
                if last in steps and not same_extent(steps[last], steps[inner[0]] * refine.size(inner[0])):
                    return True
    return False


def _steps(axes: Sequence[Axis], strides: Strides, growth: Growth) -> dict[int, Extent]:
    """The stride of each dimension of a tensor."""
    steps: dict[int, Extent] = {}
    for axis, step in zip(axes, strides, strict=True):
        for atom in reversed(growth.refine.leaves(axis)):
            steps[atom] = step
            step = step * growth.refine.size(atom)
    return steps
