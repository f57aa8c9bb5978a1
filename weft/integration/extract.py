"""A region as a graph of its own, with the sizes that its graph was traced with: what races are run on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from weft.capture.assembly import Assembly, Slot, complete
from weft.capture.refine import Extent, extent
from weft.capture.regions import Region
from weft.integration.sizes import UnknownSymbolError
from weft.ir.structure import reachable

Symbols = Mapping[Any, int]


@dataclass(frozen=True)
class Extract:
    """module: from the region's inputs to its outputs, of which parts of a larger tensor are put together. region: the
    same region, of the nodes of this graph. inputs: fake tensors, one a placeholder."""

    module: fx.GraphModule
    region: Region
    inputs: tuple[torch.Tensor, ...]


def is_whole(region: Region) -> bool:
    """Whether the region writes all parts of each tensor that it writes a part of."""
    slots = [slot for slot in region.slots if slot is not None]
    return {slot.assembly for slot in slots} == complete(slots)


def tensors_of(region: Region) -> list[fx.Node]:
    """What a region reads, without the parts of tensors that it reads as well."""
    pairs = zip(region.inputs, region.program.inputs, strict=True)
    return list(dict.fromkeys(node for node, buffer in pairs if not buffer.within))


def results(region: Region) -> list[fx.Node]:
    """What a whole region writes: tensors that are put together of its outputs in the place of these."""
    pairs = zip(region.outputs, region.slots, strict=True)
    return list(dict.fromkeys(node if slot is None else slot.assembly.whole for node, slot in pairs))


def extract(region: Region, symbols: Symbols) -> Extract:
    """A graph of its own for a region that is whole; symbols: values of those of its graph. Raises UnknownSymbolError
    for a size without a value."""
    mode, graph = FakeTensorMode(), fx.Graph()
    made: dict[fx.Node, Any] = {}
    for node in tensors_of(region):
        made[node] = graph.placeholder(node.name)
        made[node].meta["val"] = _concrete(node.meta["val"], symbols, mode)
    inputs = tuple(node.meta["val"] for node in made.values())
    written = results(region)
    needed = _behind(written, made)
    for node in (node for node in region.outputs[0].graph.nodes if node in needed):
        value = _concrete(node.meta.get("val"), symbols, mode)
        if isinstance(value, int):
            made[node] = value
        elif node.op == "call_function":
            made[node] = graph.node_copy(node, made.__getitem__)
            made[node].meta = {"val": value}
        else:
            raise UnknownSymbolError(f"{node} is no input of the region, and nothing that it computes")
    graph.output(tuple(made[node] for node in written))
    return Extract(fx.GraphModule({}, graph), _moved(region, made, symbols), inputs)


def layout_of(value: torch.Tensor, symbols: Symbols) -> tuple[list[int], list[int], int]:
    """Sizes, strides and storage offset, in elements. Raises UnknownSymbolError."""
    shape, strides = ([number(each, symbols) for each in own] for own in (value.shape, value.stride()))
    return shape, strides, number(value.storage_offset(), symbols)


def number(value: int | torch.SymInt | Extent, symbols: Symbols) -> int:
    """A size of the graph, or an expression over its symbols, as a number. Raises UnknownSymbolError."""
    found = extent(value) if isinstance(value, int | torch.SymInt) else value
    found = found if isinstance(found, int) else found.subs(dict(symbols))
    if not isinstance(found, int) and not found.is_Integer:
        raise UnknownSymbolError(f"the size {found} is known at run time only")
    return int(found)


def _concrete(value: Any, symbols: Symbols, mode: FakeTensorMode) -> Any:
    """What a node holds, without symbols."""
    if isinstance(value, torch.Tensor):
        shape, strides, offset = layout_of(value, symbols)
        reach = offset + 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        with mode:
            whole = torch.empty(reach, dtype=value.dtype, device=value.device)
            return whole.as_strided(shape, strides, offset)
    if isinstance(value, tuple | list):
        return tuple(_concrete(each, symbols, mode) for each in value)  # pyright: ignore[reportUnknownVariableType]
    return number(value, symbols) if isinstance(value, torch.SymInt) else value


def _behind(nodes: Iterable[fx.Node], known: Collection[fx.Node]) -> Collection[fx.Node]:
    """These nodes and all that they are computed of but what is known; of a size nothing more is needed."""

    def operands(node: fx.Node) -> list[fx.Node]:
        is_size = isinstance(node.meta.get("val"), int | torch.SymInt)
        return [] if is_size else [each for each in node.all_input_nodes if each not in known]

    return reachable((node for node in nodes if node not in known), operands)


def _moved(region: Region, made: Mapping[fx.Node, Any], symbols: Symbols) -> Region:
    """The region of the nodes that were made."""
    assemblies: dict[Assembly, Assembly] = {}

    def moved(slot: Slot) -> Slot:
        old = slot.assembly
        assemblies.setdefault(old, Assembly(made[old.whole], tuple(made[node] for node in old.absorbed), old.parts))
        strides = tuple(number(stride, symbols) for stride in slot.strides)
        return replace(slot, assembly=assemblies[old], strides=strides, offset=number(slot.offset, symbols))

    return replace(
        region,
        members=tuple(made[node] for node in region.members if node in made),
        inputs=tuple(made[node] for node in region.inputs),
        outputs=tuple(made[node] for node in region.outputs),
        slots=tuple(None if slot is None else moved(slot) for slot in region.slots),
        parameters={name: number(expression, symbols) for name, expression in region.parameters.items()},
    )
