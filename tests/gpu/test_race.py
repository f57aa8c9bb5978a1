"""Races on a GPU, with real times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import weft
from weft.errors import Refusal
from weft.integration import race
from weft.integration.report import Report
from weft.runtime.raced import Raced


def outcomes() -> tuple[list[Raced], list[Refusal]]:
    """Of all races: what was kept, and what was lost."""
    reports = [report for report in weft.last_reports() if isinstance(report, Report)]
    kept = [region.race for report in reports for region in report.regions]
    lost = [refusal for report in reports for refusal in report.refusals if refusal.rule == "race_lost"]
    assert all(isinstance(outcome, Raced) for outcome in kept), [*map(str, kept)]
    return [outcome for outcome in kept if isinstance(outcome, Raced)], lost


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_a_norm_and_its_backward_are_raced(dynamic: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def loss(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return (F.layer_norm(x, (4096,), w, b) * x).float().square().mean()

    timed: list[int] = []
    times_us = race.times_us
    monkeypatch.setattr(race, "times_us", lambda runs, *rest: timed.append(len(runs)) or times_us(runs, *rest))
    x = torch.randn(8192, 4096, device="cuda", dtype=torch.bfloat16)
    w, b = (torch.randn(4096, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    inputs = [t.requires_grad_() for t in (x, w, b)]
    expected = torch.autograd.grad(loss(*inputs), inputs)
    for again in (False, True):
        torch._dynamo.reset()
        weft.clear_reports()
        options: dict[str, Any] = {"race": True, "cache_dir": str(tmp_path / "weft")}
        compiled = torch.compile(loss, backend="weft", fullgraph=True, dynamic=dynamic, options=options)
        found = torch.autograd.grad(compiled(*inputs), inputs)
        for mine, other in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, other, rtol=5e-2, atol=5e-2 * float(other.float().abs().max()))
        kept, lost = outcomes()
        assert len(kept) + len(lost) >= 2, again
        assert all(1 < outcome.us < 1e4 and 1 < outcome.inductor_us < 1e4 for outcome in kept)
        assert all(refusal.limit <= refusal.have for refusal in lost)  # type: ignore[operator]
    assert weft.counters.fallbacks == 0
    assert timed == [3] * len([*(tmp_path / "weft").rglob("*.race.json")])


def test_integers_are_legal_indices_on_both_sides(tmp_path: Path) -> None:
    """One beyond the row would be an assertion of the device, which nothing survives."""
    x = torch.randn(4096, 10, device="cuda", requires_grad=True)
    y = torch.randint(10, (4096,), device="cuda")
    options: dict[str, Any] = {"race": True, "cache_dir": str(tmp_path / "weft")}
    compiled = torch.compile(F.cross_entropy, backend="weft", fullgraph=True, options=options)
    torch.testing.assert_close(compiled(x, y), F.cross_entropy(x, y))
    torch.autograd.grad(compiled(x, y), x)
    torch.cuda.synchronize()
    outcomes()


def test_a_graph_that_is_replayed_is_raced_before(tmp_path: Path) -> None:
    x = torch.randn(4096, 1024, device="cuda")
    options: dict[str, Any] = {"race": True, "cache_dir": str(tmp_path / "weft")}
    compiled = torch.compile(
        lambda x: (x.softmax(-1) * x).sum(0), backend="weft", options=options | {"triton.cudagraphs": True}
    )
    for _ in range(3):
        torch.testing.assert_close(compiled(x).clone(), (x.softmax(-1) * x).sum(0), rtol=1e-4, atol=1e-3)
    kept, lost = outcomes()
    assert len(kept) + len(lost) == 1
