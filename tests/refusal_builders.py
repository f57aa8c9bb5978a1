"""Functions, programs and folders that weft refuses, and the one refusal of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from weft.backends.triton import text as triton
from weft.bench.workloads import WORKLOADS
from weft.capture.regions import capture
from weft.capture.trace import trace
from weft.compiler import Compilation, build, compile_graph
from weft.errors import Refusal
from weft.integration import race
from weft.ir.parser import parse
from weft.ir.simplify import simplify
from weft.options import Options
from weft.plan.kernel import Plan
from weft.plan.planner import plan, plan_split
from weft.runtime.trust import check_folder
from weft.target import Target

CPU, GPU = Target.named("cpu"), Target.named("h200")
STARTS_ONLY = replace(
    CPU, launch_us=10.0, bandwidth_gbps=1e9, vector_op_us_per_mega=0.0, row_overhead_us=0.0, chunk_overhead_us=0.0,
    strided_us_per_mega=0.0,
)  # fmt: skip
"""A machine on which only starting a kernel takes time, for predictions that can be told by hand."""


def compiled(function: Callable[..., Any], *inputs: Tensor, target: Target | None = CPU) -> Compilation:
    return compile_graph(trace(function, inputs).graph, target=target)


def refused(function: Callable[..., Any], *inputs: Tensor, target: Target | None = CPU) -> Refusal:
    """The one refusal of a function of which nothing is fused."""
    found = compiled(function, *inputs, target=target)
    (refusal,) = found.refusals
    assert not found.regions
    return refusal


def under_split(function: Callable[..., Any], inputs: Sequence[Tensor], rows: Sequence[str]) -> Plan | Refusal:
    """The plan of a function of one region with these rows, all other dimensions as columns."""
    (region,) = capture(trace(function, inputs).graph).regions
    program = simplify(region.program)
    columns = tuple(d.name for d in program.dims if d.name not in rows)
    return plan_split(program, tuple(rows), columns, CPU, {})


def cut_of(found: Plan | Refusal) -> Refusal:
    """The one reason for the second kernel of a plan."""
    assert isinstance(found, Plan)
    assert len(found.kernels) == 2
    (refusal,) = [d.refusal for d in found.decisions if d.refusal is not None]
    return refusal


def refusal_of(found: Plan | Refusal) -> Refusal:
    assert isinstance(found, Refusal)
    return found


def limited(**options: Any) -> Plan:
    """The plan of the gradients of an RMS norm under these options."""
    workload = WORKLOADS["rms_norm_backward"]
    graph = trace(workload.fn, tuple(workload.make_inputs((64, 32), torch.bfloat16))).graph
    (region,) = compile_graph(graph, target=CPU, options=Options.read(options, {})).regions
    return region.plan


def online(body: str, *split: tuple[str, ...]) -> Refusal:
    data = "  dim m = 64\n  dim n = 32\n  input x: f32 [m:32, n:1]\n  input w: f32 [m:1]\n"
    given = parse(f"program p()\n{data}{body}end\n")
    return refusal_of(plan_split(given, *split, CPU, {}) if split else plan(given, CPU))


def not_in_triton(text: str, rows: tuple[str, ...]) -> Refusal:
    """Why the one kernel of a program, with n as columns, is not written in Triton."""
    found = plan_split(parse(text), rows, ("n",), GPU, {})
    assert isinstance(found, Plan)
    (kernel,) = found.kernels
    refusal = triton.supports(kernel)
    assert refusal is not None
    return refusal


def raced(function: Callable[..., Any], x: Tensor, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Compilation:
    """What a race comes to in which weft's kernels take 30 us and TorchInductor's code 20 us."""

    def timed(runs: Sequence[Callable[[], Any]], *_: Any) -> list[list[float]]:
        return [[us] for us, _ in zip((30.0, 30.0, 20.0), runs, strict=True)]

    monkeypatch.setattr(race, "times_us", timed)
    options = Options(cache_dir=str(folder / "weft"))
    return race.race(build(compiled(function, x), options), {}, options)


def folder_refused(folder: Path) -> Refusal:
    found = check_folder(folder)
    assert found is not None
    return found
