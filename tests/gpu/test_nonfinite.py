"""NaN and infinities in the data: the same places as in the float64 interpreter, and nowhere else."""

from __future__ import annotations

import pytest
import torch

import weft
from tests.gpu.nonfinite import NAMES, ROWS, difference, is_data, spoiled
from tests.gpu.workloads import expected, inputs_of, program_of, run

WIDE = ("softmax_forward", "log_softmax_forward", "cross_entropy_forward", "cross_entropy_backward")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_rows_are_as_in_float64(name: str, dtype: torch.dtype) -> None:
    """Sums of columns over all of these rows are NaN nearly everywhere: the test below has one kind at a time."""
    _compare(name, dtype, (1031, 1160), None)


@pytest.mark.parametrize("name", WIDE)
def test_rows_that_are_looped_over_are_as_in_float64(name: str) -> None:
    _compare(name, torch.bfloat16, (96, 50257), None)


@pytest.mark.parametrize("kind", range(len(ROWS)))
@pytest.mark.parametrize("name", [name for name in NAMES if "norm_backward" in name])
def test_sums_of_columns_are_as_in_float64(name: str, kind: int) -> None:
    """What is not finite in one column reaches the others only through its row."""
    _compare(name, torch.bfloat16, (517, 1160), kind)


def _compare(name: str, dtype: torch.dtype, shape: tuple[int, int], kind: int | None) -> None:
    sound = inputs_of(name, dtype, shape)
    inputs = spoiled(sound, kind)
    case = program_of(name, sound)
    made, exact = run(case, inputs), expected(case, inputs)
    assert any(not t.isfinite().all() for t in inputs if is_data(t))
    for at, (mine, want) in enumerate(zip(made, exact, strict=True)):
        assert not (found := difference(mine, want)), f"{name}, output {at}: {found}"
    assert weft.counters.fallbacks == 0
