"""Plans: what shares a kernel, under which schedule, for how many bytes; and every rule that says no."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.cases import make_case
from weft.bench import calibrate
from weft.bench.workloads import WORKLOADS
from weft.capture.regions import capture
from weft.capture.trace import trace
from weft.errors import Refusal, VerificationError
from weft.ir import Builder, Dim, Program
from weft.ir.interpret import interpret, resolve, sizes_of
from weft.ir.online import online
from weft.ir.ops import ONLINE, states_of
from weft.ir.parser import parse
from weft.ir.simplify import simplify
from weft.ir.structure import Cut, analyse
from weft.options import Options
from weft.plan import legality, partition
from weft.plan.cost import estimate, ideal
from weft.plan.kernel import Estimate, Kernel, Plan, Schedule
from weft.plan.planner import MAX_DIMENSIONS, check_worthwhile, plan, plan_split, splits
from weft.plan.schedules import kind_of, rows_per_chunk, schedule_for
from weft.plan.verify import verify_plan
from weft.render.triton_expressions import STATES
from weft.runtime.launch import run_plan
from weft.target import Target, cpu_fact, vendor

CALIBRATION = resources.files("weft.plan") / "calibration"
TARGETS = ("cpu", "cpu_amd", "gb200", "h100", "h200")
CPUS = ("cpu", "cpu_amd")
GPUS = tuple(name for name in TARGETS if name not in CPUS)
CPU = Target.named("cpu")
M, N = ("m",), ("n",)
ROWS, COLUMNS = 4096, 1024
DATA = """
  dim m = 64
  dim n = 32
  input x: f32 [m:32, n:1]
  input w: f32 [n:1]
