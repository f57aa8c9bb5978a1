"""The first widths that calls have get kernels of their own, where rows are of a width that is known at run time only;
the driver is played by Python."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from tests.cuda_kernels import of_any_width
from tests.gpu_driver import Driver, played_driver  # noqa: F401
from weft.backends.binary import Job
from weft.backends.listed import render
from weft.backends.resource_usage import ResourceUsage
from weft.errors import BuildError
from weft.ir.interpret import interpret
from weft.ir.parser import parse
from weft.ir.specialise import specialised
from weft.options import Options
from weft.plan.exact import exact, widths_of
from weft.plan.kernel import Kernel
from weft.plan.schedules import schedule_for
from weft.plan.split import Split
from weft.plan.tuned import key_of
from weft.runtime import tuning
from weft.runtime.gpu import builds, calls, others
from weft.runtime.gpu.function import GpuFunction
from weft.target import Target

DEVICE, TARGET = torch.device("cpu"), Target.named("h200")
WIDE = """program norm(s0, s1, s2)
  dim m = s1
  dim n = s0
  input x: bf16 [m:s2, n:1]
  cast: f32{m, n} = cast(x)
  sum: f32{m} = sum[n](cast)
  size: f32{} = size[n]()
  twice: f32{} = parameter[s0]()
  mean: f32{m} = div(sum, size)
  sub: f32{m, n} = sub(cast, mean)
  mul: f32{m, n} = mul(sub, twice)
  rounded: bf16{m, n} = cast(mul)
  output y: bf16 [m:s0, n:1] = rounded
