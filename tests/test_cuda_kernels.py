"""Kernels in CUDA C++: text, nest, calls, and what NVRTC makes of them without a GPU."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

from tests.cases import often
from tests.cuda_kernels import (
    ROWS_OF_EXPONENTIALS,
    SOME,
    WORKLOADS_OF_ROWS,
    compiled,
    kernel_of,
    needs_nvrtc,
    of_any_width,
    of_rows,
)
from weft.backends.cuda import launches
from weft.backends.cuda.backend import BACKEND
from weft.backends.listed import backend_of, render
from weft.ir.parser import parse
from weft.ir.program import Buffer, Output, Value
from weft.plan.in_place import overwritable
from weft.plan.kernel import Kernel, parse_kernel


def test_the_text_of_a_kernel_parses_back() -> None:
    _, kernel = kernel_of("rms_norm_backward", (512, 2048), **SOME["a cluster"])
    assert parse_kernel(str(kernel)) == kernel
    assert backend_of(kernel) is BACKEND


@needs_nvrtc
@pytest.mark.parametrize("name", WORKLOADS_OF_ROWS)
def test_a_workload_compiles(name: str) -> None:
    compiled(kernel_of(name, (512, 2048), **SOME["a cluster"])[1], 90)


@needs_nvrtc
@pytest.mark.parametrize("way", list(SOME))
def test_a_schedule_compiles(way: str) -> None:
    compiled(kernel_of("layer_norm_backward", (512, 1001), **SOME[way])[1], 100)
    compiled(kernel_of("layer_norm_backward", (512, 2048), **SOME[way], dynamic=True)[1], 90, aligned=False)


@needs_nvrtc
def test_rows_may_have_any_width_at_run_time() -> None:
    kernel = of_any_width(cluster=2, warps=4, vectors=2)
    compiled(kernel, 90)
    compiled(kernel, 90, aligned=False)


def test_copies_are_a_role_of_their_own_and_run_ahead() -> None:
    _, kernel = kernel_of("rms_norm_backward", (512, 2048), **SOME["a cluster"])
    (nest,) = launches.lowered(kernel)[1]
    lines = [line.strip() for line in str(nest).splitlines()]
    order = [
        "role of=producer",
        "copy dy, x, rstd",
        "role of=consumers",
        "arrive",
        "release",
        "keep sum_1",
        "grid sync",
    ]
    assert [line for line in lines if line in order] == order
    assert lines.index("release") > max(i for i, line in enumerate(lines) if line in ("load x", "load dy"))


def test_a_launch_has_the_blocks_of_all_clusters_and_one_more_warp() -> None:
    _, kernel = kernel_of("rms_norm_backward", (512, 2048), **SOME["a finish of its own"])
    first, finish = launches.abi(kernel).launches
    assert (first.grid, first.threads, first.cluster, first.persistent, first.cooperative) == (
        (128, 1), 160, 2, True, False,
    )  # fmt: skip
    assert (finish.grid, finish.threads, finish.cluster) == ((64, 1), 256, 1)
    assert launches.abi(kernel).partials[0].elements == 64 * (2048 + 8)


@pytest.mark.parametrize(
    ("columns", "wide", "tasks"),
    [(1001, 1, 32), (2048, 1, 64), (4098, 2, 65), (8191, 2, 128), (8192, 2, 128), (8196, 4, 65), (16383, 4, 128),
     (16384, 4, 128), (16386, 4, 129), (65536, 4, 512)],
)  # fmt: skip
def test_a_finish_is_one_round_of_tasks_where_lanes_can_have_so_many_columns(
    columns: int, wide: int, tasks: int
) -> None:
    """Those of a lane are neighbours where rows of partial results begin with vectors; else they are as far apart as a
    warp has lanes."""
    for finish in ("same", "separate"):
        _, kernel = kernel_of("layer_norm_backward", (64, columns), cluster=8, warps=8, vectors=4, finish=finish)
        text_ = render(kernel).text
        assert f"constexpr int wide = {wide}, task_columns = 32 * wide;" in text_
        assert text_.count("w::gathered_columns<w::Sum, warps, wide, !early>(memory, ") == 2
        early = "!WEFT_ALIGNED_dy" if columns % 8 == 0 else "true"
        assert text_.count(f"constexpr bool early = {early};") == (1 if finish == "same" else 2)
        grids = [launch.grid for launch in launches.abi(kernel).launches[1:]]
        assert grids == ([(tasks, 1)] if finish == "separate" else [])


def test_as_many_warps_have_the_epilogue_as_a_lane_has_columns() -> None:
    for columns in (16383, 16384):
        _, kernel = kernel_of("rms_norm_backward", (64, columns), cluster=8, warps=2, vectors=4)
        assert "constexpr int wide = 2, task_columns = 32 * wide;" in render(kernel).text


def test_a_finish_has_the_place_of_the_stages_or_more() -> None:
    _, kernel = kernel_of("rms_norm_backward", (64, 128), warps=32, vectors=1, stages=1)
    assert launches.shared_bytes(kernel) >= 32 * 32 * 4


def test_columns_of_run_time_are_one_a_lane() -> None:
    kernel = of_any_width(cluster=2, warps=4, vectors=2, finish="separate")
    assert "constexpr int wide = 1," in render(kernel).text
    found = launches.abi(kernel)
    assert found.grid(found.launches[1], {"s0": 16384}, 10_000) == (512, 1)


@needs_nvrtc
@pytest.mark.parametrize(
    ("columns", "warps", "finish"),
    often(
        [*product([8191, 8192, 16383, 16384], [8], ["same", "separate"]), (16384, 16, "same"), (16384, 16, "separate"),
         (65536, 16, "same"), (65536, 16, "separate")],
        [(8191, 8, "separate"), (8192, 8, "same"), (16384, 16, "separate"), (16384, 8, "same")],
    ),
)  # fmt: skip
def test_a_finish_of_wide_tasks_compiles(columns: int, warps: int, finish: str) -> None:
    vectors, shape = -(-columns // (64 * 32 * warps)), (512, columns)
    compiled(kernel_of("layer_norm_backward", shape, cluster=8, warps=warps, vectors=vectors, finish=finish)[1], 90)


def test_a_number_that_is_made_of_all_rows_is_known_to_all_columns() -> None:
    program = parse(
        "program p()\n  dim m = 512\n  dim n = 2048\n  input x: f32 [m:2048, n:1]\n  largest: f32{m} = max[n](x)\n"
        "  rest: f32{m, n} = sub(x, largest)\n  total: f32{n} = sum[m](rest)\n  all: f32{} = sum[m](largest)\n"
        "  both: f32{n} = mul(total, all)\n  output y: f32 [m:2048, n:1] = rest\n  output z: f32 [n:1] = both\n"
        "  output a: f32 [] = all\nend\n"
    )
    kernel = replace(of_any_width(warps=4, vectors=4), program=program)
    assert launches.supports(kernel) is None
    lines = [line.strip() for line in render(kernel).text.splitlines()]
    assert "const float all = w::gathered_number<w::Sum, warps>(memory, all_partial, chunks);" in lines
    assert lines[lines.index("if (column == 0) {") + 1] == "a[0] = all;"


def test_a_launch_counts_chunks_at_run_time() -> None:
    _, kernel = kernel_of("rms_norm_backward", (512, 2048), **SOME["a cluster"], dynamic=True)
    (launch,) = launches.abi(kernel).launches
    assert launch.cooperative
    found = launches.abi(kernel)
    (parameter,) = {name for name in found.parameters if name in str(launch.grid[0])}
    sizes = dict.fromkeys(found.parameters, 10_000)
    assert found.grid(launch, sizes, 10_000)[0] == 4 * 64
    assert found.grid(launch, sizes | {parameter: 3}, 10_000)[0] == 4 * 3
    assert found.grid(launch, sizes, 13)[0] == 12


def test_shared_memory_has_place_for_stages_and_for_rows_that_begin_between_vectors() -> None:
    _, kernel = kernel_of("softmax_forward", (512, 2048), warps=4, vectors=2, stages=2)
    row = 2048 * 2 + 16 + 128  # one vector more, and the rest of a line
    stages = 2 * -(-row // 128) * 128
    assert stages <= launches.shared_bytes(kernel) <= stages + 1024


@pytest.mark.parametrize(
    ("columns", "between", "steps"),
    [(2001, " * apart", "first_row, next_row; row < end_row; row = next_row"),
     (2048, "", "first_row; row < end_row; row += stride")],
)  # fmt: skip
def test_rows_of_a_tile_that_do_not_exist_are_not_copied(columns: int, between: str, steps: str) -> None:
    _, kernel = kernel_of("rms_norm_backward", (515, columns), **SOME["several rows"] | {"cluster": 2})
    lines = [line.strip() for line in render(kernel).text.splitlines()]
    before = lines[: next(i for i, line in enumerate(lines) if line.startswith("ring.copy("))]
    assert f"if (row + r{between} < end_row) {{" in before
    assert lines.count(f"for (int64_t row = {steps}) {{") == 2


def test_the_end_of_a_tensor_of_more_than_two_billion_elements_is_counted_in_64_bits() -> None:
    _, kernel = kernel_of("softmax_forward", (64, 2048), warps=4, vectors=2)
    rows = replace(kernel.program.dims[0], size=2**21)
    large = replace(kernel, program=replace(kernel.program, dims=(rows, *kernel.program.dims[1:])))
    (copy,) = (line for line in render(large).text.splitlines() if "ring.copy(" in line)
    assert copy.endswith(f"+ {2**32});")


def test_what_is_stored_once_behind_the_rows_has_a_finish_without_column_sums_too() -> None:
    _, kernel = kernel_of("softmax_forward", (64, 2048), warps=4, vectors=2)
    program = kernel.program
    count = Value("count", "size", (), (program.dims[0].name,), "i64", ())
    output = Output(Buffer("rows_counted", "i64", (), ()), "count")
    more = replace(program, values=(*program.values, count), outputs=(*program.outputs, output))
    first, finish = launches.abi(replace(kernel, program=more)).launches
    assert (first.entry, finish.entry) == ("weft_softmax_forward", "weft_softmax_forward_finish")
    assert "rows_counted[0] = size;" in render(replace(kernel, program=more)).text


# sums of exponentials


def body_of(kernel: Kernel) -> list[str]:
    """Lines of what the warps do that compute."""
    return [line.strip() for line in render(kernel).text.partition("  else {")[2].splitlines()]


def loops_over_columns(kernel: Kernel) -> int:
    return body_of(kernel).count("for (int k = 0; k < thread_vectors; ++k) {")


def exchanges(kernel: Kernel) -> list[str]:
    return [line for line in body_of(kernel) if line.startswith("exchange.")]


@needs_nvrtc
@pytest.mark.parametrize(
    ("shape", "dtype"),
    often(
        [*product([(512, 2048), (77, 5003)], [torch.float32, torch.bfloat16])],
        [((512, 2048), torch.float32), ((77, 5003), torch.bfloat16)],
    ),
    ids=str,
)
@pytest.mark.parametrize("name", ROWS_OF_EXPONENTIALS)
def test_sums_of_exponentials_compile(name: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    wide: dict[str, Any] = {"cluster": 2, "warps": 8, "vectors": 4}
    compiled(kernel_of(name, shape, dtype, **wide)[1], 90)
    compiled(kernel_of(name, shape, dtype, **wide)[1], 90, aligned=False)
    compiled(kernel_of(name, shape, dtype, warps=8, vectors=8, rows_per_tile=2)[1], 100)


def test_softmax_passes_over_a_row_twice_and_exchanges_once() -> None:
    _, kernel = kernel_of("softmax_forward", (512, 2048), torch.float32, **SOME["a cluster"])
    assert loops_over_columns(kernel) == 2
    assert exchanges(kernel) == ["exchange.template reduce<w::Merge>(sumexp_state);"]
    assert "const float max_ = sumexp_state.centre, sumexp = sumexp_state.total();" in body_of(kernel)
    assert str(kernel) in render(kernel).text.replace("// ", "")


def test_cross_entropy_passes_over_a_row_once_and_loads_one_element_by_its_address() -> None:
    _, kernel = kernel_of("cross_entropy_forward", (512, 2048), torch.float32, **SOME["a cluster"])
    assert (loops_over_columns(kernel), len(exchanges(kernel))) == (1, 1)
    assert "const float pick = w::pick(x_at(row), cast, columns);" in body_of(kernel)
    _, several = kernel_of("cross_entropy_forward", (515, 2048), torch.float32, **SOME["several rows"])
    (line,) = (line for line in body_of(several) if "w::pick" in line)
    assert line == "pick[r] = row + r < end_row ? w::pick(x_at(row + r), cast[r], columns) : float();"


def test_a_variance_comes_with_the_mean_in_one_pass() -> None:
    _, kernel = kernel_of("layer_norm_forward", (512, 2048), **SOME["one block"])
    assert exchanges(kernel) == ["exchange.reduce_moments(columns, m2_state);"]
    lines = [line.strip() for line in render(kernel).text.splitlines()]
    assert "const float m2 = m2_state.total(), sum = m2_state.elements();" in lines or (
        "const float sum = m2_state.elements(), m2 = m2_state.total();" in lines
    )


@needs_nvrtc
@pytest.mark.parametrize("fields", list(SOME.values()), ids=list(SOME))
def test_a_state_of_float64_has_place_for_two_words(fields: dict[str, Any]) -> None:
    body = "  input x: f64 [m:16, n:1]\n  total: f64{m} = sumexp[n](x)\n  output y: f64 [m:1] = total\n"
    kernel = of_rows(body, **fields | {"finish": "none"})
    compiled(kernel, 90)
    rows, places = kernel.schedule.group_rows, 4 if kernel.schedule.lag else 2
    warps, more = ("warps / groups", ", true") if kernel.schedule.groups > 1 else ("warps", "")
    if kernel.schedule.groups > kernel.schedule.warps:
        warps, more = "1", ", true, group_threads"
    assert f"w::Exchange<cluster, {warps}, {2 * rows}, {places}{more}> exchange(" in render(kernel).text


@needs_nvrtc
def test_what_is_reduced_with_sums_of_exponentials_is_exchanged_by_itself() -> None:
    """But for the largest element of the same operand, which is the centre."""
    body = (
        "  input x: f32 [m:16, n:1]\n  total: f32{m} = sumexp[n](x)\n  double: f32{m, n} = add(x, x)\n"
        "  largest: f32{m} = max[n](x)\n  other: f32{m} = max[n](double)\n  more: f32{m} = sumexp[n](double)\n"
        "  least: f32{m} = min[n](x)\n  output a: f32 [m:1] = total\n  output b: f32 [m:1] = largest\n"
        "  output c: f32 [m:1] = other\n  output d: f32 [m:1] = more\n  output e: f32 [m:1] = least\n"
    )
    kernel = of_rows(body, cluster=2)
    compiled(kernel, 90)
    assert exchanges(kernel) == [
        "exchange.template reduce<w::Merge>(total_state, more_state);", "exchange.template reduce<w::Min>(least);",
    ]  # fmt: skip


@needs_nvrtc
@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("dtype", ["i32", "i64"])
def test_integers_are_reduced_and_sent(dtype: str, cluster: int) -> None:
    body = f"  input x: {dtype} [m:16, n:1]\n  largest: {dtype}{{m}} = max[n](x)\n  output y: {dtype} [m:1] = largest\n"
    compiled(of_rows(body, cluster=cluster), 90)


def test_only_what_loops_read_is_copied() -> None:
    body = (
        "  input x: f32 [m:16, n:1]\n  input v: f32 [m:80, n:5]\n  input place: i64 [m:1]\n  sum: f32{m} = sum[n](x)\n"
        "  element: f32{m} = pick[n](v, place)\n  total: f32{m} = add(sum, element)\n  output y: f32 [m:1] = total\n"
    )
    kernel = of_rows(body)
    assert BACKEND.supports(kernel) is None
    text_ = render(kernel).text
    assert [line.strip() for line in text_.splitlines() if "ring.copy(" in line] == [
        "ring.copy(0, x_at(row) + begin, x_at(row) + end, x + 128);"
    ]
    assert "w::pick(v_at(row), place_number, columns, 5)" in text_


def test_a_result_does_not_lie_where_an_element_is_picked() -> None:
    body = (
        "  input x: f32 [m:16, n:1]\n  input index: i64 [m:1]\n  place: i64{n} = iota[n]()\n"
        "  is: bool{m, n} = eq(place, index)\n  zero: f32{} = const[0.0]()\n  one: f32{m, n} = where(is, x, zero)\n"
        "  element: f32{m} = sum[n](one)\n  rest: f32{m, n} = sub(x, element)\n  output y: f32 [m:16, n:1] = rest\n"
    )
    assert overwritable(of_rows(body)) == {}
    assert overwritable(of_rows(body.replace("sub(x, element)", "neg(x)"))) == {"y": ("x",)}
