"""Compile time of models: ``python -m tools.compile_time`` compares weft with TorchInductor.

Each run is a process of its own, one at a time, that compiles the forward and the backward and runs them once: cold
with empty cache folders of weft, TorchInductor and Triton, warm with those of the cold run before it. Backends are
interleaved in pairs, and every second pair begins with the other one; the bars are for the median of the pairs' ratios.
``--without cuda`` compares weft with itself in processes that find no package of this name, so that its kernels are
those of other backends.
``--json FILE`` is written anew after each pair, with versions and the machine. The exit code is 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

INDUCTOR, WEFT, WITHOUT = "inductor", "weft", "weft without "
NAMES = {INDUCTOR: "TorchInductor"}
"""Of backends in what is printed, where these are not as they are called."""
BARS = {"cold": 1.1, "warm": 1.05}
SHAPES = {"cpu": (2, 64), "cuda": (24, 2048)}
"""Batch and sequence: on a CPU as few as there can be, on a GPU those of training."""
Seconds = dict[str, dict[str, list[float]]]
"""By state of the caches and backend, one a pair."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and compare with the bars."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.one is not None:
        print(compile_once(given.one, given.model[0], given.device, given.blocks))
        return 0
    from tools.arguments import require_gpu  # a process that compiles once imports nothing before its clock runs

    require_gpu(parser, given.device)
    missed: list[str] = []
    found: dict[str, Seconds] = {}
    states = [state for state in BARS if state == "cold" or not given.cold]
    other = INDUCTOR if given.without is None else WITHOUT + given.without
    for model in given.model:
        found[model] = {state: {each: [] for each in (other, WEFT)} for state in states}
        for pair in track(range(given.runs), f"compiling {model}", console=Console(stderr=True), transient=True):
            measure_pair(found[model], pair, model, given.device, given.blocks)
            if given.json is not None:
                given.json.write_text(json.dumps(record(found, given, sys.argv[1:]), indent=1) + "\n")
        missed += report(found[model], f"{model} on {given.device}")
    return 1 if missed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.compile_time", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="pairs of runs")
    parser.add_argument("--model", nargs="+", default=["residual_mix"], help="models of weft.bench.models")
    parser.add_argument("--device", choices=list(SHAPES), default="cpu")
    parser.add_argument("--blocks", type=int, help="of the model; by default as many as the full-size workload has")
    parser.add_argument("--cold", action="store_true", help="no runs with warm caches")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--without", metavar="PACKAGE", help="beside weft without it, in place of TorchInductor")
    parser.add_argument("--one", choices=(INDUCTOR, WEFT), help="compile once in this process and print the seconds")
    return parser


def measure_pair(seconds: Seconds, pair: int, model: str, device: str, blocks: int | None) -> None:
    """A cold and a warm run of each backend."""
    backends = list(seconds["cold"])
    for backend in backends if pair % 2 == 0 else reversed(backends):
        with tempfile.TemporaryDirectory(prefix="weft-compile-") as folder:
            for state in seconds:
                seconds[state][backend].append(_run(backend, model, device, blocks, folder))


def _run(backend: str, model: str, device: str, blocks: int | None, folder: str) -> float:
    """Seconds of one run in a new process with its caches in ``folder``."""
    caches = {
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
        "TRITON_CACHE_DIR": f"{folder}/triton",
        "WEFT_CACHE_DIR": f"{folder}/weft",
    }
    name, _, hidden = backend.partition(" without ")
    command = [sys.executable, "-m", "tools.compile_time", "--one", name, "--model", model, "--device", device]
    command += [] if blocks is None else ["--blocks", str(blocks)]
    if hidden:  # an empty package comes first, in this process and in those that it starts
        empty = Path(folder, "hidden", hidden, "__init__.py")
        empty.parent.mkdir(parents=True, exist_ok=True)
        empty.touch()
        path = [str(empty.parent.parent), os.getcwd(), os.environ.get("PYTHONPATH", "")]
        caches["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    done = subprocess.run(command, env=os.environ | caches, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return float(done.stdout.split()[-1])


def compile_once(backend: str, model_name: str, device: str = "cpu", blocks: int | None = None) -> float:
    """Seconds from torch.compile to the end of the first forward and backward."""
    import torch

    from weft.bench.models import MODELS

    model = MODELS[model_name](**({} if blocks is None else {"blocks": blocks})).to(device)
    batch = [t.to(device) for t in model.make_batch(*SHAPES[device], 0)]
    _wait(device)
    start = time.perf_counter()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    with torch.autocast(device, torch.bfloat16):
        loss = compiled(*batch)
    loss.backward()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: str) -> None:
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


def ratios(by_backend: dict[str, list[float]]) -> list[float]:
    """weft's time over the other one's, pair by pair."""
    others = next(samples for backend, samples in by_backend.items() if backend != WEFT)
    return [mine / other for mine, other in zip(by_backend[WEFT], others, strict=True)]


def record(found: dict[str, Seconds], given: argparse.Namespace, arguments: Sequence[str]) -> dict[str, Any]:
    """All figures, with what they are of."""
    from weft.bench.machine import machine, versions
    from weft.options import Options

    shown = [given.json.name if word == str(given.json) else word for word in arguments]
    return {
        "command": f"python -m tools.compile_time {shlex.join(shown)}",
        "machine": machine(given.device),
        "versions": versions(Options.read()),
        "batch": list(SHAPES[given.device]),
        "seconds": found,
        "ratios": {model: {state: ratios(by) for state, by in seconds.items()} for model, seconds in found.items()},
    }


def report(seconds: Seconds, title: str = "compile time") -> list[str]:
    """Print medians and bars; returns the bars that were missed."""
    table = Table(title=f"{title}, seconds")
    for heading in ("caches", "backend", "median", "least", "most"):
        table.add_column(heading)
    missed: list[str] = []
    lines: list[str] = []
    for state, by_backend in seconds.items():
        for backend, samples in by_backend.items():
            figures = (statistics.median(samples), min(samples), max(samples))
            table.add_row(state, backend, *(f"{figure:.2f}" for figure in figures))
        pairs = ratios(by_backend)
        ratio, span = statistics.median(pairs), f"{min(pairs):.3f} to {max(pairs):.3f}"
        other = next(NAMES.get(backend, backend) for backend in by_backend if backend != WEFT)
        lines.append(f"{state}: weft takes {ratio:.3f}x {other}'s time (pairs {span}), bar {BARS[state]}")
        missed += [lines[-1]] if ratio > BARS[state] else []
    console = Console()
    console.print(table)
    for line in lines:
        console.print(line, highlight=False)
    return missed


if __name__ == "__main__":
    raise SystemExit(main())
