"""Column statistics in one pass: variance and the sum of exponentials over rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from weft.capture.regions import capture
from weft.capture.trace import trace
from weft.ir.interpret import interpret
from weft.ir.online import online, online_along_rows
from weft.ir.parser import parse
from weft.ir.simplify import simplify
from weft.options import Options
from weft.plan.kernel import Plan
from weft.plan.planner import plan, plan_split
from weft.runtime.launch import run_plan
from weft.target import Target

CPU = Target.named("cpu")


def column_softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, 0)


def column_logsumexp(x: Tensor) -> Tensor:
    return torch.logsumexp(x, 0)


def variance(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.var_mean(x, 0)


def batch_norm(x: Tensor, weight: Tensor) -> Tensor:
    var, mean = torch.var_mean(x, 0, correction=0)
    return (x - mean) * torch.rsqrt(var + 1e-5) * weight


def per_segment(x: Tensor) -> Tensor:
    return torch.var_mean(x, 1)[0]


def written_out(x: Tensor) -> Tensor:
    centred = x - x.mean(0)
    return (centred * centred).mean(0)


def program_of(fn: Callable[..., object], inputs: tuple[Tensor, ...]):  # type: ignore[no-untyped-def]
    (region,) = capture(trace(fn, inputs).graph, fn.__name__).regions
    return simplify(region.program), region


CASES: list[tuple[Callable[..., object], tuple[tuple[int, ...], ...], str]] = [
    (column_softmax, ((300, 70),), "sumexp"),
    (column_logsumexp, ((65, 33),), "sumexp"),
    (variance, ((1000, 96),), "m2"),
    (variance, ((7, 5),), "m2"),
    (batch_norm, ((513, 130), (130,)), "m2"),
    (per_segment, ((3, 90, 40),), "m2"),
    (written_out, ((256, 64),), "m2"),
]


@pytest.mark.built_together(1)
@pytest.mark.parametrize("index", range(len(CASES)))
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_one_pass_is_as_accurate_as_eager(index: int, offset: float) -> None:
    fn, shapes, op = CASES[index]
    torch.manual_seed(index)
    inputs = tuple(torch.randn(shape) * 3 + (offset if i == 0 else 0) for i, shape in enumerate(shapes))
    program, region = program_of(fn, inputs)
    planned = plan_split(program, tuple(d.name for d in program.dims[:-1]), (program.dims[-1].name,), CPU, {})
    assert isinstance(planned, Plan)
    assert any(v.op == op for k in planned.kernels for v in k.program.values)
    got = run_plan(planned, program, inputs, (), Options.read())
    exact = interpret(program, inputs)
    graph_outputs = fn(*inputs)
    eager = [graph_outputs] if isinstance(graph_outputs, Tensor) else list(graph_outputs)
    (returned,) = (node.args[0] for node in region.members[0].graph.nodes if node.op == "output")
    returned = returned if isinstance(returned, list | tuple) else [returned]
    by_node = dict(zip(returned, eager, strict=True))
    for node, mine, reference in zip(region.outputs, got, exact, strict=True):
        # a result is returned as it is, or as the one view of it
        theirs = by_node[node if node in by_node else next(iter(node.users))].double().reshape(reference.shape)
        allowed = (theirs - reference).norm()
        assert (mine.double() - reference).norm() <= 3 * allowed + 3e-7 * reference.norm(), fn.__name__


def test_infinities_of_the_sum_of_exponentials() -> None:
    x = torch.randn(40, 8)
    x[:20, 0] = -torch.inf
    x[:, 1] = -torch.inf
    x[3, 2] = torch.inf
    x[5, 3] = torch.nan
    program, _ = program_of(column_softmax, (x,))
    planned = plan_split(program, ("m",), ("n",), CPU, {})
    assert isinstance(planned, Plan)
    (got,) = run_plan(planned, program, [x], (), Options.read())
    torch.testing.assert_close(got, torch.softmax(x, 0), equal_nan=True)


def test_row_statistics_stay_as_they_are() -> None:
    x = torch.randn(16, 32)
    program, _ = program_of(lambda x: torch.softmax(x, -1), (x,))
    assert online(program, ("m",), ("n",)) == program
    assert online(program, ("m", "n"), ()) == program


def test_a_sum_of_squares_around_something_else_is_no_variance() -> None:
    def around_half(x: Tensor) -> Tensor:
        return (x - x.sum(0) / 30).square().sum(0)

    program, _ = program_of(around_half, (torch.randn(16, 32),))
    assert online(program, ("m",), ("n",)) == program


def test_a_sum_of_exponentials_around_something_else_is_no_softmax() -> None:
    def around_another(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (x - y.amax(0)).exp().sum(0), (x * y).sum(0)

    program, _ = program_of(around_another, (torch.randn(16, 32), torch.randn(16, 32)))
    assert online(program, ("m",), ("n",)) == program


def test_batch_norm_is_two_kernels_with_a_reason() -> None:
    inputs = (torch.randn(512, 128), torch.randn(128))
    program, _ = program_of(batch_norm, inputs)
    planned = plan(program, CPU)
    assert isinstance(planned, Plan)
    natural = plan_split(program, ("m",), ("n",), CPU, {})
    assert isinstance(natural, Plan)
    assert len(natural.kernels) == 2
    assert [d.refusal.rule for d in natural.decisions if d.refusal is not None] == ["outer_dependency"]


PICKS = """program p()
  dim m = 5
  dim n = 40
  input x: bf16 [m:40, n:1]
  input index: i64 [m:1]
  places: i64{n} = iota[n]()
  here: bool{m, n} = eq(places, index)
  wide: f32{m, n} = cast(x)
  zero: f32{} = const[0.0]()
  chosen: f32{m, n} = where(here, wide, zero)
  picked: f32{m} = sum[n](chosen)
  output y: f32 [m:1] = picked
end
"""


def test_one_element_of_a_row_is_taken_by_its_address() -> None:
    """Zero where an index is none of a column."""
    program = parse(PICKS)
    found = online_along_rows(program, ("n",))
    assert [v.op for v in found.values] == ["pick", "cast"]
    assert str(parse(str(found))) == str(found)
    inputs = (torch.randn(5, 40).bfloat16(), torch.tensor([0, 39, -1, 40, 17]))
    (mine,), (expected,) = interpret(found, inputs), interpret(program, inputs)
    assert torch.equal(mine, expected)
    assert mine.tolist()[2:4] == [0.0, 0.0]
    assert mine[1] == inputs[0][1, 39].double()


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("zero: f32{} = const[0.0]()", "zero: f32{} = const[1.0]()"),
        ("here: bool{m, n} = eq(places, index)", "here: bool{m, n} = ne(places, index)"),
        ("input index: i64 [m:1]", "input index: i64 [m:40, n:1]"),
        ("where(here, wide, zero)", "where(here, zero, wide)"),
        ("places: i64{n} = iota[n]()", "places: i64{m} = iota[m]()"),
    ],
)
def test_what_is_no_element_is_summed_up(text: str, instead: str) -> None:
    assert text in PICKS
    program = parse(
        PICKS.replace(text, instead).replace("bool{m, n}", "bool{m}" if "iota[m]" in instead else "bool{m, n}")
    )
    assert online_along_rows(program, ("n",)) == program
