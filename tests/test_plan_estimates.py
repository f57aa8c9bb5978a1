"""Bytes, workspace, launches and times of kernels, estimated by hand."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from typing import Any

import pytest

from tests.plan_cases import CPU, DATA, M, N, program, squares
from tools.gpu_cells import Cell, parts_of
from weft.backends.cpp.schedule import CppSchedule
from weft.backends.listed import render
from weft.backends.triton.choice import gpu_schedule
from weft.backends.triton.expressions import STATES
from weft.backends.triton.finish_tasks import finish_steps
from weft.backends.triton.schedule import TritonSchedule
from weft.backends.triton.work import INDEX_COST, Work
from weft.ir import Program
from weft.ir.ops import ONLINE, states_of
from weft.plan.cost import estimate, estimates, ideal
from weft.plan.fitting import separated
from weft.plan.kernel import Kernel
from weft.plan.split import Split
from weft.target import Target

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
H200 = Target.named("h200")


def zeroed(target: Target, *names: str) -> Target:
    """Overheads that an example does not speak of cost nothing."""
    known = {f.name for f in fields(Target)}
    return replace(target, **{name: 0.0 for name in names if name in known})


def scheduled(given: Program, scheme: str, **changes: Any) -> Kernel:
    return Kernel(given, replace(CppSchedule(scheme, M, N), **changes))  # type: ignore[arg-type]


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
    assert ideal(kernel, estimate(kernel, target, {}), target, {}).predicted_us == pytest.approx(7 + moved)


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
    schedule = CppSchedule("COLUMN", ("b", "m"), N, ("b",), rows_per_chunk=16, finish="same")
    assert estimate(Kernel(program(data, body), schedule), CPU, {}).workspace_bytes == 3 * 2 * 8 * 4


def test_a_gpu_keeps_one_number_more_of_a_variance() -> None:
    """Means are relative to an element there: four numbers for each column of a partial result, not three."""
    assert {op: states_of(op, pivoted=True) for op in ONLINE} == {op: len(parts) for op, parts in STATES.items()}
    body = "squares: f32{n} = m2[m](x)\n  output out0: f32 [n:1] = squares"
    kernel = scheduled(program(DATA, body), "COLUMN", finish="separate")
    chunks = estimate(kernel, CPU, {}).chunks
    own = kernel.schedule
    schedule = TritonSchedule(own.scheme, M, N, (), 1, own.finish, piece_columns=32, warps=1, stages=1, chunks=chunks)
    on_gpu = replace(kernel, schedule=schedule)
    cpu, gpu = (estimate(each, CPU, {}).workspace_bytes for each in (kernel, on_gpu))
    assert 4 * cpu == 3 * gpu > 0


def test_a_separate_finish_is_one_more_launch() -> None:
    body = "total: f32{n} = sum[m](x)\n  output out0: f32 [n:1] = total"
    same = scheduled(program(DATA, body), "COLUMN", finish="same")
    apart = scheduled(program(DATA, body), "COLUMN", finish="separate")
    one, two = (estimate(k, EXAMPLE, {}) for k in (same, apart))
    assert (one.launches, two.launches) == (1, 2)
    assert two.predicted_us == pytest.approx(one.predicted_us)  # on a CPU both are a second parallel loop


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
    assert len({ideal(kernel, estimate(kernel, each, {}), each, {}) for each in (costly, free)}) == 1


CAPPED = """
  dim m = 16384
  dim n = 32000
  input x: bf16 [m:32000, n:1]
  input most: f32 [m:1]
  input scale: f32 [m:1]
"""
OF_ELEMENTS = """
  cast: f32{m, n} = cast(x)
  sub: f32{m, n} = sub(cast, most)
  exp: f32{m, n} = exp(sub)
  mul: f32{m, n} = mul(exp, scale)
  cast_1: bf16{m, n} = cast(mul)
  output y: bf16 [m:32000, n:1] = cast_1
"""


@pytest.mark.parametrize("flat", [((), ("m", "n")), (("m", "n"), ())], ids=["columns", "rows"])
def test_what_each_element_loads_by_itself_is_counted(flat: tuple[tuple[str, ...], tuple[str, ...]]) -> None:
    """Rows and columns as one dimension, of which two inputs have the rows alone."""
    given = program(CAPPED, OF_ELEMENTS)
    apart, together = (Work.of(Split.of(given, *dims, H200, {})) for dims in ((("m",), ("n",)), flat))
    assert (apart.single, together.single) == (0, 2)
    assert together.operations == apart.operations + 2 * INDEX_COST


def test_a_kernel_that_only_writes_keeps_memory_busy() -> None:
    """Of rows that each have a number: by Little's law nothing would be on its way if loads alone were."""
    data = "  dim m = 65536\n  dim n = 1024\n  input x: f32 [m:1]\n"
    body = """
  iota: i64{n} = iota[n]()
  cast: f32{n} = cast(iota)
  mul: f32{m, n} = mul(cast, x)
  output y: f32 [m:1024, n:1] = mul
"""
    given = program(data, body)
    split = Split.of(given, M, N, H200, {})
    us = 65536 * 1024 * 4 / H200.bandwidth_gbps / 1e3
    assert us / 2 < estimate(Kernel(given, gpu_schedule(split)), H200, {}).predicted_us < 4 * us


@pytest.mark.parametrize("positions", [64, 1024])
def test_sums_of_all_segments_are_added_up_many_at_a_time(positions: int) -> None:
    """As the gradient of a table of positions and that of a norm's weight: of 1024 positions each partial sum waited
    for the one before it."""
    data = f"""
  dim b = 8
  dim m = {positions}
  dim n = 768
  input x: f32 [b:{768 * positions}, m:768, n:1]
"""
    body = """
  row: f32{b, m} = sum[n](x)
  mul: f32{b, m, n} = mul(x, row)
  each: f32{m, n} = sum[b](mul)
  every: f32{n} = sum[b, m](x)
  output of_each: f32 [m:768, n:1] = each
  output of_every: f32 [n:1] = every
"""
    split = Split.of(program(data, body), ("b", "m"), N, replace(H200, exclusive=True), {})
    schedule = gpu_schedule(split)
    finish = render(Kernel(split.program, schedule)).text.split("_finish(")[-1]
    steps = [
        len(range(*map(int, found))) for found in re.findall(r"for start in \S*range\((\d+), (\d+), (\d+)\)", finish)
    ]
    assert schedule.segments == ("m",)
    assert max(steps, default=1) <= 8
    assert sum(finish_steps(schedule, 768, schedule.chunks, added) for added in (positions, 1)) <= 12


@pytest.mark.parametrize(("rows", "fits"), [(16, True), (2**16, False)])
def test_the_second_of_two_kernels_finds_in_the_caches_what_the_first_one_read(rows: int, fits: bool) -> None:
    h200, cell = Target.named("h200"), Cell("rms_norm_backward", "bf16", rows, 1024)
    whole = parts_of(cell, h200)[cell.workload]
    kernels = [Kernel(each.program, gpu_schedule(each)) for each in separated(whole)]
    assert len(kernels) == 2
    alone, found = [estimate(kernel, h200, {}) for kernel in kernels], estimates(kernels, h200, {})
    assert found[0] == alone[0]
    assert (found[1].predicted_us < 0.95 * alone[1].predicted_us) == fits
    assert estimates(kernels[1:], h200, {}) == (alone[1],)
    assert found[1].bytes_read == alone[1].bytes_read
