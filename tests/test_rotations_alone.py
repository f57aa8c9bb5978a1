"""Rotations that no norm comes before: kernels of their own, with what heads share and what lies beside them."""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import weft
from tests.assembly_slots import slots_of
from tests.cases import often
from tests.region_checks import checked, only, rows, traced
from tests.test_assembly import compiled_graph, integers, rewritten, same
from tests.test_rotations import halves
from weft.capture.prepare import prepare
from weft.capture.trace import trace
from weft.compiler import compile_graph
from weft.integration.rewrite import rewrite
from weft.integration.wholes import FUNCTIONALIZED
from weft.ir.interpret import interpret
from weft.ir.parser import parse
from weft.ir.unroll import MOST_SUMMED, unrolled
from weft.plan import planner

aten = torch.ops.aten
BATCH, TOKENS, HEADS, SHARED, WIDTH = 2, 5, 3, 4, 16
KEYS = HEADS * WIDTH
Function = Callable[..., tuple[Tensor, ...]]


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Heads behind tokens before, in front of them then."""
    x = x.unflatten(-1, (-1, WIDTH)).transpose(1, 2)
    return x * cos + halves(x) * sin


def partly(x: Tensor, cos: Tensor, sin: Tensor, count: int = 4) -> Tensor:
    """Only some elements of each head."""
    return partly_turned(x.unflatten(-1, (-1, WIDTH)).transpose(1, 2), cos, sin, count)


def partly_turned(x: Tensor, cos: Tensor, sin: Tensor, count: int = 4) -> Tensor:
    first, rest = x[..., :count], x[..., count:]
    first = first * cos[..., :count] + halves(first) * sin[..., :count]
    return torch.cat((first, rest), -1)


def shared(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Keys, each for several queries."""
    key = turned(x, cos, sin)
    return key[:, :, None].expand(-1, -1, SHARED, -1, -1).reshape(BATCH, HEADS * SHARED, TOKENS, WIDTH)


