"""`make demo`: train a small transformer with weft, with Inductor and eagerly, and compare curves, times and kernels.

All three runs start from the same weights and see the same batches. The result is printed and written as one page of
HTML. The exit status is 1 if weft's loss curve leaves eager's by more than bfloat16 noise.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from io import StringIO
from itertools import combinations
from pathlib import Path
from typing import Any

import jinja2
import matplotlib
import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch._inductor.utils import fresh_cache

import weft
from tools.training import Comparison, Run, Setup, Trainee, comparison_of, largest_difference
from weft.bench.models import ResidualMix
from weft.integration.backend import supports_cuda
from weft.integration.report import CachedReport, Report

BACKENDS = ("weft", "inductor", "eager")
COLORS = {"weft": "#c2410c", "inductor": "#2563eb", "eager": "#525252"}
WARM_UP_STEPS = 2
"""Steps that are not timed: guards and allocators settle in the second."""
LEAST_TOLERANCE = 0.02
"""Nats by which the curves of two correct bfloat16 runs of this model may always differ."""


@dataclass(frozen=True)
class Demo:
    """What is trained, and how. dim, blocks: of the model."""

    dim: int
    blocks: int
    training: Setup

    def text(self) -> str:
        how = self.training
        return (
            f"residual_mix, dim {self.dim}, {self.blocks} blocks, batch {how.batch} x {how.sequence}, "
            f"{how.steps} steps of AdamW, bfloat16 autocast, full graph, {how.device}"
        )


@dataclass(frozen=True)
class Found:
    """What was trained, the runs side by side, and what weft says of the graphs that it compiled."""

    demo: Demo
    comparison: Comparison
    reports: list[Report | CachedReport]

    @property
    def differences(self) -> dict[str, float]:
        """The largest between two loss curves, in nats, of each pair of runs."""
        pairs = combinations(self.comparison.runs, 2)
        return {f"{a.backend} and {b.backend}": largest_difference(a.losses, b.losses) for a, b in pairs}

    @property
    def verdict(self) -> str:
        """One sentence on whether the curves agree."""
        agrees = "agrees with" if self.comparison.agrees else "DIFFERS from"
        return f"weft {agrees} eager within bfloat16 noise (tolerance {self.comparison.tolerance:.2g})"

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        head = {"torch": torch.__version__, "setup": asdict(self.demo)}
        found = self.comparison.to_dict() | {"differences": self.differences}
        return head | found | {"reports": [report.to_dict() for report in self.reports]}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo as the command line asks; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.demo", description=__doc__)
    parser.add_argument("--steps", type=int, default=40, help="training steps per backend (default 40)")
    parser.add_argument("--out", type=Path, default=Path("build/demo.html"), help="the page (default build/demo.html)")
    parser.add_argument("--json", type=Path, help="also write the results as JSON to this file")
    options = parser.parse_args(arguments)
    if options.steps <= WARM_UP_STEPS:
        parser.error(f"--steps must be more than the {WARM_UP_STEPS} of the warm-up")

    console = Console()
    demo = choose_demo(options.steps)
    console.print(demo.text(), highlight=False, soft_wrap=True)
    found = compare(demo, console)
    show(found, console)
    write(options.out, render_page(found))
    console.print(f"wrote {options.out}", highlight=False)
    if options.json:
        write(options.json, json.dumps(found.to_dict(), indent=2) + "\n")
    return 0 if found.comparison.agrees else 1


def choose_demo(steps: int) -> Demo:
    """The GPU with a model worth its while where weft can use one, else a model that two CPU cores train in seconds."""
    how = partial(Setup, steps=steps, warm_up=WARM_UP_STEPS, learning_rate=1e-3, optimizer="adamw")
    if torch.cuda.is_available() and supports_cuda():
        return Demo(dim=512, blocks=11, training=how("cuda", batch=16, sequence=1024))
    return Demo(dim=256, blocks=3, training=how("cpu", batch=4, sequence=128))


def compare(demo: Demo, console: Console) -> Found:
    """Train once with each backend."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    runs: list[Run] = []
    reports: list[Report | CachedReport] = []
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("loading the compiler", total=demo.training.steps * len(BACKENDS))
        _load_compiler()
        for backend in BACKENDS:
            runs.append(train(demo, backend, _reporter(progress, task, backend)))
            if backend == "weft":
                reports = weft.last_reports()
    return Found(demo, comparison_of(runs, LEAST_TOLERANCE), reports)


