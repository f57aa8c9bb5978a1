"""Results that are put together into one tensor: kernels write each part where it belongs."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch._inductor.utils import run_and_get_code
from torch.fx.experimental.proxy_tensor import make_fx

import weft
from tests.test_backend import run_python
from weft.bench.models.dit import Dit
from weft.bench.models.model import Model
from weft.bench.models.scale_shift import ScaleShiftTable
from weft.bench.models.transformer import ResidualMix
from weft.capture.assembly import Assembly, Slot
from weft.capture.trace import trace
from weft.compiler import Compilation, build, compile_graph
from weft.errors import RefusedError
from weft.integration import rewrite as rewriting
from weft.integration.rewrite import rewrite
from weft.integration.sizes import symbol_hints
from weft.integration.wholes import FUNCTIONALIZED
from weft.options import Options
from weft.plan import planner
from weft.runtime.counters import counters

aten = torch.ops.aten
Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Every region is taken, however small, and memory that nobody has written yet holds NaN."""
    monkeypatch.setattr(planner, "check_worthwhile", lambda *_: None)
    torch._dynamo.reset()
    weft.counters.reset()
    weft.clear_reports()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def compiled_graph(
    function: Function, inputs: Sequence[Tensor], dynamic: bool = False
) -> tuple[fx.GraphModule, Compilation]:
    graph = trace(function, inputs, dynamic_rows=dynamic)
    compilation = compile_graph(graph.graph, symbols=symbol_hints(graph.graph))
    assert compilation.regions
    return graph, build(compilation, Options.read())


def rewritten(
    function: Function, inputs: Sequence[Tensor], dynamic: bool = False
) -> tuple[fx.GraphModule, Compilation]:
    graph, compilation = compiled_graph(function, inputs, dynamic)
    done = rewrite(graph.graph, compilation)
    graph.recompile()
    return graph, done


def integers(*shape: int) -> Tensor:
    """Small whole numbers, whose sums are exact in float32."""
    return torch.randint(-8, 9, shape).float()


def same(graph: fx.GraphModule, function: Function, *inputs: Tensor) -> None:
    """Equal in every bit to float64, which is exact on whole numbers."""
    mine, theirs = graph(*inputs), function(*(x.double() if x.is_floating_point() else x for x in inputs))
    mine, theirs = (r if isinstance(r, tuple | list) else [r] for r in (mine, theirs))
    for a, b in zip(mine, theirs, strict=True):
        assert a.shape == b.shape
        torch.testing.assert_close(a.double(), b.double(), rtol=0, atol=0)


def slots_of(compilation: Compilation) -> list[Slot]:
    return [slot for r in compilation.regions for slot in r.region.slots if slot is not None]


def assemblies(compilation: Compilation) -> set[Assembly]:
    return {slot.assembly for slot in slots_of(compilation)}


JOINS = (aten.cat.default, aten.select_scatter.default, aten.slice_scatter.default)


def joins(graph: fx.GraphModule) -> list[str]:
    return [n.name for n in graph.graph.nodes if n.target in JOINS]


def zeros(*shape: int) -> Tensor:
    return torch.zeros(shape)


