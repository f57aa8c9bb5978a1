"""Times of a kernel beside itself with changes to its text."""

from __future__ import annotations

import pytest

from tools import variants


def test_a_kernel_is_timed_beside_itself_and_a_copy(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--workload", "rms_norm_backward", "--columns", "5003", "--rows", "8192"]
    assert variants.main([*words, "--change", "no turns", "int turn = [0-9]+", "int turn = 0", "--rounds", "3"]) == 0
    lines = [line.split("│")[1:-1] for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert len(lines) == 2
    assert all(0.1 < float(of_copy) < 1.5 and float(us) > 1 for *_, us, of_copy in lines)
