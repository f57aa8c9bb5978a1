"""Kernels in CUDA C++ at drawn shapes, under drawn schedules and orders of threads, on this machine."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.cuda_kernels import WORKLOADS_OF_ROWS, kernel_of
from tests.on_host.kernels import Machine, check
from weft.backends.cuda import launches

pytestmark = pytest.mark.where_changed("tests/on_host", "weft/backends", "weft/ir", "weft/lowering", "weft/plan")
MACHINES = st.lists(st.builds(Machine, st.integers(1, 4), st.integers(0, 10**6)), min_size=2, max_size=4)
COLUMNS = st.integers(4, 1500) | st.integers(1, 200).map(lambda n: 8 * n)
SHAPES = st.tuples(st.integers(1, 10).map(lambda n: 4 * n), COLUMNS)


@st.composite
def schedules(draw: st.DrawFn) -> dict[str, Any]:
    lag = draw(st.sampled_from([0, 0, 1]))
    groups = draw(st.sampled_from([1, 1, 2, 4, 8]))
    shares = draw(st.sampled_from([1, 1, 2, 4])) if groups > 1 else 1
    return {
        "groups": groups * shares,
        "lanes": draw(st.sampled_from([8, 8, 4, 2])),
        "lag": lag,
        "tile": "shared" if lag else draw(st.sampled_from(["shared", "registers", "exponentials"])),
        "stages": draw(st.integers(1, 4)) + lag,
        "cluster": draw(st.sampled_from([1, 2, 3, 4, 8])) if groups == 1 else 1,
        "warps": groups * draw(st.integers(1, 4 if groups == 1 else 2)) if shares == 1 else groups,
        "vectors": 2,
        "chunks": draw(st.sampled_from([1, 2, 3, 5, 7, 64])),
        "rows_per_tile": groups * shares * draw(st.sampled_from([1, 1, 2, 3, 8] if groups == 1 else [1, 2, 3])),
        "weights": draw(st.sampled_from(["registers", "shared"])),
        "finish": draw(st.sampled_from(["same", "separate"])),
    }


@pytest.mark.parametrize("count", [8, pytest.param(150, marks=pytest.mark.slow)])
def test_drawn_kernels_have_equal_bits(count: int) -> None:
    @settings(max_examples=count, deadline=None, derandomize=True, suppress_health_check=[*HealthCheck], database=None)
    @given(
        name=st.sampled_from(WORKLOADS_OF_ROWS),
        shape=SHAPES,
        dtype=st.sampled_from([torch.bfloat16, torch.bfloat16, torch.float32, torch.float16]),
        early=st.sampled_from([0, 0, 1, 3, 4]),
        machines=MACHINES,
        fields=schedules(),
    )
    def are_right(
        name: str,
        shape: tuple[int, int],
        dtype: torch.dtype,
        early: int,
        machines: list[Machine],
        fields: dict[str, Any],
    ) -> None:
        _, kernel = kernel_of(name, shape, dtype, **fields)
        assume(launches.supports(kernel) is None)
        check(name, shape, dtype, early=early, machines=machines, **fields)

    are_right()