"""

# operands and results of the backwards in bfloat16: [M, N] tiles, [N] vectors (2 bytes), [M] statistics (4 bytes)
TRAFFIC = {
    "rms_norm_backward": ("dy x dx", "weight dweight", "rstd"),
    "layer_norm_backward": ("dy x dx", "weight dweight dbias", "mean rstd"),
    "thunder_layer_norm_backward": ("dy x dx", "weight dweight dbias", "mean rstd"),
    "add_rms_norm_backward": ("dy dresidual x dx", "weight dweight", "rstd"),
    "layer_norm_backward_bias": ("dy x dx", "weight dweight dbias dxsum", "mean rstd"),
    "softmax_backward": ("dy y dx", "", ""),
}

NAMES = (
    *("rms_norm_forward", "rms_norm_backward", "layer_norm_forward", "layer_norm_backward"),
    *("thunder_layer_norm_backward", "add_rms_norm_forward", "add_rms_norm_backward", "layer_norm_backward_bias"),
    *("softmax_forward", "softmax_backward"),
)
BACKWARDS = tuple(TRAFFIC)


def program(data: str, body: str, parameters: str = "") -> Program:
    return parse(f"program p({parameters})\n{data}\n{body}\nend\n")


@cache
def workload(name: str, columns: int, dynamic: bool = True, rows: int = 2) -> Program:
    inputs = WORKLOADS[name].make_inputs((rows, columns), torch.bfloat16)
    return make_case(name, inputs, dynamic_rows=dynamic).program


def planned(given: Program, target: str | Target = "cpu", **hints: int) -> Plan:
    found = plan(given, Target.named(target) if isinstance(target, str) else target, hints)
    assert isinstance(found, Plan), found
    verify_plan(found, given)
    return found


def refusal_of(found: object) -> Refusal:
    assert isinstance(found, Refusal), found
    return found


def traced(function: Callable[..., Any], *inputs: Tensor, dynamic: bool = False) -> Program:
    (region,) = capture(trace(function, inputs, dynamic_rows=dynamic).graph, "f").regions
    return simplify(region.program)


def interpreted(chosen: Plan, given: Program, inputs: Sequence[Tensor], parameters: Sequence[int] = ()) -> list[Tensor]:
    """Results of the kernels of a plan, one after the other, each by the interpreter."""
    sizes = sizes_of(given, parameters)
    for name, factors in chosen.products.items():
        sizes[name] = math.prod(resolve(factor, sizes) for factor in factors)
    tensors = {b.name: t for b, t in zip(given.inputs, inputs, strict=True)}
    for kernel in chosen.kernels:
        made = interpret(
            kernel.program,
            [tensors[b.name] for b in kernel.program.inputs],
            [sizes[p] for p in kernel.program.parameters],
        )
        for output, value in zip(kernel.program.outputs, made, strict=True):
            strides = [resolve(s, sizes) for s in output.buffer.strides]
            tensors[output.buffer.name] = torch.empty_strided(value.shape, strides, dtype=value.dtype).copy_(value)
    return [tensors[o.buffer.name] for o in given.outputs]


# backward workloads on every target


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", BACKWARDS)
def test_a_backward_is_one_kernel_of_the_bytes_counted_by_hand(name: str, target: str) -> None:
    given = workload(name, COLUMNS)
    chosen = planned(given, target, s0=ROWS)
    (kernel,), (kind,), (found,) = chosen.kernels, chosen.kinds, chosen.estimates
    assert kind == ("inner" if name == "softmax_backward" else "mixed-order")
    assert (kernel.schedule.rows, kernel.schedule.columns) == (M, N)
    tiles, vectors, statistics = (names.split() for names in TRAFFIC[name])
    buffers = [*kernel.program.inputs, *(o.buffer for o in kernel.program.outputs)]
    assert sorted(len(b.dims) for b in buffers) == [1] * len(vectors + statistics) + [2] * len(tiles)
    assert len({b.name for b in buffers}) == len(buffers)
    expected = 2 * ROWS * COLUMNS * len(tiles) + 2 * COLUMNS * len(vectors) + 4 * ROWS * len(statistics)
    assert found.bytes_read + found.bytes_written == expected
    written = 2 * ROWS * COLUMNS + 2 * COLUMNS * sum(v != "weight" for v in vectors)
    assert found.bytes_written == written
    assert found.launches == 1
    in_chunk = 32 if target == "cpu_amd" else 64  # rows go one by one there, 32 of them to a chain
    chunks = ROWS // in_chunk if kind == "mixed-order" else 0
    assert found.workspace_bytes == chunks * COLUMNS * 4 * sum(v != "weight" for v in vectors)
    assert 0 < found.predicted_us == chosen.predicted_us


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", BACKWARDS)
def test_a_backward_is_predicted_faster_than_apart(name: str, target: str) -> None:
    whole = planned(workload(name, COLUMNS), target, s0=ROWS).decisions[0]
    assert whole.refusal is None
    assert whole.together_us is not None
    assert whole.apart_us is not None
    if name == "softmax_backward":  # one kernel either way
        assert whole.together_us == pytest.approx(whole.apart_us)
    else:
        assert whole.together_us < 0.9 * whole.apart_us


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", NAMES)
def test_the_scheme_follows_from_the_kind_and_the_registers(name: str, target: str) -> None:
    backward = name in BACKWARDS and name != "softmax_backward"
    narrow = planned(workload(name, COLUMNS), target, s0=ROWS).kernels[0].schedule
    assert narrow.scheme == ("STREAM" if backward else "ONE_SHOT")
    assert narrow.finish == ("same" if backward else "none")
    assert planned(workload(name, COLUMNS), replace(Target.named(target), exclusive=False), s0=ROWS).kernels[
        0
    ].schedule.finish == (("separate" if target in GPUS else "same") if backward else "none")
    wide = planned(workload(name, 65536), target, s0=ROWS)
    schemes = {kernel.schedule.scheme for kernel in wide.kernels}
    if target in CPUS:
        assert schemes == {narrow.scheme}
    elif backward:
        assert schemes == {"LOOP", "COLUMN"}
        assert [refusal.rule for refusal in wide.cuts] == ["row_registers"]
    else:
        assert schemes <= {"LOOP", "ONE_SHOT"}
    assert wide.kernels[0].schedule.segments == ()


@pytest.mark.parametrize("name", [n for n in BACKWARDS if n != "softmax_backward"])
def test_registers_decide(name: str) -> None:
    given = workload(name, 2048)
    for registers, together in ((65536, True), (8192, False)):
        chosen = planned(given, replace(Target.named("h200"), registers=registers), s0=ROWS)
        assert (len(chosen.kernels) == 1) == together
        if not together:
            (refusal,) = chosen.cuts
            assert isinstance(refusal.have, int)
            assert isinstance(refusal.limit, int)
            assert refusal.have > 16 >= refusal.limit  # of 512 threads


@pytest.mark.parametrize("target", TARGETS)
def test_a_lone_column_sum_is_a_column_kernel(target: str) -> None:
    body = "total: f32{n} = sum[m](x)\n  output out0: f32 [n:1] = total"
    chosen = plan_split(program(DATA, body), M, N, Target.named(target), {})
    assert isinstance(chosen, Plan)
    assert chosen.kinds == ("outer",)
    assert chosen.kernels[0].schedule.scheme == "COLUMN"
    assert chosen.kernels[0].schedule.finish == ("separate" if target in GPUS else "same")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", NAMES)
def test_rows_known_at_run_time_make_the_same_plan(name: str, target: str) -> None:
    static = planned(workload(name, COLUMNS, dynamic=False, rows=ROWS), target)
    dynamic = planned(workload(name, COLUMNS), target, s0=ROWS)
    assert static.kinds == dynamic.kinds
    for fixed, free in zip(static.kernels, dynamic.kernels, strict=True):
        if target in GPUS:  # addresses of 64 bits take registers: fewer programs may fit, and fewer warps be better
            assert fixed.schedule.scheme == free.schedule.scheme
        else:
            assert fixed.schedule == free.schedule
        assert fixed.program.values == free.program.values
        assert fixed.program.inputs == free.program.inputs
        assert fixed.program.dims == (Dim("m", ROWS), Dim("n", COLUMNS))
        assert free.program.dims == (Dim("m", "s0"), Dim("n", COLUMNS))
    if [k.schedule for k in static.kernels] == [k.schedule for k in dynamic.kernels]:
        assert static.estimates == dynamic.estimates


def test_equal_programs_have_equal_plans() -> None:
    """Whatever of the first one's analysis is kept: equal parts are not the same objects."""
    first, again = (planned(workload("add_rms_norm_forward", COLUMNS, rows=rows), "cpu", s0=ROWS) for rows in (64, 64))
    assert first.kernels[0].program is not again.kernels[0].program
    assert [kernel.schedule.held for kernel in (*first.kernels, *again.kernels)] == [("cast_2",)] * 2
    assert first == again


def test_a_hint_guides_and_is_not_compiled_in() -> None:
    given = workload("rms_norm_backward", COLUMNS)
    few, many = planned(given, s0=256), planned(given, s0=65536)
    assert few.kernels == many.kernels
    assert many.estimates[0].bytes_read > 200 * few.estimates[0].bytes_read


