"""Compile time of the residual-mix model: ``python -m weft.bench.compile_time`` compares weft with TorchInductor.

Each run is a process of its own that compiles the forward and the backward on a small batch and runs them once: cold
with empty cache folders, warm with those of the cold run before it. Backends are interleaved; medians are compared. The
exit code is 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

BACKENDS = ("inductor", "weft")
BARS = {"cold": 1.1, "warm": 1.05}
BATCH, SEQUENCE = 2, 64


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and compare with the bars."""
    parser = argparse.ArgumentParser(prog="python -m weft.bench.compile_time", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="cold and warm runs of each backend")
    parser.add_argument("--model", default="residual_mix", help="a model of weft.bench.models")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--one", choices=BACKENDS, help="compile once in this process and print the seconds")
    given = parser.parse_args(arguments)
    if given.one is not None:
        print(compile_once(given.one, given.model))
        return 0
    seconds: dict[str, dict[str, list[float]]] = {state: {b: [] for b in BACKENDS} for state in BARS}
    for _ in track(range(given.runs), "compiling", console=Console(stderr=True), transient=True):
        for backend in BACKENDS:
            with tempfile.TemporaryDirectory(prefix="weft-compile-") as folder:
                for state in BARS:
                    seconds[state][backend].append(_run(backend, given.model, folder))
    missed = report(seconds)
    if given.json is not None:
        given.json.write_text(json.dumps(seconds, indent=2) + "\n")
    return 1 if missed else 0


def _run(backend: str, model: str, folder: str) -> float:
    """Seconds of one run in a new process with its caches in ``folder``."""
    caches = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "WEFT_CACHE_DIR": f"{folder}/weft"}
    command = [sys.executable, "-m", "weft.bench.compile_time", "--one", backend, "--model", model]
    done = subprocess.run(command, env=os.environ | caches, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return float(done.stdout.split()[-1])


def compile_once(backend: str, model_name: str) -> float:
    """Seconds from torch.compile to the end of the first forward and backward."""
    import torch

    from weft.bench.models import MODELS

    model = MODELS[model_name]()
    batch = model.make_batch(BATCH, SEQUENCE, 0)
    start = time.perf_counter()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    with torch.autocast("cpu", torch.bfloat16):
        loss = compiled(*batch)
    loss.backward()
    return time.perf_counter() - start


def report(seconds: dict[str, dict[str, list[float]]]) -> list[str]:
    """Print medians and bars; returns the bars that were missed."""
    table = Table(title="compile time, seconds")
    for heading in ("caches", "backend", "median", "least", "most"):
        table.add_column(heading)
    missed: list[str] = []
    lines: list[str] = []
    for state, by_backend in seconds.items():
        for backend, samples in by_backend.items():
            figures = (statistics.median(samples), min(samples), max(samples))
            table.add_row(state, backend, *(f"{figure:.2f}" for figure in figures))
        ratio = statistics.median(by_backend["weft"]) / statistics.median(by_backend["inductor"])
        lines.append(f"{state}: weft takes {ratio:.3f}x TorchInductor's time, bar {BARS[state]}")
        missed += [lines[-1]] if ratio > BARS[state] else []
    console = Console()
    console.print(table)
    for line in lines:
        console.print(line)
    return missed


if __name__ == "__main__":
    raise SystemExit(main())