def two_regions(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """The second part needs a product with the rows whose sum is the first."""
    y = x * 2
    z = (y @ w) * 3
    return torch.cat([z.sum(0), y.sum(0), (z * z).sum(0)]), z


def nested(x: Tensor) -> Tensor:
    return torch.cat([torch.cat([x.sum(0), (x * x).sum(0)]), (x + 1).sum(0)])


ASSEMBLED: dict[str, tuple[Function, tuple[tuple[int, ...], ...], int]] = {
    "cat 0": (lambda x: torch.cat([x.sum(0), (x * x).sum(0)]), ((40, 24),), 2),
    "cat 1, one segment": (lambda x: torch.cat([x.sum(1, True), (x * x).sum(1, True)], 1), ((1, 40, 24),), 2),
    "cat 1": (lambda x: torch.cat([x.sum(1, True), (x * x).sum(1, True)], 1), ((3, 40, 24),), 2),
    "cat last": (lambda x: torch.cat([x.sum(1), (x * x).sum(1), (x + 1).sum(1)], -1), ((3, 40, 24),), 3),
    "cat of different sizes": (lambda x: torch.cat([x.sum(0), (x * 2).sum(1)]), ((40, 24),), 2),
    "stack": (lambda x: torch.stack([x.sum(0), (x * x).sum(0)]), ((40, 24),), 2),
    "stack 1": (lambda x: torch.stack([x.sum(1), (x * x).sum(1)], 1), ((3, 40, 24),), 2),
    "stack of numbers": (lambda x: torch.stack([x.sum(), (x * x).sum(), x.amax()]), ((40, 24),), 3),
    "rows": (lambda x: torch.cat([x * x.sum(-1, True), x + x.amax(-1, True)]), ((40, 24),), 2),
    "converted": (lambda x: torch.cat([x.sum(0).double(), (x * x).sum(0).double()]), ((40, 24),), 2),
    "twice": (lambda x: torch.cat([x.sum(0), x.sum(0), (x * x).sum(0)]), ((40, 24),), 3),
    "two regions": (two_regions, ((40, 24), (24, 24)), 3),
    "used elsewhere": (lambda x, w: (torch.cat([s := x.sum(0), (x * x).sum(0)]), s, s @ w), ((40, 24), (24, 24)), 2),
    "used in the region": (lambda x: (torch.cat([s := x.sum(0), (x * x).sum(0)]), (x - s).amax(1)), ((40, 24),), 2),
    "in two tensors": (lambda x: (torch.cat([s := x.sum(0), t := (x * x).sum(0)]), torch.stack([t, s])), ((9, 24),), 4),
    "read by a region": (lambda x: torch.cat([x.sum(0), (x * x).sum(0)]).view(2, -1).amax(1), ((40, 24),), 2),
    "read and written": (lambda x: torch.cat([x.sum(0), (x * x).sum(0)]).mul_(2), ((40, 24),), 2),
    "views behind": (lambda x: torch.cat([x.sum(0).view(4, 6), (x * x).sum(0).view(4, 6)], 0), ((40, 24),), 2),
    "scattered rows": (
        lambda x: (
            torch.select_scatter(zeros(2, 24), x.sum(0), 0, 1)
            + torch.select_scatter(zeros(2, 24), (x * x).sum(0), 0, -2)
        ),
        ((40, 24),),
        2,
    ),
    "scattered slices": (
        lambda x: (
            torch.slice_scatter(zeros(48), x.sum(0), 0, 0, 24) + torch.slice_scatter(zeros(48), (x * x).sum(0), 0, 24)
        ),
        ((40, 24),),
        2,
    ),
    "three scattered": (
        lambda x: (
            torch.select_scatter(zeros(3, 24), x.sum(0), 0, 1)
            + torch.select_scatter(zeros(3, 24), (x * x).sum(0), 0, 2)
            + torch.select_scatter(zeros(3, 24), x.amax(0), 0, 0)
        ),
        ((40, 24),),
        3,
    ),
    "scattered, and more added": (
        lambda x, y: (
            torch.select_scatter(zeros(2, 24), x.sum(0), 0, 1)
            + torch.select_scatter(zeros(2, 24), (x * x).sum(0), 0, 0)
            + y
        ),
        ((40, 24), (2, 24)),
        2,
    ),
}


@pytest.mark.parametrize("name", ASSEMBLED)
def test_parts_are_written_into_the_whole(name: str) -> None:
    function, shapes, parts = ASSEMBLED[name]
    inputs = tuple(integers(*shape) for shape in shapes)
    graph, done = rewritten(function, inputs)
    assert len(slots_of(done)) == sum(assembly.parts for assembly in assemblies(done)) == parts
    assert joins(graph) == []
    same(graph, function, *inputs)
    same(graph, function, *(integers(*shape) for shape in shapes))
    assert counters.fallbacks == 0
    left = {refusal.subject for refusal in done.refusals}
    assert not left & {n.name for a in assemblies(done) for n in (a.whole, *a.absorbed)}


def test_every_node_has_a_value() -> None:
    graph, _ = rewritten(two_regions, (integers(40, 24), integers(24, 24)))
    assert all("val" in n.meta for n in graph.graph.nodes if n.op == "call_function")
    first, second = (n for n in graph.graph.nodes if n.target is FUNCTIONALIZED)
    (shared,) = {v.args[0] for v in second.kwargs["_all_bases"] if v.target is not aten.empty_strided.default}
    assert shared is first


def test_a_whole_that_is_only_partly_from_regions_stays_beside_one_that_is_not() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        s = x.sum(0)
        return torch.cat([s, (x * x).sum(0)]), torch.cat([s, x[0]])

    x = integers(40, 24)
    graph, done = rewritten(function, (x,))
    assert len(assemblies(done)) == len(joins(graph)) == 1
    same(graph, function, x)


LEFT_ALONE: dict[str, tuple[Function, tuple[tuple[int, ...], ...]]] = {
    "a part is no result of a region": (lambda x, w: torch.cat([x.sum(0), w[0]]), ((40, 24), (24, 24))),
    "a part is a product": (lambda x, w: torch.cat([x.sum(0, True), w @ w]), ((40, 24), (24, 24))),
    "a part is an input": (lambda x, w: torch.cat([x.sum(0, True), w]), ((40, 24), (24, 24))),
    "dtypes differ": (lambda x: torch.cat([x.sum(0), x.sum(0).double()]), ((40, 24),)),
    "interleaved": (lambda x: torch.stack([x.sum(0), (x * x).sum(0)], -1), ((40, 24),)),
    "rows torn apart": (lambda x: torch.cat([x * x.sum(-1, True), x + x.amax(-1, True)], 1), ((4, 10, 24),)),
    "part of a result": (lambda x: torch.cat([x.sum(0)[:12], (x * x).sum(0)]), ((40, 24),)),
    "scatters that meet": (
        lambda x: (
            torch.slice_scatter(zeros(40), x.sum(0), 0, 0, 24) + torch.slice_scatter(zeros(40), (x * x).sum(0), 0, 16)
        ),
        ((40, 24),),
    ),
    "scatters that leave a gap": (
        lambda x: (
            torch.select_scatter(zeros(3, 24), x.sum(0), 0, 1)
            + torch.select_scatter(zeros(3, 24), (x * x).sum(0), 0, 0)
        ),
        ((40, 24),),
    ),
    "scatters into ones": (
        lambda x: (
            torch.select_scatter(torch.ones(2, 24), x.sum(0), 0, 1)
            + torch.select_scatter(zeros(2, 24), (x * x).sum(0), 0, 0)
        ),
        ((40, 24),),
    ),
    "scatters along two axes": (
        lambda x: (
            torch.select_scatter(zeros(2, 24), x.sum(0), 0, 0) + torch.slice_scatter(zeros(2, 24), x[:2, :12], 1, 12)
        ),
        ((40, 24),),
    ),
    "strided scatter": (
        lambda x: (
            torch.slice_scatter(zeros(48), x.sum(0), 0, 0, 48, 2)
            + torch.slice_scatter(zeros(48), (x * x).sum(0), 0, 1, 48, 2)
        ),
        ((40, 24),),
    ),
    "scaled sum": (
        lambda x: torch.add(
            torch.select_scatter(zeros(2, 24), x.sum(0), 0, 1),
            torch.select_scatter(zeros(2, 24), (x * x).sum(0), 0, 0),
            alpha=2,
        ),
        ((40, 24),),
    ),
    "one scatter twice": (
        lambda x: (y := torch.select_scatter(zeros(2, 24), x.sum(0), 0, 1)) + y,
        ((40, 24),),
    ),
    "a scatter read elsewhere": (
        lambda x: (
            (y := torch.select_scatter(zeros(2, 24), x.sum(0), 0, 1)),
            y + torch.select_scatter(zeros(2, 24), (x * x).sum(0), 0, 0),
        ),
        ((40, 24),),
    ),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_is_no_assembly_is_left_alone(name: str) -> None:
    function, shapes = LEFT_ALONE[name]
    inputs = tuple(integers(*shape) for shape in shapes)
    graph, done = rewritten(function, inputs)
    assert slots_of(done) == []
    assert joins(graph)
    same(graph, function, *inputs)


VIEWED: dict[str, tuple[Function, tuple[int, ...], int]] = {
    "split": (lambda x: torch.cat([x.sum(0).view(4, 6), (x * x).sum(0).view(4, 6)]), (40, 24), 2),
    "merged": (lambda x: torch.cat([x.sum(0).view(24), (x * x).sum(0).view(24)]), (40, 4, 6), 2),
    "split, and no row on its own": (lambda x: torch.cat([x.sum(0).view(4, 6)] * 2, 1), (40, 24), 0),
    "rows apart": (lambda x: torch.cat([x.sum(1).view(6, 24)] * 2, 1), (6, 40, 24), 2),
    "two axes of rows apart": (lambda x: torch.cat([x.sum(2).view(6, 24)] * 2, 1), (2, 3, 40, 24), 2),
    "transposed": (lambda x: torch.cat([x.sum(0).t(), (x * x).sum(0).t()]), (40, 4, 6), 0),
    "square and transposed": (lambda x: torch.cat([x.sum(0).t(), (x * x).sum(0).t()]), (40, 6, 6), 0),
    "outer axes swapped": (
        lambda x: torch.cat([x.sum((1, 3)).transpose(0, 1), x.amax((1, 3)).transpose(0, 1)]),
        (3, 9, 3, 7, 8),
        2,
    ),
    "neighbours swapped": (lambda x: torch.cat([x.sum(2).transpose(0, 1), x.amax(2).transpose(0, 1)]), (3, 3, 9, 8), 0),
    "expanded": (lambda x: torch.cat([x.sum(1, True).expand(40, 24), x * x.amax(1, True)]), (40, 24), 0),
}


@pytest.mark.parametrize("name", VIEWED)
def test_parts_behind_views(name: str) -> None:
    """Views as they stand in the graph: tracing a function puts copies in their place."""
    function, shape, parts = VIEWED[name]
    x = integers(*shape)
    graph = make_fx(function, tracing_mode="fake")(x)
    compilation = build(compile_graph(graph.graph), Options.read())
    done = rewrite(graph.graph, compilation)
    graph.recompile()
    assert len(slots_of(done)) == parts
    assert len(joins(graph)) == (not parts)
    same(graph, function, x)
    assert counters.fallbacks == 0


DYNAMIC: dict[str, Function] = {
    "offset": lambda x: torch.cat([x.sum(1), (x * x).sum(1)]),
    "stride": lambda x: torch.stack([(x * x).amax(1), x.sum(1)]),
    "whole": lambda x: torch.cat([x * x.sum(-1, True), x + x.amax(-1, True)]),
    "columns": lambda x: torch.stack([x.sum(0), (x * x).sum(0)]),
}


@pytest.mark.parametrize("name", DYNAMIC)
def test_one_graph_serves_every_number_of_rows(name: str) -> None:
    graph, done = rewritten(DYNAMIC[name], (integers(12, 24),), dynamic=True)
    assert len(slots_of(done)) == 2
    assert joins(graph) == []
    for rows in (2, 12, 33):
        same(graph, DYNAMIC[name], integers(rows, 24))


# what goes wrong on the way


def test_a_part_whose_region_is_left_out_leaves_the_whole_as_it_was() -> None:
    inputs = (integers(40, 24), integers(24, 24))
    for missing in range(2):
        graph, compilation = compiled_graph(two_regions, inputs)
        kept = tuple(r for i, r in enumerate(compilation.regions) if i != missing)
        assert len(kept) == 1
        done = rewrite(graph.graph, replace(compilation, regions=kept))
        graph.recompile()
        assert joins(graph) == ["cat"]
        assert "cat" in {r.subject for r in done.refusals}
        same(graph, two_regions, *inputs)


def test_a_part_whose_region_fails_late_leaves_the_graph_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = (integers(40, 24), integers(24, 24))
    graph, compilation = compiled_graph(two_regions, inputs)
    before = [n.target for n in graph.graph.nodes]
    run, calls = rewriting._Rewriter.run, [0]

    def second_fails(self: Any) -> None:
        calls[0] += 1
        if calls[0] == 2:
            raise RuntimeError("no")
        run(self)

    monkeypatch.setattr(rewriting._Rewriter, "run", second_fails)
    with pytest.raises(RuntimeError, match="of 3 parts of cat"):
        rewrite(graph.graph, compilation)
    assert [n.target for n in graph.graph.nodes] == before
    graph.recompile()
    same(graph, two_regions, *inputs)


def test_a_function_of_nothing_but_parts_is_taken_whole() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.cat([x.sum(0), (x * x).sum(0)])

    x = integers(40, 24)
    assert torch.equal(weft.fuse(function, strict=True)(x), function(x))
    with pytest.raises(RefusedError, match="cat"):
        weft.fuse(lambda x: torch.cat([x.sum(0), x[0]]), strict=True)(x)


# through torch.compile


def modulated(table: Tensor, condition: Tensor, x: Tensor) -> Tensor:
    """Six modulations from one table, of rows that go through a norm and a product in between; the gradient of the
    table is put together from six sums over positions, of two regions."""
    a, b, c, d, e, f = (table + condition).chunk(6, 1)
    y = F.layer_norm(x, x.shape[-1:]) * a + b
    z = F.layer_norm(y @ weights(x), x.shape[-1:]) * c + d
    return torch.tanh(z * e + f)


def weights(like: Tensor) -> Tensor:
    return torch.arange(1024, dtype=like.dtype).sin().view(32, 32)


def compare(function: Function, inputs: Sequence[Tensor], **options: Any) -> list[str]:
    """Gradients against float64; returns the code of the graphs, the backward last."""
    mine = [x.detach().clone().requires_grad_() for x in inputs]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    compiled = torch.compile(function, backend="weft", **options)

    def step() -> None:
        compiled(*mine).square().mean().backward()

    with torch._inductor.config.patch(force_disable_caches=True):
        _, code = run_and_get_code(step)
    function(*exact).square().mean().backward()
    for a, b in zip(mine, exact, strict=True):
        assert a.grad is not None
        assert b.grad is not None
        torch.testing.assert_close(a.grad.double(), b.grad, rtol=1e-4, atol=1e-4 * float(b.grad.abs().max()))
    assert counters.launches
    assert counters.fallbacks == 0
    return code


def slots_written(code: str) -> list[int]:
    """Offsets of what launches write into the one tensor with several slots; nothing else may write or copy it."""
    calls = [line.rsplit("end\\n', [", 1)[1] for line in code.splitlines() if "weft.launch.default(" in line]
    written = [
        re.findall(r"reinterpret_tensor\((buf\d+), \(.*?\), \(.*?\), (\d+)\)", c.split("], [")[1]) for c in calls
    ]
    assert len({buffer for found in written for buffer, _ in found}) == 1
    return sorted(int(offset) for found in written for _, offset in found)


@pytest.mark.parametrize("batch", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_of_chunks(batch: int, dynamic: bool) -> None:
    inputs = torch.randn(1, 6, 32), torch.randn(batch, 1, 32), torch.randn(batch, 12, 32) / 4
    code = compare(modulated, inputs, dynamic=dynamic)[-1]
    assert slots_written(code) == [0, 32, 64, 96, 128, 160]
    assert not [name for name in re.findall(r"cpp_fused_\w+", code) if "cat" in name]


def test_gradients_of_indexed_parameters() -> None:
    def function(mix: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return torch.tanh(mix[0] * x + mix[1] * y + mix[2])

    inputs = torch.randn(3, 32), torch.randn(40, 32), torch.randn(40, 32)
    code = compare(function, inputs)[-1]
    assert slots_written(code) == [0, 32, 64]
    assert "scatter" not in code


MODELS: dict[str, tuple[Callable[[], Model], int]] = {
    "table, batch 1": (lambda: ScaleShiftTable(dim=64, tables=2), 1),
    "table, batch 2": (lambda: ScaleShiftTable(dim=64, tables=2), 2),
    "residual mix": (lambda: ResidualMix(dim=64, blocks=2, heads=2, kv_heads=1, vocabulary=128), 2),
    "dit": (lambda: Dit(dim=64, blocks=1, heads=2, classes=10), 2),
}
EXPECTED = {"table, batch 1": 12, "table, batch 2": 12, "residual mix": 4, "dit": 8}
"""Slots in the backward of each model."""


OFTEN = [pytest.param(name, marks=pytest.mark.slow) if name == "table, batch 2" else name for name in MODELS]


@pytest.mark.parametrize("autocast", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["f32", "bf16"])
@pytest.mark.parametrize("name", OFTEN)
def test_gradients_of_models(name: str, autocast: bool) -> None:
    make, batch = MODELS[name]
    model = make()
    for parameter in model.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.05)  # a layer that starts at zero hides gradients behind it
    data = model.make_batch(batch, 16, 0)

    def loss(run: Function, *args: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return run(*args)

    # NaN in fresh memory is for graphs that are run as they are; some operators of the models are not deterministic
    torch.use_deterministic_algorithms(False)
    with torch._inductor.config.patch(force_disable_caches=True):
        loss(torch.compile(model, backend="weft"), *data).backward()
    mine = {key: p.grad for key, p in model.named_parameters()}
    model.zero_grad()
    report = weft.last_reports()[-1]
    assert len(slots_of(report.compilation)) == EXPECTED[name]
    assert counters.fallbacks == 0
    exact = model.double()
    exact(*(x.double() if x.is_floating_point() else x for x in data)).backward()
    for key, parameter in exact.named_parameters():
        expected, found = parameter.grad, mine[key]
        assert expected is not None
        assert found is not None
        error = (found - expected).norm() / expected.norm().clamp(min=1e-6)
        assert error < (0.1 if autocast else 1e-4), (key, float(error))


WARM = """
    import json, torch, weft
    torch.manual_seed(0)
    table = torch.randn(1, 4, 64, requires_grad=True)
    x = torch.randn(2, 50, 64)

    def function(table, x):
        a, b, c, d = table.chunk(4, 1)
        return torch.tanh(x * a + b) * c + d

    torch.compile(function, backend="weft", fullgraph=True)(table, x).square().sum().backward()
    (expected,) = torch.autograd.grad(function(table, x).square().sum(), table)
    torch.testing.assert_close(table.grad, expected, rtol=1e-4, atol=1e-3)
    print(json.dumps(weft.counters.to_dict()))
"""


@pytest.mark.slow
def test_a_second_process_writes_the_parts_too(tmp_path: Path) -> None:
    cold, warm = run_python(WARM, tmp_path), run_python(WARM, tmp_path)
    assert cold["pass_calls"] > 0
    assert warm["pass_calls"] == warm["builds"] == warm["fallbacks"] == 0
    assert warm["launches"] == cold["launches"] > 0
