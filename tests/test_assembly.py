"""Results that are put together into one tensor: kernels write each part where it belongs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

import weft
from tests.assembly_slots import Function, _apart, slots_of  # noqa: F401
from weft.capture.assembly import Assembly
from weft.capture.pieces import _padding
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


def padded(pad: Sequence[int], value: float = 0.0) -> Function:
    def function(x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x * x.sum(-1, keepdim=True), pad, value=value)

    return function


@pytest.mark.parametrize("pad", [(0, 0, 0, 1), (0, 0, 2, 1), (0, 0, 0, 0, 1, 0)], ids=str)
def test_a_few_rows_of_zeros_are_written_beside_a_result(pad: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "check_worthwhile", lambda *_: None)
    x = integers(3, 6, 24)[:, :-1]  # its rows and batches are no one dimension
    graph, _ = rewritten(padded(pad), [x])
    assert not graph.graph.find_nodes(op="call_function", target=aten.constant_pad_nd.default)
    rubbish = torch.full_like(graph(x), torch.nan)
    del rubbish  # its memory is what is free next
    same(graph, padded(pad), x)


@pytest.mark.parametrize(("pad", "value"), [((0, 0, 0, 5), 0.0), ((0, 0, 0, 1), 1.0), ((0, 1, 0, 1), 0.0)], ids=str)
def test_other_padding_stays(pad: Sequence[int], value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "check_worthwhile", lambda *_: None)
    x = integers(3, 6, 24)[:, :-1]
    graph, _ = rewritten(padded(pad, value), [x])
    assert graph.graph.find_nodes(op="call_function", target=aten.constant_pad_nd.default)
    same(graph, padded(pad, value), x)


def test_what_is_cut_off_is_no_padding() -> None:
    graph = trace(padded((0, 0, -1, 1)), [integers(3, 5, 24)]).graph
    (pad,) = graph.find_nodes(op="call_function", target=aten.constant_pad_nd.default)
    assert _padding(pad) is None


def test_a_number_to_pad_with_may_be_a_keyword() -> None:
    def function(x: Tensor) -> Tensor:
        return aten.constant_pad_nd.default(x * x.sum(-1, keepdim=True), (0, 0, 0, 1), value=2.0)

    x = integers(5, 24)
    graph = trace(function, [x])
    (pad,) = graph.graph.find_nodes(op="call_function", target=aten.constant_pad_nd.default)
    pad.args, pad.kwargs = pad.args[:2], {"value": 2.0}
    graph.recompile()
    rewrite(graph.graph, build(compile_graph(graph.graph), Options.read()))
    graph.recompile()
    same(graph, function, x)
