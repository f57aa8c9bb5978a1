"""`make demo`: train a small transformer with weft, with Inductor and eagerly, and compare curves, times and kernels.

All three runs start from the same weights and see the same batches. The result is printed and written as one page of
HTML. The exit status is 1 if weft's loss curve leaves eager's by more than bfloat16 noise.
"""

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import Any, Protocol

import jinja2
import matplotlib
import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch._inductor.utils import fresh_cache

from weft.bench.models import ResidualMix, make_batch

BACKENDS = ("weft", "inductor", "eager")
COLORS = {"weft": "#c2410c", "inductor": "#2563eb", "eager": "#525252"}
WARM_UP_STEPS = 2
"""Steps that count as compilation and not as training: guards and allocators settle in the second."""
LEAST_TOLERANCE = 0.02
"""Nats by which the curves of two correct bfloat16 runs may always differ."""


@dataclass(frozen=True)
class Setup:
    """What is trained, and on what."""

    device: str
    dim: int
    blocks: int
    batch: int
    sequence: int
    steps: int
    learning_rate: float = 1e-3

    def text(self) -> str:
        return (
            f"residual_mix, dim {self.dim}, {self.blocks} blocks, batch {self.batch} x {self.sequence}, "
            f"{self.steps} steps of AdamW, bfloat16 autocast, full graph, {self.device}"
        )


@dataclass(frozen=True)
class Run:
    """What one backend did."""

    backend: str
    losses: list[float]
    step_ms: float
    """Median over the steps after the warm-up."""
    compile_s: float
    """Time of the warm-up steps beyond that of as many later ones."""


class Report(Protocol):
    """What weft says of one compiled graph: which values share a kernel, and what was left out and why."""

    def text(self) -> str: ...

    def to_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Comparison:
    """The runs side by side; differences are the largest between two loss curves, in nats."""

    setup: Setup
    runs: list[Run]
    differences: dict[str, float]
    tolerance: float
    """What weft may differ from eager: three times what Inductor does, and at least `LEAST_TOLERANCE`."""
    agrees: bool
    reports: list[Report]

    def to_dict(self) -> dict[str, Any]:
        """The comparison as JSON has it."""
        fields = ("differences", "tolerance", "agrees")
        return {
            "torch": torch.__version__,
            "setup": asdict(self.setup),
            "runs": [asdict(run) for run in self.runs],
            **{field: getattr(self, field) for field in fields},
            "reports": [report.to_dict() for report in self.reports],
        }


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
    setup = choose_setup(options.steps)
    console.print(setup.text(), highlight=False, soft_wrap=True)
    comparison = compare(setup, BACKENDS, console)
    show(comparison, console)
    write(options.out, render_page(comparison))
    console.print(f"wrote {options.out}", highlight=False)
    if options.json:
        write(options.json, json.dumps(comparison.to_dict(), indent=2) + "\n")
    return 0 if comparison.agrees else 1


def choose_setup(steps: int) -> Setup:
    """The GPU with a model worth its while where weft can use one, else a model that two CPU cores train in seconds."""
    from weft.integration.backend import supports_cuda

    if torch.cuda.is_available() and supports_cuda():
        return Setup("cuda", dim=512, blocks=11, batch=16, sequence=1024, steps=steps)
    return Setup("cpu", dim=256, blocks=3, batch=4, sequence=128, steps=steps)


def weft_reports() -> list[Report]:
    """The reports of what weft has compiled last."""
    import weft

    return list(weft.last_reports())


def compare(setup: Setup, backends: Sequence[str], console: Console) -> Comparison:
    """Train once with each backend, the last of which is the reference of all others."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    runs: list[Run] = []
    reports: list[Report] = []
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("loading the compiler", total=setup.steps * len(backends))
        _load_compiler()
        for backend in backends:
            runs.append(train(setup, backend, _reporter(progress, task, backend)))
            if backend == "weft":
                reports = weft_reports()
    curves = {run.backend: run.losses for run in runs}
    differences = {
        f"{one} and {other}": _largest_difference(curves[one], curves[other])
        for index, one in enumerate(backends)
        for other in backends[index + 1 :]
    }
    tolerance = max(3 * differences.get("inductor and eager", 0.0), LEAST_TOLERANCE)
    difference = differences[f"{backends[0]} and {backends[-1]}"]
    agrees = math.isfinite(difference) and difference <= tolerance
    return Comparison(setup, runs, differences, tolerance, agrees, reports)


def train(setup: Setup, backend: str, on_step: Callable[[float], None]) -> Run:
    """Train a fresh model with one backend, its caches empty; `on_step` hears each loss."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = ResidualMix(dim=setup.dim, blocks=setup.blocks).to(setup.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=setup.learning_rate)
    step = model if backend == "eager" else torch.compile(model, backend=backend, fullgraph=True)
    losses: list[float] = []
    seconds: list[float] = []
    with fresh_cache():
        for index in range(setup.steps):
            tokens, targets = make_batch(model.config, setup.batch, setup.sequence, seed=index)
            tokens, targets = tokens.to(setup.device), targets.to(setup.device)
            start = time.perf_counter()
            optimizer.zero_grad()
            with torch.autocast(setup.device, torch.bfloat16):
                loss = step(tokens, targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if setup.device == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
            on_step(losses[-1])
    median = statistics.median(seconds[WARM_UP_STEPS:])
    compile_s = max(0.0, sum(seconds[:WARM_UP_STEPS]) - WARM_UP_STEPS * median)
    return Run(backend, losses, step_ms=1e3 * median, compile_s=compile_s)


def show(comparison: Comparison, console: Console) -> None:
    """Print kernels, times and differences."""
    for report in comparison.reports:
        console.print(report.text(), highlight=False, markup=False, soft_wrap=True)
    table = Table()
    table.add_column("backend")
    for heading in ("median step", "compile time", "first loss", "last loss"):
        table.add_column(heading, justify="right")
    for run in comparison.runs:
        times = (f"{run.step_ms:.1f} ms", f"{run.compile_s:.1f} s" if run.backend != "eager" else "-")
        table.add_row(run.backend, *times, f"{run.losses[0]:.4f}", f"{run.losses[-1]:.4f}")
    console.print(table)
    for pair, difference in comparison.differences.items():
        console.print(f"largest loss difference, {pair}: {difference:.2g}", highlight=False)
    console.print(verdict(comparison), style="green" if comparison.agrees else "bold red", highlight=False)


def verdict(comparison: Comparison) -> str:
    """One sentence on whether the curves agree."""
    found = "agrees with" if comparison.agrees else "DIFFERS from"
    first, last = comparison.runs[0].backend, comparison.runs[-1].backend
    return f"{first} {found} {last} within bfloat16 noise (tolerance {comparison.tolerance:.2g})"


def render_page(comparison: Comparison) -> str:
    """The self-contained HTML page."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    template = environment.from_string(Path(__file__).with_name("demo.html.j2").read_text())
    return template.render(
        comparison=comparison,
        curves=draw_curves(comparison.runs),
        verdict=verdict(comparison),
        torch_version=torch.__version__,
    )


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


def _largest_difference(one: Sequence[float], other: Sequence[float]) -> float:
    """The largest distance of two curves; infinite where either is not a number."""
    gaps = [abs(a - b) for a, b in zip(one, other, strict=True)]
    return max(gap if math.isfinite(gap) else math.inf for gap in gaps)


if __name__ == "__main__":
    sys.exit(main())
