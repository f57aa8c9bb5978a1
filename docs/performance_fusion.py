"""The part of docs/performance.md on what shares a kernel, from the record of ``python -m tools.fusion``."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def fusion_page(paths: Sequence[Path]) -> str:
    """What ``python -m tools.fusion`` found on each GPU; nothing if there are no such files."""
    texts = ["## What shares a kernel"]
    for path in filter(Path.exists, paths):
        found = json.loads(path.read_text())
        done = {part: [r for r in found["cells"] if r["cell"]["part"] == part and r["us"]] for part in FUSION}
        texts += [f"### On an {path.name.partition('_')[0].upper()}", f"`{found['command']}`"]
        texts += (FUSION[part](own) for part, own in done.items() if own)
        texts += ["What the bars of that command say is missed:"]
        texts.append("\n".join(f"- {line}" for line in found["missed"]) or "- nothing")
    return "\n\n".join(texts) + "\n\n" if len(texts) > 1 else ""


def over_table(results: list[dict[str, Any]]) -> str:
    """Of regions that read much: microseconds."""
    own = {
        "weft": "weft",
        "weft_limited": "weft, `max_reads=10`",
        "inductor_mixed": "TorchInductor, both directions in one kernel",
        "inductor_apart": "apart",
        "inductor_pipelined": "pipelined and without gates",
    }
    text = (
        "Backwards of a block with a residual mix, 98304 rows of 512 columns, by how many buffers they read; times in "
    )
    text += "microseconds."
    lines = [text, "", f"| buffers | {' | '.join(own.values())} |", "|---" * (1 + len(own)) + "|"]
    for result in results:
        times = [f"{result['us'][name]:.1f}" if name in result["us"] else "" for name in own]
        lines.append(f"| {result['cell']['reads']} | {' | '.join(times)} |")
    return "\n".join(lines)


def under_table(results: list[dict[str, Any]]) -> str:
    """Of drawn regions: the chosen plan's time over that of the best other one, and over TorchInductor's."""
    ratios = [[us[0] / min(us[1:]), us[0] / r["us"]["inductor"]] for r in results for us in [[*r["us"].values()]]]
    (best, most), (mean, least) = [(statistics.geometric_mean(own), max(own)) for own in zip(*ratios, strict=True)]
    return (
        f"{len(results)} regions drawn at random, the chosen plan beside the other partitions of what they return: it "
        f"takes {best:.3f} of the time of the best of these and of TorchInductor's in geometric mean, {most:.3f} at "
        f"the most, and {mean:.2f} of TorchInductor's, {least:.2f} at the most."
    )


def sweep_table(results: list[dict[str, Any]]) -> str:
    """Of each workload a line a number of rows, a column a width."""
    texts = ["Time with rows and columns apart over that in one kernel; above one, one kernel is faster. What the "
             "planner did not choose although it is faster is in bold."]  # fmt: skip
    for name in dict.fromkeys(r["cell"]["name"] for r in results):
        own = {(r["cell"]["rows"], r["cell"]["columns"]): r["us"] for r in results if r["cell"]["name"] == name}
        rows, widths = (sorted({place[axis] for place in own}) for axis in (0, 1))
        lines = [f"| {name} | " + " | ".join(map(str, widths)) + " |", "|---" * (len(widths) + 1) + "|"]
        for count in rows:
            lines.append(f"| {count} | " + " | ".join(swept(own.get((count, width), {})) for width in widths) + " |")
        texts.append("\n".join(lines))
    return "\n\n".join(texts)


def swept(us: dict[str, float]) -> str:
    """One cell of the sweep; the chosen way is the first."""
    if len(us) < 2:
        return ""
    shown = f"{us['apart'] / us['fused']:.2f}"
    return shown if next(iter(us)) == min(us, key=lambda name: us[name]) else f"**{shown}**"


FUSION: dict[str, Callable[[list[dict[str, Any]]], str]] = {
    "over": over_table,
    "under": under_table,
    "sweep": sweep_table,
}
"""Parts of ``tools.fusion``."""
