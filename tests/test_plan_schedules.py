"""Kinds of kernels, and how the schedules of CPUs cut rows into tiles and chunks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.plan_cases import CPU, DATA, M, N, planned, program, squares, workload
from weft.backends.cpp.schedule import CppSchedule
from weft.backends.cpp.schedules import rows_per_chunk
from weft.plan.legality import kind_of
from weft.plan.schedule import Schedule
from weft.plan.schedules import schedule_for
from weft.plan.split import Split


def test_a_kind_follows_from_the_reductions() -> None:
    def kind(body: str) -> str:
        return kind_of(program(DATA, body), N)

    row = "row: f32{m} = sum[n](x)\n  output out0: f32 [m:1] = row\n"
    column = "column: f32{n} = sum[m](x)\n  output out1: f32 [n:1] = column\n"
    assert kind(row) == "inner"
    assert kind(column) == "outer"
    assert kind(row + "  " + column) == "mixed-order"
    assert kind("output out0: f32 [m:32, n:1] = x") == "pointwise"


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
    assert rows_per_chunk(squares(rows, 32), M) % CppSchedule("STREAM", M, N).rows_per_tile == 0


def test_a_run_time_number_of_rows_takes_the_largest_chunk() -> None:
    assert rows_per_chunk(workload("rms_norm_backward", 64), M) == 64


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
    schedule = schedule_for(Split.of(program(data, body), M, N, replace(CPU, cache_bytes=cache_bytes), {}))
    assert schedule.rows_per_tile == 2
    assert schedule.rows_per_chunk == 2 * chain
