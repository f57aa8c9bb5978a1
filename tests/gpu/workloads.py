"""Workloads on a CUDA device."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from tests.cases import Case, make_case
from weft.bench.workloads import WORKLOADS
from weft.compiler import run_program
from weft.errors import RefusedError
from weft.ir.interpret import interpret
from weft.options import Options

SHAPE = (2048, 1024)
MIXED = "rms_norm_backward"
"""Row sums, and column sums of what they are needed for."""


def inputs_of(name: str, dtype: torch.dtype, shape: tuple[int, int] = SHAPE, seed: int = 3) -> tuple[Tensor, ...]:
    return tuple(WORKLOADS[name].make_inputs(shape, dtype, "cuda", seed))


def exact_inputs_of(name: str, dtype: torch.dtype, shape: tuple[int, int]) -> tuple[Tensor, ...]:
    return tuple(WORKLOADS[name].exact_inputs(shape, dtype, "cuda", 3))


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


def expected(case: Case, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """The same in float64."""
    return interpret(case.program, case.bind(inputs), case.parameters_for(inputs))