def packed(x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
    """Queries, keys and values that one product made."""
    query, key, value = x.split(KEYS, -1)
    return turned(query, cos, sin), turned(key, cos, sin), value.unflatten(-1, (-1, WIDTH)).transpose(1, 2)


def stacked(x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
    query, key, value = (each.flatten(-2) for each in x.unflatten(-1, (3, HEADS, WIDTH)).unbind(-3))
    return turned(query, cos, sin), turned(key, cos, sin), value.unflatten(-1, (-1, WIDTH)).transpose(1, 2)


def packed_heads(x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
    """Queries, keys and values beside each other in each head, of which some elements are turned, in 16 bits."""
    query, key, value = x.unflatten(-1, (-1, 3 * WIDTH)).transpose(1, 2).chunk(3, -1)
    turned = (partly_turned(each, cos, sin).to(torch.bfloat16) for each in (query, key))
    return *turned, value


def gradient(function: Callable[..., Tensor | tuple[Tensor, ...]]) -> Function:
    """As attention has it: gradients of each result, and then products."""

    def back(x: Tensor, cos: Tensor, sin: Tensor, *gradients: Tensor) -> tuple[Tensor, ...]:
        _, pull = torch.func.vjp(lambda x: function(x, cos, sin), x)
        (found,) = pull(gradients if len(gradients) > 1 else gradients[0])
        return (found,)

    return back


def given(width: int, results: int = 0, heads: int = HEADS) -> list[Tensor]:
    angles = integers(2, TOKENS, WIDTH).unbind(0)  # the second does not begin where its memory does
    return [
        integers(BATCH, TOKENS, width),
        *angles,
        *(integers(BATCH, heads, TOKENS, WIDTH) for _ in range(results)),
    ]


def test_a_rotation_is_a_region() -> None:
    inputs = [t.double() for t in given(KEYS)]
    region = only(checked(lambda *args: (turned(*args),), *inputs))
    assert any(node.target is aten.cat.default for node in region.members)


CASES: dict[str, tuple[Function, list[Tensor]]] = {
    "forward": (lambda *args: (turned(*args),), given(KEYS)),
    "forward of shared ones": (lambda *args: (shared(*args),), given(KEYS)),
    "forward of packed ones": (packed, given(3 * KEYS)),
    "gradient": (gradient(turned), given(KEYS, 1)),
    "gradient of shared ones": (gradient(shared), given(KEYS, 1, HEADS * SHARED)),
    "gradient of packed ones": (gradient(packed), given(3 * KEYS, 3)),
    "gradient of stacked ones": (gradient(stacked), given(3 * KEYS, 3)),
    "parts of each head": (lambda *args: (partly(*args).to(torch.bfloat16),), given(KEYS)),
    "gradient of parts of each head": (gradient(partly), given(KEYS, 1)),
    "forward of packed heads": (packed_heads, given(3 * KEYS)),
    "gradient of packed heads": (
        gradient(lambda *args: tuple(t.to(args[0].dtype) for t in packed_heads(*args))),
        given(3 * KEYS, 3),
    ),
    "all of each head": (gradient(lambda *args: partly(*args, WIDTH)), given(KEYS, 1)),
}


@pytest.mark.parametrize("name", CASES)
def test_compiled_rotations_are_right(name: str) -> None:
    function, inputs = CASES[name]
    graph, done = rewritten(function, inputs)
    assert done.regions
    assert not [
        n for n in graph.graph.nodes if n.target in (aten.slice_scatter.default, aten.cat.default, aten.sum.dim_IntList)
    ]
    same(graph, function, *inputs)


@pytest.mark.parametrize("function", [packed, stacked])
def test_what_lies_beside_rotations_is_written_into_its_place(function: Function) -> None:
    graph, done = compiled_graph(gradient(function), given(3 * KEYS, 3))
    assert len(done.regions) == 2, "queries and keys are turned by one kernel, and values copied"
    (assembly,) = {slot.assembly for slot in slots_of(done)}
    assert assembly.parts == 3
    rewrite(graph.graph, done)
    written = [n for n in graph.graph.nodes if n.target is operator.getitem and n.args[0].target is FUNCTIONALIZED]
    assert len({n.meta["val"].untyped_storage()._cdata for n in written}) == len(written) == 2, "or they are copied"


def test_a_tensor_that_is_written_by_parts_is_allocated_for_the_first_of_them() -> None:
    """Those of all layers, allocated when a backward begins, would be there at a time."""

    def twice(*args: Tensor) -> tuple[Tensor, ...]:
        (first,) = gradient(packed)(*args)
        products = first @ first.mT
        (second,) = gradient(packed)(*args[:3], *(g * products[0, 0, 0] for g in args[3:]))
        return products, second @ second.mT

    graph, done = rewritten(twice, given(3 * KEYS, 3))
    assert len({slot.assembly for slot in slots_of(done)}) == 2
    bases = [n for n in graph.graph.nodes if n.target is aten.empty_strided.default]
    assert len(bases) == 2
    assert all(n.next.target is FUNCTIONALIZED for n in bases)


def test_what_several_queries_add_to_a_key_is_added_where_it_is_turned() -> None:
    inputs = given(KEYS, 1, HEADS * SHARED)
    _, done = compiled_graph(gradient(shared), inputs)
    (region,) = done.regions
    (kernel,) = region.plan.kernels
    assert not {"sum", "where"} & {value.op for value in kernel.program.values}
    assert all(b.within for b in kernel.program.inputs if len(b.dims) > 2)


@pytest.mark.parametrize(
    ("function", "inputs"),
    [(lambda *args: (partly(*args) * 2,), given(KEYS)), (gradient(lambda *args: partly(*args).sin()), given(KEYS, 1))],
)
def test_what_inductor_would_fuse_further_is_left_to_it(function: Function, inputs: list[Tensor]) -> None:
    graph = traced(function, [t.double() for t in inputs])
    found = compile_graph(graph.graph)
    assert not found.regions
    assert {refusal.rule for refusal in found.refusals if refusal.subject == "pointwise"} <= {"fused_further"}


def test_preparing_a_graph_changes_no_result() -> None:
    for function, inputs in CASES.values():
        wide = [t.double() for t in inputs]
        graph = traced(function, wide)
        before = graph(*wide)
        prepare(graph.graph)
        graph.graph.lint()
        graph.recompile()
        for mine, wanted in zip(graph(*wide), before, strict=True):
            torch.testing.assert_close(mine, wanted, rtol=0, atol=0)


def test_nothing_is_asked_of_sizes_at_run_time() -> None:
    """What would be, TorchInductor would compile in."""

    def same(x: Tensor) -> tuple[Tensor, ...]:
        wide = torch.slice_scatter(torch.zeros_like(x), x[1:] * 2, 0, 1)
        return ((wide + torch.zeros_like(x)).exp().sum(),)

    graph = trace(same, [rows(6, 8)], dynamic_rows=True)
    (x,) = graph.graph.find_nodes(op="placeholder")
    environment = x.meta["val"].fake_mode.shape_env
    before = [str(guard.expr) for guard in environment.guards]
    prepare(graph.graph)
    assert [str(guard.expr) for guard in environment.guards] == before


def test_what_a_graph_returns_stays_in_memory_of_its_own() -> None:
    def same(x: Tensor) -> tuple[Tensor, ...]:
        return x + torch.zeros_like(x), (x * 2 + torch.zeros_like(x)).sum()

    graph = traced(same, [rows(4, 8)])
    before = len([n for n in graph.graph.nodes if n.target is aten.add.Tensor])
    prepare(graph.graph)
    kept = [n for n in graph.graph.nodes if n.target is aten.add.Tensor]
    assert (before, len(kept)) == (2, 1), "what is read in the graph only is the sum's operand"
    (returned, _), *_ = (n.args[0] for n in graph.graph.nodes if n.op == "output")
    assert returned is kept[0]


def test_slices_of_slices_are_parts_of_what_is_read_as_a_whole() -> None:
    found = checked(packed, *(t.double() for t in given(3 * KEYS)))
    (region,) = found.regions
    whole = [b.name for b in region.program.inputs if len(b.dims) == 5]
    assert {b.within for b in region.program.inputs if len(b.dims) == 4} == set(whole)
    assert len(whole) == 2


SUMMED = """program summed()
  dim m = 3
  dim k = 4
  dim n = 4
  input x: f32 [m:16, k:4, n:1]
  input scale: f32 [k:4, n:1]
  scaled: f32{m, k, n} = mul(x, scale)
  sum: f32{m, n} = sum[k](scaled)
  most: f32{m, n} = max[k](x)
  result: f32{m, n} = add(sum, most)
  output out0: f32 [m:4, n:1] = result
end
"""


def test_short_sums_are_additions() -> None:
    program = parse(SUMMED)
    parts = unrolled(program)
    assert [d.name for d in parts.dims] == ["m", "n"]
    assert not {"sum", "max"} & {value.op for value in parts.values}
    x, scale = torch.randn(3, 4, 4), torch.randn(4, 4)
    tensors = {f"x_{i}": x[:, i] for i in range(4)} | {f"scale_{i}": scale[i] for i in range(4)}
    (mine,) = interpret(parts, [tensors[b.name] for b in parts.inputs], ())
    (wanted,) = interpret(program, [x, scale], ())
    torch.testing.assert_close(mine, wanted)


@pytest.mark.parametrize(
    "change",
    [
        ("dim k = 4", f"dim k = {MOST_SUMMED + 1}"),
        ("output out0: f32 [m:4, n:1] = result", "output out0: f32 [m:16, k:4, n:1] = scaled"),
        ("most: f32{m, n} = max[k](x)", "most: f32{n} = max[m, k](x)"),  # parts of a sum over many rows
        ("x: f32 [m:16, k:4, n:1]", "x: f32 [m:16, k:1, n:4]"),
        # rows of each before that, which would be one after the other
        ("most: f32{m, n} = max[k](x)", "row: f32{m, k} = sum[n](scaled)\n  most: f32{m} = max[k](row)"),
    ],
)
def test_other_sums_stay(change: tuple[str, str]) -> None:
    text = SUMMED.replace(*change)
    assert text != SUMMED
    program = parse(text)
    assert unrolled(program) is program


@pytest.mark.parametrize("function", often([turned, shared, packed, stacked], [turned, packed]))
def test_training(function: Callable[..., Tensor | tuple[Tensor, ...]]) -> None:
    """With the products and the attention around them, in bfloat16, against float64."""
    torch._dynamo.reset()
    width = 3 * KEYS if function in (packed, stacked) else KEYS

    def loss(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        found = function(x @ weight, cos, sin)
        query, key, value = found if isinstance(found, tuple) else (found,) * 3
        return torch.nn.functional.scaled_dot_product_attention(query, key, value).square().mean()

    x, weight = rows(BATCH, TOKENS, 8).float(), rows(8, width).float()
    cos, sin = rows(2, TOKENS, WIDTH).float().unbind(0)
    x.requires_grad_()
    weight.requires_grad_()
    weft.counters.reset()
    mine = torch.autograd.grad(torch.compile(loss, backend="weft")(x, weight, cos, sin), (x, weight))
    exact = torch.autograd.grad(loss(*(t.double() for t in (x, weight, cos, sin))), (x, weight))
    assert weft.counters.launches
    assert not weft.counters.fallbacks
    for a, b in zip(mine, exact, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("sizes", [(2, 4), (4, 2), (2, 2, 2), (1, 8)])
def test_a_few_rows_that_several_axes_count_are_added(sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a part of the tensor as it lies: of samples, heads and positions the ones that are samples' positions."""
    monkeypatch.setattr(planner, "check_worthwhile", lambda *_: None)
    torch._dynamo.reset()
    weft.counters.reset()
    *samples, positions = sizes
    x = torch.randn(*samples, positions, 8, 64).transpose(-2, -3)

    def added(x: Tensor, w: Tensor) -> Tensor:
        return (x.transpose(-2, -3).reshape(8, 512).sum(0) * w).exp()

    w = torch.randn(512)
    torch.testing.assert_close(torch.compile(added, backend="weft")(x, w), added(x, w))
    assert weft.counters.launches == 1
    assert weft.counters.refusals["internal_error"] == 0
