"""Replaces regions of a graph by launches.

Launches enter as ``auto_functionalized_v2(weft::launch)``: in a graph that is still functional a raw mutable operator
has no edge to the readers of what it writes, and a later topological sort may move a reader before it.
"""

from __future__ import annotations

import operator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from weft.backends.listed import device_of
from weft.capture.assembly import Slot
from weft.capture.nodes import VIEWS, is_constant, strides_of
from weft.capture.refine import Extent, extent
from weft.compiler import Compilation, CompiledRegion, without_failing
from weft.errors import VerificationError
from weft.integration.donated import write_in_place
from weft.integration.generated import register
from weft.integration.order import sort
from weft.integration.part_views import part_of, view
from weft.integration.sizes import SizeNodes, values_of
from weft.integration.stored import store_once
from weft.integration.wholes import FUNCTIONALIZED, Wholes
from weft.ir import dtypes
from weft.ir.program import Buffer, Size
from weft.options import Options
from weft.plan.kernel import Kernel
from weft.runtime.executable import digest_of

aten = torch.ops.aten
_DEFAULTS = Options()


def rewrite(graph: fx.Graph, compilation: Compilation, options: Options = _DEFAULTS) -> Compilation:
    """Put launches in place of the regions' nodes, remove what nobody needs any more, and sort the graph.

    A region that cannot be rewritten, e.g. because no input has one of its run-time sizes, stays as it is and becomes a
    refusal. Raises what goes wrong after that, with a graph that is the one given. options: those of them
    that launches need travel in the graph.
    """
    register()
    sizes = SizeNodes(graph)
    backup = fx.Graph()
    _copy_nodes(graph, backup, {})
    checked = without_failing(compilation, "rewrite", lambda region: check_sizes(region, sizes))
    wholes = Wholes(graph, sizes, [slot for region in checked.regions for slot in region.region.slots])
    replaced: dict[fx.Node, fx.Node] = {}
    launches: dict[fx.Node, Kernel] = {}

    def rewrite_region(region: CompiledRegion) -> None:
        launches.update(_Rewriter(graph, region, sizes, wholes, replaced, options).run())

    try:
        done = without_failing(checked, "rewrite", rewrite_region)
        absorbed = wholes.detach()
        members = {node for region in done.regions for node in region.region.members}
        for node in reversed(list(graph.nodes)):
            removable = node in members or node in absorbed or is_constant(node)
            removable = removable or (node.op == "call_function" and node.target in VIEWS)
            if removable and not node.users:
                graph.erase_node(node)
        sort(graph)
        wholes.put_in_place()
        write_in_place(graph, launches)
        store_once(launches)
        graph.lint()
        verify_texts(graph)
    except Exception:
        _restore(graph, backup)
        raise
    return replace(done, refusals=(*done.refusals, *wholes.refusals))