# several kernels


def batch_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, weight, bias, training=True)


def batch_norm_inputs(rows: int, columns: int) -> tuple[Tensor, ...]:
    return torch.randn(rows, columns) * 3 + 1, torch.randn(columns), torch.randn(columns)


def distance_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A batch norm that divides by the mean distance from the mean, which no single pass finds."""
    centred = x - x.mean(0)
    return centred / centred.abs().mean(0) * weight + bias


@cache
def batch_norm_program() -> Program:
    return traced(batch_norm, *batch_norm_inputs(512, 96))


@cache
def distance_norm_program() -> Program:
    return traced(distance_norm, *batch_norm_inputs(512, 96))


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
    inputs = batch_norm_inputs(512, 96)
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
    partition.cut(given, found, M, {})
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


# the rules that say no


def test_whole_rows() -> None:
    data = """
  dim m = 4
  dim k = 6
  dim n = 8
  input x: f32 [m:48, k:8, n:1]
  input y: f32 [m:6, k:1]
"""
    body = """
  part: f32{m, k} = sum[n](x)
  whole: f32{m} = sum[k, n](x)
  outer: f32{k, n} = sum[m](x)
  less: f32{m} = sum[k](y)
  few: f32{k} = sum[m](y)
  output out0: f32 [m:6, k:1] = part
  output out1: f32 [m:1] = whole
  output out2: f32 [k:8, n:1] = outer
  output out3: f32 [m:1] = less
  output out4: f32 [k:1] = few
"""
    values, columns = program(data, body).by_name(), ("k", "n")
    assert legality.check_whole_rows(values["whole"], ("m", "k", "n"), columns) is None
    assert legality.check_whole_rows(values["outer"], ("m", "k", "n"), columns) is None
    assert legality.check_whole_rows(values["less"], ("m", "k"), ("n",)) is None
    part = refusal_of(legality.check_whole_rows(values["part"], ("m", "k", "n"), columns))
    assert (part.rule, part.subject, part.have, part.limit) == ("partial_row", "part", 1, 2)
    assert part.message == "reduces over n only, where a row is all of the columns (k, n)"
    less = refusal_of(legality.check_whole_rows(values["less"], ("m", "k"), columns))
    assert (less.have, less.limit) == (1, 2)
    few = refusal_of(legality.check_whole_rows(values["few"], ("m", "k"), columns))
    assert (few.subject, few.have, few.limit) == ("few", 1, 2)
    assert few.message == "reduces what varies over k only, where a row is all of the columns (k, n)"
    assert legality.check_whole_rows(values["few"], ("m", "k"), ("k",)) is None
    whole = refusal_of(plan_split(program(data, body), M, columns, CPU, {}))
    assert replace(whole, subject="part") == part
    assert isinstance(plan_split(program(data, body), ("m", "k"), N, CPU, {}), Plan)


def test_a_moving_centre_is_for_sums_over_the_rows_of_whole_tiles() -> None:
    """Only the planner makes such reductions, where they are; elsewhere no kernel has them."""
    for op in ONLINE:
        given = program(DATA, f"  total: f32{{n}} = {op}[m](x)\n  output out0: f32 [n:1] = total")
        assert isinstance(plan_split(given, M, N, CPU, {}), Plan)
        for rows, columns in ((N, M), ((), M + N), (M + N, ())):
            refusal = refusal_of(plan_split(given, rows, columns, CPU, {}))
            assert refusal.rule in ("online_reduction", "partial_row")
        along = program(DATA, f"  total: f32{{m}} = {op}[n](x)\n  output out0: f32 [m:1] = total")
        refusal = refusal_of(plan_split(along, M, N, CPU, {}))
        assert (refusal.rule, refusal.subject) == ("online_reduction", op)
        straddling = program(DATA, f"  total: f32{{}} = {op}[m, n](x)\n  output out0: f32 [] = total")
        assert refusal_of(plan_split(straddling, M, N, CPU, {})).rule == "online_reduction"


def test_outer_dependency() -> None:
    refusal = refusal_of(legality.check_outer_dependency(Cut("centred", "mean", "outer_dependency", ("b", "m"))))
    assert (refusal.rule, refusal.subject) == ("outer_dependency", "centred")
    assert refusal.message == "varies over b, m, but needs mean, which is complete only after the whole pass over b, m"
    assert legality.check_outer_dependency(Cut("total", "mean", "epilogue_reduction", N)) is None


def test_epilogue_pointwise() -> None:
    reduced = refusal_of(legality.check_epilogue_pointwise(Cut("total", "mean", "epilogue_reduction", N)))
    assert (reduced.rule, reduced.subject) == ("epilogue_reduction", "total")
    assert reduced.message == "reduces mean, which is complete only after the pass, where a kernel reduces nothing"
    operand = refusal_of(legality.check_epilogue_pointwise(Cut("scaled", "row", "epilogue_operand", ("b", "m"))))
    assert (operand.rule, operand.subject) == ("epilogue_operand", "scaled")
    assert operand.message == "needs row after the pass over b, m, where values of a row are gone"
    assert legality.check_epilogue_pointwise(Cut("centred", "mean", "outer_dependency", M)) is None


SEGMENTS = """
  dim b = 3
  dim m = 64
  dim n = 32
  input x: f32 [b:2048, m:32, n:1]
  input w: f32 [b:32, n:1]
