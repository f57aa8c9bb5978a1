"""Kernels whose programs wait for each other, beside one that holds multiprocessors for long."""

from __future__ import annotations

from pathlib import Path

from tests.test_backend import run_python


def test_programs_that_wait_for_each_other_beside_a_kernel_that_stays(tmp_path: Path) -> None:
    """With a margin they end while the other kernel is there; without one they wait for it, and are right behind it."""
    seen = run_python("from tests.gpu import beside; beside.main()", tmp_path)
    from tests.gpu.beside import CALLS, HELD
    from tests.gpu.holder import WHOLE_REGISTERS

    assert seen["registers"] >= WHOLE_REGISTERS, "the other kernel leaves room for programs beside its own"
    assert seen["units"] > HELD
    for found in seen["found"]:
        assert found["right"] == CALLS, seen
        assert found["held"], f"the other kernel ended by itself: {seen}"
        assert found["done"] == (found["case"] != "finish in the same launch, margin 0"), seen
    assert len(seen["found"]) == 5
    assert seen["fallbacks"] == 0
