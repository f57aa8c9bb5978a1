"""The process that compiles and times candidate schedules: ``python -m weft.bench.tune_worker``, one request a line.

    {"do": "start"}                                                           answer once everything is imported
    {"do": "open", "kernel", "parameters", "device", "threads", "verified"}   make tensors, run, compare with float64
    {"do": "compile", "kernel", "arch", "hints"}                              put a Triton kernel into the cache
    {"do": "attempt", "kernel", "rounds"}                                     check, then time beside the open one
    {"do": "final", "kernels", "rounds"}                                      time the open one twice, and these

An answer has ``failed`` or ``wrong`` with a reason, or what was asked for; ``lost`` if the device is of no more use.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from weft.backends.listed import backend_of, render
from weft.bench.kernel_run import KernelRun, input_tensors, is_empty, output_tensors, what_is_wrong
from weft.options import Options
from weft.plan.kernel import Kernel, parse_kernel
from weft.runtime.timing import times_us

LONGEST_REASON = 300


class Bench:
    """The kernel that is open, with its tensors and its results."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.device = torch.device("cpu")
        self.parameters: list[int] = []
        self.inputs: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self.expected: list[Tensor] = []
        self.untuned: KernelRun | None = None

    def start(self) -> dict[str, Any]:
        """All that takes time is done by then: modules are imported."""
        return {}

    def open(self, kernel: str, parameters: list[int], device: str, threads: int, verified: bool) -> dict[str, Any]:
        """verified: its results were compared before, in a process that is gone."""
        torch.set_num_threads(threads)
        self.device, self.parameters = torch.device(device), parameters
        parsed = parse_kernel(kernel)
        program = parsed.program
        if is_empty(program, parameters):
            return {"failed": "a tensor has no elements"}
        self.outputs = output_tensors(program, parameters, self.device)
        for positive in (False, True):
            self.inputs = input_tensors(program, parameters, self.device, positive)
            self.untuned = self.run_of(parsed)
            self.untuned.run_poisoned()
            if all(bool(t.isfinite().all()) for t in self.outputs if t.is_floating_point()):
                break
        self.expected = []
        wrong = "" if verified else self.wrong()
        self.expected = [t.clone() for t in self.outputs]
        return {"wrong": wrong} if wrong else {}

    def attempt(self, kernel: str, rounds: int) -> dict[str, Any]:
        """Times of both, round by round."""
        assert self.untuned is not None
        run = self.run_of(parse_kernel(kernel))
        run.run_poisoned()
        if wrong := self.wrong():
            return {"wrong": wrong}
        return {"us": times_us([self.untuned, run], rounds, self.device)}

    def final(self, kernels: list[str], rounds: int) -> dict[str, Any]:
        assert self.untuned is not None
        runs = [self.run_of(parse_kernel(kernel)) for kernel in kernels]
        return {"us": times_us([self.untuned, self.untuned, *runs], rounds, self.device)}

    def compile(self, kernel: str, arch: int, hints: dict[str, int]) -> dict[str, Any]:
        parsed = parse_kernel(kernel)
        backend_of(parsed).calls.compile(parsed, render(parsed), hints, arch, self.options)
        return {}

    def wrong(self) -> str:
        """Of what is in the outputs."""
        assert self.untuned is not None
        program = self.untuned.kernel.program
        return what_is_wrong(program, self.inputs, self.outputs, self.parameters, self.expected)

    def run_of(self, kernel: Kernel) -> KernelRun:
        return KernelRun(kernel, self.inputs, self.outputs, self.parameters, self.options)

    def is_lost(self) -> bool:
        """Whether an error of a kernel has left the GPU unusable for this process."""
        if self.device.type != "cuda":
            return False
        try:
            torch.cuda.synchronize(self.device)
        except Exception:
            return True
        return False


def main(make: Callable[[Options], Bench] = Bench) -> None:
    """Answer until there are no more requests. What libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    bench = make(Options.read())
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer: dict[str, Any] = getattr(bench, request.pop("do"))(**request)
        except Exception as error:
            said = " ".join(str(error).split())[:LONGEST_REASON]
            answer = {"failed": f"{type(error).__name__}: {said}", "lost": bench.is_lost()}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
