"""Kernels in CUDA C++ on a GPU against the float64 interpreter, by inputs for which all sums are exact."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from tests.cuda_header import rows
from tests.cuda_kernels import (
    EXPONENTIALS,
    SOME,
    WAYS_OF_EXPONENTIALS,
    WORKLOADS_OF_ROWS,
    kernel_of,
    of_any_width,
    of_rows,
)
from tests.exact_inputs import exact_inputs
from weft.backends.cuda import build
from weft.backends.cuda.schedule import CudaKernel
from weft.bench.kernel_run import KernelRun, output_tensors
from weft.ir.interpret import interpret
from weft.options import Options

pytestmark = [
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0),
        reason="needs compute capability 9.0",
    ),
    pytest.mark.skipif(build.missing() != "", reason=f"{build.missing()} is missing"),
]
BF16, F32 = torch.bfloat16, torch.float32
RUNS = int(os.environ.get("WEFT_TEST_RUNS", "20"))
"""Of a kernel, which all have the same bits."""


def check(name: str, shape: tuple[int, int], dtype: torch.dtype = BF16, *, early: int = 0, **fields: Any) -> None:
    """Equal bits, also of more runs. early: elements that tensors start behind a multiple of 16 bytes."""
    case, kernel = kernel_of(name, shape, dtype, **fields)
    given = exact_inputs(name, shape, dtype, "cuda", 3)
    parameters = case.parameters_for(given)
    bound = dict(zip((b.name for b in case.program.inputs), case.bind(given), strict=True))
    inputs = [moved(bound[b.name], early) for b in kernel.program.inputs]
    for mine, exact in results(kernel, inputs, parameters):
        assert torch.equal(mine, exact)


def results(
    kernel: CudaKernel, inputs: list[torch.Tensor], parameters: tuple[int, ...] = ()
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The outputs of a kernel, which are the same bits whenever it runs again, and what they should be."""
    outputs = output_tensors(kernel.program, parameters, inputs[0].device)
    run = KernelRun(kernel, inputs, outputs, parameters, Options.read({}))
    run.run_poisoned()
    first = [t.clone() for t in outputs]
    for _ in range(RUNS):
        run()
    assert all(torch.equal(bits(a), bits(b)) for a, b in zip(first, outputs, strict=True))
    right = interpret(kernel.program, [on_cpu(t) for t in inputs], parameters)
    return [(a.cpu(), b.to(a.dtype).reshape(a.shape)) for a, b in zip(outputs, right, strict=True)]