"""


@pytest.mark.parametrize(
    ("rule", "body"),
    [
        (
            "epilogue_reduction",
            """
  column: f32{b, n} = sum[m](x)
  total: f32{n} = max[b](column)
  output out0: f32 [n:1] = total
""",
        ),
        (
            "epilogue_operand",
            """
  column: f32{b, n} = sum[m](x)
  row: f32{b} = sum[n](w)
  both: f32{b, n} = mul(column, row)
  output out0: f32 [b:32, n:1] = both
""",
        ),
        (
            "outer_dependency",
            """
  column: f32{b, n} = sum[m](x)
  hat: f32{b, m, n} = mul(column, x)
  output out0: f32 [b:2048, m:32, n:1] = hat
""",
        ),
    ],
)
def test_every_reason_for_a_further_kernel_is_in_the_plan(rule: str, body: str) -> None:
    given = program(SEGMENTS, body)
    chosen = plan_split(given, ("b", "m"), N, CPU, {})
    assert isinstance(chosen, Plan), chosen
    verify_plan(chosen, given)
    assert len(chosen.kernels) == 2
    assert [d.refusal.rule for d in chosen.decisions if d.refusal is not None] == [rule]
    inputs = [torch.randn(3, 64, 32), torch.randn(3, 32)]
    torch.testing.assert_close(interpreted(chosen, given, inputs), interpret(given, inputs))


def test_written_once() -> None:
    body = """
  row: f32{} = sum[n](w)
  product: f32{m, n} = mul(x, row)
  output out0: f32 [m:32, n:1] = product
  output out1: f32 [] = row
"""
    given = program(DATA, body)
    found = analyse(given, M)
    refusal = refusal_of(legality.check_written_once(given, given.outputs[1], found, M))
    assert (refusal.rule, refusal.subject) == ("row_invariant_reduction", "row")
    assert refusal.message == "is the same for every row, but would be computed again in each row over m"
    assert legality.check_written_once(given, given.outputs[0], found, M) is None
    assert legality.check_written_once(given, given.outputs[1], analyse(given, ()), ()) is None
    assert replace(refusal_of(plan_split(given, M, N, CPU, {})), subject="row") == refusal
    filled = program(DATA, body.replace("out1: f32 []", "out1: f32 [m:1]"))
    assert legality.check_written_once(filled, filled.outputs[1], found, M) is None
    pure = program(DATA, body.replace("row: f32{} = sum[n](w)", "row: f32{n} = mul(w, w)").replace("[]", "[n:1]"))
    assert legality.check_written_once(pure, pure.outputs[1], analyse(pure, M), M) is None


def test_dimensions() -> None:
    builder = Builder("many", tuple(Dim(f"d{i}", 2) for i in range(MAX_DIMENSIONS + 1)))
    names = [d.name for d in builder.dims]
    strides = [2 ** (len(names) - 1 - i) for i in range(len(names))]
    x = builder.input("x", "f32", names, strides)
    builder.output("out0", builder.reduce("sum", x, names), "f32", (), ())
    refusal = refusal_of(plan(builder.finish(), CPU))
    assert (refusal.rule, refusal.subject) == ("dimensions", "many")
    assert (refusal.have, refusal.limit) == (MAX_DIMENSIONS + 1, MAX_DIMENSIONS)
    assert "more dimensions than splits are searched for" in refusal.message


def test_worthwhile() -> None:
    chosen = planned(workload("rms_norm_backward", COLUMNS), s0=ROWS)
    given = chosen.kernels[0].program
    time = chosen.predicted_us
    assert check_worthwhile(chosen, None, given) is None
    assert check_worthwhile(chosen, time, given) is None
    refusal = refusal_of(check_worthwhile(chosen, time / 2, given))
    assert (refusal.rule, refusal.subject) == ("not_worthwhile", given.name)
    assert "slower than without fusion" in refusal.message
    assert refusal.have == round(time, 1)
    assert refusal.limit == round(time / 2, 1)


def test_a_sum_along_strided_rows_is_not_worthwhile() -> None:
    """Whatever the split, one of the tensors is read against its layout."""
    data = """
  dim m = 512
  dim n = 512
  input x: f32 [m:512, n:1]
  input y: f32 [n:512, m:1]
"""
    body = """
  xy: f32{m, n} = mul(x, y)
  row: f32{m} = sum[n](xy)
  hat: f32{m, n} = mul(xy, row)
  output out0: f32 [m:512, n:1] = hat