def train(demo: Demo, backend: str, on_step: Callable[[float], None]) -> Run:
    """Train a fresh model with one backend, its caches empty; `on_step` hears each loss."""
    torch._dynamo.reset()
    how = demo.training
    with fresh_cache():
        trainee = Trainee(partial(ResidualMix, dim=demo.dim, blocks=demo.blocks), backend, how)
        for number in range(how.steps):
            batch = trainee.model.make_batch(how.batch, how.sequence, number)
            trainee.step(number, [tensor.to(how.device) for tensor in batch])
            on_step(trainee.run.losses[-1])
    return trainee.run


def show(found: Found, console: Console) -> None:
    """Print kernels, times and differences."""
    for report in found.reports:
        console.print(report.text(), highlight=False, markup=False, soft_wrap=True)
    table = Table()
    table.add_column("backend")
    for heading in ("median step", "compile time", "first loss", "last loss"):
        table.add_column(heading, justify="right")
    for run in found.comparison.runs:
        times = (f"{run.median_ms:.1f} ms", f"{run.compile_s:.1f} s" if run.backend != "eager" else "-")
        table.add_row(run.backend, *times, f"{run.losses[0]:.4f}", f"{run.losses[-1]:.4f}")
    console.print(table)
    for pair, difference in found.differences.items():
        console.print(f"largest loss difference, {pair}: {difference:.2g}", highlight=False)
    console.print(found.verdict, style="green" if found.comparison.agrees else "bold red", highlight=False)


def render_page(found: Found) -> str:
    """The self-contained HTML page."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    template = environment.from_string(Path(__file__).with_name("demo.html.j2").read_text())
    return template.render(found=found, curves=draw_curves(found.comparison.runs), torch_version=torch.__version__)


def draw_curves(runs: Sequence[Run]) -> str:
    """An SVG element: the loss of every run, and each run's distance from the last one's on a logarithmic axis."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    losses, distances = figure.subplots(1, 2)
    for run, width in zip(runs, (4.0, 2.0, 1.0), strict=False):
        losses.plot(run.losses, color=COLORS[run.backend], linewidth=width, label=run.backend)
    for run in runs[:-1]:
        gaps = [max(abs(a - b), 1e-7) for a, b in zip(run.losses, runs[-1].losses, strict=True)]
        distances.plot(gaps, color=COLORS[run.backend], label=f"{run.backend} from {runs[-1].backend}")
    distances.set_yscale("log")
    losses.set_title("loss (nats)")
    distances.set_title("difference of the loss (nats)")
    for axes in (losses, distances):
        axes.set_xlabel("step")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    text = StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "weft"}):
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def write(path: Path, text: str) -> None:
    """Write a file, with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _load_compiler() -> None:
    """Compile something trivial, so that no backend's compile time includes imports and the C++ header's."""
    with fresh_cache():
        torch.compile(lambda x: x + 1)(torch.ones(8))


def _reporter(progress: Progress, task: TaskID, backend: str) -> Callable[[float], None]:
    """Moves the bar by a step and shows the loss; says that the backend compiles until the first."""
    progress.update(task, description=f"{backend}: first step")

    def report(loss: float) -> None:
        progress.update(task, advance=1, description=f"{backend}: loss {loss:.3f}")

    return report


if __name__ == "__main__":
    sys.exit(main())
