"""Evaluates a program value by value, three ways at once, and says which values are fit to be compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from weft.ir import dtypes
from weft.ir.interpret import Evaluation
from weft.ir.ops import ONLINE, lookup
from weft.ir.program import Program, Value

Mode = Literal["exact", "random"]
LARGEST_FLOAT, LARGEST_INTEGER = 1e4, 2**20
EXACT_STEP, LARGEST_EXACT = 2.0**-8, 2.0**15
"""Multiples of the step up to the largest: their sums are exact in float32, in any order."""
LARGEST_NOISE = 0.05
"""A value that rounding errors change by more than this fraction says nothing about the kernel."""
ROUNDS_NOTHING = ("where", "maximum", "minimum", "max", "min", "neg", "abs", "const", "iota", "size", "parameter")
UNIT = {"f64": 2.0**-53, "f32": 2.0**-24, "bf16": 2.0**-8, "f16": 2.0**-11}
ROUNDED_BY_CASTS = {"f64": (), "f32": ("f64",), "bf16": ("f64", "f32", "f16"), "f16": ("f64", "f32", "bf16")}


class Disturbed(Evaluation):
    """In float64, with every operation off by up to the rounding error of the program's own dtype."""

    def __init__(self, program: Program, sizes: dict[str, int], seed: int) -> None:
        super().__init__(program, sizes, exact=True)
        self.generator = torch.Generator().manual_seed(seed)
        self.sources = {b.name: b.dtype for b in program.inputs} | {v.name: v.dtype for v in program.values}

    def evaluate(self, value: Value) -> Tensor:
        result = super().evaluate(value)
        if value.dtype not in UNIT or value.op in ROUNDS_NOTHING:
            return result
        if value.op == "cast" and self.sources.get(value.args[0]) not in ROUNDED_BY_CASTS[value.dtype]:
            return result
        size = result.abs()
        if value.op == "sum":  # rounding errors of partial sums go with the sizes of what is added
            size = self.env[value.args[0]].abs().sum([self.axes[str(d)] for d in value.attributes], keepdim=True)
        elif value.op in ONLINE:  # and those of differences with the sizes of both numbers
            x, axes = self.env[value.args[0]], [self.axes[str(d)] for d in value.attributes]
            if value.op == "m2":
                size = ((x - x.mean(axes, keepdim=True)).abs() * 4 * x.abs().amax(axes, keepdim=True)).sum(axes, True)
            else:
                gap = torch.amax(x, axes, keepdim=True) - x
                size = ((1 + gap) * (-gap).exp()).sum(axes, True)
        noise = 2 * torch.rand(result.shape, generator=self.generator, dtype=torch.float64) - 1
        return result + UNIT[value.dtype] * noise * size


class Evaluations:
    """The values of a program so far: exact, in its own dtypes, and disturbed."""

    def __init__(self, program: Program, sizes: dict[str, int], inputs: Sequence[Tensor], mode: Mode) -> None:
        self.mode = mode
        self.exact, self.native = Evaluation(program, sizes, True), Evaluation(program, sizes, False)
        self.disturbed = Disturbed(program, sizes, 1)
        for run in (self.exact, self.native, self.disturbed):
            for buffer, tensor in zip(program.inputs, inputs, strict=True):
                run.env[buffer.name] = run.load(buffer, tensor)

    def add(self, value: Value) -> bool:
        """Evaluate one more value; False, and nothing is kept, if it is not fit to be compared."""
        exact, native = self.exact.evaluate(value), self.native.evaluate(value)
        self.disturbed.sources[value.name] = value.dtype
        if not self._fits(value, exact, native):
            return False
        if self.mode == "random":
            disturbed = self.disturbed.evaluate(value)
            if not _agrees(value.dtype, exact, disturbed):
                return False
            self.disturbed.env[value.name] = disturbed
        self.exact.env[value.name], self.native.env[value.name] = exact, native
        return True

    def _fits(self, value: Value, exact: Tensor, native: Tensor) -> bool:
        if not dtypes.is_float(value.dtype):
            small = value.dtype == "bool" or not exact.numel() or int(exact.abs().max()) <= LARGEST_INTEGER
            return small and torch.equal(exact, native)
        if not (exact.isfinite().all() and native.isfinite().all()):
            return False
        if self.mode == "random":
            return _agrees(value.dtype, exact, native) and float(exact.abs().amax()) <= LARGEST_FLOAT
        steps = exact / EXACT_STEP
        bound = exact
        if lookup(value.op).kind == "reduction":  # partial sums are exact as well
            operand = self.exact.env[value.args[0]]
            bound = operand.abs().sum([self.exact.axes[str(d)] for d in value.attributes])
        fits = bool((steps == steps.round()).all()) and float(bound.abs().amax()) <= LARGEST_EXACT
        return fits and torch.equal(exact, native.double())


def _agrees(dtype: str, exact: Tensor, other: Tensor) -> bool:
    if not dtypes.is_float(dtype):
        return torch.equal(exact, other)
    scale = float(exact.abs().amax())
    return float((exact - other.double()).abs().amax()) <= LARGEST_NOISE * scale


def is_fit(program: Program, sizes: dict[str, int], inputs: Sequence[Tensor], mode: Mode) -> bool:
    """Whether every value of a program is fit to be compared on these inputs."""
    found = Evaluations(program, sizes, inputs, mode)
    return all(found.add(value) for value in program.values)
