"""Kernels that their compiler made spill give way to others, of whatever backend."""

from __future__ import annotations

import pytest

from tools.gpu_cells import Cell, parts_of
from weft.backends.cuda import build
from weft.backends.cuda.schedule import CudaSchedule
from weft.backends.listed import backend_named
from weft.backends.resource_usage import ResourceUsage
from weft.backends.triton.schedule import TritonSchedule
from weft.plan.cost import estimate
from weft.plan.kernel import Kernel
from weft.plan.schedules import runner_up, schedule_for
from weft.plan.split import Split
from weft.runtime.misses import without_miss
from weft.target import Target

H200 = Target.named("h200")
SPILLS, FITS = ResourceUsage(255, 100, 0, 0), ResourceUsage(90, 0, 0, 0)
needs_nvrtc = pytest.mark.skipif(build.missing() != "", reason=f"no plan has them: {build.missing()} is missing")


def split_of(rows: int, columns: int) -> Split:
    """The backward of an RMS norm in bfloat16."""
    return parts_of(Cell("rms_norm_backward", "bf16", rows, columns), H200)["rms_norm_backward"]


def kernel_of(columns: int, rows: int) -> Kernel:
    """As it is planned for an H200."""
    split = split_of(rows, columns)
    return Kernel(split.program, schedule_for(split))


def by_triton(columns: int, rows: int) -> Kernel:
    """What that backend alone takes."""
    split = split_of(rows, columns)
    chosen = backend_named("triton").choose(split)
    assert isinstance(chosen, TritonSchedule)
    return Kernel(split.program, chosen)


def us(kernel: Kernel) -> float:
    return estimate(kernel, H200, {}).predicted_us


@needs_nvrtc
def test_a_kernel_that_spills_gives_way_to_the_best_of_all_backends() -> None:
    """Rows of 11541 columns in registers, by Triton, or streamed through shared memory, in CUDA C++."""
    kernel = by_triton(11541, 5814)
    own = backend_named("triton").runner_up(kernel, H200, {}, 0, [kernel.schedule])
    assert own is not None
    tried = list[Kernel]()

    def built(other: Kernel) -> ResourceUsage:
        tried.append(other)
        return FITS

    found, used = without_miss(kernel, SPILLS, H200, {}, built)
    assert isinstance(found.schedule, CudaSchedule)
    assert (tried, used) == ([found], FITS)
    assert us(found) < us(Kernel(kernel.program, own))


@needs_nvrtc
def test_what_spills_in_its_place_gives_way_again() -> None:
    kernel, tried = kernel_of(11541, 5814), list[Kernel]()

    def built(other: Kernel) -> ResourceUsage:
        tried.append(other)
        return ResourceUsage(255, 50, 0, 0) if len(tried) == 1 else FITS

    found, _ = without_miss(kernel, SPILLS, H200, {}, built)
    assert [found] == tried[1:]
    assert len({kernel.schedule, *(each.schedule for each in tried)}) == 3


@needs_nvrtc
def test_a_kernel_in_cuda_gives_way_to_triton_where_that_is_faster_than_its_next() -> None:
    kernel = kernel_of(65536, 1024)
    assert isinstance(kernel.schedule, CudaSchedule)
    narrow = kernel_of(376, 178481)
    assert isinstance(narrow.schedule, TritonSchedule)
    chosen = backend_named("cuda").choose(split_of(178481, 376))
    assert chosen is not None
    other = runner_up(Kernel(narrow.program, chosen), H200, {}, 0, [chosen])
    assert other == narrow.schedule
    assert isinstance(runner_up(kernel, H200, {}, 0, [kernel.schedule]), CudaSchedule)


@needs_nvrtc
def test_what_only_takes_more_registers_gives_way_to_what_is_faster_than_it_then() -> None:
    kernel = by_triton(11541, 5814)
    with_many = backend_named("triton").us_with(split_of(5814, 11541), kernel.schedule, 255)
    other = runner_up(kernel, H200, {}, 255, [kernel.schedule])
    assert other is None or us(Kernel(kernel.program, other)) < with_many


@pytest.mark.only_triton
def test_without_other_backends_it_is_its_own() -> None:
    kernel = kernel_of(11541, 5814)
    own = backend_named("triton").runner_up(kernel, H200, {}, 0, [kernel.schedule])
    assert runner_up(kernel, H200, {}, 0, [kernel.schedule]) == own
