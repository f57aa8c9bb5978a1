"""Rotations of queries and keys: what is read and written by parts of an axis, in the kernel of the norm before it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx

from tests.cases import often
from tests.region_checks import checked, only, rows, traced, values_of
from tests.test_assembly import integers, rewritten, same
from weft.capture.parts import MOST_ELEMENTS, MOST_PARTS, joined
from weft.capture.slices import read_parts_of_inputs
from weft.ir.interpret import interpret
from weft.ir.parser import parse
from weft.ir.printer import print_program
from weft.ir.unroll import MOST_UNROLLED, unrolled
from weft.plan import planner

aten = torch.ops.aten
Turn = Callable[[Tensor], Tensor]
BATCH, TOKENS, HEADS, WIDTH = 2, 6, 3, 16


def halves(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def pairs(x: Tensor) -> Tensor:
    return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)


def selected(x: Tensor) -> Tensor:
    """Halves, as elements of an axis."""
    first, second = x.unflatten(-1, (2, -1)).unbind(-2)
    return torch.cat((-second, first), -1)


def apart(x: Tensor) -> Tensor:
    """First those of even places, then those of odd ones: of a load no two are beside each other."""
    return torch.cat(x.unflatten(-1, (-1, 2)).unbind(-1), -1)


def thirds(x: Tensor) -> Tensor:
    first, second, third = x[..., :15].chunk(3, -1)
    return torch.cat((torch.cat((third, -first, second), -1), x[..., 15:]), -1)


def of_normed(turn: Turn) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """As models have it: heads behind tokens, turned by angles that they have in common, and heads first then."""

    def turned(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q = x.unflatten(-1, (HEADS, WIDTH))
        q = (weight * (q * torch.rsqrt(q.square().mean(-1, keepdim=True) + 1e-6))).transpose(1, 2)
        return q * cos + turn(q) * sin

    return turned


def with_gradient(turn: Turn) -> Callable[..., tuple[Tensor, ...]]:
    def both(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
        found, back = torch.func.vjp(lambda x, weight: of_normed(turn)(x, weight, cos, sin), x, weight)
        return found, *back(gradient)

    return both


def inputs() -> list[Tensor]:
    angles = rows(2, TOKENS, WIDTH).unbind(0)
    return [rows(BATCH, TOKENS, HEADS * WIDTH), rows(WIDTH), *angles]


@pytest.mark.parametrize("turn", [halves, selected])
def test_a_rotation_is_part_of_the_region_of_its_norm(turn: Turn) -> None:
    region = only(checked(of_normed(turn), *inputs()))
    assert {str(node.target) for node in region.members} >= {"aten.cat.default", "aten.rsqrt.default"}
    assert not any(node.target is aten.cat.default for node in region.inputs)


@pytest.mark.parametrize("turn", [halves, selected])
def test_its_gradient_stores_no_halves_among_zeros(turn: Turn) -> None:
    given = [*inputs(), rows(BATCH, HEADS, TOKENS, WIDTH)]
    found = checked(with_gradient(turn), *given)
    scatters = (aten.slice_scatter.default, aten.constant_pad_nd.default)
    assert not any(node.target in scatters for region in found.regions for node in region.inputs)
    assert not [refusal for refusal in found.refusals if refusal.rule == "unsupported_op"]


@pytest.mark.parametrize("turn", [lambda x: torch.cat((-x[..., 6:], x[..., :6]), -1), pairs, apart])
def test_parts_of_other_lengths_and_pairs_stay_outside(turn: Turn) -> None:
    found = checked(of_normed(turn), *inputs())
    assert [refusal.subject for refusal in found.refusals if refusal.rule == "unsupported_op"]


def test_axes_that_no_cache_holds_and_many_parts_stay_outside() -> None:
    def wide(x: Tensor) -> Tensor:
        return torch.softmax(halves(x.exp()), -1)

    def many(x: Tensor) -> Tensor:
        return torch.softmax(torch.cat(x.exp().chunk(MOST_PARTS + 1, -1)[::-1], -1), -1)

    for function, columns in ((wide, MOST_ELEMENTS + 2), (many, 2 * (MOST_PARTS + 1))):
        graph = traced(function, [rows(4, columns)]).graph
        (node,) = graph.find_nodes(op="call_function", target=aten.cat.default)
        assert joined(node) is None


def test_gradients_of_chunks_are_no_parts_that_are_read() -> None:
    graph = traced(lambda x, y: torch.cat((x.sum(0), y.sum(0))), [rows(4, 8), rows(4, 8)]).graph
    (node,) = graph.find_nodes(op="call_function", target=aten.cat.default)
    assert joined(node) is None


def sliced_pointwise(graph: fx.Graph) -> list[fx.Node]:
    """Slices of what is neither an input nor the result of a reduction."""
    found = [*graph.find_nodes(op="call_function", target=aten.slice.Tensor)]
    return [node for node in found if node.args[0].op != "placeholder" and "sum" not in node.args[0].name]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "made",
    [
        lambda x, y: x * y + 1,
        lambda x, y: (x + y[0, 0, 0]).permute(0, 2, 1, 3).contiguous().transpose(1, 2) * 2,
        lambda x, y: torch.cat((x.exp(), y), 1)[:, ::2],
        lambda x, y: (x - y).reshape(BATCH, TOKENS, -1).unflatten(-1, (HEADS, WIDTH)),
        lambda x, y: x * y.sum(-1, keepdim=True).expand_as(x),
        lambda x, y: torch.cat((x[..., 8:].neg(), y[..., :8]), -1) * 3,
        lambda x, y: (x[..., None, :8].expand(*x.shape[:-1], 2, 8).reshape(x.shape) + y).abs(),
    ],
)
@pytest.mark.parametrize("turn", [halves, pairs, selected])
def test_slices_of_values_become_values_of_slices(made: Callable[[Tensor, Tensor], Tensor], turn: Turn) -> None:
    given = [rows(BATCH, TOKENS, HEADS, WIDTH), rows(BATCH, TOKENS, HEADS, WIDTH)]
    graph = traced(lambda x, y: turn(made(x, y)), given)
    before = graph(*given)
    read_parts_of_inputs(graph.graph)
    graph.graph.lint()
    unread = [n for n in graph.graph.nodes if n.op == "call_function" and not n.users]
    assert not unread, "what slices were taken of is not computed any more"
    graph.recompile()
    torch.testing.assert_close(graph(*given), before, rtol=0, atol=0)
    for node, value in values_of(graph, given).items():
        if isinstance(value, Tensor) and "val" in node.meta:
            assert (value.shape, value.dtype) == (node.meta["val"].shape, node.meta["val"].dtype), node


def test_sines_that_all_heads_share_are_read() -> None:
    def turned(x: Tensor, weight: Tensor, positions: Tensor, steps: Tensor) -> Tensor:
        angles = positions[:, None] * steps
        angles = torch.cat((angles, angles), -1)
        return of_normed(halves)(x, weight, angles.cos(), angles.sin())

    found = checked(turned, rows(64, TOKENS, HEADS * WIDTH), rows(WIDTH), rows(TOKENS), rows(WIDTH // 2))
    (region,) = found.regions
    assert {node.name for node in region.inputs} >= {"cos", "sin"}
    assert not {"cos", "sin"} & {node.name for node in region.members}


# without the dimension that counts the parts

TURNED = """program turned()
  dim m = 3
  dim k = 2
  dim n = 4
  input x: f32 [m:8, k:4, n:1]
  input first: f32 [m:8, n:1] within x at 0
  input second: f32 [m:8, n:1] within x at 4
  input angle: f32 [k:4, n:1]
  square: f32{m, k, n} = mul(x, x)
  sum: f32{m} = sum[k, n](square)
  most: f32{m, n} = max[k](x)
  column: f32{k, n} = sum[m](x)
  whole: f32{} = sum[m, k, n](x)
  number: i32{k} = iota[k]()
  zero: i32{} = const[0]()
  is_first: bool{k} = eq(number, zero)
  opposite: f32{m, n} = neg(second)
  turned: f32{m, k, n} = where(is_first, opposite, first)
  scaled: f32{m, k, n} = mul(turned, angle)
  result: f32{m, k, n} = mul(scaled, sum)
  output out0: f32 [m:8, k:4, n:1] = result
  output out1: f32 [m:1] = sum
  output out2: f32 [m:4, n:1] = most
  output out3: f32 [k:4, n:1] = column
  output out4: f32 [] = whole
  output out5: f32 [m:8, k:4, n:1] = opposite
