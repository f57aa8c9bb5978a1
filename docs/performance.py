"""Writes docs/performance.md and its picture from benchmarks/results: ``python docs/performance.py``."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
RESULTS = HERE.parent / "benchmarks" / "results"
PEERS = ("inductor", "inductor_pipelined", "eager")

PAGE = """# Performance on a GPU

Measured on {gpu}, torch {torch}, Triton {triton}, bf16, with nothing tuned. This page is written by
`python docs/performance.py` from the files in `benchmarks/results`, which have the commands that made them.

Each cell is one call of a function that weft compiled. Its figure is the *fraction of copy*: the time of a
device-to-device copy of the same bytes over the sum of the durations of the call's device kernels, the level-two cache
flushed before each, all candidates of a cell in turn in one run, medians over rounds. Behind it stand the times of
TorchInductor as it comes, and with pipelined loops and without the gates of its kernels of both directions, over
weft's: above one weft is faster. [Benchmarking](benchmarking.md) describes the protocol.

![Fraction of copy over the width of a row](pictures/h200.png)

## 2^26 elements

`{command26}`

{table26}

What the bars of that command say is missed:

{missed26}

The backwards of the norms alone take {norms} of TorchInductor's time as it comes in geometric mean; that of softmax,
which has no column sums, runs at copy speed in TorchInductor already.

## 2^25 elements

`{command25}`

{table25}

Missed, the bars three points lower:

{missed25}

What follows was measured before casts were made in pairs, rows cut into equal pieces and constants fitted anew.

## 64 rows

`{command64}`

{table64}

A launch takes longer than the data here. The backward's programs wait for each other once, which costs more than the
rest of it.

## Rows of 50257

`{commandwide}`

{tablewide}

The row is looped over three times in blocks of whole vectors, of which two readings come from the level-two cache.
Eager PyTorch keeps rows in shared memory and is faster.

## float16 and float32

{table16}

{table32}

## Training

Two small transformers (dim 512, 11 blocks, bf16 autocast, batch 24 of 2048 tokens, SGD), the median of eight steps
behind four others, on the same machine:

| | eager | TorchInductor | weft | kernels of weft a step |
|---|---|---|---|---|
| residual-mix | 101.1 ms | 42.6 ms | 39.9 ms | 81 |
| plain | 82.0 ms | 38.7 ms | 38.4 ms | 81 |

Losses of twelve steps agree with eager's to 0.0011 (residual-mix) and 0.0003 (plain); TorchInductor's to 0.0021 and
0.0003. The first step, which compiles, took 25.2 s against TorchInductor's 24.7, and 15.7 against 17.8: one run each.
"""


def main() -> None:
    found = {name: json.loads((RESULTS / f"h200_{name}.json").read_text()) for name in ("2p26", "2p25", "64_rows")}
    wide = json.loads((RESULTS / "h200_softmax_50257.json").read_text())
    half, single = (json.loads((RESULTS / f"h200_{name}.json").read_text()) for name in ("f16", "f32"))
    norms = [c for c in found["2p26"]["cells"] if c["workload"].endswith("norm_backward") and c["us"]]
    norms = [c for c in norms if c["workload"] in ("rms_norm_backward", "layer_norm_backward", "add_rms_norm_backward")]
    product = 1.0
    for cell in norms:
        product *= cell["us"]["weft"] / cell["us"]["inductor"]
    versions, machine = found["2p26"]["versions"], found["2p26"]["machine"]
    page = PAGE.format(
        gpu=f"one {machine['gpu']}",
        torch=versions["torch"],
        triton=versions["triton"],
        command26=found["2p26"]["command"],
        command25=found["2p25"]["command"],
        command64=found["64_rows"]["command"],
        commandwide=wide["command"],
        table26=table(found["2p26"]["cells"]),
        table25=table(found["2p25"]["cells"]),
        table64=table(found["64_rows"]["cells"]),
        tablewide=table(wide["cells"]),
        table16=table(half["cells"]),
        table32=table(single["cells"]),
        missed26=missed(found["2p26"]),
        missed25=missed(found["2p25"]),
        norms=f"{product ** (1 / len(norms)):.0%}",
    )
    (HERE / "performance.md").write_text(page)
    plot(found["2p26"]["cells"])


def table(cells: list[dict[str, Any]]) -> str:
    """A line a workload, a column a width."""
    widths = sorted({c["columns"] for c in cells})
    by: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    for cell in cells:
        by[cell["workload"]][cell["columns"]] = cell
    lines = [f"| {cells[0]['dtype']} | " + " | ".join(map(str, widths)) + " |", "|---" * (len(widths) + 1) + "|"]
    for name, row in by.items():
        lines.append(f"| {name} | " + " | ".join(text(row.get(width)) for width in widths) + " |")
    return "\n".join(lines)


def text(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return ""
    if not cell["us"]:
        return cell["wrong"]
    us = cell["us"]
    peers = [f"{us[peer] / us['weft']:.2f}" for peer in PEERS if peer in us]
    return f"{us['copy'] / us['weft']:.2f}" + (f" ({' '.join(peers)})" if peers else "")


def missed(found: dict[str, Any]) -> str:
    """Bars that were missed."""
    return "\n".join(f"- {line}" for line in found["missed"])


def plot(cells: list[dict[str, Any]]) -> None:
    """Fraction of copy over the width."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4), sharey=True)
    for axis, end in zip(axes, ("forward", "backward"), strict=True):
        for name in dict.fromkeys(c["workload"] for c in cells if f"_{end}" in c["workload"]):
            own = [c for c in cells if c["workload"] == name and c["us"]]
            axis.plot([c["columns"] for c in own], [c["us"]["copy"] / c["us"]["weft"] for c in own], "o-", label=name)
            theirs = [c["us"]["copy"] / c["us"]["inductor"] for c in own]
            axis.plot([c["columns"] for c in own], theirs, ":", color=axis.lines[-1].get_color(), alpha=0.6)
        axis.set(xscale="log", xlabel="columns (dotted: TorchInductor)", title=end, ylim=(0, 1.15))
        axis.set_xscale("log", base=2)
        axis.axhline(1, color="black", linewidth=0.5)
        axis.legend(fontsize=7, loc="lower left")
    axes[0].set_ylabel("fraction of copy, 2^26 elements")
    figure.tight_layout()
    figure.savefig(HERE / "pictures" / "h200.png", dpi=110)


if __name__ == "__main__":
    main()
