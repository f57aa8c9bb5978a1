"""Races of a model's regions against TorchInductor's code for the same nodes: what the model of time got wrong."""

from __future__ import annotations

from typing import Any

import torch

import weft
from tests.zoo.entries import Entry
from tests.zoo.training import setup_of


def races(entry: Entry, device: str) -> dict[str, Any]:
    """Of one forward and backward: how many regions won, which lost, with both times, and why some were not raced."""
    torch._dynamo.reset()
    weft.clear_reports()
    make, setup = setup_of(entry, device, steps=1)
    model = make().to(device)
    batch = [tensor.to(device) for tensor in model.make_batch(setup.batch, setup.sequence, 0)]
    compiled = torch.compile(model, backend="weft", fullgraph=setup.fullgraph, options={"race": True})
    with torch.autocast(device, torch.bfloat16):
        loss = compiled(*batch)
    loss.backward()
    reports = [report.to_dict() for report in weft.last_reports()]
    found = [region["race"] for report in reports for region in report.get("regions", ())]
    lost = [r for report in reports for r in report.get("refusals", ()) if r["rule"] == "race_lost"]
    unraced = [each["refusal"]["message"] for each in found if each is not None and "refusal" in each]
    return {"won": len(found) - len(unraced), "lost": lost, "not_raced": unraced, "wrong": []}
