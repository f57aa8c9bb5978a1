"""What crosses the borders of regions, counted in bytes by hand, and that results stay right."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch._inductor.config
import torch.nn.functional as F
from scipy.optimize import Bounds, LinearConstraint, milp
from torch import Tensor, fx

import weft
from tests.cases import SMALL_MODELS, often
from tests.compilations import compilations
from tools.traffic import traffic, training_graphs
from weft.bench.models import MODELS
from weft.capture import border
from weft.capture.border import Borders, Flow, choose_borders
from weft.capture.mincut import Network
from weft.capture.regions import Capture, Region, capture
from weft.capture.trace import trace
from weft.compiler import Compilation
from weft.integration.backend import WeftPass
from weft.integration.rewrite import rewrite
from weft.plan import planner

M, N = 512, 256
Function = Callable[..., Any]


def data(dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(M, N).to(dtype)


def captured(function: Function, *inputs: Tensor) -> tuple[fx.GraphModule, Capture]:
    graph = trace(function, inputs)
    return graph, capture(graph.graph, "f")


def bytes_of(nodes: Sequence[fx.Node]) -> int:
    return sum(n.meta["val"].numel() * n.meta["val"].element_size() for n in nodes)


def check_results(function: Function, *inputs: Tensor) -> None:
    """The rewritten graph computes what the function does. Inputs are small integers, so that sums are exact."""
    graph, found = captured(function, *inputs)
    compilation = compiled(graph)
    assert len(compilation.regions) == len(found.regions) > 0
    assert rewrite(graph.graph, compilation).regions == compilation.regions
    graph.recompile()
    torch.testing.assert_close(graph(*inputs), function(*inputs), rtol=0, atol=0)


def compiled(graph: fx.GraphModule) -> Compilation:
    """Every region with its kernels built, worth their while or not."""
    with mock.patch.object(planner, "check_worthwhile", return_value=None):
        compilation = weft.compiler.compile_graph(graph.graph)
    return weft.compiler.build(compilation, weft.options.Options.read())


def integers(dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randint(-1, 2, (M, N)).to(dtype)


def sparse_square() -> Tensor:
    """A permutation: a product with it is exact."""
    return torch.eye(N, dtype=torch.bfloat16).roll(1, 0)


def first_and_last(found: Capture) -> tuple[Region, Region]:
    first, last = found.regions
    return first, last


def two_regions(x: Tensor, w: Tensor) -> Tensor:
    """A cast that regions on both sides of a product need."""
    wide = x.float()
    y = (wide + wide.sum(1, keepdim=True)).to(torch.bfloat16) @ w
    return (y.float() * wide).sum(1)


def test_a_cast_is_computed_in_both_regions_from_the_narrow_tensor() -> None:
    first, last = first_and_last(captured(two_regions, data(), sparse_square())[1])
    assert [n.name for n in first.outputs] == ["convert_element_type_1"]
    shared = set(first.members) & set(last.members)
    assert {n.name for n in shared} == {"convert_element_type"}
    assert {n.name for n in last.inputs} == {"x", "mm"}
    assert bytes_of(first.inputs) + bytes_of(first.outputs) == 2 * M * N * 2
    assert bytes_of(last.inputs) + bytes_of(last.outputs) == 2 * M * N * 2 + M * 4
    check_results(two_regions, integers(), sparse_square())


def forced(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """The same, but the sum of two wide tensors is a result: it is in memory, and one load is the least."""
    wide = x.float() + w.float()[:1]
    y = (wide + wide.sum(1, keepdim=True)).to(torch.bfloat16) @ w
    return (y.float() * wide * x.amax()).sum(1), wide


def test_what_is_in_memory_anyway_costs_a_load_only() -> None:
    """x is loaded by the last region for its maximum too: with it the wide sum is free, stored or not."""
    first, last = first_and_last(captured(forced, data(), sparse_square())[1])
    assert "add" in [n.name for n in first.outputs]
    assert "add" not in [n.name for n in last.inputs]
    assert "x" in [n.name for n in last.inputs]
    check_results(forced, integers(), sparse_square())


def extern_reads(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    """The product reads the sum: it is stored, and loading it is less than loading both terms."""
    total = x + y
    return ((total @ w).float() * total).sum(1)


def test_a_value_for_an_operator_outside_is_stored_and_loaded() -> None:
    _, found = captured(extern_reads, data(), data(), sparse_square())
    (region,) = found.regions
    assert {n.name for n in region.inputs} == {"add", "mm"}
    assert {"add", "mm"} <= {r.subject for r in found.refusals}
    check_results(extern_reads, integers(), integers(), sparse_square())


def pointwise_reads(x: Tensor, w: Tensor) -> Tensor:
    """Pointwise work behind a product needs the cast: it computes it again from the narrow tensor."""
    wide = x.float()
    y = (wide + wide.sum(1, keepdim=True)).to(torch.bfloat16) @ w
    return torch.sin(y.float() * wide)


def test_pointwise_work_outside_computes_a_value_again() -> None:
    graph, found = captured(pointwise_reads, data(), sparse_square())
    (region,) = found.regions
    assert [n.name for n in region.outputs] == ["convert_element_type_1"]
    check_results(pointwise_reads, integers(), sparse_square())
    rewrite(graph.graph, compiled(graph))
    left = [n for n in graph.graph.nodes if n in region.members]
    assert [n.name for n in left] == ["convert_element_type"]


def mask_alone(x: Tensor, w: Tensor) -> Tensor:
    """A mask of one byte an element is less than the float32 tensor it comes from."""
    mask = x > 0
    y = (mask.float() + x.sum(1, keepdim=True)).to(torch.bfloat16) @ w
    return torch.where(mask, y.float(), 0.0).sum(1)


def mask_with_its_tensor(x: Tensor, w: Tensor) -> Tensor:
    """The other region reads the float32 tensor anyway: there the mask costs nothing."""
    mask = x > 0
    y = (mask.float() + x.sum(1, keepdim=True)).to(torch.bfloat16) @ w
    return torch.where(mask, y.float() + x, 0.0).sum(1)


@pytest.mark.parametrize(("function", "stored"), [(mask_alone, True), (mask_with_its_tensor, False)])
def test_a_mask_is_stored_unless_its_tensor_is_read_anyway(function: Function, stored: bool) -> None:
    first, last = first_and_last(captured(function, data(torch.float32), sparse_square())[1])
    assert ("gt" in [n.name for n in first.outputs]) == stored
    assert ("gt" in [n.name for n in last.inputs]) == stored
    assert ("gt" in [n.name for n in last.members]) != stored
    check_results(function, integers(torch.float32), sparse_square())


def chain(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Pointwise work upstream of the last region alone, cut off from it by a product of its other result."""
    left, right = x.float() * 2, y.float() * 2
    narrow = (left - right).to(torch.bfloat16)
    return ((narrow @ w).float() * (left + right) * x * y).sum(1), narrow