end
"""


def test_parts_become_values_of_their_own() -> None:
    program = parse(TURNED)
    parts = unrolled(program)
    assert print_program(parse(print_program(parts))) == print_program(parts)
    assert [d.name for d in parts.dims] == ["m", "n"]
    assert [b.name for b in parts.inputs] == ["first", "second", "angle_0", "angle_1"], "each half is loaded once"
    assert not {"where", "iota", "eq"} & {v.op for v in parts.values}
    x, angle = torch.randn(3, 2, 4), torch.randn(2, 4)
    tensors = {"first": x[:, 0], "second": x[:, 1], "angle_0": angle[0], "angle_1": angle[1]}
    names = (o.buffer.name for o in program.outputs)
    wanted = dict(zip(names, interpret(program, [x, x[:, 0], x[:, 1], angle], ()), strict=True))
    for output, mine in zip(parts.outputs, interpret(parts, [tensors[b.name] for b in parts.inputs], ()), strict=True):
        buffer = output.buffer
        whole = wanted[buffer.within or buffer.name].contiguous()
        strides = [int(stride) for stride in buffer.strides]
        torch.testing.assert_close(mine, whole.as_strided(mine.shape, strides, buffer.place))


@pytest.mark.parametrize(
    "change",
    [
        ("number: i32{k} = iota[k]()", "number: i32{k} = cast(few)"),  # nothing is chosen by the index
        ("dim k = 2", f"dim k = {MOST_UNROLLED + 1}"),
        ("angle: f32 [k:4, n:1]", "angle: f32 [k:1, n:2]"),  # what are neighbours would not be any more
        ("most: f32{m, n} = max[k](x)", "most: f32{m, n} = m2[k](x)"),
    ],
)
def test_other_dimensions_stay(change: tuple[str, str]) -> None:
    text = TURNED.replace(*change)
    assert text != TURNED
    few = "  input few: i64 [k:1]\n" if "few" in text else ""
    program = parse(text.replace("  square:", f"{few}  square:"))
    assert unrolled(program) is program


def test_names_of_parts_are_free() -> None:
    text = TURNED.replace("angle", "first_").replace("first_:", "first_:")
    parts = unrolled(parse(text.replace("input second", "input first__0: f32 [n:1]\n  input second")))
    names = [b.name for b in parts.buffers]
    assert len(set(names)) == len(names)


# compiled


@pytest.mark.parametrize("turn", [halves, pairs, selected, thirds])
def test_compiled_rotations_are_right(turn: Turn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of whole numbers, without a norm, whose quotients are none: equal to float64 in every bit."""
    monkeypatch.setattr(planner, "check_worthwhile", lambda *_: None)

    def turned(x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        q = x.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)
        q = q * q.sum(-1, keepdim=True)
        y = q * cos + turn(q) * sin
        return y, y.sum((0, 1, 2))

    angles = integers(2, TOKENS, WIDTH).unbind(0)  # the second does not begin where its memory does
    given = [integers(BATCH, TOKENS, HEADS * WIDTH), *angles]
    graph, done = rewritten(turned, given)
    assert done.regions
    same(graph, turned, *given)


@pytest.mark.parametrize("turn", often([halves, pairs], [halves]))
def test_training_through_rotations(turn: Turn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of tensors that Inductor makes, and of saved ones, with the batch size known at run time only."""
    monkeypatch.setattr(planner, "check_worthwhile", lambda *_: None)
    torch._dynamo.reset()

    def loss(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return of_normed(turn)((x * 1.5).relu(), weight, cos, sin).sin().sum()

    compiled = torch.compile(loss, backend="weft", dynamic=True)
    for batch in (2, 5):
        x, weight = rows(batch, TOKENS, HEADS * WIDTH).float(), rows(WIDTH).float()
        cos, sin = rows(2, TOKENS, WIDTH).float().unbind(0)  # which does not begin where its memory does
        x.requires_grad_()
        weight.requires_grad_()
        mine = torch.autograd.grad(compiled(x, weight, cos, sin), (x, weight))
        exact = torch.autograd.grad(loss(*(t.double() for t in (x, weight, cos, sin))), (x, weight))
        for a, b in zip(mine, exact, strict=True):
            torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-4)
