"""A backend that prints NumPy from a nest, all rows and columns at once: what weft asks of a backend, no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from weft.backends.backend import Backend, Calls
from weft.backends.resource_usage import ResourceUsage
from weft.backends.source import Source, entry_of
from weft.errors import Refusal
from weft.hashing import hash_once
from weft.ir.interpret import bind, sizes_of
from weft.ir.program import Buffer, Program, Value
from weft.lowering.nest import Accumulate, Compute, Reduce
from weft.plan.kernel import Estimate, Kernel
from weft.plan.schedule import Schedule
from weft.plan.split import Split
from weft.runtime.layout import Fitting
from weft.target import Target

TYPES = {"f32": "np.float32", "bf16": "np.float32", "i64": "np.int64", "i32": "np.int32", "bool": "np.bool_"}
OPERATORS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "ne": "!=", "lt": "<", "ge": ">="}
FUNCTIONS = {"where": "np.where", "exp": "np.exp", "neg": "np.negative", "logical_and": "np.logical_and", "fma": "fma"}
REDUCTIONS = {"sum": "np.sum", "max": "np.max"}
SOURCES = ("const", "cast", "iota", "size", "parameter")
HEAD = """import numpy as np


def fma(x, y, z):
    return (x.astype(np.float64) * y + z).astype(np.float32)


def rounded(x):  # to bfloat16, which NumPy has no type for
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)

"""


@hash_once
@dataclass(frozen=True)
class NumpySchedule(Schedule):
    backend: ClassVar[str] = "numpy"

    def part_count(self, rows: int, segments: int) -> int:
        return segments

    def __str__(self) -> str:
        return f"{self.split_text} finish={self.finish} backend=numpy"


class NumpyBackend(Backend):
    name, kind, device = "numpy", "cpu", "cpu"

    def parse(self, text: str) -> NumpySchedule | None:
        return NumpySchedule.parse(text)

    def choose(self, part: Split) -> NumpySchedule:
        plain = NumpySchedule("ONE_SHOT", *part.dims)
        return plain.but(scheme="COLUMN", finish="same") if part.has_outer else plain

    def timed(self, kernel: Kernel, counts: Estimate, target: Target, hints: Mapping[str, int], warm: bool) -> Estimate:
        return replace(counts, predicted_us=1e-3)  # it is always the fastest

    def least_us(self, moved: int, target: Target) -> float:
        return 0.0

    def supports(self, kernel: Kernel, target: Target | None = None) -> Refusal | None:
        unknown = {v.op for v in kernel.program.values}.difference(OPERATORS, FUNCTIONS, REDUCTIONS, SOURCES)
        return Refusal("numpy_op", kernel.name, f"no NumPy for {', '.join(sorted(unknown))}") if unknown else None

    def render(self, kernel: Kernel) -> Source:
        program, values, (nest,) = kernel.program, kernel.program.by_name(), self.lower(kernel)
        arguments = ", ".join([*program.parameters, *(b.name for b in program.inputs)])
        lines = [*(f"# {line}" for line in str(kernel).splitlines()), HEAD]
        lines.append(f"def {entry_of(program.name)}({arguments}):")
        computed = [value.name for value in program.values if value.op == "const"]
        for each in nest.statements():
            computed += [each.value] if isinstance(each, Compute | Accumulate) else []
            computed += each.values if isinstance(each, Reduce) else []
        lines += [f"    {name} = {expression(values[name], program)}" for name in computed]
        lines.append(f"    return [{', '.join(output.value for output in program.outputs)}]\n")
        return Source("numpy", program.name, "\n".join(lines))

    @property
    def calls(self) -> Calls:
        return NumpyCalls()


def expression(value: Value, program: Program) -> str:
    """Arrays have one axis a dimension of the program, of size one where a value does not vary over it."""
    axes = {dim.name: axis for axis, dim in enumerate(program.dims)}
    kind, ones, named = TYPES[value.dtype], (1,) * len(axes), [str(each) for each in value.attributes]
    match value.op:
        case "cast":
            return f"rounded({value.args[0]})" if value.dtype == "bf16" else f"{value.args[0]}.astype({kind})"
        case "iota":
            shape = tuple(-1 if dim == named[0] else 1 for dim in axes)
            return f"np.arange({program.size_of(named[0])}, dtype={kind}).reshape({shape})"
        case "const" | "size" | "parameter":
            sizes = [f"float('{n}')" if value.op == "const" else str(axes and program.size_of(n)) for n in named]
            return f"np.full({ones}, {' * '.join(sizes if value.op != 'parameter' else named)}, {kind})"
        case "sum" | "max":
            return f"{REDUCTIONS[value.op]}({value.args[0]}, {tuple(axes[dim] for dim in named)}, keepdims=True)"
        case _ if value.op in OPERATORS:
            return f" {OPERATORS[value.op]} ".join(value.args)
        case _:
            return f"{FUNCTIONS[value.op]}({', '.join(value.args)})"


class NumpyCalls(Calls):
    @staticmethod
    def build_all(kernels: Sequence[Kernel], sources: Sequence[Source], hints: Any, options: Any) -> list[Any]:
        return [NumpyCalls.load_function(k, s, options) for k, s in zip(kernels, sources, strict=True)]

    @staticmethod
    def load_function(kernel: Kernel, source: Source, options: Any) -> Any:
        names: dict[str, Any] = {}
        exec(source.text, names)
        return kernel.program, names[source.entry]

    @staticmethod
    def usage(function: Any) -> ResourceUsage:
        return ResourceUsage(0, 0, 0, 0)

    @staticmethod
    def call(function: Any, fitting: Fitting, inputs: Any, outputs: Any, sm_margin: int) -> bool:
        program, run = function
        sizes = sizes_of(program, fitting.parameters)

        def view(buffer: Buffer, tensor: Tensor) -> Tensor:
            bound = bind(buffer, tensor, sizes).permute([buffer.dims.index(d) for d in program.in_order(buffer.dims)])
            return bound[tuple(slice(None) if dim.name in buffer.dims else None for dim in program.dims)]

        given = [view(b, t) for b, t in zip(program.inputs, inputs, strict=True)]
        results = run(*fitting.parameters, *((t.float() if t.dtype == torch.bfloat16 else t).numpy() for t in given))
        for output, tensor, result in zip(program.outputs, outputs, results, strict=True):
            made = view(output.buffer, tensor)
            made.copy_(torch.from_numpy(np.array(np.broadcast_to(result, made.shape))))
        return True


BACKEND = NumpyBackend()
