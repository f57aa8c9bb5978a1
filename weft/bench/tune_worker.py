"""What the process does that compiles and times candidate schedules. Answers have ``failed`` or ``wrong`` with a
reason, or what was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from weft.backends.listed import backend_of, render
from weft.bench.kernel_run import KernelRun, input_tensors, is_empty, output_tensors, what_is_wrong
from weft.options import Options
from weft.plan.kernel import Kernel
from weft.runtime.timing import times_us


@dataclass
class Bench:
    """The kernel that is open, with its tensors and its results. run: what binds a kernel to tensors."""

    options: Options
    run: type[KernelRun] = KernelRun
    parameters: Sequence[int] = ()
    inputs: list[Tensor] = field(default_factory=list[Tensor])
    outputs: list[Tensor] = field(default_factory=list[Tensor])
    expected: list[Tensor] = field(default_factory=list[Tensor])
    untuned: KernelRun | None = None

    def start(self) -> dict[str, Any]:
        """All that takes time is done by then: modules are imported."""
        return {}

    def open(
        self, kernel: Kernel, parameters: Sequence[int], device: str, threads: int, verified: bool
    ) -> dict[str, Any]:
        """Make tensors, run, and compare with float64. verified: its results were compared before, in a process that
        is gone."""
        torch.set_num_threads(threads)
        self.parameters = parameters
        program, place = kernel.program, torch.device(device)
        if is_empty(program, parameters):
            return {"failed": "a tensor has no elements"}
        self.outputs = output_tensors(program, parameters, place)
        for positive in (False, True):
            self.inputs = input_tensors(program, parameters, place, positive)
            self.untuned = self.run_of(kernel)
            self.untuned.run_poisoned()
            if all(bool(t.isfinite().all()) for t in self.outputs if t.is_floating_point()):
                break
        self.expected = []
        wrong = "" if verified else self.wrong(kernel)
        self.expected = [t.clone() for t in self.outputs]
        return {"wrong": wrong} if wrong else {}

    def attempt(self, kernel: Kernel, rounds: int) -> dict[str, Any]:
        """Check, then time beside the open kernel: times of both, round by round."""
        run = self.run_of(kernel)
        run.run_poisoned()
        return {"wrong": wrong} if (wrong := self.wrong(kernel)) else self.times([run], rounds)

    def final(self, kernels: Sequence[Kernel], rounds: int) -> dict[str, Any]:
        """Times of the open kernel, of it again, and of these."""
        assert self.untuned is not None
        return self.times([self.untuned, *map(self.run_of, kernels)], rounds)

    def times(self, runs: Sequence[KernelRun], rounds: int) -> dict[str, Any]:
        """Of the open kernel and of these."""
        assert self.untuned is not None
        return {"us": times_us([self.untuned, *runs], rounds, self.outputs[0].device)}

    def compile(self, kernel: Kernel, arch: int, hints: dict[str, int]) -> dict[str, Any]:
        """Put a Triton kernel into the cache."""
        backend_of(kernel).calls.compile(kernel, render(kernel), hints, arch, self.options)
        return {}

    def wrong(self, kernel: Kernel) -> str:
        """Of what is in the outputs."""
        return what_is_wrong(kernel.program, self.inputs, self.outputs, self.parameters, self.expected)

    def run_of(self, kernel: Kernel) -> KernelRun:
        return self.run(kernel, self.inputs, self.outputs, self.parameters, self.options)
