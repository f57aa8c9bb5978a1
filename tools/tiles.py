"""How many rows should go together? ``python -m tools.tiles`` times kernels with one, two and four rows a tile.

Every kernel of a workload runs on outputs that exist, bf16, all candidates of a shape interleaved with a copy of the
same bytes. ``--csv FILE`` writes the figures; those the planner's rule is from are in ``tools/sweeps``:
``cpu_tiles.csv`` and ``cpu_amd_tiles.csv``.
"""

from __future__ import annotations

import argparse
import csv
import gc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track

from weft.bench.case import traffic_bytes, workload_case
from weft.bench.inputs import Shape
from weft.bench.peers import copy_candidate, weft_kernels
from weft.bench.workloads import WORKLOADS
from weft.options import Options
from weft.plan.kernel import Kernel
from weft.runtime.timing import interleave

WORKLOADS_TIMED = (
    "rms_norm_forward",
    "add_rms_norm_forward",
    "softmax_forward",
    "softmax_backward",
    "cross_entropy_forward",
    "qk_norm_forward",
    "row_column_sum",
    "rms_norm_backward",
    "layer_norm_backward_bias",
)
SHAPES: tuple[Shape, ...] = (
    *((512, 1024), (1024, 1024), (2048, 1024), (4096, 1024), (16384, 1024)),
    *((32768, 256), (4096, 2048), (4096, 4096), (1024, 8192)),
)
ROWS_PER_TILE = (1, 2, 4)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print one line a workload and shape."""
    parser = argparse.ArgumentParser(prog="python -m tools.tiles", description=__doc__)
    parser.add_argument("--workload", choices=list(WORKLOADS), nargs="+", default=WORKLOADS_TIMED)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--csv", type=Path, help="write the figures to this file")
    given = parser.parse_args(arguments)
    cells = [(name, shape) for name in given.workload for shape in SHAPES]
    rows: list[dict[str, str]] = []
    for name, shape in track(cells, "measuring", console=Console(stderr=True), transient=True):
        row = _measure(name, shape, given.rounds)
        print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
        rows.append(row)
    if given.csv is not None:
        with given.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return 0


def _measure(name: str, shape: Shape, rounds: int) -> dict[str, str]:
    """Medians in microseconds."""
    workload, options = WORKLOADS[name], replace(Options.read(), tuned=False)
    case = workload_case(workload, shape, torch.bfloat16)
    total = traffic_bytes((*case.inputs, *workload.outputs(*case.inputs)))
    candidates = [copy_candidate(total)]
    for count in ROWS_PER_TILE:

        def tiled(kernel: Kernel, count: int = count) -> Kernel:
            return replace(kernel, schedule=replace(kernel.schedule, rows_per_tile=count))

        candidates.append(replace(weft_kernels(case, options, tiled), peer=f"rows_{count}", timed=""))
    timings = interleave(candidates, rounds, budget_s=4.0)
    gc.collect()
    figures = {f"{key}_us": f"{timing.median_us:.0f}" for key, timing in timings.items()}
    return {"workload": name, "shape": f"{shape[0]}x{shape[1]}", "megabytes": f"{total / 1e6:.1f}", **figures}


if __name__ == "__main__":
    raise SystemExit(main())
