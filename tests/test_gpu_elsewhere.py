"""Calls that a GPU kernel has no place for are done by a kernel of another backend; the driver is played by Python."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from tests.cuda_kernels import of_any_width
from tests.gpu_driver import Driver, played_driver  # noqa: F401
from weft.backends.binary import Job
from weft.backends.cuda.schedule import CudaKernel
from weft.backends.listed import render, supports
from weft.errors import BuildError
from weft.ir.parser import parse
from weft.options import Options
from weft.plan.kernel import Kernel
from weft.plan.schedules import elsewhere
from weft.runtime.gpu import builds
from weft.runtime.gpu.function import GpuFunction
from weft.target import Target

PROGRAM = """program q(s0)
  dim m = 8
  dim n = s0
  input x: f32 [m:s0, n:1]
  largest: f32{m} = max[n](x)
  rest: f32{m, n} = sub(x, largest)
  output y: f32 [m:s0, n:1] = rest
end
"""
DEVICE = torch.device("cpu")
PLACE = 2 * 128 * 4
"""Columns that the kernel has place for."""


def of_rows_alone() -> CudaKernel:
    """Triton has kernels for any width of these, which it has not where columns are added up too."""
    kernel = of_any_width(warps=4, vectors=2)
    return Kernel(parse(PROGRAM), kernel.schedule.but(finish="none"))


def function(kernel: Kernel) -> GpuFunction:
    return GpuFunction(kernel, render(kernel), Options.read({"exact_widths": 0}, {}))


def test_the_best_schedule_is_taken_that_has_place() -> None:
    target = Target.named("h200")
    for kernel in (of_any_width(warps=4, vectors=2), of_rows_alone()):
        found = {columns: elsewhere(kernel, target, {"s0": columns}) for columns in (3000, 10**6)}
        assert None not in found.values() or kernel.program.name == "p"
        for columns, schedule in found.items():
            if schedule is not None:
                made = Kernel(kernel.program, schedule)
                assert supports(made) is None
                assert (
                    GpuFunction(made, render(made), Options.read({"exact_widths": 0}, {})).check_sizes([columns])
                    is None
                )
    wide = elsewhere(of_rows_alone(), target, {"s0": 10**6})
    assert wide is not None
    assert wide.backend == "triton"
    assert elsewhere(of_any_width(warps=4, vectors=2), target, {"s0": 10**6}) is None


@pytest.mark.parametrize("widths", [(PLACE, 2 * PLACE, PLACE - 3, 4 * PLACE, 2 * PLACE, 10**6)])
def test_wider_rows_are_done_by_other_kernels(
    widths: tuple[int, ...], driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "weft")
    run = function(of_rows_alone())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(run(DEVICE, [0, 0], [columns], 0) for columns in widths)
    assert 1 <= len(run.others.wider) < 4
    assert {job.kernel.program for job in driver.jobs} == {run.kernel.program}
    assert run.others.wider[-1].kernel.schedule.backend == "triton"
    told = [record.message for record in caplog.records if "for calls like" in record.message]
    assert len(told) == len(run.others.wider)
    assert told[0].startswith(f"kernel q, for calls like that of {{'s0': {2 * PLACE}}}: ")
    assert run.repeat(DEVICE, [0, 0], [2 * PLACE], 0), "the launcher makes such a call again"


def test_rows_have_less_place_where_vectors_begin_before_them(driver: Driver) -> None:
    run = function(of_any_width(warps=4, vectors=2))
    assert [run.check_sizes([PLACE - less]) is None for less in (0, 1, 2, 3)] == [True, False, False, True]
    for less in (0, 1, 3):
        assert run(DEVICE, [0, 0, 0], [PLACE - less], 0)
    assert len(run.others.wider) == 1


def test_there_are_only_so_many_other_kernels(driver: Driver) -> None:
    """Each of a width that is the widest so far, where Triton has none."""
    run = function(of_any_width(warps=4, vectors=2))
    with pytest.warns(UserWarning, match=r"on ATen with these sizes: it has rows that are wider .* limit 1024\)"):
        done = [run(DEVICE, [0, 0, 0], [4000 * 2**power], 0) for power in range(6)]
    assert 1 <= len(run.others.wider) <= 4
    assert done == [True] * len(run.others.wider) + [False] * (6 - len(run.others.wider))


def test_nothing_is_built_elsewhere_while_a_graph_is_captured(driver: Driver) -> None:
    run = function(of_rows_alone())
    driver.capturing = True
    with pytest.warns(
        UserWarning, match="^weft: kernel q runs on ATen in a CUDA graph: no call like this one was made"
    ):
        assert not run(DEVICE, [0, 0], [2 * PLACE], 0)
    assert driver.jobs == []
    driver.capturing = False
    assert run(DEVICE, [0, 0], [2 * PLACE], 0)
    driver.capturing = True
    assert run(DEVICE, [0, 0], [2 * PLACE], 0)


def test_what_cannot_be_built_elsewhere_is_left_to_aten(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Narrower rows are done as before."""
    run, tried = function(of_rows_alone()), list[Job]()

    def binaries(job: Job, options: Options) -> Any:
        if job.kernel == run.kernel:
            return driver.binaries(job, options)
        tried.append(job)
        raise BuildError("no")

    monkeypatch.setattr(builds, "binaries", binaries)
    with pytest.warns(UserWarning, match=r"on ATen with these sizes: it has rows that are wider .* limit 1024\)"):
        assert not any(run(DEVICE, [0, 0], [2 * PLACE], 0) for _ in range(9))
    assert len(tried) == 4
    assert run(DEVICE, [0, 0], [PLACE], 0)
