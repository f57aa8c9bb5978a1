"""Plans of several kernels: why there is a further one, and what is stored between them or computed again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.cases import make_case
from tests.plan_cases import (
    CPU,
    DATA,
    M,
    N,
    distance_norm,
    distance_norm_program,
    interpreted,
    norm_inputs,
    program,
    refusal_of,
    traced,
)
from weft.backends.triton.choice import gpu_schedule
from weft.bench.workloads import WORKLOADS
from weft.capture.regions import capture
from weft.capture.trace import trace
from weft.errors import Refusal
from weft.ir import Program
from weft.ir.interpret import interpret
from weft.ir.online import online
from weft.ir.simplify import simplify
from weft.ir.structure import analyse
from weft.options import Options
from weft.plan import partition
from weft.plan.cost import estimate
from weft.plan.kernel import Kernel, Plan
from weft.plan.planner import plan, plan_split, splits
from weft.plan.split import Split
from weft.plan.verify import verify_plan
from weft.runtime.launch import run_plan
from weft.target import Target


def batch_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, weight, bias, training=True)


@cache
def batch_norm_program() -> Program:
    return traced(batch_norm, *norm_inputs(512, 96))


@pytest.mark.parametrize(
    ("make", "kinds"),
    [(batch_norm_program, ("outer", "pointwise")), (distance_norm_program, ("outer", "outer", "pointwise"))],
)
def test_norms_over_rows_are_several_passes_and_say_why(make: Callable[[], Program], kinds: tuple[str, ...]) -> None:
    given = make()
    chosen = plan_split(given, M, N, CPU, {})
    assert isinstance(chosen, Plan)
    verify_plan(chosen, given)
    assert chosen.kinds == kinds
    whole, *cuts = chosen.decisions
    assert whole.refusal is None
    assert whole.candidate == f"f as {len(kinds)} kernel(s), rows (m), columns (n)"
    by_name = online(given, M, N).by_name()
    assert len(cuts) == len(kinds) - 1
    for decision in cuts:
        refusal = refusal_of(decision.refusal)
        value, operand = decision.candidate.split(" with ")
        assert refusal.rule == "outer_dependency"
        assert refusal.subject == value
        assert "varies over m" in refusal.message
        assert operand in refusal.message
        assert by_name[value].dims == ("m", "n")
        assert by_name[operand].dims == ("n",)
        assert operand in by_name[value].args
        assert str(refusal) in str(chosen)


def between_kernels(chosen: Plan, given: Program) -> list[tuple[str, ...]]:
    own = {b.name for b in given.inputs} | {"out0"}
    return [o.buffer.dims for k in chosen.kernels for o in k.program.outputs if o.buffer.name not in own]


def test_batch_norm_finds_both_statistics_in_one_pass() -> None:
    given = batch_norm_program()
    chosen = plan_split(given, M, N, CPU, {})
    assert isinstance(chosen, Plan)
    assert "m2" in {v.op for v in chosen.kernels[0].program.values}
    assert between_kernels(chosen, given) == [("n",), ("n",)]
    tile, vector = 512 * 96 * 4, 96 * 4
    assert [e.bytes_read for e in chosen.estimates] == [tile, tile + 4 * vector]
    assert [e.bytes_written for e in chosen.estimates] == [2 * vector, tile]


def test_what_is_kept_between_passes_is_small() -> None:
    """The centred data is computed again from x: only the two statistics of each column go through memory."""
    given = distance_norm_program()
    chosen = plan_split(given, M, N, CPU, {})
    assert isinstance(chosen, Plan)
    assert between_kernels(chosen, given) == [("n",), ("n",)]
    tile, vector = 512 * 96 * 4, 96 * 4
    assert [e.bytes_read for e in chosen.estimates] == [tile, tile + vector, tile + 4 * vector]
    assert [e.bytes_written for e in chosen.estimates] == [vector, vector, tile]


@pytest.mark.parametrize(
    ("function", "make"), [(batch_norm, batch_norm_program), (distance_norm, distance_norm_program)]
)
def test_norms_over_rows_in_several_kernels(function: Callable[..., Tensor], make: Callable[[], Program]) -> None:
    inputs = norm_inputs(512, 96)
    given = make()
    chosen = plan_split(given, M, N, CPU, {})
    assert isinstance(chosen, Plan)
    bound = [next(t for t, name in zip(inputs, "xwb", strict=True) if b.name[0] == name) for b in given.inputs]
    (exact,) = interpret(given, bound)
    (kernels,) = interpreted(chosen, given, bound)
    (compiled,) = run_plan(chosen, given, bound, (), Options.read())
    torch.testing.assert_close(kernels, exact)
    torch.testing.assert_close(compiled.double(), exact, rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(compiled, function(*inputs), rtol=2e-5, atol=2e-5)


def test_an_expensive_value_of_many_operands_is_stored_not_computed_again() -> None:
    """Five operands would be read again where a store and a load move two."""
    names = "abcde"
    data = "\n".join(["  dim m = 64", "  dim n = 32", *(f"  input {v}: f32 [m:32, n:1]" for v in names)])
    body = """
  ab: f32{m, n} = add(a, b)
  abc: f32{m, n} = add(ab, c)
  abcd: f32{m, n} = add(abc, d)
  abcde: f32{m, n} = add(abcd, e)
  column: f32{n} = sum[m](abcde)
  centred: f32{m, n} = sub(abcde, column)
  output out0: f32 [m:32, n:1] = centred
