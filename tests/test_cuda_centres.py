"""Row reductions in CUDA C++ that have a centre, moments and sums of exponentials, whose threads are fibers of this
machine."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.cases import checkered
from tests.cuda_header import rows
from tests.cuda_kernels import EXPONENTIALS, SOME, kernel_of, of_rows
from tests.on_host.kernels import MACHINES, check, is_right
from weft.backends.cuda.schedule import CudaKernel

pytestmark = pytest.mark.where_changed("tests/on_host", "weft/backends", "weft/ir", "weft/lowering", "weft/plan")


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