def test_upstream_work_is_pulled_in_where_its_inputs_are_read_anyway() -> None:
    _, found = captured(chain, data(), data(), sparse_square())
    (region,) = found.regions
    assert {n.name for n in region.inputs} == {"x", "y", "mm"}
    check_results(chain, integers(), integers(), sparse_square())


def test_a_reduction_is_never_computed_again() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        mean = x.float().mean(1, keepdim=True)
        y = (x - mean).to(torch.bfloat16) @ w
        return (y.float() * (x - mean)).sum(1)

    _, found = captured(function, data(), sparse_square())
    first, last = found.regions
    reductions = [n for r in (first, last) for n in r.members if "mean" in n.name or "sum" in n.name]
    assert len(reductions) == len(set(reductions))
    assert [n.meta["val"].shape for n in first.outputs if n in last.inputs] == [(M, 1)]


def test_a_small_saving_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    saving = 2 * M * N * 4 - M * N * 2
    monkeypatch.setattr(border, "LEAST_SAVING_BYTES", saving + 1)
    first, last = first_and_last(captured(two_regions, data(), sparse_square())[1])
    assert not set(first.members) & set(last.members)
    monkeypatch.setattr(border, "LEAST_SAVING_BYTES", saving)
    first, last = first_and_last(captured(two_regions, data(), sparse_square())[1])
    assert set(first.members) & set(last.members)