"""
    given = program(data, body)
    target = replace(CPU, strided_us_per_mega=1e6)
    refusal = refusal_of(plan(given, target))
    assert refusal.rule == "not_worthwhile"
    assert isinstance(refusal.have, float)
    assert isinstance(refusal.limit, float)
    assert refusal.have > refusal.limit


def test_splits_are_all_there_are_with_the_fast_dimension_in_columns_first() -> None:
    builder = Builder("p", (Dim("a", 2), Dim("b", 3), Dim("n", 4)))
    x = builder.input("x", "f32", ("a", "b", "n"), (12, 4, 1))
    builder.output("out0", x, "f32", ("a", "b", "n"), (12, 4, 1))
    found = list(splits(builder.finish()))
    assert len(found) == len(set(found)) == 8
    assert found[:2] == [(("a", "b", "n"), ()), (("a", "b"), ("n",))]
    assert all(sorted(rows + columns) == ["a", "b", "n"] for rows, columns in found)


# plans that are broken by hand


@pytest.fixture
def good() -> tuple[Plan, Program]:
    given = distance_norm_program()
    chosen = plan_split(given, M, N, CPU, {})
    assert isinstance(chosen, Plan)
    return verify_plan(chosen, given), given


def with_schedule(chosen: Plan, index: int, **changes: Any) -> Plan:
    kernels = list(chosen.kernels)
    kernels[index] = replace(kernels[index], schedule=replace(kernels[index].schedule, **changes))
    return replace(chosen, kernels=tuple(kernels))


def broken(chosen: Plan, given: Program, message: str) -> None:
    with pytest.raises(VerificationError, match=f"^{re.escape(message)}"):
        verify_plan(chosen, given)


def test_rows_and_columns_are_the_dimensions(good: tuple[Plan, Program]) -> None:
    chosen, given = good
    broken(with_schedule(chosen, 1, rows=()), given, "f_1: rows and columns are ['n'], not its dimensions")
    broken(with_schedule(chosen, 1, columns=("n", "k")), given, "f_1: rows and columns are ['k', 'm', 'n'], not")


def test_a_dimension_is_a_row_or_a_column(good: tuple[Plan, Program]) -> None:
    chosen, given = good
    broken(with_schedule(chosen, 2, rows=("m", "n")), given, "f_2:")


def test_segments_are_rows(good: tuple[Plan, Program]) -> None:
    chosen, given = good
    broken(with_schedule(chosen, 0, segments=("n",)), given, "f_0: segments ('n',) are no rows")


def test_a_kernel_is_one_pass(good: tuple[Plan, Program]) -> None:
    chosen, given = good
    whole = Kernel(given, chosen.kernels[0].schedule)
    broken(replace(chosen, kernels=(whole,)), given, "f: is more than one pass")


def test_a_buffer_is_written_before_it_is_read(good: tuple[Plan, Program]) -> None:
    chosen, given = good
    first, second, third = chosen.kernels
    missing = second.program.inputs[-1].name
    broken(replace(chosen, kernels=(second, first, third)), given, f"f_1: reads {missing} before it is written")


def test_a_buffer_is_written_once(good: tuple[Plan, Program]) -> None:
    chosen, given = good
    first = chosen.kernels[0]
    saved = first.program.outputs[0].buffer.name
    broken(replace(chosen, kernels=(first, *chosen.kernels)), given, f"f_0: {saved} is written twice")


def test_an_input_is_not_written(good: tuple[Plan, Program]) -> None:
    chosen, given = good
    clash = replace(given, inputs=(*given.inputs, replace(given.inputs[0], name="out0")))
    broken(chosen, clash, "f_2: out0 is written twice")
    fewer = replace(given, inputs=tuple(b for b in given.inputs if b.name != "bias"))
    broken(chosen, fewer, "f_2: reads bias before it is written")


def test_every_result_is_written(good: tuple[Plan, Program]) -> None:
    chosen, given = good
    broken(replace(chosen, kernels=chosen.kernels[:2]), given, "f: ['out0'] are never written")


def test_every_kernel_is_a_valid_program(good: tuple[Plan, Program]) -> None:
    chosen, given = good
    first = chosen.kernels[0]
    values = tuple(replace(v, dtype="f64") if v.op == "sum" else v for v in first.program.values)
    bad = replace(first, program=replace(first.program, values=values))
    broken(replace(chosen, kernels=(bad, *chosen.kernels[1:])), given, "sum: is f64, expected f32")


# estimates by hand

EXAMPLE = replace(
    CPU,
    units=1,
    lanes=16,
    bandwidth_gbps=1e12,
    launch_us=7.0,
    vector_op_us_per_mega=2.0**20,
    row_overhead_us=0.0,
    strided_us_per_mega=0.0,
)
"""Only launches and vector operations take time: a microsecond for every element and operation."""


def zeroed(target: Target, *names: str) -> Target:
    """Overheads that an example does not speak of cost nothing."""
    known = {f.name for f in fields(Target)}
    return replace(target, **{name: 0.0 for name in names if name in known})


def scheduled(given: Program, scheme: str, **changes: Any) -> Kernel:
    return Kernel(given, replace(Schedule(scheme, M, N), **changes))  # type: ignore[arg-type]


def squares(rows: int, columns: int) -> Program:
    data = f"""
  dim m = {rows}
  dim n = {columns}
  input x: f32 [m:{columns}, n:1]
"""
    body = f"""
  square: f32{{m, n}} = mul(x, x)
  row: f32{{m}} = sum[n](square)
  output out0: f32 [m:{columns}, n:1] = square
  output out1: f32 [m:1] = row
"""
    return program(data, body)


@pytest.mark.parametrize(("columns", "lanes"), [(2, 32), (31, 32), (32, 32), (33, 64), (64, 64), (65, 96)])
def test_lanes_without_columns_cost_as_much_as_others(columns: int, lanes: int) -> None:
    """A multiplication and an addition for every lane of pairs of 16, of each of 10 rows."""
    kernel = scheduled(squares(10, columns), "ONE_SHOT")
    target = zeroed(EXAMPLE, "chunk_overhead_us")
    found = estimate(kernel, target, {})
    assert found.predicted_us == pytest.approx(7 + 10 * lanes * 2)
    assert estimate(kernel, replace(target, units=4), {}).predicted_us == pytest.approx(7 + 10 * lanes * 2 / 4)


def test_memory_and_arithmetic_overlap() -> None:
    kernel = scheduled(squares(10, 32), "ONE_SHOT")
    moved = 10 * 32 * 4 + 10 * 32 * 4 + 10 * 4
    target = zeroed(replace(EXAMPLE, bandwidth_gbps=1e-3), "chunk_overhead_us")  # a byte a microsecond
    found = estimate(kernel, target, {})
    assert (found.bytes_read, found.bytes_written) == (10 * 32 * 4, moved - 10 * 32 * 4)
    assert moved > 10 * 32 * 2
    assert found.predicted_us == pytest.approx(7 + moved)
    assert ideal(kernel, target, {}).predicted_us == pytest.approx(7 + moved)


def test_workspace_is_a_row_of_partial_sums_a_chunk() -> None:
    """100 rows in chunks of 16 are 7 chunks; a sum of floats and a maximum of doubles over 40 columns."""
    data = """
  dim m = 100
  dim n = 40
  input x: f32 [m:40, n:1]
  input y: f64 [m:40, n:1]
