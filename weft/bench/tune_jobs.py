"""The kernels of a function, as ``torch.compile`` would make them, to be tuned."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from weft.bench.gpu_timing import driver_version
from weft.bench.machine import versions
from weft.bench.tune import Job
from weft.compiler import CompiledRegion, compile_graph
from weft.errors import Refusal
from weft.explain.graphs import post_grad_graphs
from weft.integration.sizes import symbol_hints
from weft.ir.interpret import resolve
from weft.machines import target_of
from weft.options import Options
from weft.plan.sizes import TYPICAL_SIZE
from weft.plan.tuned import Key, TunedSchedules, key_of
from weft.runtime.package import package_digest
from weft.target import Target


@dataclass(frozen=True)
class Found:
    """Kernels, each once, and why other parts of the functions have none."""

    jobs: dict[Key, Job]
    refusals: tuple[Refusal, ...] = ()


def jobs_of(
    subject: str, function: Callable[..., Any], inputs: Sequence[Any], device: str, dynamic: bool, known: TunedSchedules
) -> Found:
    """Of all graphs of a function, the backward among them where something needs a gradient. dynamic: leave sizes to
    run time; kernels are tuned at those of ``inputs``. known: what was measured before. Raises what the function
    raises."""
    jobs: dict[Key, Job] = {}
    refusals: list[Refusal] = []
    target = target_of(torch.device(device), subject)
    if isinstance(target, Refusal):
        return Found({}, (target,))
    for graph in post_grad_graphs(function, inputs, dynamic=True if dynamic else None):
        compilation = compile_graph(graph.module.graph, symbols=symbol_hints(graph.module.graph))
        refusals += compilation.refusals
        for region in compilation.regions:
            for job in _of_region(region, subject, target, known):
                jobs.setdefault(key_of(job.kernel, target), job)
    return Found(jobs, tuple(refusals))


def merged(found: Iterable[Found]) -> Found:
    """A kernel that several functions have is tuned once."""
    jobs: dict[Key, Job] = {}
    refusals: list[Refusal] = []
    for each in found:
        refusals += each.refusals
        for key, job in each.jobs.items():
            before = jobs.get(key)
            jobs[key] = job if before is None else replace(before, subjects=(*before.subjects, *job.subjects))
    return Found(jobs, tuple(refusals))


def _of_region(region: CompiledRegion, subject: str, target: Target, known: TunedSchedules) -> Iterable[Job]:
    plan = region.plan
    sizes = {name: plan.hints.get(name, TYPICAL_SIZE) for name in region.program.parameters}
    for name, factors in plan.products.items():
        sizes[name] = 1
        for factor in factors:
            sizes[name] *= resolve(factor, sizes)
    for kernel in plan.kernels:
        parameters = tuple(sizes[name] for name in kernel.program.parameters)
        yield Job(kernel, target, parameters, known.get(key_of(kernel, target)), (subject,))


def versions_of(options: Options, device: str) -> dict[str, str]:
    """Of everything that made the code and runs it."""
    found = versions(options) | {"source": package_digest()[:16], "threads": str(torch.get_num_threads())}
    if device == "cuda" and (driver := driver_version()) is not None:
        found["driver"] = driver
    return found
