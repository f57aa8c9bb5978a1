"""One kernel on tensors of its own: made for its buffers, run on outputs that are poisoned, checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from weft.backends.listed import backend_of, render
from weft.bench.correctness import LEAST_UNIT, check_output, poison_of
from weft.errors import LaunchError
from weft.ir.dtypes import TORCH_DTYPES
from weft.ir.interpret import bind, interpret, resolve, sizes_of
from weft.ir.program import Program
from weft.options import Options
from weft.plan.kernel import Kernel
from weft.runtime.layout import Fitting, allocate, check_tensors, random_tensor

LARGEST_INTEGER = 64
"""Integers of inputs are smaller: indices into a row, which has no fewer columns in what is worth tuning."""
SAME_EPSILONS, SAME_RMS_EPSILONS = 2.0, 0.25
"""By how much results of two schedules may differ with no further question, in epsilons of their dtype (1e-5 at the
least): of an element and the root mean square of all; and the root mean square of the difference, which a lost row of
thousands exceeds."""


class KernelRun:
    """A kernel bound to tensors, one a buffer, under its own schedule whatever the width. Raises BuildError, and
    LaunchError where tensors do not fit."""

    def __init__(
        self,
        kernel: Kernel,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        parameters: Sequence[int],
        options: Options,
    ) -> None:
        check_tensors(kernel, inputs, outputs, parameters)
        self.kernel, self.inputs, self.outputs = kernel, inputs, outputs
        self._calls = backend_of(kernel).calls
        self.function: Any = self._calls.load_function(kernel, render(kernel), replace(options, exact_widths=0))
        self._fitting = Fitting.of(inputs, outputs, parameters, self._calls.bind(inputs, outputs, parameters))

    def __call__(self) -> None:
        """Start it. Raises what the backend raises."""
        if not self._calls.call(self.function, self._fitting, self.inputs, self.outputs, 0):
            raise LaunchError(f"{self.kernel.name} cannot be started on such tensors")

    def run_poisoned(self) -> None:
        """Run once, wait, and leave the poison where nothing was written."""
        for tensor in self.outputs:
            tensor.fill_(poison_of(tensor.dtype))
        self()
        if self.outputs[0].is_cuda:
            torch.cuda.synchronize(self.outputs[0].device)


def input_tensors(
    program: Program, parameters: Sequence[int], device: torch.device, positive: bool = False
) -> list[Tensor]:
    """Random ones, the same every time. positive: floats from 0.5 on instead of normal ones: some programs take roots
    and logarithms of what others compute."""
    generator, sizes = torch.Generator(device).manual_seed(0), sizes_of(program, parameters)
    made: list[Tensor] = []
    for buffer in program.inputs:
        shape, strides = [sizes[d] for d in buffer.dims], [resolve(s, sizes) for s in buffer.strides]
        dtype = TORCH_DTYPES[buffer.dtype]
        tensor = random_tensor(shape, strides, buffer.offset, dtype, generator, LARGEST_INTEGER, positive)
        made.append(tensor.as_strided(shape, strides, 0))  # the kernel adds the offset
    return made


def output_tensors(program: Program, parameters: Sequence[int], device: torch.device) -> list[Tensor]:
    return [allocate(o.buffer, sizes_of(program, parameters), device) for o in program.outputs]


def is_empty(program: Program, parameters: Sequence[int]) -> bool:
    sizes = sizes_of(program, parameters)
    buffers = [*program.inputs, *(o.buffer for o in program.outputs)]
    return any(prod(sizes[d] for d in b.dims) == 0 for b in buffers)


def what_is_wrong(
    program: Program,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    parameters: Sequence[int],
    expected: Sequence[Tensor] = (),
) -> str:
    """Of the results of a kernel, empty if nothing. expected: results that were found right, which those of another
    schedule nearly equal. Where they do not, and where there are none, the program is evaluated in float64 and in its
    own dtypes, and the rule of ``weft bench`` decides."""
    if expected and all(map(nearly_equal, outputs, expected)):
        return ""
    sizes = sizes_of(program, parameters)
    exact = interpret(program, inputs, parameters)
    eager = interpret(program, inputs, parameters, exact=False)
    for output, tensor, *known in zip(program.outputs, outputs, eager, exact, strict=True):
        if (reason := check_output(output.buffer.name, bind(output.buffer, tensor, sizes), *known)) is not None:
            return f"{reason.subject}: {reason.message} (have {reason.have}, limit {reason.limit})"
    return ""


def nearly_equal(mine: Tensor, other: Tensor) -> bool:
    """Whether two results differ by no more than another order of summation explains without a look at the program."""
    if torch.equal(mine, other):
        return True
    if not mine.dtype.is_floating_point:
        return False
    eps = max(torch.finfo(mine.dtype).eps, LEAST_UNIT)
    a, b = mine.double(), other.double()
    same = (a == b) | (a.isnan() & b.isnan())
    error = torch.where(same, 0.0, (a - b).abs())
    finite = torch.where(b.isfinite(), b, 0.0)
    scale = finite.square().mean().sqrt()
    element = error <= SAME_EPSILONS * eps * (finite.abs() + scale)
    return bool(element.all()) and bool(error.square().mean().sqrt() <= SAME_RMS_EPSILONS * eps * scale)