"""
    body = """
  total: f32{n} = sum[m](x)
  largest: f64{n} = max[m](y)
  output out0: f32 [n:1] = total
  output out1: f64 [n:1] = largest
"""
    kernel = scheduled(program(data, body), "COLUMN", rows_per_chunk=16, finish="same")
    found = estimate(kernel, CPU, {})
    assert found.workspace_bytes == 7 * 40 * (4 + 8)
    assert found.bytes_read == 100 * 40 * (4 + 8)
    assert found.bytes_written == 40 * (4 + 8)
    slow = zeroed(
        replace(EXAMPLE, bandwidth_gbps=1e-3, vector_op_us_per_mega=0.0), "chunk_overhead_us", "row_overhead_us"
    )
    moved = found.bytes_read + found.bytes_written + 2 * found.workspace_bytes
    assert estimate(kernel, slow, {}).predicted_us == pytest.approx(2 * 7 + moved)  # two parallel loops


def test_chunks_do_not_straddle_segments() -> None:
    """3 segments of 20 rows in chunks of 16 are two chunks each: a full one and one of 4 rows."""
    data = """
  dim b = 3
  dim m = 20
  dim n = 8
  input x: f32 [b:160, m:8, n:1]
"""
    body = "total: f32{b, n} = sum[m](x)\n  output out0: f32 [b:8, n:1] = total"
    schedule = Schedule("COLUMN", ("b", "m"), N, ("b",), rows_per_chunk=16, finish="same")
    assert estimate(Kernel(program(data, body), schedule), CPU, {}).workspace_bytes == 3 * 2 * 8 * 4


def test_a_gpu_keeps_one_number_more_of_a_variance() -> None:
    """Means are relative to an element there: four numbers for each column of a partial result, not three."""
    assert {op: states_of(op, pivoted=True) for op in ONLINE} == {op: len(parts) for op, parts in STATES.items()}
    body = "squares: f32{n} = m2[m](x)\n  output out0: f32 [n:1] = squares"
    kernel = scheduled(program(DATA, body), "COLUMN", finish="separate")
    on_gpu = replace(kernel, schedule=replace(kernel.schedule, backend="triton"))
    cpu, gpu = (estimate(each, CPU, {}).workspace_bytes for each in (kernel, on_gpu))
    assert 4 * cpu == 3 * gpu > 0


def test_a_separate_finish_is_one_more_launch() -> None:
    body = "total: f32{n} = sum[m](x)\n  output out0: f32 [n:1] = total"
    same = scheduled(program(DATA, body), "COLUMN", finish="same")
    apart = scheduled(program(DATA, body), "COLUMN", finish="separate")
    for target, more in ((replace(EXAMPLE, kind="gpu"), EXAMPLE.launch_us), (EXAMPLE, 0.0)):
        one, two = (estimate(k, target, {}) for k in (same, apart))
        assert (one.launches, two.launches) == (1, 2)
        assert two.predicted_us - one.predicted_us == pytest.approx(more)  # on a CPU both are a second parallel loop


def test_elements_read_against_their_layout_cost_extra() -> None:
    data = """
  dim m = 64
  dim n = 32
  input x: f32 [n:64, m:1]
  input w: f32 [m:1]
