"""Programs, plans and targets that the tests of plans share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from tests.cases import make_case
from weft.bench.workloads import WORKLOADS
from weft.capture.regions import capture
from weft.capture.trace import trace
from weft.errors import Refusal
from weft.ir import Program
from weft.ir.interpret import interpret, resolve, sizes_of
from weft.ir.parser import parse
from weft.ir.simplify import simplify
from weft.plan.kernel import Plan
from weft.plan.planner import plan
from weft.plan.verify import verify_plan
from weft.target import Target

TARGETS = ("cpu", "cpu_amd", "a100", "b200", "h200")
CPUS = ("cpu", "cpu_amd")
GPUS = tuple(name for name in TARGETS if name not in CPUS)
CPU = Target.named("cpu")
M, N = ("m",), ("n",)
ROWS, COLUMNS = 4096, 1024
DATA = """
  dim m = 64
  dim n = 32
  input x: f32 [m:32, n:1]
  input w: f32 [n:1]
"""


def program(data: str, body: str, parameters: str = "") -> Program:
    return parse(f"program p({parameters})\n{data}\n{body}\nend\n")


@cache
def workload(name: str, columns: int, dynamic: bool = True, rows: int = 2) -> Program:
    inputs = WORKLOADS[name].make_inputs((rows, columns), torch.bfloat16)
    return make_case(name, inputs, dynamic_rows=dynamic).program


def planned(given: Program, target: str | Target = "cpu", **hints: int) -> Plan:
    found = plan(given, Target.named(target) if isinstance(target, str) else target, hints)
    assert isinstance(found, Plan), found
    verify_plan(found, given)
    return found


def refusal_of(found: object) -> Refusal:
    assert isinstance(found, Refusal), found
    return found


def traced(function: Callable[..., Any], *inputs: Tensor, dynamic: bool = False) -> Program:
    (region,) = capture(trace(function, inputs, dynamic_rows=dynamic).graph, "f").regions
    return simplify(region.program)


def interpreted(chosen: Plan, given: Program, inputs: Sequence[Tensor], parameters: Sequence[int] = ()) -> list[Tensor]:
    """Results of the kernels of a plan, one after the other, each by the interpreter."""
    sizes = sizes_of(given, parameters)
    for name, factors in chosen.products.items():
        sizes[name] = math.prod(resolve(factor, sizes) for factor in factors)
    tensors = {b.name: t for b, t in zip(given.inputs, inputs, strict=True)}
    for kernel in chosen.kernels:
        made = interpret(
            kernel.program,
            [tensors[b.name] for b in kernel.program.inputs],
            [sizes[p] for p in kernel.program.parameters],
        )
        for output, value in zip(kernel.program.outputs, made, strict=True):
            strides = [resolve(s, sizes) for s in output.buffer.strides]
            tensors[output.buffer.name] = torch.empty_strided(value.shape, strides, dtype=value.dtype).copy_(value)
    return [tensors[o.buffer.name] for o in given.outputs]


def norm_inputs(rows: int, columns: int) -> tuple[Tensor, ...]:
    return torch.randn(rows, columns) * 3 + 1, torch.randn(columns), torch.randn(columns)


def distance_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A batch norm that divides by the mean distance from the mean, which no single pass finds."""
    centred = x - x.mean(0)
    return centred / centred.abs().mean(0) * weight + bias


@cache
def distance_norm_program() -> Program:
    return traced(distance_norm, *norm_inputs(512, 96))


def squares(rows: int, columns: int) -> Program:
    data = f"""
  dim m = {rows}
  dim n = {columns}
  input x: f32 [m:{columns}, n:1]
"""
    body = f"""
  square: f32{{m, n}} = mul(x, x)
  row: f32{{m}} = sum[n](square)
  output out0: f32 [m:{columns}, n:1] = square
  output out1: f32 [m:1] = row
"""
    return program(data, body)
