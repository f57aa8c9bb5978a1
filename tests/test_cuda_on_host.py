"""Kernels in CUDA C++ whose threads are fibers of this machine, against the interpreter: no GPU is needed."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

from tests.cases import checkered
from tests.cuda_kernels import (
    OF_ONE_GROUP,
    QUEUED,
    SOME,
    WORKLOADS_OF_ROWS,
    kernel_of,
    of_any_width,
    of_rows,
)
from tests.on_host.kernels import MANY, Machine, check, is_right
from weft.backends.cuda import launches
from weft.backends.cuda.view import View
from weft.backends.listed import render
from weft.ir.dtypes import TORCH_DTYPES
from weft.ir.program import Dim

pytestmark = pytest.mark.where_changed("tests/on_host", "weft/backends", "weft/ir", "weft/lowering", "weft/plan")


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


@pytest.mark.parametrize("columns", [520, 521])
@pytest.mark.parametrize("chunks", [5, 8])
def test_the_number_of_segments_may_be_known_at_run_time_only(chunks: int, columns: int) -> None:
    """Also where they are no whole number of chunks each."""
    fields = {"warps": 2, "vectors": 2, "chunks": chunks, "finish": "separate"}
    check("modulated_layer_norm_backward", (48, columns), dynamic=True, rows_per_tile=2, **fields)
    check("layer_norm_backward", (48, columns), dynamic=True, **fields)


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


@pytest.mark.slow
@pytest.mark.parametrize("columns", [515, 1040])
@pytest.mark.parametrize("way", list(QUEUED))
@pytest.mark.parametrize("name", ["layer_norm_forward", "layer_norm_backward", "softmax_forward"])
def test_threads_may_go_on_in_many_orders(name: str, way: str, columns: int) -> None:
    check(name, (23, columns), machines=MANY, **of_few_warps(way, 2), chunks=5)