end
"""


def kernel_of(text: str = WIDE, **hints: int) -> Kernel:
    known = {"s0": 24576, "s1": 300, "s2": 24576} | hints
    part = Split.of(parse(text), ("m",), ("n",), TARGET, known)
    return Kernel(part.program, schedule_for(part))


def function_of(kernel: Kernel, folder: Path, **options: Any) -> GpuFunction:
    return GpuFunction(kernel, render(kernel), Options.read({"cache_dir": folder, **options}, {}))


def calls_of(run: GpuFunction, *widths: int, rows: int = 300) -> list[bool]:
    return [run(DEVICE, [0, 0], [width, rows, width], 0) for width in widths]


@pytest.mark.parametrize("known", [{"s0": 40, "s2": 48}, {"s0": 40}, {"s1": 3}, {}])
def test_a_program_with_known_sizes_computes_the_same(known: dict[str, int]) -> None:
    program, x = parse(WIDE), torch.randn(3, 48, dtype=torch.bfloat16)[:, :40]
    made = specialised(program, known)
    for name, number in known.items():
        assert name not in str(made).split("\n", 1)[1]
        assert str(number) in str(made)
    assert made.parameters == program.parameters
    assert [b.name for b in made.buffers] == [b.name for b in program.buffers]
    assert parse(str(made)) == made
    (mine,), (other,) = (interpret(each, [x], (40, 3, 48)) for each in (made, program))
    assert torch.equal(mine, other)


def test_widths_are_sizes_of_columns_and_strides_that_are_no_number_of_rows() -> None:
    assert widths_of(kernel_of()) == ("s0", "s2")
    known = specialised(parse(WIDE), {"s0": 24576, "s2": 24576})
    assert widths_of(Kernel(known, kernel_of().schedule)) == ()
    apart = specialised(parse(WIDE), {"s0": 24576})
    assert widths_of(Kernel(apart, kernel_of().schedule)) == ()


def test_the_schedule_is_that_of_a_program_whose_width_was_always_known() -> None:
    hints = {"s0": 24576, "s1": 300, "s2": 24576}
    found = exact(kernel_of(), TARGET, hints)
    static = specialised(parse(WIDE), {"s0": 24576, "s2": 24576})
    assert found == Kernel(static, schedule_for(Split.of(static, ("m",), ("n",), TARGET, hints)))
    assert exact(kernel_of(), TARGET, hints | {"s0": 1}) is None


def test_the_first_widths_have_kernels_of_their_own(
    driver: Driver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "weft")
    kernel = kernel_of()
    run = function_of(kernel, tmp_path, exact_widths=2)
    assert all(calls_of(run, 24576, 24576, 5001, 700, 5001))
    assert list(run.others.exact_widths) == [(24576, 24576), (5001, 5001)]
    assert all(calls_of(run, 24576, rows=7))
    programs = [specialised(kernel.program, {"s0": w, "s2": w}) for w in (24576, 5001)]
    assert [job.kernel.program for job in driver.jobs] == [*programs, kernel.program]
    assert len([r for r in caplog.records if "for calls like" in r.message]) == 2
    names = [words[2:5] for _, _, _, words, _ in driver.started]
    assert names[0][-3:] == (24576, 300, 24576) or driver.started[0][3][-3:] == (24576, 300, 24576)


def test_what_is_planned_for_wider_rows_has_no_kernels_of_one_width(driver: Driver, tmp_path: Path) -> None:
    kernel = of_any_width(warps=4, vectors=2)
    run = function_of(kernel, tmp_path, exact_widths=1)
    assert all(run(DEVICE, [0, 0, 0], [width], 0) for width in (1024, 4096, 4000, 1000))
    assert len(run.others.exact_widths) == 1
    assert len(run.others.wider) == 1
    assert [job.kernel.program == kernel.program for job in driver.jobs] == [False, True, True]
    assert len(run.built()) == 3


@pytest.mark.parametrize("options", [{"exact_widths": 0}, {}])
def test_a_schedule_that_was_measured_is_that_of_all_widths(
    options: dict[str, int], driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = kernel_of()
    run = function_of(kernel, tmp_path, **options)
    if not options:
        measured = {key_of(kernel, TARGET): None}
        monkeypatch.setattr(tuning, "load", lambda _: measured)
    assert all(calls_of(run, 24576, 5001))
    assert {job.kernel for job in driver.jobs} == {kernel}


def test_nothing_is_planned_while_a_graph_is_captured(driver: Driver, tmp_path: Path) -> None:
    run = function_of(kernel_of(), tmp_path, exact_widths=1)
    assert all(calls_of(run, 24576, 5001))
    built = len(driver.jobs)
    driver.capturing = True
    assert all(calls_of(run, 24576, 6001))
    assert len(driver.jobs) == built == 2


def test_what_cannot_be_built_for_a_width_runs_as_before(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = kernel_of()
    run, tried = function_of(kernel, tmp_path), list[Job]()

    def binaries(job: Job, options: Options) -> Any:
        tried.append(job)
        if job.kernel != kernel:
            raise BuildError("no")
        return driver.binaries(job, options)

    monkeypatch.setattr(builds, "binaries", binaries)
    assert all(calls_of(run, 24576, 24576))
    assert len(tried) == 2


def test_what_cannot_be_built_for_other_tensors_is_done_by_the_kernel(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = kernel_of()
    run = function_of(kernel, tmp_path)
    assert all(calls_of(run, 24576))
    assert driver.jobs[-1].kernel != kernel

    def binaries(job: Job, options: Options) -> Any:
        if job.kernel != kernel:
            raise BuildError("no")
        return driver.binaries(job, options)

    monkeypatch.setattr(builds, "binaries", binaries)
    assert run(DEVICE, [2, 0], [24576, 300, 24576], 0)
    assert driver.jobs[-1].kernel == kernel
    assert run.others.exact_widths == {(24576, 24576): None}


def test_a_plan_that_fails_leaves_a_width_to_the_kernel(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("planned to fail")

    monkeypatch.setattr(others, "exact", broken)
    kernel = kernel_of()
    assert all(calls_of(function_of(kernel, tmp_path), 24576, 24576, 5001))
    assert {job.kernel for job in driver.jobs} == {kernel}
    told = [record.message for record in caplog.records if "planned to fail" in record.message]
    assert told == [
        f"kernel {kernel.name}: none is made for rows like {(width, width)}: planned to fail" for width in (24576, 5001)
    ]


def test_a_miss_gives_way_to_its_runner_up(driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, spilling = kernel_of(), list[Kernel]()
    run = function_of(kernel, tmp_path)

    def binaries(job: Job, options: Options) -> Any:
        found = driver.binaries(job, options)
        if job.kernel.program == kernel.program or spilling not in ([], [job.kernel]):
            return found
        spilling[:] = [job.kernel]
        spilled = ResourceUsage(255, 400, 0, 0)
        return {name: type(b)(b.entry, b.content, b.shared_bytes, spilled) for name, b in found.items()}

    monkeypatch.setattr(builds, "binaries", binaries)
    assert all(calls_of(run, 24576))
    (taken,) = run.others.exact_widths.values()
    assert taken is not None
    assert taken.kernel.program == spilling[0].program
    assert taken.kernel.schedule != spilling[0].schedule


def test_workers_begin_with_the_likely_width(driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = list[Job]()
    monkeypatch.setattr(builds, "begin", lambda jobs, *_: begun.extend(jobs))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    kernel, hints = kernel_of(), {"s0": 24576, "s1": 300, "s2": 24576}
    for count in (0, 4):
        options = Options.read({"cache_dir": tmp_path, "exact_widths": count}, {})
        (run,) = calls.build_all([kernel], [render(kernel)], [hints], options)
        assert len(begun) == min(count, 1)
    with monkeypatch.context() as measured:
        measured.setattr(tuning, "load", lambda _: {key_of(kernel, TARGET): None})
        calls.build_all([kernel], [render(kernel)], [hints], options)
        assert len(begun) == 1
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    assert run(DEVICE, [0, 0], [24576, 300, 24576], 0)
    assert begun[0] in driver.jobs
