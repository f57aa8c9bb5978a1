"""The part of docs/performance.md on models, from files of ``tests.zoo``."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.zoo.__main__ import races_lost, step_ratios, wrong_in
from tests.zoo.entries import ENTRIES
from tests.zoo.one import STEPS
from tests.zoo.start import STARTS

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"
ZOO = (
    *(f"h200_zoo_start_{number}" for number in range(1, 3)),
    "h200_zoo_race",
    *(f"h200_zoo_training_{number}" for number in range(1, 14)),
    "h200_zoo_race_2",
    *(f"h200_zoo_gradients{number}" for number in ("", "_2", "_3")),
    *(f"h200_zoo_start_{number}" for number in range(3, 5)),
    "h200_zoo_race_3",
)
ZOO_H100 = (
    *(f"h100_zoo_training_{number}" for number in range(1, 5)),
    *(f"h100_zoo_start_{number}" for number in range(1, 3)),
    "h100_zoo_race_1",
)


def zoo_page(names: Sequence[str]) -> str:
    """Commands, what they found, and what is wrong."""
    results = results_of(names)
    models = zoo(results)
    texts = ["\n".join(f"- `{result['command']}`" for result in results), zoo_table(models)]
    texts += ["What the last of these for each model says is wrong:", zoo_wrong(models)]
    return "\n\n".join([*texts, f"Weft's figures over TorchInductor's, geometric means: {zoo_means(models)}."])


def zoo_races(names: Sequence[str]) -> str:
    """A line a model."""
    models = zoo(results_of(names))
    return "\n".join(f"{'  ' * line.startswith(' ')}- {line.strip()}" for line in races_lost(models))


def zoo_table(found: dict[str, dict[str, Any]]) -> str:
    """A line a model; a pair of figures is TorchInductor's and weft's."""
    headings = ("model", "eager, ms", "TorchInductor, ms", "weft, ms", "weft / TorchInductor", "other device time, ms")
    headings += ("peak, GB", "losses apart", "gradients f32", "bf16", "first step, s", "with full caches, s")
    lines = ["| " + " | ".join(headings) + " |", "|---" * len(headings) + "|"]
    for name, checked in found.items():
        cells = [name]
        trained = checked.get("training")
        if trained is None:
            cells += [""] * 7
        else:
            runs, device = trained["comparison"]["runs"], trained["device_us"]
            cells += [f"{runs[b]['median_ms']:.1f}" for b in ("eager", "inductor", "weft")]
            cells.append(f"{statistics.median(step_ratios(checked)):.2f}")
            cells.append(pair(lambda b, device=device: f"{device[b]['other'] / 1e3:.1f}"))
            cells.append(pair(lambda b, runs=runs: f"{runs[b]['peak_bytes'] / 1e9:.1f}"))
            cells.append(pair(lambda b, t=trained: f"{t['comparison']['differences'][b]:.4f}"))
        cells += [f"{checked[d]['worst']['excess']:.2f}" if d in checked else "" for d in ("f32", "bf16")]
        start = checked.get("start", {}).get("first_step_s")
        cells += ["" if start is None else pair(lambda b, s=start, at=at: f"{s[b][at]:.0f}") for at in STARTS]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def pair(figure: Callable[[str], str]) -> str:
    """TorchInductor's and weft's."""
    return ", ".join(figure(backend) for backend in ("inductor", "weft"))


def zoo(results: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What several runs found last, by model and check, in the order in which the zoo has the models."""
    found: dict[str, dict[str, Any]] = {}
    for result in results:
        for name, checked in result["models"].items():
            before = found.get(name, {})
            if "training" in checked:  # steps of other processes were of what was trained before
                before = {check: each for check, each in before.items() if not check.startswith(STEPS)}
            found[name] = {**before, **checked}
    return {name: found[name] for name in ENTRIES if name in found}


def zoo_means(found: dict[str, dict[str, Any]]) -> str:
    """Of steps, of other device time and of peaks."""
    trained = [checked["training"] for checked in found.values() if "training" in checked]

    def mean(figure: Callable[[dict[str, Any], str], float]) -> str:
        return f"{statistics.geometric_mean(figure(t, 'weft') / figure(t, 'inductor') for t in trained):.3f}"

    ratios = [statistics.median(each) for checked in found.values() if (each := step_ratios(checked))]
    steps, other = f"{statistics.geometric_mean(ratios):.3f}", mean(lambda t, b: t["device_us"][b]["other"])
    peaks = mean(lambda t, b: t["comparison"]["runs"][b]["peak_bytes"])
    return f"{steps} of a step, {other} of other device time, {peaks} of the most memory"


def zoo_wrong(found: dict[str, dict[str, Any]]) -> str:
    lines = [f"- {name}, {text}" for name, checked in found.items() for text in wrong_in(checked)]
    return "\n".join(lines) or "- nothing"


def results_of(names: Sequence[str]) -> list[dict[str, Any]]:
    """What several commands found."""
    return [json.loads((RESULTS / f"{name}.json").read_text()) for name in names]