"""
    body = "y: f32{m, n} = mul(x, w)\n  output out0: f32 [m:32, n:1] = y"
    kernel = scheduled(program(data, body), "ONE_SHOT")
    free = replace(EXAMPLE, strided_us_per_mega=0.0)
    costly = replace(EXAMPLE, strided_us_per_mega=2.0**20)
    extra = estimate(kernel, costly, {}).predicted_us - estimate(kernel, free, {}).predicted_us
    assert extra == pytest.approx(64 * 32)  # x; w lacks the columns and out0 has them side by side
    assert ideal(kernel, costly, {}) == ideal(kernel, free, {})


def test_rows_per_chunk_do_not_depend_on_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    given = workload("layer_norm_backward", 64, dynamic=False, rows=1000)
    before = torch.get_num_threads()
    schedules: set[Schedule] = set()
    try:
        for threads in (1, 2, 7):
            torch.set_num_threads(threads)
            monkeypatch.setattr("os.cpu_count", lambda threads=threads: threads)
            schedules.add(planned(given).kernels[0].schedule)
    finally:
        torch.set_num_threads(before)
    schedules.add(planned(given, replace(CPU, units=64, bandwidth_gbps=500.0)).kernels[0].schedule)
    assert len(schedules) == 1


@pytest.mark.parametrize(
    ("rows", "expected"), [(2, 8), (256, 8), (257, 16), (512, 16), (2048, 64), (4096, 64), (100000, 64)]
)
def test_few_rows_are_cut_finer_but_never_below_a_tile(rows: int, expected: int) -> None:
    assert rows_per_chunk(squares(rows, 32), M) == expected
    assert rows_per_chunk(squares(rows, 32), M) % Schedule("STREAM", M, N).rows_per_tile == 0


def test_a_run_time_number_of_rows_takes_the_largest_chunk() -> None:
    assert rows_per_chunk(workload("rms_norm_backward", 64), M) == 64


def test_a_kind_follows_from_the_reductions() -> None:
    def kind(body: str) -> str:
        return kind_of(program(DATA, body), N)

    row = "row: f32{m} = sum[n](x)\n  output out0: f32 [m:1] = row\n"
    column = "column: f32{n} = sum[m](x)\n  output out1: f32 [n:1] = column\n"
    assert kind(row) == "inner"
    assert kind(column) == "outer"
    assert kind(row + "  " + column) == "mixed-order"
    assert kind("output out0: f32 [m:32, n:1] = x") == "pointwise"


def test_a_plan_prints_what_it_decided() -> None:
    chosen = planned(workload("rms_norm_backward", COLUMNS), s0=ROWS)
    (found,) = chosen.estimates
    text = str(chosen)
    assert text.startswith(f"plan for cpu: 1 kernel(s), {found.predicted_us:.1f} us predicted\n")
    assert "kernel rms_norm_backward: mixed-order\n" in text
    assert f"  schedule {chosen.kernels[0].schedule}\n" in text
    assert f"reads {found.bytes_read} bytes, writes {found.bytes_written}, workspace {found.workspace_bytes};" in text
    assert "decision rms_norm_backward as 1 kernel(s), rows (m), columns (n): yes (together " in text
    assert json.loads(json.dumps([d.to_dict() for d in chosen.decisions]))[0]["refusal"] is None


# targets and the sweep behind the constants


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_says_where_its_figures_come_from(name: str) -> None:
    data = json.loads((CALIBRATION / f"{name}.json").read_text())
    assert data["name"] == name
    assert type(data["measured"]) is bool
    assert data["measured"] or "unmeasured" in data["origin"]
    assert len(data["origin"]) > 20
    target = Target.named(name)
    assert {f.name: getattr(target, f.name) for f in fields(Target) if f.name not in ("exclusive", "device")} == data
    assert target.exclusive
    assert target.bandwidth_gbps > 0
    assert target.launch_us > 0
    assert target.units > 0
    assert (target.registers > 0) == (target.kind == "gpu")


def test_there_are_no_other_targets() -> None:
    found = {Path(entry.name).stem for entry in CALIBRATION.iterdir() if entry.name.endswith(".json")}
    assert found == set(TARGETS)


@pytest.mark.parametrize("name", ["", "H200", "b300", "../cpu"])
def test_an_unknown_target_names_the_known_ones(name: str) -> None:
    with pytest.raises(
        ValueError, match=rf"no target named {re.escape(repr(name))}; known: cpu, cpu_amd, gb200, h100, h200$"
    ):
        Target.named(name)


@pytest.mark.parametrize(
    "cpuinfo",
    ["processor\t: 0\nvendor_id\t: AuthenticAMD\n", "vendor_id\t: GenuineIntel\n", None],
)
def test_a_cpu_says_its_maker(cpuinfo: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(path: Path) -> str:
        if cpuinfo is None:
            raise FileNotFoundError(path)
        return cpuinfo

    monkeypatch.setattr(Path, "read_text", read)
    cpu_fact.cache_clear()
    assert vendor() == ("" if cpuinfo is None else cpuinfo.split()[-1])
    monkeypatch.undo()
    cpu_fact.cache_clear()


@pytest.mark.parametrize(("found", "name"), [("AuthenticAMD", "cpu_amd"), ("GenuineIntel", "cpu"), ("", "cpu")])
def test_the_current_cpu_is_the_one_of_its_maker(found: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.target.vendor", lambda: found)
    assert Target.current() == Target.current("cpu") == Target.named(name)


def test_a_device_without_figures_names_the_targets() -> None:
    with pytest.raises(ValueError, match=r"no figures for meta; plan for one of cpu, cpu_amd, gb200, h100, h200$"):
        Target.current("meta")


@pytest.mark.parametrize(
    ("device", "name"),
    [("NVIDIA GB200", "gb200"), ("NVIDIA H200", "h200"), ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA L4", None)],
)
def test_a_gpu_is_known_by_its_name(device: str, name: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: device)
    if name is None:
        with pytest.raises(ValueError, match="no figures for cuda"):
            Target.current("cuda")
    else:
        assert Target.current("cuda").name == name


@pytest.mark.parametrize(
    ("name", "rows", "columns", "expected"),
    [
        ("softmax_backward", 1024, 1024, 4),  # 6 MB
        ("softmax_backward", 4096, 1024, 1),  # 25 MB
        ("softmax_backward", 1024, 8192, 1),
        ("cross_entropy_forward", 16384, 1024, 4),  # no rows are written
        ("qk_norm_forward", 4096, 1024, 4),  # the rows of a tile are not neighbours
        ("rms_norm_backward", 4096, 1024, 1),  # column sums, rows of 2 KB
        ("rms_norm_backward", 4096, 4096, 4),  # of 8 KB
        ("rms_norm_backward", 512, 1024, 4),
    ],
)
def test_rows_that_stream_from_memory_go_one_by_one(name: str, rows: int, columns: int, expected: int) -> None:
    given = workload(name, columns, dynamic=False, rows=rows)
    assert planned(given, "cpu_amd").kernels[0].schedule.rows_per_tile == expected
    assert planned(given, "cpu").kernels[0].schedule.rows_per_tile == 4


def sweep_kernel(target: str, name: str, rows: int, columns: int) -> Kernel:
    """The kernel behind a row of the sweep. Other rows change nothing but a size: one trace serves them all."""
    if name == "segment_sum":
        given = traced(calibrate.segment_sum, torch.empty(rows, 2, columns, dtype=torch.bfloat16))
    elif rows == 1:
        given = workload(name, columns, dynamic=False, rows=1)
    else:
        free = workload(name, columns)
        given = replace(free, parameters=(), dims=(Dim("m", rows), Dim("n", columns)))
    dims = tuple(d.name for d in given.dims)
    chosen = plan_split(given, tuple(d for d in dims if d != "n"), N, Target.named(target), {})
    assert isinstance(chosen, Plan)
    (kernel,) = chosen.kernels
    return kernel


@cache
def sweep_rows(target: str) -> tuple[dict[str, str], ...]:
    return tuple(csv.DictReader((CALIBRATION / f"{target}_sweep.csv").read_text().splitlines()))


@pytest.mark.parametrize(("dtype", "chain"), [("f32", 16), ("bf16", 32)])
def test_sums_stored_in_float32_have_short_chains(dtype: str, chain: int) -> None:
    """Rows of 128 KB: two of them are a tile."""
    data = f"  dim m = 16384\n  dim n = 32768\n  input x: {dtype} [m:32768, n:1]\n"
    body = f"""
  wide: f32{{m, n}} = cast(x)
  total: f32{{n}} = sum[m](wide)
  stored: {dtype}{{n}} = cast(total)
  output out0: {dtype} [n:1] = stored
