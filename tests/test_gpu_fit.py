"""Constants of the model of time on GPUs beside what they were fitted to, and the cells that are swept for them."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from tools import gpu_fit
from tools.gpu_cells import Cell, parts_of
from tools.swept import TIMED
from weft.backends.triton.constants import constants
from weft.target import Target

pytestmark = pytest.mark.where_changed("tools", "weft/backends/triton", "weft/ir", "weft/lowering", "weft/plan")

H200 = Target.named("h200")


@pytest.mark.parametrize("every", [16, pytest.param(2, marks=pytest.mark.slow)])
def test_the_constants_choose_well_among_what_was_measured(every: int) -> None:
    points = gpu_fit.Points(gpu_fit.points_of([TIMED], every=every))
    predicted = points.log_times(constants(H200))
    near = points.slower < 0.14
    errors = (predicted - points.log_us).abs()[near]
    assert len(errors) > 8000 // every
    assert float((errors < 0.14).double().mean()) > 0.65
    assert float((errors < 0.34).double().mean()) > 0.90
    regrets = points.regrets(predicted)
    assert len(regrets) > 1600 // every
    assert statistics.geometric_mean(regrets.values()) < 1.08


def test_ratios_of_another_gpu_are_those_of_what_was_measured_on_it() -> None:
    h100, file = Target.named("h100"), Path(__file__).parent.parent / "benchmarks" / "results" / "h100_schedules.csv"
    found = gpu_fit.ratios(gpu_fit.Points(gpu_fit.points_of([file], every=6, target=h100)), h100)
    assert found[:2] == pytest.approx((h100.instruction_ratio, h100.start_ratio), rel=0.15)
    assert found[2] < 0.25
    own = gpu_fit.ratios(gpu_fit.Points(gpu_fit.points_of([TIMED], every=40)), H200)
    assert own[:2] == pytest.approx((1.0, 1.0), rel=0.15)


def test_a_cell_whose_sum_is_of_one_row_has_no_kernels() -> None:
    assert parts_of(Cell("gelu_backward_bias", "bf16", 1, 36992), H200) == {}
    assert "gelu_backward_bias" in parts_of(Cell("gelu_backward_bias", "bf16", 2, 36992), H200)
