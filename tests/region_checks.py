"""Regions of a function, compared with what its nodes compute, for the tests of capture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx

from weft.capture.regions import Capture, Region, capture
from weft.capture.slices import read_parts_of_inputs
from weft.capture.trace import trace
from weft.errors import Refusal
from weft.ir.interpret import interpret
from weft.ir.simplify import simplify

Function = Callable[..., Any]


def rows(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def traced(function: Function, inputs: Sequence[Tensor], mode: str = "fake") -> fx.GraphModule:
    """A graph with real views in it, as Inductor hands it over, where ``trace`` makes copies of them."""
    table = select_decomp_table()
    graph = make_fx(function, decomposition_table=table, tracing_mode=mode)(*inputs)  # type: ignore[arg-type]
    functional = torch.func.functionalize(graph, remove="mutations")
    return make_fx(functional, decomposition_table=table, tracing_mode=mode)(*inputs)  # type: ignore[arg-type]


def changed_by(change: Callable[[fx.Graph], None], function: Function, inputs: Sequence[Tensor]) -> fx.GraphModule:
    """A graph that something changed: it returns the same, bit for bit, and has nothing that nobody reads."""
    module = trace(function, list(inputs))
    before = module(*inputs)
    change(module.graph)
    module.graph.lint()
    module.recompile()
    torch.testing.assert_close(module(*inputs), before, rtol=0, atol=0)
    assert all(node.users or node.op in ("output", "placeholder") for node in module.graph.nodes)
    return module


def values_of(graph: fx.GraphModule, inputs: Sequence[Tensor]) -> dict[fx.Node, Any]:
    """What every node of a graph computes."""
    found: dict[fx.Node, Any] = {}

    class Recorder(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            found[n] = super().run_node(n)
            return found[n]

    Recorder(graph).run(*inputs)
    return found


def checked(function: Function, *inputs: Tensor, views: bool = True) -> Capture:
    """The regions of a function, each of them compared with what its nodes compute, and ordered without a cycle."""
    graph = traced(function, inputs) if views else trace(function, inputs)
    read_parts_of_inputs(graph.graph)
    found = capture(graph.graph, "f")
    values = values_of(graph, inputs)
    parameters: tuple[int, ...] = ()
    for region in found.regions:
        for program in (region.program, simplify(region.program)):
            assert [o.buffer.name for o in program.outputs] == [o.buffer.name for o in region.program.outputs]
            by_name = dict(zip((b.name for b in region.program.inputs), region.inputs, strict=True))
            bound = [values[by_name[b.name]] for b in program.inputs]
            results = interpret(program, bound, parameters)
            for node, result, output in zip(region.outputs, results, program.outputs, strict=True):
                want = values[node]
                strides = [int(s) for s in output.buffer.strides]
                laid_out = want.as_strided(result.shape, strides, want.storage_offset())
                torch.testing.assert_close(result, laid_out.to(result.dtype), rtol=1e-9, atol=1e-9, msg=node.name)
                assert result.numel() == want.numel()
    check_order(graph.graph, found.regions)
    check_complete(graph.graph, found)
    return found


def check_order(graph: fx.Graph, regions: Sequence[Region]) -> None:
    """Regions and the nodes outside them can be run one after the other: no cycle once each region is one node."""
    owner: dict[fx.Node, object] = {n: n for n in graph.nodes} | {n: id(r) for r in regions for n in r.members}
    assert len({n for r in regions for n in r.members}) == sum(len(r.members) for r in regions)
    needs: dict[object, set[object]] = {owner[n]: set() for n in graph.nodes}
    for region in regions:
        needs[id(region)] |= {owner[n] for n in region.inputs}
    for node in graph.nodes:
        if owner[node] is node:
            needs[node] |= {owner[n] for n in node.all_input_nodes}
    done: set[object] = set()
    while ready := {key for key, wanted in needs.items() if key not in done and wanted <= done}:
        done |= ready
    assert done == needs.keys(), "regions wait for each other"


def check_complete(graph: fx.Graph, found: Capture) -> None:
    """What is read from outside a region is among its outputs, and no member is refused as well."""
    refused = {r.subject for r in found.refusals}
    for region in found.regions:
        members = set(region.members)
        assert not refused & {n.name for n in members}
        for node in region.members:
            direct = [u for u in node.users if u not in members and u.op == "output"]
            assert not direct or node in region.outputs, node
        assert set(region.outputs) <= members
        assert not members & set(region.inputs)


def names(region: Region) -> list[str]:
    return [n.name for n in region.members]


def only(found: Capture) -> Region:
    (region,) = found.regions
    assert not found.refusals, found.refusals
    return region


def refusal(found: Capture, rule: str) -> Refusal:
    (match,) = [r for r in found.refusals if r.rule == rule]
    return match


def text_of(region: Region) -> str:
    return str(simplify(region.program))
