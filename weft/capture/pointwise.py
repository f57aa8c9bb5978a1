"""Which regions without a reduction stay with TorchInductor.

A rotation is worth a kernel of its own, and so is what lies beside it in one tensor: TorchInductor computes both halves
for each element of both. That holds only as long as the kernel does all that TorchInductor's would: what the latter
computes where it is used would be stored and loaded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import fx

from weft.capture.assembly import Assembly, complete
from weft.capture.lower import POINTWISE, REDUCTIONS
from weft.capture.nodes import storage_bytes, users_behind_views
from weft.capture.opaque import PADDING
from weft.capture.parts import slice_of
from weft.capture.sources import origin
from weft.errors import Refusal
from weft.ir.ops import lookup

if TYPE_CHECKING:
    from weft.capture.regions import Region

aten = torch.ops.aten
JOINING = (*PADDING, aten.cat.default, aten.select_scatter.default)
"""Operations that TorchInductor fuses, being a choice for each element."""
LARGE = 0.5
"""Of the bytes of a region's largest result: what is read and is smaller may be stored as well."""


def check_alone(regions: Sequence[Region]) -> dict[int, Refusal]:
    """The regions to leave out, by their places, each with the reason."""
    found: dict[int, Refusal] = {}
    while True:
        taken = {at: region for at, region in enumerate(regions) if at not in found}
        assemblies = complete(slot for region in taken.values() for slot in region.slots if slot is not None)
        inside = {node for region in taken.values() for node in region.members}
        inside |= {node for assembly in assemblies for node in (assembly.whole, *assembly.absorbed)}
        refused = {at: refusal for at, r in taken.items() if (refusal := _check(r, assemblies, inside)) is not None}
        if not refused:
            return found
        found |= refused


def _check(region: Region, assemblies: Collection[Assembly], inside: Collection[fx.Node]) -> Refusal | None:
    if any(lookup(value.op).kind == "reduction" for value in region.program.values):
        return None
    if region.is_beside and any(slot is None or slot.assembly not in assemblies for slot in region.slots):
        return _refusal(region, region.outputs[0], "the other parts of its tensor stay with Inductor")
    for node in (*_readers(region, assemblies), *map(_computed, _large_inputs(region))):
        if node not in inside and is_fused(node):
            return _refusal(region, node, f"Inductor fuses it with {node.target}, which is in no kernel of weft")
    return None


def _refusal(region: Region, node: fx.Node, message: str) -> Refusal:
    return Refusal("fused_further", region.program.name, message, where=origin(node))


def _readers(region: Region, assemblies: Collection[Assembly]) -> Iterator[fx.Node]:
    """Whoever reads a result, or the tensor that it is a part of."""
    for node, slot in zip(region.outputs, region.slots, strict=True):
        yield from users_behind_views(node if slot is None or slot.assembly not in assemblies else slot.assembly.whole)


def _large_inputs(region: Region) -> Iterator[fx.Node]:
    most = max(map(storage_bytes, region.outputs))
    yield from (node for node in region.inputs if storage_bytes(node) >= LARGE * most)


def _computed(node: fx.Node) -> fx.Node:
    """What a slice is a part of; any other node itself."""
    while (found := slice_of(node)) is not None:
        node = found[0]
    return node


def is_fused(node: fx.Node) -> bool:
    """Whether TorchInductor computes a node in one kernel with what it reads and with what reads it."""
    target = node.target
    if target in POINTWISE or target in REDUCTIONS or target in JOINING:
        return True
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.pointwise in target.tags