def test_nothing_is_computed_again_behind_a_write() -> None:
    """The write may be to what it would be computed from."""
    graph = trace(two_regions, (data(), sparse_square()))
    nodes = {n.name: n for n in graph.graph.nodes}
    with graph.graph.inserting_after(nodes["mm"]):
        graph.graph.call_function(torch.ops.aten.copy_.default, (nodes["x"], nodes["mm"]))
    first, last = first_and_last(capture(graph.graph))
    assert not set(first.members) & set(last.members)


# the choice itself, against an exact one


def random_flow(seed: int) -> Flow:
    """Groups in a line, each node reading earlier ones, with some reductions and some values that must be stored."""
    draw, graph = random.Random(seed), fx.Graph()
    inputs = [graph.placeholder(f"i{i}") for i in range(3)]
    sizes = {n: draw.choice((1, 2, 4)) << 14 for n in inputs}
    groups: list[list[fx.Node]] = []
    operands: dict[fx.Node, list[fx.Node]] = {}
    pointwise: set[fx.Node] = set()
    for g in range(draw.randint(2, 5)):
        inputs.append(graph.placeholder(f"e{g}"))
        sizes[inputs[-1]] = draw.choice((1, 2, 4)) << 14
        group: list[fx.Node] = []
        for i in range(draw.randint(1, 4)):
            node = graph.placeholder(f"g{g}n{i}")
            known = [*inputs, *operands]
            operands[node] = draw.sample(known[-6:], min(draw.randint(1, 3), len(known)))
            sizes[node] = draw.choice((1, 2, 4)) << 14
            if draw.random() < 0.8:
                pointwise.add(node)
            group.append(node)
        groups.append(group)
    forced = dict.fromkeys(n for group in groups for n in group if draw.random() < 0.15)
    forced[groups[-1][-1]] = None
    return Flow(groups, operands, sizes, pointwise, forced)


def recounted(flow: Flow, found: Borders) -> int:
    """Bytes of all loads and stores, from what each kernel computes; checks that everything needed is there."""
    home = {n: k for k, group in enumerate(flow.groups) for n in group}
    total = sum(flow.storage_bytes[n] for n in found.stored)
    for kernel, computed in enumerate(found.computed):
        loaded = {o for n in computed for o in flow.operands[n] if o not in computed}
        assert all(n not in home or n in found.stored for n in loaded)
        assert all(n in flow.pointwise for n in computed if home[n] != kernel)
        total += sum(flow.storage_bytes[n] for n in loaded)
    assert all(n in found.computed[home[n]] for n in found.stored)
    assert set(flow.forced) <= found.stored
    return total


def optimum(flow: Flow) -> int:
    """The fewest bytes, by integer programming over what each kernel needs and loads and what is stored."""
    home = {n: k for k, group in enumerate(flow.groups) for n in group}
    nodes = [*home, *(n for n in flow.storage_bytes if n not in home)]
    kernels = range(len(flow.groups))
    need = {(k, n): i for i, (k, n) in enumerate((k, n) for k in kernels for n in nodes)}
    load = {key: i + len(need) for key, i in need.items()}
    store = {n: 2 * len(need) + i for i, n in enumerate(home)}
    cost, low, high = (np.zeros(2 * len(need) + len(store)) for _ in range(3))
    high += 1
    rows: list[dict[int, int]] = []
    for (k, n), y in need.items():
        r = load[k, n]
        cost[r] = flow.storage_bytes[n]
        rows.append({y: 1, r: -1})
        if home.get(n) == k:
            high[r] = 0
            rows.append({y: 1, store[n]: -1})
        elif n not in flow.pointwise:
            rows.append({r: 1, y: -1})
        if n in home:
            rows.append({store[n]: 1, r: -1})
            rows += [{need[k, o]: 1, y: -1, r: 1} for o in flow.operands[n]]
    for n, z in store.items():
        cost[z], low[z] = flow.storage_bytes[n], n in flow.forced
    matrix = np.zeros((len(rows), len(cost)))
    for i, row in enumerate(rows):
        for column, factor in row.items():
            matrix[i, column] = factor
    solved = milp(cost, constraints=LinearConstraint(matrix, 0, np.inf), bounds=Bounds(low, high), integrality=1)
    return round(solved.fun)


