"""Slots of results that are put together, and a fixture by which every region is taken."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest
import torch

import weft
from weft.capture.assembly import Slot
from weft.compiler import Compilation
from weft.plan import planner

Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Every region is taken, however small, and memory that nobody has written yet holds NaN."""
    monkeypatch.setattr(planner, "check_worthwhile", lambda *_: None)
    torch._dynamo.reset()
    weft.counters.reset()
    weft.clear_reports()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def slots_of(compilation: Compilation) -> list[Slot]:
    return [slot for r in compilation.regions for slot in r.region.slots if slot is not None]
