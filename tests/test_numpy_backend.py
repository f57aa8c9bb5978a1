"""A code generator is one file behind one protocol: one that prints NumPy plans, prints and runs workloads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.cases import make_case
from weft.backends.listed import BACKENDS, backend_of, render
from weft.bench.workloads import WORKLOADS
from weft.ir.interpret import interpret
from weft.options import Options
from weft.plan.kernel import Plan, parse_kernel
from weft.plan.planner import plan
from weft.runtime.launch import run_plan
from weft.target import Target

NAMES = (
    "rms_norm_backward",
    "layer_norm_backward",
    "softmax_forward",
    "softmax_backward",
    "cross_entropy_backward",
    "modulated_layer_norm_backward",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_backend_plans_prints_and_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, "numpy", "tests.numpy_backend")
    inputs = WORKLOADS[name].make_inputs((24, 40), torch.bfloat16)
    case = make_case(name, inputs)
    chosen = plan(case.program, Target.named("cpu"), {})
    assert isinstance(chosen, Plan)
    for kernel in chosen.kernels:
        assert backend_of(kernel).name == "numpy"
        assert parse_kernel(str(kernel)) == kernel
        assert "import numpy as np" in str(render(kernel))
    bound = case.bind(inputs)
    found = run_plan(chosen, case.program, bound, case.parameters, Options.read({}, {}))
    for mine, exact in zip(found, interpret(case.program, bound, case.parameters), strict=True):
        torch.testing.assert_close(mine.double(), exact, rtol=2e-2, atol=2e-2)


def test_it_is_small() -> None:
    assert len((Path(__file__).parent / "numpy_backend.py").read_text().splitlines()) < 150
