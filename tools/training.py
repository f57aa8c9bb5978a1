"""Training with weft, TorchInductor and eager PyTorch: ``python -m tools.training --device cuda --json FILE``.

All start from the same weights and see the same batches, in bfloat16 autocast with SGD; every step is done by each of
them in turn, and every second step goes backwards. The figure is the median of the steps behind the warm-up, device
included. The losses of weft may differ from eager's by ``FACTOR`` times what TorchInductor's do, or those of eager
PyTorch on the samples of each batch in reverse order; the exit code is 1 if they differ by more, or if weft launched
nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from tools.arguments import require_gpu
from weft.bench.machine import machine, versions
from weft.bench.models import MODELS, Model
from weft.options import Options
from weft.runtime.counters import counters

BACKENDS = ("eager", "inductor", "weft")
REVERSED = "reversed"
"""Eager PyTorch on the samples of each batch in reverse order: the same losses, summed up in another order."""
RACED = "raced"
"""weft with races."""
COMPILED: dict[str, dict[str, Any]] = {
    "inductor": {"backend": "inductor"},
    "weft": {"backend": "weft"},
    RACED: {"backend": "weft", "options": {"race": True}},
}
"""How ``torch.compile`` is called for those that are not eager."""
OPTIMIZERS = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}
FACTOR = 3.0
"""Eager, TorchInductor and eager on reversed batches are all right and round in different places. What lies between
their curves is the noise of these weights and batches, known from two draws, each the largest of a dozen differences.
One draw was too few: of phi3, in three runs, TorchInductor's differences were 0.0008, 0.0027 and 0.0037 nats."""
LEAST = 2e-3
"""Nats that are always allowed: half of bfloat16's epsilon of a logit of one half, should TorchInductor's differences
happen to be nothing."""


@dataclass(frozen=True)
class Setup:
    """What is trained, and how. fullgraph: whether a model has to be one graph."""

    device: str
    batch: int
    sequence: int
    steps: int
    warm_up: int
    learning_rate: float
    optimizer: Literal["sgd", "adamw"] = "sgd"
    fullgraph: bool = True


@dataclass
class Run:
    """What one backend did. step_ms: of the steps behind the warm-up; first_s: ``torch.compile``, which imports
    TorchInductor, and the first step, which compiles;
    launches: kernels of weft in the last step; peak_bytes: the most that a step behind the warm-up held on a GPU,
    parameters and the state of the optimizer included."""

    backend: str
    losses: list[float] = field(default_factory=list[float])
    step_ms: list[float] = field(default_factory=list[float])
    first_s: float = 0.0
    launches: int = 0
    peak_bytes: int = 0

    @property
    def median_ms(self) -> float:
        return statistics.median(self.step_ms)

    @property
    def compile_s(self) -> float:
        """Time of the first step beyond that of a later one."""
        return max(0.0, self.first_s - 1e-3 * self.median_ms)


