"""The model of registers of CUDA C++ kernels against what ptxas spilled."""

from __future__ import annotations

import numpy as np
import pytest

from tools.cuda_registers import describe, fit
from tools.swept import CLUSTERS_COMPILED, TARGET, read_clusters
from weft.backends.cuda import resources
from weft.backends.cuda.registers import counts, fitted_weights, wanted_registers
from weft.backends.cuda.work import Work

pytestmark = pytest.mark.where_changed("tools", "weft/backends/cuda", "weft/plan")
EVERY = 8
"""Shapes of the file, of which those of one are looked at."""


def test_what_is_said_to_fit_hardly_ever_spills() -> None:
    """And what does not spill near the limit is mostly said to fit."""
    fits, spilled = list[bool](), list[bool]()
    for _, split, schedule, row in read_clusters([CLUSTERS_COMPILED], EVERY):
        work = Work.under(split, schedule)
        assert isinstance(work, Work)
        assert counts(work, schedule).keys() == fitted_weights().keys()
        most = resources.most_registers(schedule.warps, schedule.blocks, TARGET)
        fits.append(wanted_registers(work, schedule) <= most)
        spilled.append(int(row["spill_bytes"]) > 0)
    accepted = sum(fits)
    assert sum(spilled) > 0.1 * len(spilled)
    assert sum(s for f, s in zip(fits, spilled, strict=True) if f) <= 0.06 * accepted
    assert accepted >= 0.7 * (len(spilled) - sum(spilled))


def test_weights_are_found_of_kernels_that_they_made() -> None:
    draw = np.random.default_rng(0)
    has, limits = draw.uniform(0, 10, (2000, 3)), np.full(2000, 60)
    true = np.array([8.0, 0.0, 4.0])
    spilled = has @ true > limits
    found = fit(has, spilled, limits)
    assert min(found) >= 0
    assert found == pytest.approx(true, abs=2.0)
    assert not (spilled & (has @ found <= limits)).any()  # what spills counts more
    assert describe(np.array([True, True, False]), np.array([True, False, False])).startswith(
        "2 kernels are said to fit"
    )
