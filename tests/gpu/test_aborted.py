"""Calls that end in an exception: what comes behind them is right, and barriers count on from where they were."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor

import weft
from tests.accuracy import rms
from tests.gpu.workloads import MIXED, compiled, equal, expected, inputs_of, plan_of, program_of
from weft.backends.listed import render
from weft.bench.workloads import WORKLOADS
from weft.errors import LaunchError
from weft.ir.interpret import sizes_of
from weft.options import Options
from weft.runtime import launch
from weft.runtime.executable import digest_of
from weft.runtime.gpu import driver
from weft.runtime.gpu.function import GpuFunction
from weft.runtime.gpu.workspace import Workspace
from weft.runtime.layout import allocate


def _stopped(*_: object) -> None:
    raise RuntimeError("stopped by a test")


@pytest.mark.parametrize("when", ["before", "behind"])
def test_an_error_around_a_launch_leaves_the_barrier_right(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start fails: before anything was started, and behind it."""
    inputs = inputs_of(MIXED, torch.bfloat16)
    case = program_of(MIXED, inputs)
    (kernel,) = plan_of(case, inputs).kernels
    assert kernel.schedule.finish == "same"
    function = GpuFunction(kernel, render(kernel), Options.read())
    outputs = [allocate(o.buffer, sizes_of(case.program, ()), inputs[0].device) for o in case.program.outputs]
    addresses = [t.data_ptr() for t in (*case.bind(inputs), *outputs)]

    def called() -> list[Tensor]:
        for tensor in outputs:
            tensor.fill_(float("nan"))
        assert function(inputs[0].device, addresses, (), 0)
        return [t.clone() for t in outputs]

    def stopped(*given: Any) -> None:
        if when == "behind":
            start(*given)
        raise RuntimeError("stopped by a test")

    first, start = called(), driver.start
    for _ in range(3):
        with monkeypatch.context() as patch:
            patch.setattr(driver, "start", stopped)
            with pytest.raises(RuntimeError, match="stopped by a test"):
                called()
        assert equal(first, called())
    for mine, exact in zip(first, expected(case, inputs), strict=True):
        assert rms(mine.double() - exact) <= 0.01 * rms(exact)


def test_no_memory_for_partial_results_spoils_no_later_call(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = inputs_of(MIXED, torch.bfloat16, (1500, 1024))
    case = program_of(MIXED, inputs)
    call = compiled(plan_of(case, inputs), case, inputs)
    first = call()

    def no_memory(*_: object) -> None:
        raise torch.OutOfMemoryError("no memory, says a test")

    with monkeypatch.context() as patched:
        patched.setattr(Workspace, "allocate", no_memory)
        with pytest.raises(torch.OutOfMemoryError, match="no memory, says a test"):
            call()
    assert all(equal(first, call()) for _ in range(3))
    assert weft.counters.fallbacks == 0


def test_no_memory_for_outputs_spoils_no_later_call() -> None:
    torch.cuda.empty_cache()  # no rest of a larger block is left for an output
    inputs = inputs_of(MIXED, torch.bfloat16, (16384, 1024))
    fused = weft.fuse(WORKLOADS[MIXED].fn, strict=True)
    first = [t.cpu() for t in fused(*inputs)]
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1e-6)  # less than there is already
    try:
        with pytest.raises(torch.OutOfMemoryError):
            fused(*inputs)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    for _ in range(3):
        assert equal(first, [t.cpu() for t in fused(*inputs)])
    assert weft.counters.fallbacks == 0


def test_a_wrong_argument_spoils_no_later_call() -> None:
    inputs = inputs_of(MIXED, torch.bfloat16)
    case = program_of(MIXED, inputs)
    found = plan_of(case, inputs)
    call, bound = compiled(found, case, inputs), case.bind(inputs)
    first = call()
    name = case.program.inputs[0].name
    wrong = {
        f"{name} is torch.float16, compiled for": [bound[0].half(), *bound[1:]],
        f"{name} is on meta": [bound[0].to("meta"), *bound[1:]],
        "takes": bound[1:],
    }
    for message, tensors in wrong.items():
        executable = launch.find(digest_of(found.kernels[0]), str(found.kernels[0]))
        outputs = [t.clone() for t in first]
        with pytest.raises(LaunchError, match=re.escape(message)):
            executable(tensors, outputs, ())
        assert equal(first, call())
    assert weft.counters.fallbacks == 0


def test_a_capture_that_is_given_up_spoils_no_later_one() -> None:
    inputs = inputs_of(MIXED, torch.bfloat16)
    fused = weft.fuse(WORKLOADS[MIXED].fn, strict=True)
    first = [t.clone() for t in fused(*inputs)]

    def given_up() -> None:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            fused(*inputs)
            _stopped()

    with pytest.raises(RuntimeError, match="stopped by a test"):
        given_up()
    assert equal(first, list(fused(*inputs)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = list(fused(*inputs))
    for _ in range(3):
        graph.replay()
    assert equal(first, made)
    assert equal(first, list(fused(*inputs)))
    assert weft.counters.fallbacks == 0