@dataclass(frozen=True)
class Comparison:
    """differences: the largest from eager's losses, in nats, of each other run. tolerance: what weft's may be."""

    runs: list[Run]
    differences: dict[str, float]
    tolerance: float

    @property
    def agrees(self) -> bool:
        return self.differences["weft"] <= self.tolerance

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        runs = {run.backend: asdict(run) | {"median_ms": run.median_ms} for run in self.runs}
        found = {"differences": self.differences, "tolerance": self.tolerance, "agrees": self.agrees}
        return {"runs": runs} | found


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, print and compare."""
    parser = argparse.ArgumentParser(prog="python -m tools.training", description=__doc__)
    parser.add_argument("--model", nargs="+", choices=list(MODELS), default=["residual_mix", "plain"])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--sequence", type=int, default=2048)
    parser.add_argument("--blocks", type=int, help="of the model; by default as many as the full-size workload has")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--warm-up", type=int, default=4, help="steps that are not timed")
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args(arguments)
    require_gpu(parser, given.device)
    if not 0 < given.warm_up < given.steps:
        parser.error(f"--warm-up is at least 1 and less than --steps ({given.steps})")
    setup = Setup(given.device, given.batch, given.sequence, given.steps, given.warm_up, given.learning_rate)
    sizes = {} if given.blocks is None else {"blocks": given.blocks}
    found: dict[str, Comparison] = {}
    failed = False
    for name in given.model:
        found[name] = comparison_of(train(lambda name=name: MODELS[name](**sizes), setup))
        failed |= show(name, found[name])
        if given.json is not None:
            shown = [given.json.name if word == str(given.json) else word for word in sys.argv[1:]]
            command = f"python -m tools.training {shlex.join(shown)}"
            head = {"command": command, "machine": machine(setup.device), "versions": versions(Options.read())}
            head |= {"setup": asdict(setup), "models": {name: each.to_dict() for name, each in found.items()}}
            given.json.write_text(json.dumps(head, indent=1) + "\n")
    return 1 if failed else 0


def train(make: Callable[[], Model], setup: Setup) -> list[Run]:
    """Every step by each backend in turn; models are made anew with the same weights."""
    return [trainee.run for trainee in trained(make, setup)]


def trained(make: Callable[[], Model], setup: Setup, backends: Sequence[str] = (*BACKENDS, REVERSED)) -> list[Trainee]:
    """As ``train``, with the models."""
    torch._dynamo.reset()
    trainees = [Trainee(make, backend, setup) for backend in backends]
    for number in range(setup.steps):
        batch = [t.to(setup.device) for t in trainees[0].model.make_batch(setup.batch, setup.sequence, number)]
        for trainee in trainees if number % 2 == 0 else reversed(trainees):
            trainee.step(number, batch)
    return trainees


class Trainee:
    """A model with its optimizer. backend: of ``COMPILED``, "eager" or ``REVERSED``."""

    def __init__(self, make: Callable[[], Model], backend: str, setup: Setup) -> None:
        torch.manual_seed(0)
        self.setup, self.run = setup, Run(backend)
        self.model = make().to(setup.device)
        self._optimizer = OPTIMIZERS[setup.optimizer](self.model.parameters(), lr=setup.learning_rate)
        start = time.perf_counter()
        is_eager = backend in ("eager", REVERSED)
        how = {} if is_eager else COMPILED[backend]
        self._loss = self.model if is_eager else torch.compile(self.model, fullgraph=setup.fullgraph, **how)
        self.run.first_s = time.perf_counter() - start

    def step(self, number: int, batch: Iterable[Tensor]) -> None:
        """One step on a batch, with its figures."""
        if self.run.backend == REVERSED:
            batch = [t.flip(0) if t.ndim and len(t) == self.setup.batch else t for t in batch]
        launches = counters.launches
        self._optimizer.zero_grad()
        self._wait()
        held = self._start_memory()
        start = time.perf_counter()
        loss = self.differentiate(batch)
        self._optimizer.step()
        self._wait()
        seconds = time.perf_counter() - start
        if number >= self.setup.warm_up and held is not None:
            self.run.peak_bytes = max(self.run.peak_bytes, requested_bytes("peak") - held + self.own_bytes())
        self.run.losses.append(loss.item())
        self.run.launches = counters.launches - launches
        if number == 0:
            self.run.first_s += seconds
        elif number >= self.setup.warm_up:
            self.run.step_ms.append(1e3 * seconds)

    def differentiate(self, batch: Iterable[Tensor]) -> Tensor:
        """The loss of a batch, after a forward and a backward."""
        with torch.autocast(self.setup.device, torch.bfloat16):
            loss = self._loss(*batch)
        loss.backward()
        return loss

    def own_bytes(self) -> int:
        """Of parameters, buffers, and the optimizer's state."""
        state = [value for values in self._optimizer.state.values() for value in values.values()]
        tensors = [*self.model.parameters(), *self.model.buffers(), *(v for v in state if isinstance(v, Tensor))]
        return sum(tensor.nbytes for tensor in tensors)

    def _start_memory(self) -> int | None:
        """Begin to watch the most that a GPU holds; bytes that it holds now."""
        if self.setup.device != "cuda":
            return None
        torch.cuda.reset_peak_memory_stats()
        return requested_bytes("current")

    def _wait(self) -> None:
        if self.setup.device == "cuda":
            torch.cuda.synchronize()


def requested_bytes(when: Literal["current", "peak"]) -> int:
    """What tensors on a GPU have asked for. Blocks that they are given are up to a megabyte larger, by what other
    models of the process left."""
    return torch.cuda.memory_stats()[f"requested_bytes.all.{when}"]


def comparison_of(runs: list[Run], least: float = LEAST) -> Comparison:
    """The curves beside eager's. least: nats that are always allowed."""
    curves = {run.backend: run.losses for run in runs}
    differences = {b: largest_difference(curves[b], curves["eager"]) for b in curves if b != "eager"}
    noise = [gap for b, gap in differences.items() if b != "weft" and math.isfinite(gap)]
    return Comparison(runs, differences, max([least, *(FACTOR * gap for gap in noise)]))


def largest_difference(one: Sequence[float], other: Sequence[float]) -> float:
    """Of two curves, in nats; infinite where either is not a number."""
    gaps = [abs(a - b) for a, b in zip(one, other, strict=True)]
    return max(gap if math.isfinite(gap) else math.inf for gap in gaps)


def show(name: str, found: Comparison) -> bool:
    """Print times, losses and the verdict; whether it is a bad one."""
    console, table = Console(), Table(title=name)
    headings = ("backend", "median step", "first step", "first loss", "last loss", "kernels of weft")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "backend" else "right")
    for run in found.runs:
        times = (f"{run.median_ms:.1f} ms", f"{run.first_s:.1f} s")
        table.add_row(run.backend, *times, f"{run.losses[0]:.4f}", f"{run.losses[-1]:.4f}", str(run.launches))
    console.print(table)
    mine, others = found.differences["weft"], {b: gap for b, gap in found.differences.items() if b != "weft"}
    verdict = "agree with" if found.agrees else "DIFFER from"
    text = f"weft's losses {verdict} eager's: by {mine:.2g} at most, allowed {found.tolerance:.2g}; those of"
    console.print(f"{text} {', '.join(f'{b} by {gap:.2g}' for b, gap in others.items())}", highlight=False)
    (launches,) = (run.launches for run in found.runs if run.backend == "weft")
    if not launches:
        console.print("weft launched no kernels", highlight=False)
    return not found.agrees or not launches


if __name__ == "__main__":
    raise SystemExit(main())
