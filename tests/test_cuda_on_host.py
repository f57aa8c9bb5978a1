"""Kernels in CUDA C++ whose threads are fibers of this machine, against the interpreter: no GPU is needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from subprocess import CalledProcessError
from typing import Any

import pytest
import torch

from tests.cases import checkered
from tests.cuda_header import bit_patterns, rows
from tests.cuda_kernels import (
    EXPONENTIALS,
    OF_ONE_GROUP,
    QUEUED,
    SOME,
    WORKLOADS_OF_ROWS,
    kernel_of,
    of_any_width,
    of_rows,
)
from tests.on_host.assembly import with_calls
from tests.on_host.kernels import MACHINES, Machine, WrongLaunchError, check, narrow, run, wide
from weft.backends.cuda import launches
from weft.backends.cuda.schedule import CudaKernel
from weft.backends.cuda.view import View
from weft.backends.listed import render
from weft.ir.dtypes import TORCH_DTYPES
from weft.ir.interpret import interpret
from weft.ir.program import Dim

pytestmark = pytest.mark.where_changed("tests/on_host", "weft/backends", "weft/ir", "weft/lowering", "weft/plan")
MANY = tuple(Machine(clusters, seed) for seed in range(8) for clusters in (3, 1))


def of_few_warps(way: str, warps: int) -> dict[str, Any]:
    """A schedule with a queue, for narrow rows."""
    return QUEUED[way] | {"warps": warps * QUEUED[way].get("groups", 1)}


@pytest.mark.parametrize(("name", "shape"), checkered(WORKLOADS_OF_ROWS, [(12, 1040), (11, 515)]), ids=str)
def test_a_workload_has_equal_bits(name: str, shape: tuple[int, int]) -> None:
    check(name, shape, cluster=2 if shape[1] % 2 == 0 else 1, warps=2, vectors=2, stages=3, chunks=4)


SHIFTED = [*product(["layer_norm_forward", "layer_norm_backward", "modulated_layer_norm_backward"], [1001, 1002, 2056])]


@pytest.mark.parametrize(("way", "given"), checkered(SOME, SHIFTED, of=5), ids=str)
def test_a_schedule_has_equal_bits(way: str, given: tuple[str, int]) -> None:
    name, columns = given
    check(name, (14, columns), **SOME[way], chunks=4)


@pytest.mark.parametrize("rows", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("shape", [(12, 520), (3, 517)], ids=str)
@pytest.mark.parametrize("name", ["layer_norm_backward", "softmax_backward", "cross_entropy_forward"])
def test_tiles_may_overlap(name: str, shape: tuple[int, int], rows: int) -> None:
    """Also where parts of a chunk have one row, or none."""
    check(name, shape, cluster=2, warps=1, vectors=2, stages=3, lag=1, rows_per_tile=rows, chunks=3)


SEGMENTED: dict[str, dict[str, Any]] = {
    "plain": {"cluster": 2, "warps": 1, "vectors": 2},
    "behind": {"cluster": 2, "warps": 1, "vectors": 2, "lag": 1},
    "weights in shared memory": {"warps": 2, "vectors": 2, "weights": "shared"},
    "groups": {"warps": 8, "vectors": 3, "groups": 8, "rows_per_tile": 8},
}


@pytest.mark.parametrize("chunks", [1, 3, 8, 12, 30])
@pytest.mark.parametrize(("way", "columns"), checkered(SEGMENTED, [520, 516, 517]), ids=str)
def test_chunks_go_on_from_one_segment_to_the_next(way: str, columns: int, chunks: int) -> None:
    """Of eight segments; there are more chunks than the machine has clusters."""
    fields = {"stages": 3} | SEGMENTED[way] | {"chunks": chunks}
    check("modulated_layer_norm_backward", (40, columns), dynamic=chunks == 3, **fields)


@pytest.mark.parametrize(("way", "rows"), checkered(QUEUED, [2, 5, 33]))
def test_every_tile_is_taken(way: str, rows: int) -> None:
    """Of fewer tiles than clusters, and of many more; of more clusters than are resident."""
    check("layer_norm_forward", (rows, 520), **of_few_warps(way, 1), chunks=7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float32, marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize(("way", "early"), checkered(OF_ONE_GROUP, [0, 3]))
def test_weights_may_be_shifted_for_each_row(way: str, dtype: torch.dtype, early: int) -> None:
    fields = of_few_warps(way, 1)
    check("layer_norm_forward", (9, 517 + early), dtype, early=early, **fields, weights="shared", chunks=5)


@pytest.mark.parametrize(
    "name",
    [
        "layer_norm_forward",
        "layer_norm_backward",
        pytest.param("softmax_forward", marks=pytest.mark.slow),
        pytest.param("add_rms_norm_backward", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(("groups", "lanes"), [(8, 8), (4, 4), (2, 2)])
@pytest.mark.parametrize("shape", [(40, 521), (7, 262), (3, 264)], ids=str)
def test_groups_of_warps_have_rows_of_their_own(shape: tuple[int, int], groups: int, lanes: int, name: str) -> None:
    """Which begin alike, wherever the first of them does; some groups have none of the last tile."""
    fields: dict[str, Any] = {"groups": groups, "lanes": lanes, "vectors": 72 // lanes, "chunks": 3}
    machines = [Machine(3), Machine(2, 1)]
    check(name, shape, warps=groups, rows_per_tile=2 * groups, machines=machines, **fields)
    fields |= {"warps": 2 * groups, "rows_per_tile": groups, "tile": "registers", "finish": "same"}
    check(name, shape, machines=machines, early=1, **fields)


@pytest.mark.parametrize(
    "name", ["layer_norm_forward", "layer_norm_backward", pytest.param("softmax_forward", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(("warps", "groups", "lanes"), [(4, 8, 8), (2, 8, 4), (1, 2, 2)])
@pytest.mark.parametrize("shape", [(40, 121), (11, 62), (5, 64)], ids=str)
def test_several_groups_may_share_a_warp(
    shape: tuple[int, int], warps: int, groups: int, lanes: int, name: str
) -> None:
    """Of which some have a row, and others none."""
    fields: dict[str, Any] = {"warps": warps, "groups": groups, "lanes": lanes, "vectors": 64 // lanes, "chunks": 3}
    check(name, shape, rows_per_tile=2 * groups, machines=[Machine(3), Machine(2, 1)], **fields)
    check(name, shape, rows_per_tile=groups, early=1, tile="registers", finish="same", **fields)


@pytest.mark.parametrize("columns", [40, 41, 44])
@pytest.mark.parametrize(("dtype", "last"), [("bf16", "cast(other)"), ("f32", "sub(other, sum)")])
def test_weights_in_shared_memory_may_have_any_types(dtype: str, last: str, columns: int) -> None:
    """Two of 16 bits have words in common where they are shifted; whole numbers are not kept as floats."""
    body = (
        f"  input x: bf16 [m:{columns}, n:1]\n  input a: bf16 [n:1]\n  input b: f16 [n:1]\n  input c: bf16 [n:1]\n"
        "  input d: i32 [n:1]\n  input e: bf16 [n:1]\n  wide: f32{m, n} = cast(x)\n  sum: f32{m} = sum[n](wide)\n"
        "  fa: f32{n} = cast(a)\n  fb: f32{n} = cast(b)\n  fc: f32{n} = cast(c)\n  fe: f32{n} = cast(e)\n"
        "  product: f32{m, n} = mul(wide, fa)\n  more: f32{m, n} = add(product, fb)\n"
        "  large: i32{} = const[16777217]()\n  same: bool{n} = eq(d, large)\n"
        "  one: f32{m, n} = where(same, more, fc)\n  other: f32{m, n} = mul(one, fe)\n"
        f"  found: {dtype}{{m, n}} = {last}\n  output y: {dtype} [m:{columns}, n:1] = found\n"
    )
    kernel = of_rows(body, columns, cluster=2, warps=1, weights="shared", chunks=2)
    assert View(kernel).shifts_weights == (columns % View(kernel).lanes != 0)
    x, a, b, c, e = (torch.randint(-8, 8, shape).float() for shape in ((8, columns), *[(columns,)] * 4))
    d = 16777216 + torch.randint(0, 2, (columns,), dtype=torch.int32)
    is_right(kernel, [x.bfloat16(), a.bfloat16(), b.half(), c.bfloat16(), d, e.bfloat16()])


@pytest.mark.parametrize("groups", [2, 8])
def test_groups_may_shift_weights(groups: int) -> None:
    """In shared memory, which all of them have in common."""
    fields: dict[str, Any] = {"groups": groups, "warps": groups, "vectors": 3, "rows_per_tile": 2 * groups}
    check("layer_norm_forward", (37, 517), weights="shared", chunks=5, **fields)


@pytest.mark.parametrize("fields", [{"warps": 2}, {"warps": 4, "groups": 4}, {"warps": 4, "groups": 2}], ids=str)
@pytest.mark.parametrize(("apart", "between"), [("13", "1"), ("17", "1"), ("13", "3")])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "bool"])
def test_rows_of_a_tile_are_copied_at_once_where_they_lie_together(
    fields: dict[str, Any], apart: str, between: str, dtype: str
) -> None:
    """With their numbers, also the last ones of a tensor, and those of a tile that does not have all of them."""
    body = (
        f"  input x: f32 [m:{apart}, n:1]\n  input a: {dtype} [m:{between}]\n  factor: f32{{m}} = cast(a)\n"
        "  product: f32{m, n} = mul(x, factor)\n  sum: f32{m} = sum[n](product)\n"
        "  rest: f32{m, n} = sub(product, sum)\n  output y: f32 [m:13, n:1] = rest\n"
    )
    kernel = of_rows(body, 13, rows_per_tile=6 if "groups" not in fields else 8, **fields)
    kernel = replace(kernel, program=replace(kernel.program, dims=(Dim("m", 19), kernel.program.dims[1])))
    together = (apart, between) == ("13", "1")
    assert View(kernel).copies_tiles == together
    copies = [line.strip() for line in render(kernel).text.splitlines() if "ring.copy" in line]
    assert [line.count("count") for line in copies] == [1, 1] if together else [0, 0]
    x, a = torch.randint(-64, 64, (19, int(apart))).float(), torch.randint(0, 2, (19, int(between)))
    is_right(kernel, [x[:, :13], a.to(TORCH_DTYPES[dtype])[:, 0]])


@pytest.mark.parametrize("columns", [1478, 1479])
def test_rows_may_be_unequally_far_apart(columns: int) -> None:
    """Then a thread keeps nothing of its columns, unless all rows begin with vectors."""
    fields: dict[str, Any] = {"cluster": 3, "warps": 2, "vectors": 2, "chunks": 7}
    check("qk_norm_forward", (32, columns), torch.float32, weights="shared", **fields)
    _, kernel = kernel_of("qk_norm_forward", (32, columns), torch.float32, **fields)
    refusal = launches.supports(kernel)
    assert refusal is not None
    assert refusal.rule == "cuda_beginnings"


@pytest.mark.parametrize("columns", [5, 519, 1683])
@pytest.mark.parametrize(("cluster", "warps"), [(1, 5), (2, 6), (4, 7)])
def test_blocks_may_have_numbers_of_warps_that_are_no_powers_of_two(cluster: int, warps: int, columns: int) -> None:
    """Some blocks have no column of the narrowest row."""
    check("layer_norm_backward", (11, columns), cluster=cluster, warps=warps, vectors=2, chunks=3, finish="same")
    check("layer_norm_forward", (11, columns), cluster=cluster, warps=warps, vectors=2, chunks=3, tile="registers")


@pytest.mark.parametrize("early", [1, 3])
@pytest.mark.parametrize("name", ["rms_norm_backward", "softmax_forward", "layer_norm_forward"])
def test_tensors_may_start_anywhere(name: str, early: int) -> None:
    check(name, (11, 520), early=early, cluster=2, warps=1, vectors=1, chunks=3)


@pytest.mark.parametrize("finish", ["same", "separate"])
@pytest.mark.parametrize("columns", [8191, 16384])
def test_a_lane_may_have_several_columns_of_the_finish(columns: int, finish: str) -> None:
    machines = [Machine(1), Machine(2, 1)]
    check(
        "layer_norm_backward", (6, columns), machines=machines, cluster=4, warps=4, vectors=4, chunks=3, finish=finish
    )


@pytest.mark.parametrize("chunks", [1, 7])
@pytest.mark.parametrize("columns", [517, 514, 516])
def test_rows_that_begin_alike_may_be_of_any_number_of_chunks(columns: int, chunks: int) -> None:
    check("layer_norm_backward", (21, columns), warps=2, vectors=2, chunks=chunks)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_other_types(dtype: torch.dtype) -> None:
    check("layer_norm_backward", (13, 515), dtype, warps=2, vectors=2, rows_per_tile=2, chunks=3)


@pytest.mark.parametrize("rows", [2, 3, 21])
def test_the_number_of_rows_may_be_known_at_run_time_only(rows: int) -> None:
    check("rms_norm_backward", (rows, 520), dynamic=True, warps=2, vectors=2, chunks=8)
    check("softmax_forward", (rows, 520), dynamic=True, cluster=2, warps=1, vectors=2, chunks=8)


def is_right(
    kernel: CudaKernel,
    inputs: list[torch.Tensor],
    parameters: tuple[int, ...] = (),
    *,
    close: tuple[float, float] = (1e-12, 0.0),
    machines: Sequence[Machine] = MACHINES,
) -> None:
    """close: how far results may be off, of a number and at all."""
    right = interpret(kernel.program, inputs, parameters)
    for outputs in run(kernel, inputs, parameters, machines=machines):
        for mine, exact in zip(outputs, right, strict=True):
            right_one = exact.to(mine.dtype).reshape(mine.shape)
            torch.testing.assert_close(mine, right_one, rtol=close[0], atol=close[1], equal_nan=True)


@pytest.mark.parametrize("columns", [1, 5, 640, 1021, 1024])
@pytest.mark.parametrize("cluster", [1, 2])
def test_the_width_may_be_known_at_run_time_only(cluster: int, columns: int) -> None:
    kernel = of_any_width(cluster=cluster, warps=4, vectors=2)
    is_right(kernel, [torch.randint(-64, 64, (8, columns)).float()], (columns,))


@pytest.mark.parametrize("fields", list(SOME.values()), ids=list(SOME))
def test_an_element_that_is_picked_may_lie_anywhere(fields: dict[str, Any]) -> None:
    body = (
        "  input x: f32 [m:16, n:1]\n  input v: f32 [m:80, n:5]\n  input place: i64 [m:1]\n  sum: f32{m} = sum[n](x)\n"
        "  element: f32{m} = pick[n](v, place)\n  total: f32{m} = add(sum, element)\n  output y: f32 [m:1] = total\n"
    )
    x, v = (torch.randint(-64, 64, shape).float() for shape in ((8, 16), (8, 80)))
    is_right(
        of_rows(body, **fields | {"finish": "none"}), [x, v[:, ::5], torch.tensor([0, 15, 16, -1, 3, 7, 2**40, 5])]
    )


@pytest.mark.parametrize("dtype", ["bool", "bf16", "i32", "f32", "i64", "f64"])
@pytest.mark.parametrize(("rows", "cluster"), [(1, 2), (3, 1)])
def test_a_number_of_a_row_may_have_any_size(dtype: str, rows: int, cluster: int) -> None:
    """And lie anywhere: of 4 or 8 bytes it is copied, else the copying thread loads it."""
    body = (
        f"  input x: f32 [m:16, n:1]\n  input a: {dtype} [m:3]\n  factor: f32{{m}} = cast(a)\n"
        "  product: f32{m, n} = mul(x, factor)\n  sum: f32{m} = sum[n](product)\n"
        "  rest: f32{m, n} = sub(product, sum)\n  output y: f32 [m:16, n:1] = rest\n"
    )
    kernel = of_rows(body, cluster=cluster, warps=1, stages=2, rows_per_tile=rows)
    x, a = torch.randint(-64, 64, (8, 16)).float(), torch.randint(0, 5, (8, 3)).to(TORCH_DTYPES[dtype])[:, 1]
    is_right(kernel, [x, a])


@pytest.mark.parametrize("cluster", [1, 2, 4])
@pytest.mark.parametrize("stages", [1, 2])
def test_blocks_of_a_cluster_may_be_apart_where_they_have_no_row_reduction(stages: int, cluster: int) -> None:
    """One may end before another begins."""
    body = "  input x: f32 [m:17, n:1]\n  double: f32{m, n} = add(x, x)\n  output y: f32 [m:17, n:1] = double\n"
    kernel = of_rows(body, cluster=cluster, warps=1, stages=stages)
    x = torch.randn(8, 17)[:, :16]
    is_right(kernel, [x], machines=[Machine(1, seed) for seed in range(20)])


@pytest.mark.parametrize("fields", list(SOME.values()), ids=list(SOME))
def test_a_sum_of_exponentials_of_float64_is_sent_in_two_words(fields: dict[str, Any]) -> None:
    body = "  input x: f64 [m:16, n:1]\n  total: f64{m} = sumexp[n](x)\n  output y: f64 [m:1] = total\n"
    is_right(of_rows(body, **fields | {"finish": "none"}), [torch.randn(8, 16, dtype=torch.float64)])


def spread_rows(dtype: torch.dtype, columns: int) -> torch.Tensor:
    """Of one number, of none but zeros, far from zero and close together, and with one element that is far from all
    others: at one end, inside, or at the other."""
    found = torch.randn(8, columns, dtype=torch.float64)
    found[0], found[1], found[2] = 7.3, 0, 1e3 + found[2]
    found[3, 0], found[4, columns // 2], found[5, -1] = 1e4, -1e4, 1e4
    found[6, : columns // 2] -= 100
    return found.to(dtype)


def spread_of(dtype: str, columns: int, **fields: Any) -> CudaKernel:
    body = (
        f"  input x: {dtype} [m:{columns}, n:1]\n  total: {dtype}{{m}} = sum[n](x)\n  spread: {dtype}{{m}} = m2[n](x)\n"
        f"  output y: {dtype} [m:1] = total\n  output z: {dtype} [m:1] = spread\n"
    )
    return of_rows(body, columns, **fields)


@pytest.mark.parametrize(("way", "columns"), checkered(SOME, [1003, 2048]))
def test_a_mean_and_what_differs_from_it_come_of_one_pass(way: str, columns: int) -> None:
    """As near to float64 as float32 allows, wherever the mean is and whatever element is the first one of a thread."""
    kernel = spread_of("f32", columns, **SOME[way] | {"finish": "none"})
    is_right(kernel, [spread_rows(torch.float32, columns)], close=(3e-6, 2e-3), machines=MACHINES[:2])


@pytest.mark.parametrize("columns", [12, 40, 532, 1100])
def test_threads_without_elements_have_no_pivot(columns: int) -> None:
    """Of a warp that has few vectors, or of rows that have."""
    kernel = spread_of("f32", columns, warps=8, vectors=2, stages=2)
    is_right(kernel, [spread_rows(torch.float32, columns)], close=(3e-6, 2e-3), machines=MACHINES[:2])


@pytest.mark.parametrize("fields", list(SOME.values()), ids=list(SOME))
def test_moments_of_float64(fields: dict[str, Any]) -> None:
    kernel = spread_of("f64", 1003, **fields | {"finish": "none"})
    is_right(kernel, [spread_rows(torch.float64, 1003)], close=(1e-13, 1e-11), machines=MACHINES[:2])


@pytest.mark.parametrize("place", [0, 5, 500, 1002])
@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan")])
def test_a_row_that_is_not_finite_has_no_spread(number: float, place: int) -> None:
    """And its sum is what it is in any order."""
    x = spread_rows(torch.float32, 1003)
    x[3, place] = number
    is_right(spread_of("f32", 1003, warps=2, vectors=2), [x], close=(3e-6, 2e-3), machines=MACHINES[:1])


@pytest.mark.parametrize("fields", list(SOME.values()), ids=list(SOME))
@pytest.mark.parametrize("columns", [1003, pytest.param(2048, marks=pytest.mark.slow)])
def test_rows_may_have_numbers_that_are_infinite_or_none(columns: int, fields: dict[str, Any]) -> None:
    """Among others: rows of several magnitudes, and some whose every number is the same."""
    _, kernel = kernel_of("softmax_forward", (9, columns), torch.float32, **fields, chunks=3)
    is_right(kernel, [rows("f32", columns)], close=(1e-5, 1e-6))


@pytest.mark.parametrize(("way", "columns"), checkered(EXPONENTIALS, [1003, 2048]))
def test_exponentials_may_wait_in_registers(way: str, columns: int) -> None:
    """Of rows that are infinite, or no numbers, too; and of such whose first elements are."""
    fields = EXPONENTIALS[way]
    check("softmax_forward", (14, columns), **fields, chunks=4)
    check("softmax_forward", (5, columns), torch.float16, early=3, **fields, chunks=4)
    _, kernel = kernel_of("softmax_forward", (9, columns), **fields, chunks=3)
    x = rows("f32", columns).bfloat16()
    x[8], x[8, columns // 2 :] = float("-inf"), -200 - torch.randn(columns - columns // 2)
    is_right(kernel, [x], close=(2.0**-8, 2.0**-20))
    least = torch.finfo(torch.bfloat16).min
    x = torch.randn(9, columns)
    for row, (factor, place, number) in enumerate(
        ((0.0, ..., least), (1.0, slice(5, None), least), (1e30, slice(None, 700), least), (1.0, 3, -least))
    ):
        x[row] *= factor
        x[row, place] = number
    x[4], x[5], x[6, :2], x[7] = (
        least * torch.rand(columns),
        -least * torch.rand(columns),
        1e5,
        2.0**29 + 2.0**23 * x[7],
    )
    is_right(kernel, [x.bfloat16()], close=(2.0**-8, 2.0**-20))


@pytest.mark.slow
@pytest.mark.parametrize("columns", [515, 1040])
@pytest.mark.parametrize("way", list(QUEUED))
@pytest.mark.parametrize("name", ["layer_norm_forward", "layer_norm_backward", "softmax_forward"])
def test_threads_may_go_on_in_many_orders(name: str, way: str, columns: int) -> None:
    check(name, (23, columns), machines=MANY, **of_few_warps(way, 2), chunks=5)


# what is wrong is found

ONE: dict[str, Any] = {"warps": 2, "vectors": 2, "chunks": 3}
BOTH: dict[str, Any] = {"cluster": 2, "warps": 1, "vectors": 2, "chunks": 3}
BEHIND: dict[str, Any] = BOTH | {"stages": 3, "lag": 1}
WAITS = "  wait_for_threads<warps * WARP>();\n  T total"
BROKEN: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "a stage is read before it is filled": ("softmax_forward", ONE, "ring.wait_until_filled();", ""),
    "a stage is filled before it is free": ("softmax_forward", ONE, "ring.wait_until_free();", ""),
    "a stage is never free": ("softmax_forward", BOTH, "ring.release();", ""),
    "a warp says too early that it has read": ("softmax_forward", ONE, "  __syncwarp();\n  if (WEFT", "  if (WEFT"),
    "nobody waits for what is read": ("softmax_forward", ONE, "fence.proxy.async.shared::cta;", ""),
    "a row reduction has one place": ("softmax_forward", ONE, ", 2> exchange(", ", 1> exchange("),
    "a cluster's row reduction has one place": ("layer_norm_forward", BOTH, ", 2> exchange(", ", 1> exchange("),
    "tiles behind have two places": ("layer_norm_forward", BEHIND, ", 4> exchange(", ", 2> exchange("),
    "too few bytes are expected": ("softmax_forward", BOTH, "parts * count * sizeof(T));\n", "sizeof(T));\n"),
    "blocks start before each other": ("softmax_forward", BOTH, "w::wait_for_cluster<cluster>();", ""),
    "the finish does not wait": ("layer_norm_backward", ONE, "w::wait_for_all<threads>(barrier);", ""),
    "columns are added up before all are there": ("layer_norm_backward", ONE, WAITS, "  T total"),
    "a phase is another's": ("softmax_forward", ONE, "stage = 0, parity ^= 1", "stage = 0"),
    "a queue has one place": ("softmax_forward", BOTH, "TileQueue<cluster, 4> queue", "TileQueue<cluster, 1> queue"),
    "numbers of rows are not waited for": ("layer_norm_backward", BOTH, "ring.numbers_copied();", ""),
    "numbers of rows are another tile's": ("layer_norm_backward", BEHIND, "memory + stage * stage_bytes", "memory"),
    "a copy ends before the row": ("softmax_forward", ONE, "to) + GRANULE - 1)", "to))"),
    "what lies before a row counts": ("softmax_forward", ONE, "if (!inside(column + i, columns)) n", "if (0) n"),
    "a tile is nobody's": ("softmax_forward", ONE, "+ turn * clusters;", "+ turn * clusters + 1;"),
    "barriers are started without a fence": ("softmax_forward", BOTH, "w::started_barriers();", ""),
    "a block does not acquire": ("softmax_forward", BOTH, "wait<(cluster > 1)>(", "wait<false>("),
    "a vector is not aligned": ("softmax_forward", ONE, "if (together && all) {", "if (all) {"),
}  # fmt: skip
"""A workload, a schedule, and what of the text, or of the headers, is replaced by what."""


@pytest.mark.parametrize("what", list(BROKEN))
def test_what_is_broken_is_found(what: str) -> None:
    name, fields, part, instead = BROKEN[what]

    def change(text: str) -> str:
        assert part in text
        return text.replace(part, instead)

    early = 3 * (what == "a vector is not aligned")
    with pytest.raises(WrongLaunchError):
        check(name, (17, 1003), early=early, machines=MANY, change=change, **fields)


def test_what_threads_wait_for_is_told() -> None:
    with pytest.raises(WrongLaunchError, match="all wait: block 0 from thread 0 on for the barrier in shared memory"):
        check("softmax_forward", (17, 1003), change=lambda text: text.replace("ring.release();", ""), **BOTH)


# assembly


def test_instructions_become_calls() -> None:
    text = (
        'int f() {\n  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"\n      : "=r"(found) : "r"(min(a, b)), '
        '"r"(w::c) : "memory");\n}\n#define OP(name) asm(#name ".rn.f16x2 %0, %2;" : "=r"(x) : "r"(y), "r"(z));\n'
        'asm("{\\n.reg .pred done;\\nA_%=:\\ntry.it done, [%0];\\n@!done bra A_%=;\\n}" ::"r"(b));\n'
        'asm("" : "+r"(word));\n'
    )
    assert with_calls(text).splitlines() == [
        "int f() {",
        "  { ptx::mapa_shared_cluster_u32((found), (min(a, b)), (w::c)); }",
        "",
        "}",
        "#define OP(name) { ptx::name##_rn_f16x2((x), (z)); }",
        "{ { bool done; A_2: ptx::try_it(done, (b)); if (!done) goto A_2; } }",
        "{  }",
    ]


def test_an_instruction_that_nobody_emulates_does_not_compile(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CalledProcessError):
        check("softmax_forward", (3, 515), change=lambda text: text.replace("mapa.", "mapb."), **BOTH)
    assert "mapb_shared_cluster_u32" in capfd.readouterr().err


# floats of 16 and 8 bits


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f8e4m3", "f8e5m2"])
def test_narrow_floats_are_rounded_as_in_torch(dtype: str) -> None:
    """Those of 8 bits too, but for what is beyond the largest one: it is that one."""
    torchs, kind = TORCH_DTYPES[dtype], ["bf16", "f16", "f8e4m3", "f8e5m2"].index(dtype)
    own = bit_patterns(dtype)
    numbers, bits = own.double(), own.view(torch.uint8 if own.element_size() == 1 else torch.int16).tolist()
    found = torch.tensor([wide(each % 2 ** (8 * own.element_size()), kind) for each in bits], dtype=torch.float64)
    assert torch.equal(found.nan_to_num(1.5), numbers.nan_to_num(1.5))
    assert torch.equal(found.isnan(), numbers.isnan())
    some = bit_patterns("f32")[::97]
    if own.element_size() == 1:
        some = some.clamp(-torch.finfo(torchs).max, torch.finfo(torchs).max)
    rounded = torch.tensor([wide(narrow(each, kind), kind) for each in some.tolist()], dtype=torch.float64)
    right = some.to(torchs).double()
    assert torch.equal(rounded.nan_to_num(1.5), right.nan_to_num(1.5))
    assert torch.equal(rounded.signbit()[~right.isnan()], right.signbit()[~right.isnan()])
