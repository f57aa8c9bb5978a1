"""Predicted registers and shared memory against what ptxas said of kernels that were measured."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from tests.cases import make_case
from weft.bench.workloads import WORKLOADS
from weft.plan.kernel import Plan, Resources
from weft.plan.planner import plan
from weft.target import Target


@cache
def planned(
    name: str, columns: int, target: str = "h200", dtype: torch.dtype = torch.bfloat16, rows: int = 512
) -> Plan:
    inputs = WORKLOADS[name].make_inputs((rows, columns), dtype)
    found = plan(make_case(name, inputs).program, Target.named(target))
    assert isinstance(found, Plan)
    return found


def of(name: str, columns: int, dtype: torch.dtype = torch.bfloat16) -> Resources:
    (found,) = planned(name, columns, dtype=dtype).resources
    return found


@pytest.mark.parametrize(("columns", "measured"), [(512, 32), (4096, 118), (8192, 206)])
def test_registers_are_those_that_ptxas_gave_a_thread(columns: int, measured: int) -> None:
    found = of("rms_norm_backward", columns)
    assert found.registers_per_thread is not None
    assert abs(found.registers_per_thread - measured) <= max(16, 0.15 * measured)
    assert (found.spill_bytes, found.resources_from) == (0, "model")


def test_what_does_not_fit_is_spilled() -> None:
    found = of("rms_norm_backward", 16384)  # ptxas: 255 registers and 296 bytes of stack
    assert found.registers_per_thread == 255
    assert found.spill_bytes is not None
    assert found.spill_bytes > 0


def test_wider_data_takes_more() -> None:
    narrow, wide = (of("rms_norm_backward", 2048, dtype) for dtype in (torch.bfloat16, torch.float32))
    assert narrow.registers_per_thread is not None
    assert wide.registers_per_thread is not None
    # two more bytes of dy, x and the weight, and no copy of them in float32
    assert 0 < wide.registers_per_thread - narrow.registers_per_thread <= 2048 * 6 * 8 // 32 // 256
    assert (narrow.shared_bytes, wide.shared_bytes) == (3 * 2 * 2048 * 2, 3 * 2 * 2048 * 4)  # three stages of dy and x


def test_a_kernel_without_column_sums_stages_nothing() -> None:
    assert of("softmax_forward", 4096).shared_bytes == 0


def test_every_kernel_of_a_plan_has_its_own() -> None:
    found = planned("batch_norm_forward", 256, rows=65536)
    assert len(found.resources) == len(found.kernels) == 2
    assert found.resources[0] != found.resources[1]


def test_a_cpu_has_none() -> None:
    (found,) = planned("rms_norm_backward", 512, "cpu").resources
    assert found == Resources(None, None, None, "model")