"""
    if dtype == "f32":
        body = "  total: f32{n} = sum[m](x)\n  output out0: f32 [n:1] = total"
    cache_bytes = 2**19 if dtype == "f32" else 2**18
    schedule = schedule_for(program(data, body), M, N, replace(CPU, cache_bytes=cache_bytes), {})
    assert schedule.rows_per_tile == 2
    assert schedule.rows_per_chunk == 2 * chain


@pytest.mark.parametrize("target", CPUS)
def test_the_sweep_covers_several_orders_of_magnitude(target: str) -> None:
    rows = sweep_rows(target)
    assert len(rows) >= 80
    assert len({r["workload"] for r in rows}) >= 5
    times = [float(r["measured_us"]) for r in rows]
    assert max(times) > 1000 * min(times) > 0
    assert {r["dtype"] for r in rows} == {"bf16"}


@pytest.mark.parametrize("target", CPUS)
def test_the_constants_predict_the_sweep_they_were_fitted_to(target: str) -> None:
    """Within a factor of two for every kernel and of 1.3 in the geometric mean, by the model as it is now."""
    factors: dict[tuple[str, str, str], float] = {}
    for row in sweep_rows(target):
        kernel = sweep_kernel(target, row["workload"], int(row["rows"]), int(row["columns"]))
        ratio = estimate(kernel, Target.named(target), {}).predicted_us / float(row["measured_us"])
        factors[row["workload"], row["rows"], row["columns"]] = max(ratio, 1 / ratio)
    far = {key: round(factor, 2) for key, factor in factors.items() if factor > 2}
    assert not far
    assert math.exp(sum(map(math.log, factors.values())) / len(factors)) <= 1.3


def test_a_plan_is_the_sum_of_its_estimates(good: tuple[Plan, Program]) -> None:
    chosen, _ = good
    assert chosen.predicted_us == pytest.approx(sum(e.predicted_us for e in chosen.estimates))
    assert chosen.decisions[0].together_us == pytest.approx(chosen.predicted_us)
    assert all(isinstance(e, Estimate) for e in chosen.estimates)


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


def test_a_reduction_alone_must_be_predicted_faster() -> None:
    lone = program(DATA, "  total: f32{m} = sum[n](x)\n  output out0: f32 [m:1] = total")
    chosen = plan_split(lone, M, N, CPU, {})
    assert isinstance(chosen, Plan)
    time = chosen.predicted_us
    refusal = refusal_of(check_worthwhile(chosen, time, lone))
    assert (refusal.rule, refusal.have, refusal.limit) == ("not_worthwhile", round(time, 1), round(time, 1))
    assert "nothing to fuse with it" in refusal.message
    assert check_worthwhile(chosen, time * 1.01, lone) is None
    wide = "  total: f32{m} = sum[n](x)\n  y: f32{m, n} = mul(x, total)\n  output out0: f32 [m:32, n:1] = y"
    fused = program(DATA, wide)
    assert check_worthwhile(chosen, time, fused) is None


def test_a_sum_of_two_neighbours_needs_no_second_launch() -> None:
    """Every segment is one chunk: there are no parts to add up, and nothing is gained over any other compiler."""
    data = "  dim b = 1024\n  dim g = 2\n  dim n = 64\n  input x: f32 [b:128, g:64, n:1]\n"
    body = "  total: f32{b, n} = sum[g](x)\n  output out0: f32 [b:64, n:1] = total"
    for target in TARGETS:
        assert refusal_of(plan(program(data, body), Target.named(target))).rule == "not_worthwhile"
