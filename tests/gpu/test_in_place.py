"""Outputs of kernels on a GPU that lie where an input lies."""

from __future__ import annotations

import pytest
import torch

import weft
from tests.cases import NAMES
from tests.gpu.workloads import inputs_of, plan_of, program_of
from tests.test_in_place import check_in_place, loss


@pytest.mark.parametrize("shape", [(517, 1000), (4096, 4096), (300, 50257)], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_kernels_write_the_same_bits_in_place(name: str, shape: tuple[int, int]) -> None:
    inputs = inputs_of(name, torch.bfloat16, shape)
    case = program_of(name, inputs)
    check_in_place(plan_of(case, inputs), case.program, case.bind(inputs))
    assert weft.counters.fallbacks == 0


def test_the_gradient_of_the_logits_takes_no_memory_of_its_own() -> None:
    """A second tensor of their size would be twice what is allowed here."""
    x, weight = torch.randn(4096, 64, device="cuda"), torch.randn(64, 8192, device="cuda")
    target = torch.randint(8192, (4096,), device="cuda")
    x.requires_grad_(), weight.requires_grad_()
    torch._dynamo.reset()
    compiled = torch.compile(loss, backend="weft", fullgraph=True)
    for _ in range(2):
        result = compiled(x, weight, target)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result.backward()
    assert torch.cuda.max_memory_allocated() - before < 4096 * 8192 * 4 // 2
