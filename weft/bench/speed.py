"""Speed on the CPU: ``python -m weft.bench.speed`` times weft against TorchInductor and eager, and a copy.

Three tables: kernels of the norm backwards on outputs that exist; the same through autograd, with fresh gradients; and
every workload as a function call. All candidates of a row are interleaved in one process. ``--json FILE`` writes the
figures; the exit code is 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor

from weft.bench.inputs import Shape
from weft.bench.peers import (
    autograd_candidates,
    copy_candidate,
    inductor_kernels,
    traffic_bytes,
    weft_kernels,
    whole_candidates,
)
from weft.bench.timing import Candidate, Timing, interleave
from weft.bench.workloads import WORKLOADS, Workload
from weft.options import Options

NORM_BACKWARDS = (
    "rms_norm_backward",
    "layer_norm_backward",
    "thunder_layer_norm_backward",
    "add_rms_norm_backward",
    "layer_norm_backward_bias",
)
NORM_FORWARDS = ("rms_norm_forward", "layer_norm_forward", "add_rms_norm_forward")
NORM_SHAPES: tuple[Shape, ...] = ((4096, 4096), (2048, 8192), (16384, 1024), (4096, 5120))
SHAPES: tuple[Shape, ...] = ((512, 1024), (4096, 1024), (1024, 8192), (256, 50257))
KERNEL_BAR, AUTOGRAD_BAR, SLOWER_BAR = 2.0, 1.3, 1.05
LEAST_BYTES = 2**20


@dataclass(frozen=True)
class Row:
    """Medians in microseconds by candidate. bytes: of all tensors, each once."""

    table: str
    workload: str
    shape: Shape
    bytes: int
    median_us: dict[str, float]

    @property
    def speedup(self) -> float:
        """The fastest peer's time over weft's."""
        own = next(us for name, us in self.median_us.items() if name.startswith("weft"))
        peers = [us for name, us in self.median_us.items() if not name.startswith(("weft", "copy"))]
        return min(peers) / own

    @property
    def over_inductor(self) -> float:
        own = next(us for name, us in self.median_us.items() if name.startswith("weft"))
        return next(us for name, us in self.median_us.items() if name.startswith("Inductor")) / own

    @property
    def of_copy(self) -> float:
        """Time of a warm copy of the same bytes over weft's."""
        return self.median_us["copy"] / next(us for name, us in self.median_us.items() if name.startswith("weft"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and compare with the bars."""
    parser = argparse.ArgumentParser(prog="python -m weft.bench.speed", description=__doc__)
    parser.add_argument("--table", choices=list(TABLES), nargs="+", default=list(TABLES))
    parser.add_argument("--workload", choices=list(WORKLOADS), nargs="+", help="only these")
    parser.add_argument("--rounds", type=int, default=15, help="interleaved rounds, at most 10 s a row")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args(arguments)
    options = Options.read()
    wanted = [(table, cell) for table in given.table for cell in _cells(table, given.workload)]
    rows: list[Row] = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("measuring", total=len(wanted))
        for table, (name, shape) in wanted:
            progress.update(task, description=f"{table}: {name} {shape[0]}x{shape[1]}")
            row = _measure(table, WORKLOADS[name], shape, options, given.rounds)
            if row is not None:
                rows.append(row)
            progress.advance(task)
    missed = report(rows)
    if given.json is not None:
        machine = {"machine": platform.processor() or platform.machine(), "torch": torch.__version__}
        machine |= {"threads": str(torch.get_num_threads()), "python": platform.python_version()}
        given.json.write_text(json.dumps({**machine, "rows": [asdict(row) for row in rows]}, indent=2) + "\n")
    return 1 if missed else 0


def _cells(table: str, only: Iterable[str] | None) -> Iterator[tuple[str, Shape]]:
    names, shapes, _ = TABLES[table]
    for name in names:
        for shape in shapes:
            if only is None or name in only:
                yield name, shape


def _measure(table: str, workload: Workload, shape: Shape, options: Options, rounds: int) -> Row | None:
    """One row; None if its tensors are too few bytes to count."""
    inputs = workload.make_inputs(shape, torch.bfloat16)
    total = traffic_bytes((*inputs, *workload.outputs(*inputs)))
    if total < LEAST_BYTES:
        return None
    candidates = [copy_candidate(total), *TABLES[table][2](workload, inputs, options)]
    timings: dict[str, Timing] = interleave(candidates, rounds, budget_s=10.0)
    gc.collect()
    return Row(table, workload.name, shape, total, {name: t.median_us for name, t in timings.items()})


def _kernels(workload: Workload, inputs: Sequence[Tensor], options: Options) -> list[Candidate]:
    return [inductor_kernels(workload, inputs)[0], weft_kernels(workload, inputs, options)[0]]


Measured = Callable[[Workload, Sequence[Tensor], Options], list[Candidate]]
TABLES: dict[str, tuple[tuple[str, ...], tuple[Shape, ...], Measured]] = {
    "kernels": (NORM_BACKWARDS, NORM_SHAPES, _kernels),
    "autograd": (NORM_FORWARDS, NORM_SHAPES, autograd_candidates),
    "calls": (tuple(WORKLOADS), SHAPES, whole_candidates),
}


def report(rows: Sequence[Row]) -> list[str]:
    """Print tables and bars; returns the bars that were missed."""
    console = Console()
    for name in dict.fromkeys(row.table for row in rows):
        table = Table(title=f"{name}: microseconds, bf16")
        shown = [row for row in rows if row.table == name]
        columns = list(shown[0].median_us)
        for heading in ("workload", "shape", "MB", *columns, "fastest peer / weft", "of copy"):
            table.add_column(heading, justify="left" if heading == "workload" else "right")
        for row in shown:
            times = [f"{row.median_us[column]:.0f}" for column in columns]
            shape = f"{row.shape[0]}x{row.shape[1]}"
            figures = [f"{row.bytes / 1e6:.1f}", *times, f"{row.speedup:.2f}", f"{row.of_copy:.2f}"]
            table.add_row(row.workload, shape, *figures)
        console.print(table)
    missed: list[str] = []
    for name, bar in (("kernels", KERNEL_BAR), ("autograd", AUTOGRAD_BAR)):
        speedups = [row.over_inductor for row in rows if row.table == name]
        if speedups:
            mean = statistics.geometric_mean(speedups)
            line = f"{name}: {mean:.2f}x of TorchInductor in geometric mean, bar {bar}"
            console.print(line)
            missed += [line] if mean < bar else []
    for row in rows:
        if row.table == "calls" and row.speedup * SLOWER_BAR < 1:
            line = f"{row.workload} {row.shape[0]}x{row.shape[1]}: {1 / row.speedup:.2f}x the fastest peer's time"
            console.print(line)
            missed.append(line)
    return missed


if __name__ == "__main__":
    raise SystemExit(main())
