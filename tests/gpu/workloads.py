"""Workloads on a CUDA device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.cases import Case, make_case
from tests.exact_inputs import WEIGHT_OUTPUTS, exact_inputs
from tests.run_program import run_program
from weft.backends.listed import render
from weft.bench.workloads import WORKLOADS
from weft.errors import Refusal, RefusedError
from weft.ir.interpret import interpret
from weft.machines import target_of
from weft.options import Options
from weft.plan.kernel import Kernel, Plan
from weft.plan.planner import plan
from weft.plan.schedule import Finish
from weft.runtime import launch
from weft.target import Target

SHAPE = (2048, 1024)
MIXED = "rms_norm_backward"
"""Row sums, and column sums of what they are needed for."""
COLUMN_SUMS = (
    *WEIGHT_OUTPUTS,
    *("row_column_amax", "batch_norm_forward", "cross_entropy_forward"),
)
"""Workloads with column reductions, whose partial results several programs add up."""


def inputs_of(name: str, dtype: torch.dtype, shape: tuple[int, int] = SHAPE, seed: int = 3) -> tuple[Tensor, ...]:
    return tuple(WORKLOADS[name].make_inputs(shape, dtype, "cuda", seed))


def exact_inputs_of(name: str, dtype: torch.dtype, shape: tuple[int, int]) -> tuple[Tensor, ...]:
    return exact_inputs(name, shape, dtype, "cuda", 3)


def program_of(name: str, inputs: Sequence[Tensor], dynamic_rows: bool = False) -> Case:
    """The program of a workload, traced on the CPU."""
    return make_case(name, tuple(t.cpu() for t in inputs), dynamic_rows)


def run(case: Case, inputs: tuple[Tensor, ...], **options: object) -> list[Tensor]:
    """Outputs of the program's buffers. Skips the test where the planner leaves it to TorchInductor."""
    try:
        return run_program(case.program, case.bind(inputs), case.parameters_for(inputs), Options.read(options))
    except RefusedError as error:
        if all(refusal.rule == "not_worthwhile" for refusal in error.refusals):
            pytest.skip(str(error.refusals[0]))
        raise


def plan_of(case: Case, inputs: tuple[Tensor, ...]) -> Plan:
    """What is planned for the device at hand. Skips the test where that leaves it to TorchInductor."""
    machine = target_of(inputs[0].device, case.program.name)
    assert isinstance(machine, Target), machine
    found = plan(case.program, machine, dict(zip(case.program.parameters, case.parameters_for(inputs), strict=True)))
    if isinstance(found, Refusal) and found.rule == "not_worthwhile":
        pytest.skip(str(found))
    assert isinstance(found, Plan), found
    return found


def in_chunks(found: Plan, chunks: int) -> Plan:
    """The same with column sums taken in so many parts, or as many as there are row tiles."""
    kernels = (replace(k, schedule=replace(k.schedule, chunks=chunks)) if has_sums(k) else k for k in found.kernels)
    return replace(found, kernels=tuple(kernels))


def with_finish(found: Plan, finish: Finish) -> Plan:
    """The same with another finish of all kernels that have one."""
    kernels = (replace(k, schedule=replace(k.schedule, finish=finish)) if has_sums(k) else k for k in found.kernels)
    return replace(found, kernels=tuple(kernels))


def has_sums(kernel: Kernel) -> bool:
    """Whether a kernel has column sums."""
    return kernel.schedule.finish != "none"


def compiled(found: Plan, case: Case, inputs: tuple[Tensor, ...]) -> Callable[..., list[Tensor]]:
    """A plan's kernels, built once: called with options, they run on these inputs."""
    kernels, bound, parameters = found.kernels, case.bind(inputs), case.parameters_for(inputs)
    launch.prepare(kernels, [render(k) for k in kernels], Options.read(), [found.hints] * len(kernels))

    def call(**options: object) -> list[Tensor]:
        return launch.launch_plan(found, case.program, bound, parameters, Options.read(options))

    return call


def equal(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Whether all bits are the same, of what is not a number as well."""
    return all(torch.equal(_bits(a), _bits(b)) for a, b in zip(some, others, strict=True))


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8) if tensor.ndim else tensor.reshape(1).view(torch.uint8)


def expected(case: Case, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """The same in float64."""
    return interpret(case.program, case.bind(inputs), case.parameters_for(inputs))
