"""Races of a model's regions against TorchInductor's code for the same nodes: what the model of time got wrong, and
whether a step with races is as fast as one without."""

from __future__ import annotations

from typing import Any

import weft
from tests.zoo.entries import Entry
from tests.zoo.training import STEPS, setup_of
from tools.training import RACED, trained


def races(entry: Entry, device: str) -> dict[str, Any]:
    """Of all forwards and backwards: how many regions won, which lost, with both times, and why some were not raced;
    and the medians of twenty steps with races and without, in turn, in ms."""
    weft.clear_reports()
    make, setup = setup_of(entry, device, STEPS)
    runs = [trainee.run for trainee in trained(make, setup, ("weft", RACED))]
    reports = [report.to_dict() for report in weft.last_reports()]
    found = [region["race"] for report in reports for region in report.get("regions", ()) if region["race"] is not None]
    lost = [r for report in reports for r in report.get("refusals", ()) if r["rule"] == "race_lost"]
    unraced = [each["refusal"]["message"] for each in found if "refusal" in each]
    times = {run.backend: run.median_ms for run in runs}
    return {"won": len(found) - len(unraced), "lost": lost, "not_raced": unraced, "median_ms": times, "wrong": []}