class _Rewriter:
    """Rewrites one region. ``replaced``: results of regions done before, by the node they stand for."""

    def __init__(
        self,
        graph: fx.Graph,
        compiled: CompiledRegion,
        sizes: SizeNodes,
        wholes: Wholes,
        replaced: dict[fx.Node, fx.Node],
        options: Options,
    ) -> None:
        self.graph, self.compiled, self.sizes, self.wholes, self.replaced = graph, compiled, sizes, wholes, replaced
        self.options = options
        region = compiled.region
        inputs = [replaced.get(node, node) for node in region.inputs]
        self.nodes: dict[str, fx.Node] = dict(zip((b.name for b in region.program.inputs), inputs, strict=True))
        names = [o.buffer.name for o in region.program.outputs]
        self.originals = dict(zip(names, region.outputs, strict=True))
        self.slots = dict(zip(names, region.slots, strict=True))
        self.expressions = expressions_of(compiled)

    def run(self) -> dict[fx.Node, Kernel]:
        """Rewrite the region; returns its launches. If that fails the graph stays as it is, but for unused nodes of
        sizes and wholes."""
        launches: dict[fx.Node, Kernel] = {}
        last = self.compiled.region.members[-1]
        with self.graph.inserting_after(last):
            # each new node is put before the next one through this anchor
            anchor = self.graph.call_function(aten.alias.default, (last,))
        try:
            with self.graph.inserting_before(anchor):
                for kernel in self.compiled.plan.kernels:
                    launches[self._launch(kernel)] = kernel
        except Exception:
            while anchor.prev is not last:
                self.graph.erase_node(anchor.prev)
            raise
        finally:
            self.graph.erase_node(anchor)
        for name, original in self.originals.items():
            if (slot := self.slots[name]) in self.wholes:
                assert slot is not None
                self.wholes.add_written(slot, self.nodes[name])
            elif original not in self.replaced:
                original.replace_all_uses_with(self.nodes[name])
                self.replaced[original] = self.nodes[name]
        return launches

    def _launch(self, kernel: Kernel) -> fx.Node:
        """Launch a kernel; ``nodes`` gets, for each of its outputs, the tensor that was written."""
        bases: dict[fx.Node, int] = {}
        places: dict[str, Any] = {"_outputs_length": len(kernel.program.outputs)}
        written: dict[str, int] = {}
        allocated: dict[str, fx.Node] = {}
        numbers: set[fx.Node] = set()
        for i, output in enumerate(kernel.program.outputs):
            buffer, name = output.buffer, output.buffer.within or output.buffer.name
            place: Extent | None = buffer.place if buffer.within else None
            if (slot := self.slots.get(name)) in self.wholes:
                assert slot is not None
                base, place = self.wholes.base(slot), slot.offset + buffer.place
            else:
                if name not in allocated:
                    allocated[name] = self._allocate(name, buffer)
                base = allocated[name]
                if self._is_number(name, buffer):
                    numbers.add(base)
                    place = 0
            if place is not None:
                shape, strides = self._layout(buffer, slot)
                places |= {f"_outputs_{i}_size": shape, f"_outputs_{i}_stride": strides}
                places[f"_outputs_{i}_storage_offset"] = self.sizes.get(place)
            written[name] = places[f"_outputs_{i}_base_index"] = bases.setdefault(base, len(bases))
        inputs = [self.nodes[b.name] if b.name in self.nodes else self._part(b) for b in kernel.program.inputs]
        node = self.graph.call_function(
            FUNCTIONALIZED,
            (torch.ops.weft.launch.default,),
            {
                "digest": digest_of(kernel),
                "kernel": kernel.line,
                "inputs": inputs,
                "sizes": [self.sizes.get(self.expressions[p]) for p in kernel.program.parameters],
                "options": str(self.options.of_launch(device_of(kernel))),
                **places,
                "_all_bases": [*bases],
            },
        )
        node.meta["val"] = (None, *(_like(base.meta["val"]) for base in bases))
        items: list[fx.Node] = []
        for base, index in bases.items():
            item = self.graph.call_function(operator.getitem, (node, 1 + index))
            item.meta["val"] = node.meta["val"][1 + index]
            items.append(view(item, aten.view.default, []) if base in numbers else item)
        self.nodes.update((name, items[index]) for name, index in written.items())
        return node

    def _layout(self, buffer: Buffer, slot: Slot | None) -> tuple[list[int | fx.Node], list[int | fx.Node]]:
        """Sizes and strides of what a launch writes of a tensor: of all axes of a slot, or of a buffer's dimensions."""
        if slot is not None and not buffer.within:
            shape = self.originals[buffer.name].meta["val"].shape
            along = [slot.is_zero and stride == 0 for stride in slot.strides]
            sizes = [1 if zero else self.sizes.get(extent(n)) for n, zero in zip(shape, along, strict=True)]
            return sizes, [self.sizes.get(stride) for stride in slot.strides]
        by_name = {d.name: d.size for d in self.compiled.program.dims}
        sizes = [self.sizes.get(self._expression(by_name[d])) for d in buffer.dims]
        return sizes, [self.sizes.get(self._expression(s)) for s in buffer.strides]

    def _part(self, buffer: Buffer) -> fx.Node:
        """What an input of a kernel is of the tensor that it lies within."""
        part = part_of(self.nodes[buffer.within], buffer, self.compiled.program, self.sizes)
        self.nodes[buffer.name] = part
        return part

    def _is_number(self, name: str, buffer: Buffer) -> bool:
        """Whether an output has no dimensions. TorchInductor (2.11 to 2.13) fills memory that has none, which is to be
        left as it is, by a kernel of its own; so such an output is a view of a tensor of one element."""
        original = self.originals.get(name)
        return not (buffer.dims if original is None else original.meta["val"].shape)

    def _allocate(self, name: str, buffer: Buffer) -> fx.Node:
        """An uninitialised tensor: with the shape of the node it replaces, or of the dimensions of an intermediate."""
        original = self.originals.get(name)
        if original is not None:
            tensor, slot = original.meta["val"], self.slots[name]
            strides = strides_of(original) if slot is None else slot.strides
            dtype, device, value = tensor.dtype, tensor.device, tensor if slot is None else None
            size_args = [self.sizes.get(extent(s)) for s in tensor.shape]
            stride_args = [self.sizes.get(s) for s in strides]
        else:
            value = None
            size_args, stride_args = self._layout(buffer, None)
            dtype = dtypes.TORCH_DTYPES[buffer.dtype]
            device = self.compiled.region.outputs[0].meta["val"].device
        if self._is_number(name, buffer):
            value, size_args, stride_args = None, [1], [1]
        node = self.graph.call_function(
            aten.empty_strided.default, (size_args, stride_args), {"dtype": dtype, "device": device}
        )
        if value is None:
            mode = self.compiled.region.outputs[0].meta["val"].fake_mode
            with mode:
                value = torch.empty_strided(values_of(size_args), values_of(stride_args), dtype=dtype, device=device)
        node.meta["val"] = value
        return node

    def _expression(self, size: Size) -> Extent:
        return self.expressions[size] if isinstance(size, str) else size


