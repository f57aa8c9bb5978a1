"""Speed on the CPU: ``python -m tools.speed`` times weft against TorchInductor and eager, and a copy.

Three tables: kernels of the norm backwards on outputs that exist; the same through autograd, with fresh gradients; and
every workload as a function call. What is measured, and how, is as in ``weft bench``. ``--json FILE`` writes the
figures; the exit code is 1 if a bar is missed or a result is wrong.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from weft.bench.case import Case, traffic_bytes, workload_case
from weft.bench.correctness import tensors_of
from weft.bench.inputs import Shape
from weft.bench.machine import machine, versions
from weft.bench.measure import Protocol, measure_candidates
from weft.bench.peers import (
    eager_call,
    inductor_call,
    inductor_kernels,
    weft_call,
    weft_kernels,
)
from weft.bench.report import Benchmark, Row, print_rows
from weft.bench.workloads import WORKLOADS, Workload
from weft.integration.fuse import fuse
from weft.options import Options
from weft.runtime.timing import MIN_SAMPLE_S, Candidate

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


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and compare with the bars."""
    parser = argparse.ArgumentParser(prog="python -m tools.speed", description=__doc__)
    parser.add_argument("--table", choices=list(TABLES), nargs="+", default=list(TABLES))
    parser.add_argument("--workload", choices=list(WORKLOADS), nargs="+", help="only these")
    parser.add_argument("--rounds", type=int, default=15, help="interleaved rounds, at most 10 s a row")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args(arguments)
    options, protocol = replace(Options.read(), tuned=False), Protocol(given.rounds, MIN_SAMPLE_S, budget_s=10.0)
    where = machine("cpu")
    wanted = [(table, cell) for table in given.table for cell in _cells(table, given.workload)]
    rows: list[Row] = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("measuring", total=len(wanted))
        for table, (name, shape) in wanted:
            progress.update(task, description=f"{table}: {name} {shape[0]}x{shape[1]}")
            row = _measure(table, WORKLOADS[name], shape, options, protocol)
            if row is not None:
                rows.append(row)
            progress.advance(task)
    missed = report(rows)
    if given.json is not None:
        found = Benchmark(where, versions(options), asdict(protocol), tuple(rows))
        given.json.write_text(found.to_json() + "\n")
    return 1 if missed else 0


def _cells(table: str, only: Iterable[str] | None) -> Iterator[tuple[str, Shape]]:
    names, shapes, _ = TABLES[table]
    for name in names:
        for shape in shapes:
            if only is None or name in only:
                yield name, shape


def _measure(table: str, workload: Workload, shape: Shape, options: Options, protocol: Protocol) -> Row | None:
    """One row; None if its tensors are too few bytes to count."""
    case = workload_case(workload, shape, torch.bfloat16)
    if traffic_bytes((*case.inputs, *workload.outputs(*case.inputs))) < LEAST_BYTES:
        return None
    torch._dynamo.reset()
    return measure_candidates(*TABLES[table][2](case, options), protocol, table)


def _kernels(case: Case, options: Options) -> tuple[Case, list[Candidate]]:
    return case, [inductor_kernels(inductor_call(case)), weft_kernels(case, options)]


def _calls(case: Case, options: Options) -> tuple[Case, list[Candidate]]:
    return case, [eager_call(case), inductor_call(case), weft_call(case, options)]


def autograd_candidates(case: Case, options: Options) -> tuple[Case, list[Candidate]]:
    """The backward of a forward workload through autograd, with fresh gradients: what it computes, and eager, Inductor
    and weft. The forward before it is not timed."""
    leaves = tuple(t.detach().requires_grad_() for t in case.inputs)
    with torch.no_grad():
        gradients = tuple(torch.randn_like(t) for t in tensors_of(case.function(*case.inputs)))

    def backward(*inputs: Tensor) -> tuple[Tensor, ...]:
        own = [t.detach().requires_grad_() for t in inputs]
        with torch.enable_grad():
            results = tensors_of(case.function(*own))
        return torch.autograd.grad(results, own, [g.to(t.dtype) for g, t in zip(gradients, results, strict=True)])

    compiled = {
        "eager": case.function,
        "inductor": torch.compile(case.function, fullgraph=True, dynamic=False),
        "weft": fuse(case.function, dynamic=False, cache_dir=options.cache_dir, tuned=options.tuned),
    }
    made = [_backward(peer, function, leaves, gradients) for peer, function in compiled.items()]
    return replace(case, function=backward), made


def _backward(
    peer: str, function: Callable[..., Any], leaves: Sequence[Tensor], gradients: Sequence[Tensor]
) -> Candidate:
    outputs: list[Tensor] = []

    def forward() -> None:
        for leaf in leaves:
            leaf.grad = None
        outputs[:] = tensors_of(function(*leaves))

    def run() -> None:
        torch.autograd.backward(outputs, gradients)

    return Candidate(peer, "autograd", run, forward, outputs=lambda: [leaf.grad for leaf in leaves])


Measured = Callable[[Case, Options], tuple[Case, list[Candidate]]]
TABLES: dict[str, tuple[tuple[str, ...], tuple[Shape, ...], Measured]] = {
    "kernels": (NORM_BACKWARDS, NORM_SHAPES, _kernels),
    "autograd": (NORM_FORWARDS, NORM_SHAPES, autograd_candidates),
    "calls": (tuple(WORKLOADS), SHAPES, _calls),
}


def report(rows: Sequence[Row]) -> list[str]:
    """Print tables and bars; returns the bars that were missed, and what is wrong."""
    console = Console()
    for name in dict.fromkeys(row.table for row in rows):
        console.rule(f"{name}: microseconds, bf16")
        print_rows(console, [row for row in rows if row.table == name])
    wrong = [(row, figures) for row in rows for figures in row.candidates if figures.wrong is not None]
    missed = [f"{row.workload} {row.shape}: {figures.name} is wrong" for row, figures in wrong]
    for name, bar in (("kernels", KERNEL_BAR), ("autograd", AUTOGRAD_BAR)):
        over_inductor = (_ratios(row).get("inductor") for row in rows if row.table == name)
        if speedups := [found for found in over_inductor if found is not None]:
            mean = statistics.geometric_mean(speedups)
            line = f"{name}: {mean:.2f}x of TorchInductor in geometric mean, bar {bar}"
            console.print(line)
            missed += [line] if mean < bar else []
    for row in rows:
        fastest = min(_ratios(row).values(), default=1.0)
        if row.table == "calls" and fastest * SLOWER_BAR < 1:
            line = f"{row.workload} {row.shape}: {1 / fastest:.2f}x the fastest peer's time"
            console.print(line)
            missed.append(line)
    return missed


def _ratios(row: Row) -> dict[str, float]:
    """Times of the peers over weft's."""
    peers = [figures for figures in row.candidates if figures.peer not in ("weft", "copy")]
    return {figures.peer: figures.to_weft.median for figures in peers if figures.to_weft is not None}


if __name__ == "__main__":
    raise SystemExit(main())