def on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers as far apart."""
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype).copy_(tensor)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """What is equal where numbers are none, too."""
    return tensor.reshape(-1).view(torch.uint8)


def moved(tensor: torch.Tensor, early: int) -> torch.Tensor:
    """The same numbers, so many elements behind a multiple of 16 bytes."""
    if early == 0:
        return tensor
    memory = torch.empty(tensor.numel() + early, dtype=tensor.dtype, device=tensor.device)
    return memory[early:].view(tensor.shape).copy_(tensor)


@pytest.mark.parametrize("name", ["layer_norm_forward", "layer_norm_backward", "rms_norm_backward", "softmax_forward"])
@pytest.mark.parametrize(("warps", "groups", "lanes"), [(8, 16, 8), (4, 16, 4), (4, 8, 2)])
@pytest.mark.parametrize("shape", [(4001, 121), (515, 62), (1030, 64)], ids=str)
def test_several_groups_may_share_a_warp(
    shape: tuple[int, int], warps: int, groups: int, lanes: int, name: str
) -> None:
    fields: dict[str, Any] = {"warps": warps, "groups": groups, "lanes": lanes, "vectors": 64 // lanes, "chunks": 132}
    check(name, shape, rows_per_tile=2 * groups, stages=3, **fields)
    check(name, shape, rows_per_tile=groups, stages=2, early=1, tile="registers", **fields)


@pytest.mark.parametrize("shape", [(512, 2048), (515, 1003)], ids=str)
@pytest.mark.parametrize("name", WORKLOADS_OF_ROWS)
def test_a_workload_has_equal_bits(name: str, shape: tuple[int, int]) -> None:
    check(name, shape, cluster=2 if shape[1] % 2 == 0 else 1, warps=4, vectors=1, stages=3)


@pytest.mark.parametrize("columns", [1001, 2048, 3001, 4104])
@pytest.mark.parametrize("way", list(SOME))
def test_a_schedule_has_equal_bits(way: str, columns: int) -> None:
    check("layer_norm_backward", (515, columns), **SOME[way])


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("shape", [(512, 2048), (515, 1003), (3, 1003)], ids=str)
@pytest.mark.parametrize("name", WORKLOADS_OF_ROWS)
def test_tiles_of_a_workload_may_overlap(name: str, shape: tuple[int, int], rows: int) -> None:
    """Also where parts of a chunk have one row, or none."""
    check(name, shape, cluster=2, warps=3, vectors=1, stages=3, lag=1, rows_per_tile=rows)


@pytest.mark.parametrize("chunks", [1, 7, 66, 132])
@pytest.mark.parametrize("columns", [1001, 1002, 1004])
def test_rows_that_begin_alike_may_be_of_any_number_of_chunks(columns: int, chunks: int) -> None:
    check("layer_norm_backward", (515, columns), warps=4, vectors=1, chunks=chunks)
    check("modulated_layer_norm_backward", (520, columns), warps=4, vectors=1, chunks=chunks, finish="separate")


@pytest.mark.parametrize("finish", ["same", "separate"])
@pytest.mark.parametrize("columns", [8191, 8192, 16383, 16384, 16386])
def test_a_lane_may_have_several_columns_of_the_finish(columns: int, finish: str) -> None:
    check("layer_norm_backward", (70, columns), cluster=8, warps=4, vectors=3, chunks=33, finish=finish)


@pytest.mark.parametrize("cluster", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("columns", [5003, 16384])
def test_a_row_may_be_shared_by_a_cluster(cluster: int, columns: int) -> None:
    check("rms_norm_backward", (260, columns), cluster=cluster, warps=4, vectors=1, stages=2)


@pytest.mark.parametrize(("cluster", "vectors", "blocks"), [(16, 1, 8), (8, 2, 6)])
def test_a_stage_is_not_filled_before_it_is_read(cluster: int, vectors: int, blocks: int) -> None:
    """Where so many warps have so much to do with shared memory that loads from it come behind what follows them."""
    fields: dict[str, Any] = {"cluster": cluster, "warps": 4, "vectors": vectors, "blocks": blocks}
    fields |= {"stages": 3, "chunks": 56, "weights": "shared", "tile": "registers"}
    check("layer_norm_forward", (2000, 13281), **fields)


@pytest.mark.parametrize("columns", [5, 519, 1683, 5003])
@pytest.mark.parametrize(("cluster", "warps"), [(1, 5), (2, 6), (4, 7)])
def test_blocks_may_have_numbers_of_warps_that_are_no_powers_of_two(cluster: int, warps: int, columns: int) -> None:
    """Some blocks have no column of the narrowest row."""
    check("layer_norm_backward", (515, columns), cluster=cluster, warps=warps, vectors=4, finish="same")
    check("layer_norm_forward", (515, columns), cluster=cluster, warps=warps, vectors=4, tile="registers")


@pytest.mark.parametrize("early", [1, 3])
@pytest.mark.parametrize("name", ["rms_norm_backward", "softmax_forward"])
def test_tensors_may_start_anywhere(name: str, early: int) -> None:
    check(name, (515, 2048), early=early, cluster=2, warps=4, vectors=1)


@pytest.mark.parametrize("rows", [2, 3, 515])
def test_the_number_of_rows_may_be_known_at_run_time_only(rows: int) -> None:
    check("rms_norm_backward", (rows, 2048), dynamic=True, warps=8, vectors=1)


@pytest.mark.parametrize("columns", [1, 5, 640, 1021, 1023, 1024])
@pytest.mark.parametrize("cluster", [1, 2])
def test_the_width_may_be_known_at_run_time_only(cluster: int, columns: int) -> None:
    """One block has no place for 1023 columns: they begin between two vectors. Another schedule is planned for them."""
    kernel = of_any_width(cluster=cluster, warps=4, vectors=2)
    x = torch.randint(-64, 64, (8, columns), device="cuda").float()
    outputs = output_tensors(kernel.program, (columns,), x.device)
    KernelRun(kernel, [x], outputs, (columns,), Options.read({})).run_poisoned()
    rest = x - x.amax(1, keepdim=True)
    assert torch.equal(outputs[0], rest)
    assert torch.equal(outputs[1], rest.sum(0))


@pytest.mark.parametrize("dtype", [F32, torch.float16], ids=str)
def test_other_types(dtype: torch.dtype) -> None:
    check("layer_norm_backward", (515, 1001), dtype, warps=4, vectors=2, rows_per_tile=2)


# sums of exponentials


@pytest.mark.parametrize("columns", [1003, 2048])
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize(("name", "way"), WAYS_OF_EXPONENTIALS)
def test_rows_may_have_numbers_that_are_infinite_or_none(name: str, way: str, dtype: torch.dtype, columns: int) -> None:
    """Among others: rows of several magnitudes, and some whose every number is the same."""
    case, kernel = kernel_of(name, (9, columns), dtype, **SOME[way])
    given = list(case.bind(exact_inputs(name, (9, columns), dtype, "cuda", 3)))
    given[[b.name for b in case.program.inputs].index("x")] = rows("f32", columns).to("cuda", dtype)
    bound = dict(zip((b.name for b in case.program.inputs), given, strict=True))
    close = {F32: (1e-5, 1e-6), BF16: (2.0**-8, 2.0**-20)}[dtype]
    for mine, right in results(kernel, [bound[b.name] for b in kernel.program.inputs]):
        torch.testing.assert_close(mine, right, rtol=close[0], atol=close[1], equal_nan=True)


@pytest.mark.parametrize("columns", [1003, 2048])
@pytest.mark.parametrize("way", list(EXPONENTIALS))
def test_exponentials_may_wait_in_registers(way: str, columns: int) -> None:
    check("softmax_forward", (515, columns), **EXPONENTIALS[way])
    check("softmax_forward", (67, columns), torch.float16, early=3, **EXPONENTIALS[way])
    _, kernel = kernel_of("softmax_forward", (9, columns), **EXPONENTIALS[way])
    for mine, right in results(kernel, [rows("f32", columns).to("cuda", BF16)]):
        torch.testing.assert_close(mine, right, rtol=2.0**-8, atol=2.0**-20, equal_nan=True)


@pytest.mark.parametrize("fields", list(SOME.values()), ids=list(SOME))
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_a_sum_of_exponentials_needs_no_largest_element(dtype: str, fields: dict[str, Any]) -> None:
    body = f"  input x: {dtype} [m:16, n:1]\n  total: {dtype}{{m}} = sumexp[n](x)\n  output y: {dtype} [m:1] = total\n"
    kernel = of_rows(body, **fields | {"finish": "none"})
    ((mine, right),) = results(kernel, [rows(dtype, 16)[1:].cuda()])
    torch.testing.assert_close(mine, right, rtol=1e-5 if dtype == "f32" else 1e-12, atol=0.0, equal_nan=True)


@pytest.mark.parametrize("fields", list(SOME.values()), ids=list(SOME))
def test_an_element_that_is_picked_may_lie_anywhere(fields: dict[str, Any]) -> None:
    """Or nowhere: then it is zero."""
    body = (
        "  input x: f32 [m:16, n:1]\n  input v: f32 [m:80, n:5]\n  input place: i64 [m:1]\n  sum: f32{m} = sum[n](x)\n"
        "  element: f32{m} = pick[n](v, place)\n  total: f32{m} = add(sum, element)\n  output y: f32 [m:1] = total\n"
    )
    kernel = of_rows(body, **fields | {"finish": "none"})
    x, v = (torch.randint(-64, 64, shape).float() for shape in ((8, 16), (8, 80)))
    place = torch.tensor([0, 15, 16, -1, 3, 7, 2**40, 5])
    ((mine, right),) = results(kernel, [x.cuda(), v.cuda()[:, ::5], place.cuda()])
    assert torch.equal(mine, right)
