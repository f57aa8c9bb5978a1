"""``tools.host_time``: what a sample is, and what is said of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tools import host_time
from tools.host_time import HostClock, Line
from weft.runtime.timing import Candidate, Spread

pytestmark = pytest.mark.where_changed("tools")


def test_a_sample_begins_with_an_idle_device_and_ends_when_calls_return(monkeypatch: pytest.MonkeyPatch) -> None:
    now, seen = [0.0], list[str]()

    def taking(what: str, seconds: float) -> Callable[[], None]:
        def act() -> None:
            seen.append(what)
            now[0] += seconds

        return act

    monkeypatch.setattr(host_time.time, "perf_counter", lambda: now[0])
    clock = HostClock(4, taking("wait", 0.5))
    sample = clock.sample(Candidate("weft", "", taking("call", 2.0)))
    assert seen == ["call", "wait", *["call"] * 4, "wait"]
    assert sample.seconds == 2.0
    assert clock.waits == {"weft": [0.125]}


def test_who_waits_for_the_device_is_named() -> None:
    us = {"eager": Spread(30.0, 29.0, 31.0), "weft": Spread(10.0, 9.0, 11.0)}
    line = Line("norm_forward", us, {"eager": Spread(3.0, 2.9, 3.1)}, {"eager": 6.0, "weft": 2.1})
    assert line.busy == ["weft"]
    text = "norm_forward: eager 30.0 us  weft 10.0 us  eager / weft 3.00  (the device was the limit for weft)"
    assert line.text() == text
    assert line.to_dict()["over_weft"] == {"eager": {"median": 3.0, "first": 2.9, "third": 3.1}}


def test_figures_are_written_with_what_they_are_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def make(device: str, blocks: int) -> dict[str, Callable[[], Any]]:
        assert (device, blocks) == ("cpu", 2)
        return {peer: lambda: torch.ones(8) for peer in ("eager", "inductor", "weft")}

    monkeypatch.setitem(host_time.CASES, "model_step", (make, 3))
    path = tmp_path / "host.json"
    arguments = ["--what", "model_step", "--device", "cpu", "--blocks", "2", "--rounds", "4", "--json", str(path)]
    assert host_time.main(arguments) == 0
    found = json.loads(path.read_text())
    (line,) = found["lines"]
    assert (line["what"], list(line["over_weft"])) == ("model_step", ["eager", "inductor"])
    assert found["versions"]["torch"] == torch.__version__
    assert capsys.readouterr().out.startswith("model_step: eager ")


def test_peers_compute_the_same() -> None:
    wanted, *others = (run() for run in host_time.norm_forward("cpu", 0).values())
    for other in others:
        torch.testing.assert_close(other, wanted, rtol=0.02, atol=0.02)