def _like(value: torch.Tensor) -> torch.Tensor:
    """A tensor of the same layout in memory of its own, as a functional operation returns. TorchInductor lets a launch
    write over what nobody reads later, nor anything in the same memory; torch 2.11 takes the graph's word for that."""
    mode = getattr(value, "fake_mode", None)
    with mode or nullcontext():
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


def verify_texts(graph: fx.Graph) -> None:
    """Raises VerificationError if a launch has an argument with a newline. TorchInductor writes what is around a Triton
    kernel into a comment above it, where a newline would end the comment."""
    for node in graph.find_nodes(op="call_function", target=FUNCTIONALIZED):
        texts = (value for value in node.kwargs.values() if isinstance(value, str))
        if node.args[0] is torch.ops.weft.launch.default and any(len(text.splitlines()) > 1 for text in texts):
            raise VerificationError(f"{node}: an argument of a launch has a newline")


def check_sizes(compiled: CompiledRegion, sizes: SizeNodes) -> None:
    """Raises UnknownSymbolError if a size that the launches of a region need cannot be had; changes nothing."""
    for expression in expressions_of(compiled).values():
        sizes.check(expression)
    for original, slot in zip(compiled.region.outputs, compiled.region.slots, strict=True):
        whole = original if slot is None else slot.assembly.whole
        for size in (*original.meta["val"].shape, *whole.meta["val"].shape):
            sizes.check(extent(size))
        for stride in (*strides_of(original), *strides_of(whole), *(slot.strides if slot else ())):
            sizes.check(stride)
        sizes.check(slot.offset if slot else 0)


def expressions_of(compiled: CompiledRegion) -> dict[str, Extent]:
    """What is behind each run-time parameter of a region's kernels."""
    expressions: dict[str, Extent] = dict(compiled.region.parameters)
    for name, factors in compiled.plan.products.items():
        product: Any = 1
        for factor in factors:
            product = product * (expressions[factor] if isinstance(factor, str) else factor)
        expressions[name] = product
    return expressions


def _copy_nodes(source: fx.Graph, target: fx.Graph, values: dict[fx.Node, fx.Node]) -> None:
    """Append copies of the nodes of ``source`` that ``values`` has no node for."""
    for node in source.nodes:
        if node not in values:
            values[node] = target.node_copy(node, values.__getitem__)


def _restore(graph: fx.Graph, backup: fx.Graph) -> None:
    """Make ``graph``, which may be in no order, what it was; the nodes of its inputs stay the same ones."""
    changed = [node for node in graph.nodes if node.op != "placeholder"]
    for node in changed:
        node.args, node.kwargs = (), {}
    for node in changed:
        graph.erase_node(node)
    placeholders = (node for node in backup.nodes if node.op == "placeholder")
    _copy_nodes(backup, graph, dict(zip(placeholders, graph.nodes, strict=True)))