def test_the_choice_is_counted_right_and_near_the_optimum() -> None:
    exact, gaps = 0, 0.0
    for seed in range(150):
        flow = random_flow(seed)
        natural = choose_borders(Flow(flow.groups, flow.operands, flow.storage_bytes, (), flow.forced))
        found = choose_borders(flow)
        assert recounted(flow, natural) == natural.moved_bytes
        assert recounted(flow, found) == found.moved_bytes
        best = optimum(flow)
        assert best <= found.moved_bytes <= natural.moved_bytes
        exact += found.moved_bytes == best
        gaps += found.moved_bytes / best - 1
    assert (exact >= 110, gaps / 150 < 0.05) == (True, True), (exact, gaps / 150)


def test_a_banned_value_is_loaded() -> None:
    for seed in range(30):
        flow = random_flow(seed)
        home = {n: k for k, group in enumerate(flow.groups) for n in group}
        banned = {(k, n) for k, c in enumerate(choose_borders(flow).computed) for n in c if home[n] != k}
        found = choose_borders(flow, banned)
        assert not any((k, n) in banned for k, c in enumerate(found.computed) for n in c)
        assert recounted(flow, found) == found.moved_bytes


@pytest.mark.parametrize("seed", range(20))
def test_a_cut_is_the_smallest_of_all(seed: int) -> None:
    draw, count = random.Random(seed), 7
    edges = [(a, b, draw.randint(1, 9)) for a in range(count) for b in range(count) if a != b and draw.random() < 0.4]
    network = Network()
    for _ in range(count):
        network.vertex()
    for edge in edges:
        network.edge(*edge)
    side = network.source_side(0, count - 1)

    def weight(inside: Sequence[bool]) -> int:
        return sum(c for a, b, c in edges if inside[a] and not inside[b])

    every = [[True, *(bool(bits >> i & 1) for i in range(count - 2)), False] for bits in range(1 << (count - 2))]
    assert side[0]
    assert not side[-1]
    assert weight(side) == min(map(weight, every))


# whole models


def test_the_backward_of_two_mixed_blocks_moves_a_sixth_fewer_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = training_graphs(
        lambda: MODELS["residual_mix"](blocks=2), lambda: [torch.zeros((48, 2048), dtype=torch.int64) for _ in range(2)]
    )
    found = traffic(graphs[1])
    monkeypatch.setattr(border, "MAX_PASSES", 0)
    natural = traffic(graphs[1])
    assert found.kernels == natural.kernels
    assert found.total_bytes < 0.85 * natural.total_bytes


ALIKE = ("gpt2", "llama", "vit", "dit", "plain", "scale_shift_table")
"""Models whose borders are as those of others, or whose gradients test_assembly_models.py compares, too."""
OFTEN = often(MODELS, [name for name in MODELS if name not in ALIKE])