"""
    given = program(data, body)
    chosen = plan_split(given, M, N, CPU, {})
    assert isinstance(chosen, Plan)
    first, second = chosen.kernels
    assert {b.name for b in second.program.inputs} == {o.buffer.name for o in first.program.outputs}
    assert sorted(o.buffer.dims for o in first.program.outputs) == [("m", "n"), ("n",)]
    inputs = [torch.randn(64, 32) for _ in names]
    torch.testing.assert_close(interpreted(chosen, given, inputs), interpret(given, inputs))
    pair = body.replace("abcde: f32{m, n} = add(abcd, e)", "abcde: f32{m, n} = add(a, b)")
    few = plan_split(simplify(program(data, pair)), M, N, CPU, {})
    assert isinstance(few, Plan)
    assert [b.dims for b in few.kernels[1].program.inputs] == [("m", "n"), ("m", "n"), ("n",)]
    assert {"a", "b"} < {b.name for b in few.kernels[1].program.inputs}


def test_deciding_what_to_compute_again_takes_no_exponential_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of values that each use the one before twice has 2^k paths."""
    body = ["column: f32{n} = sum[m](x)", "v0: f32{m, n} = sub(x, column)"]
    body += [f"v{i}: f32{{m, n}} = mul(v{i - 1}, v{i - 1})" for i in range(1, 13)]
    given = program(DATA, "\n".join([*body, "output out0: f32 [m:32, n:1] = v12"]))
    calls = 0
    original = partition.lookup

    def counting(name: str) -> Any:
        nonlocal calls
        calls += 1
        return original(name)

    monkeypatch.setattr(partition, "lookup", counting)
    found = analyse(given, M)
    partition.cut(given, found, {})
    assert calls < 13**2, f"{calls} visits for 13 values"


def test_results_that_fill_rows_with_column_sums_wait_for_them() -> None:
    body = """
  total: f32{n} = sum[m](x)
  output out0: f32 [m:32, n:1] = total
"""
    given = program(DATA, body)
    chosen = plan_split(given, M, N, CPU, {})
    assert isinstance(chosen, Plan)
    verify_plan(chosen, given)
    assert chosen.kinds == ("outer", "pointwise")
    x, w = torch.randn(64, 32), torch.randn(32)
    torch.testing.assert_close(interpreted(chosen, given, [x, w]), [x.double().sum(0).expand(64, 32)])


def test_a_pass_without_rows_may_reduce_what_is_the_same_for_every_row() -> None:
    """The second kernel of ``x.sum(0).amax()`` has no rows, so nothing in it would be computed once a row."""
    body = """
  total: f32{n} = sum[m](x)
  largest: f32{} = max[n](total)
  output out0: f32 [] = largest
"""
    given = program(DATA, body)
    chosen = plan_split(given, M, N, CPU, {})
    assert isinstance(chosen, Plan), chosen
    verify_plan(chosen, given)
    assert [k.schedule.rows for k in chosen.kernels] == [M, ()]
    inputs = [torch.randn([next(d.size for d in given.dims if d.name == n) for n in b.dims]) for b in given.inputs]
    torch.testing.assert_close(interpreted(chosen, given, inputs), interpret(given, inputs))


DYNAMIC = """
  dim a = s0
  dim b = s1
  dim c = s2
  dim n = 8
  input x: f32 [a:s3, b:s4, c:8, n:1]
"""
THREE_SIZES = """
  row: f32{a, b, c} = sum[n](x)
  hat: f32{a, b, c, n} = mul(x, row)
  other: f32{a, b, c, n} = exp(hat)
  column: f32{n} = sum[a, b, c](other)
  centred: f32{a, b, c, n} = sub(other, column)
  output out0: f32 [a:s3, b:s4, c:8, n:1] = centred
"""


def test_intermediates_of_run_time_sizes_have_run_time_strides() -> None:
    """Row sums over three run-time sizes go through memory; the stride of the first is the product of two."""
    given = program(DYNAMIC, THREE_SIZES, "s0, s1, s2, s3, s4")
    hints = {"s0": 4, "s1": 5, "s2": 6}
    inputs = [torch.randn(2, 3, 5, 8)]
    parameters = (2, 3, 5, 120, 40)
    exact = interpret(given, inputs, parameters)
    tried = 0
    for rows, columns in splits(given):
        chosen = plan_split(given, rows, columns, CPU, hints)
        if isinstance(chosen, Plan):
            tried += 1
            verify_plan(chosen, given)
            torch.testing.assert_close(interpreted(chosen, given, inputs, parameters), exact)
    assert tried >= 1


FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "standardised twice": lambda x, w: F.layer_norm((x - x.mean(0)) / (x.var(0) + 1), (24,)) * w,
    "columns then rows then columns": lambda x, w: (torch.softmax(torch.softmax(x * w, 0), 1).sum(0), x.sum(1)),
    "total back": lambda x, w: (x / x.abs().sum(), (x * w).amax(0)),
    "column of rows of columns": lambda x, w: ((x - x.amax(0)).exp().sum(1, keepdim=True) * x).sum(0) * w,
    "gram of sums": lambda x, w: ((x * w).sum(0) * (x + w).sum(0)).sum() + x,
    "middle": lambda x, w: torch.softmax(x.view(6, 8, 24), 1).sum((0, 2)),
    "groups": lambda x, w: F.group_norm(x.view(6, 24, 8), 4),
    "neighbours in rows": lambda x, w: torch.softmax(
        x.view(6, 8, 24).transpose(0, 1) + x.view(24, 6, 8).permute(2, 1, 0), 2
    ),
    "segments": lambda x, w: x.view(6, 8, 24).sum(1) * w - x.view(6, 8, 24).mean((1, 2)).unsqueeze(1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_legal_split_computes_the_same(name: str) -> None:
    """All splits, however many passes they take, kernel by kernel through the interpreter."""
    inputs = (torch.randn(48, 24), torch.randn(24))
    graph = trace(FUNCTIONS[name], inputs)
    passes: set[int] = set()
    for region in capture(graph.graph, "f").regions:
        given = simplify(region.program)
        bound = [torch.randn([given.size_of(d) for d in b.dims]).contiguous() for b in given.inputs]  # type: ignore[misc]
        bound = [t.as_strided(t.shape, [int(s) for s in b.strides]) for t, b in zip(bound, given.inputs, strict=True)]
        exact = interpret(given, bound)
        for rows, columns in splits(given):
            chosen = plan_split(given, rows, columns, CPU, {})
            if isinstance(chosen, Refusal):
                assert chosen.rule in ("partial_row", "row_invariant_reduction"), chosen
                continue
            verify_plan(chosen, given)
            passes.add(len(chosen.kernels))
            assert len(chosen.kernels) <= 1 + len(given.values)
            for mine, theirs in zip(interpreted(chosen, given, bound), exact, strict=True):
                torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9, msg=lambda m: f"{rows} | {columns}: {m}")  # noqa: B023
    assert passes


WIDE = (136, 16384)
"""Few rows, which are planned for as if they were many, and columns of which the registers hold two sums."""
MANY = 64
"""How many times as many rows."""


def resized(program: Program, times: float) -> Program:
    """So many times as many rows."""
    first = program.dims[0]
    assert isinstance(first.size, int)
    return replace(program, dims=(replace(first, size=round(first.size * times)), *program.dims[1:]))


@pytest.mark.only_triton
@pytest.mark.parametrize(
    ("name", "shared", "alone", "read"),
    [
        ("layer_norm_backward_bias", {"out0", "out1", "out3"}, {"out2"}, {"dy"}),
        ("modulated_layer_norm_backward", {"out0", "out1", "out2"}, set[str](), set[str]()),
        ("layer_norm_backward", {"out0", "out1", "out2"}, set[str](), set[str]()),
    ],
)
def test_as_many_column_sums_as_fit_share_a_kernel_with_the_rows(
    name: str, shared: set[str], alone: set[str], read: set[str]
) -> None:
    """And the second kernel has those for which the least is read again."""
    inputs = tuple(WORKLOADS[name].make_inputs(WIDE, torch.float64))
    case = make_case(name, tuple(WORKLOADS[name].make_inputs(WIDE, torch.bfloat16)))
    many = plan(resized(case.program, MANY), Target.named("h200"))
    assert isinstance(many, Plan)
    chosen = replace(many, kernels=tuple(Kernel(resized(k.program, 1 / MANY), k.schedule) for k in many.kernels))
    verify_plan(chosen, case.program)
    assert [{o.buffer.name for o in k.program.outputs} for k in chosen.kernels] == [o for o in (shared, alone) if o]
    assert [kernel.schedule.scheme for kernel in chosen.kernels] == ["STREAM", "COLUMN"][: len(chosen.kernels)]
    if alone:
        assert {b.name for b in chosen.kernels[1].program.inputs} == read
        assert [refusal.rule for refusal in chosen.cuts] == ["row_registers"]
        apart = partition.separate(resized(case.program, MANY), chosen.kernels[0].schedule.rows, saving=True)
        splits = [
            Split.of(p, p.in_order(many.kernels[0].schedule.rows), ("n",), Target.named("h200"), {}) for p in apart
        ]
        kernels = [Kernel(split.program, gpu_schedule(split)) for split in splits]
        assert many.predicted_us < sum(estimate(k, Target.named("h200"), {}).predicted_us for k in kernels)
    bound = case.bind(inputs)
    for mine, right in zip(interpreted(chosen, case.program, bound), interpret(case.program, bound), strict=True):
        torch.testing.assert_close(mine, right)
