"""``tools.compile_time``: what is run in which order, and what is made of the figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools import compile_time

pytestmark = pytest.mark.where_changed("tools")


def test_pairs_are_interleaved_and_begin_with_either(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cold run comes before the warm one with the same folder."""
    runs: list[tuple[str, str, str]] = []
    took = iter([10.0, 5.0, 12.0, 5.0, 9.0, 4.0, 8.0, 4.0])

    def run(backend: str, model: str, device: str, blocks: int | None, folder: str) -> float:
        assert (model, device, blocks) == ("plain", "cpu", 3)
        runs.append((backend, model, folder))
        return next(took)

    monkeypatch.setattr(compile_time, "_run", run)
    path = tmp_path / "times.json"
    code = compile_time.main(["--model", "plain", "--blocks", "3", "--runs", "2", "--json", str(path)])
    assert [backend for backend, _, _ in runs] == ["inductor"] * 2 + ["weft"] * 4 + ["inductor"] * 2
    assert [first == second for (*_, first), (*_, second) in zip(runs[::2], runs[1::2], strict=True)] == [True] * 4
    assert len({folder for *_, folder in runs}) == 4
    found = json.loads(path.read_text())
    assert found["seconds"]["plain"]["cold"] == {"inductor": [10.0, 8.0], "weft": [12.0, 9.0]}
    assert found["ratios"]["plain"] == {"cold": [1.2, 1.125], "warm": [1.0, 1.0]}
    assert found["versions"]["torch"]
    assert code == 1  # cold: 1.163


def test_a_package_that_is_hidden_is_not_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nor by what the process starts, while others are."""
    seen: list[tuple[list[str], str]] = []

    def run(command: list[str], env: dict[str, str], **_: object) -> subprocess.CompletedProcess[str]:
        code = "import cuda, tools; print(cuda.__file__, bool(tools.__file__))"
        seen.append((command, real([sys.executable, "-c", code], env=env, capture_output=True, text=True).stdout))
        return subprocess.CompletedProcess(command, 0, "3.5\n", "")

    real = subprocess.run
    monkeypatch.setattr(compile_time.subprocess, "run", run)
    assert compile_time._run("weft without cuda", "plain", "cpu", None, str(tmp_path)) == 3.5
    ((command, found),) = seen
    assert command[command.index("--one") + 1] == "weft"
    assert found.split() == [str(tmp_path / "hidden" / "cuda" / "__init__.py"), "True"]


def test_weft_may_be_compared_with_itself(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    took = {"weft without cuda": 10.0, "weft": 10.5}
    monkeypatch.setattr(compile_time, "_run", lambda backend, *_: took[backend])
    assert compile_time.main(["--without", "cuda", "--runs", "2"]) == 0
    printed = capsys.readouterr().out
    assert "cold: weft takes 1.050x weft without cuda's time (pairs 1.050 to 1.050), bar 1.1" in printed
    assert "warm: weft takes" in printed
    compile_time.main(["--without", "cuda", "--runs", "1", "--cold"])
    assert "warm" not in capsys.readouterr().out


def test_the_bar_is_for_the_median_of_the_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    cold = {"inductor": [10.0, 10.0, 20.0], "weft": [10.9, 15.0, 20.0]}
    warm = {"inductor": [4.0, 4.0, 4.0], "weft": [4.4, 4.4, 4.0]}
    missed = compile_time.report({"cold": cold, "warm": warm})
    assert missed == ["warm: weft takes 1.100x TorchInductor's time (pairs 1.000 to 1.100), bar 1.05"]
    printed = capsys.readouterr().out
    assert "cold: weft takes 1.090x TorchInductor's time (pairs 1.000 to 1.500), bar 1.1" in printed


def test_a_run_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="KeyError: 'none'"):
        compile_time._run("weft", "none", "cpu", None, str(tmp_path))