@pytest.mark.parametrize("name", OFTEN)
def test_gradients_are_those_of_eager_mode(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = MODELS[name](**{**SMALL_MODELS[name], "dim": 64})
    batch = model.make_batch(4, 32, seed=0)

    def gradients(step: Any) -> list[Tensor]:
        model.zero_grad()
        step(*batch).backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    left: list[Any] = []
    original = WeftPass.__call__

    def spy(self: WeftPass, graph: Any) -> None:
        """Regions that read each other's results read what the kernels wrote: nothing of theirs is in the graph."""
        original(self, graph)
        members = {n for region in found[-1].regions for n in region.region.members}
        left.extend(node for node in graph.nodes if node in members)

    monkeypatch.setattr(WeftPass, "__call__", spy)
    weft.counters.reset()
    with compilations() as found:
        mine = gradients(torch.compile(model, backend="weft", fullgraph=True))
    assert weft.counters.pass_calls == 2
    assert not left
    theirs = gradients(model)
    for ours, reference in zip(mine, theirs, strict=True):
        assert (ours - reference).norm() <= 1e-4 * reference.norm()
    members = [n for r in found[-1].regions for n in r.region.members]
    if name == "residual_mix":
        assert len(set(members)) < len(members), "nothing is computed again"


# dropout: random numbers are drawn by Inductor


def dropped(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """What stands between a linear layer and the next: dropout, the residual stream, a norm."""
    total = residual + F.dropout(x, 0.1)
    return F.rms_norm(total, (N,), weight), total


def trained(function: Function, backend: str, dtype: torch.dtype) -> list[Tensor]:
    """Results and gradients in a compiled graph, or in eager mode; always with the same seed and numbers."""
    torch._dynamo.reset()
    generator = torch.Generator().manual_seed(1)
    x, residual, dy, dtotal = (torch.randn(M, N, generator=generator).to(dtype) for _ in range(4))
    inputs = [t.requires_grad_() for t in (x, residual, torch.ones(N, dtype=dtype))]
    torch.manual_seed(2)
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    outputs = compiled(*inputs)
    return [*outputs, *torch.autograd.grad(outputs, inputs, (dy, dtotal))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_mask_of_a_dropout_crosses_and_not_its_random_numbers(dtype: torch.dtype) -> None:
    weft.counters.reset()
    with compilations() as found:
        results = trained(dropped, "weft", dtype)
    width = dtype.itemsize
    (first,), (last,) = (each.regions for each in found)
    masks = [[n for n in each.region.inputs if n.meta["val"].dtype == torch.bool] for each in (first, last)]
    assert [bytes_of(mask) for mask in masks] == [M * N, M * N]
    assert bytes_of(first.region.inputs) == M * N * (1 + 2 * width) + N * width
    assert bytes_of(first.region.outputs) == M * N * 2 * width + M * 4
    assert weft.counters.fallbacks == 0
    theirs = trained(dropped, "inductor", dtype)  # draws the same numbers
    check_dropped(results, theirs, 4e-3 if width == 2 else 1e-5)


def check_dropped(mine: Sequence[Tensor], theirs: Sequence[Tensor], error: float) -> None:
    """error: largest norm of a difference, as a part of the result's. A tenth of the gradient is dropped; a few more
    elements may be rounded to zero."""
    for a, b in ((mine[2], theirs[2]), (theirs[2], mine[2])):
        assert b[a == 0].abs().max() < 0.05
    assert 0.09 < (mine[2] == 0).float().mean() < 0.11
    for a, b in zip(mine, theirs, strict=True):
        assert (a - b).norm() <= error * b.norm()


def test_dropout_has_the_gradients_of_eager_where_random_numbers_are_eagers() -> None:
    with torch._inductor.config.patch(fallback_random=True), compilations() as found:
        results = trained(dropped, "weft", torch.float32)
    assert sum(each.regions != () for each in found) == 2
    check_dropped(results, trained(dropped, "eager", torch.float32), 1e-5)


def test_random_numbers_that_are_read_themselves_are_compared_where_they_are() -> None:
    def function(x: Tensor) -> Tensor:
        drawn = torch.rand_like(x)
        return (torch.where(drawn > 0.5, x, drawn) - x.amax(1, keepdim=True)).exp().sum(1)

    torch._dynamo.reset()
    with compilations() as made:
        torch.compile(function, backend="weft", fullgraph=True)(torch.randn(M, N))
    (found,) = made[-1].regions
    assert [n.meta["val"].dtype for n in found.region.inputs] == [torch.float32, torch.float32]
    assert bytes_of(found.region.inputs) == 2 * M * N * 4
