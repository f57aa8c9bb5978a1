"""What ptxas gives kernels under their candidate schedules: ``python -m weft.bench.ptxas_sweep --csv FILE``; no GPU.

For each workload, dtype and width, every kernel that the planner makes, and the pass that it came from, is rendered
under some of its candidate schedules, those that do not fit included, and compiled by several processes; so is what the
planner chooses for an H200 and for a GB200 (``--chosen``). ``weft/plan/calibration/ptxas_sm90.csv`` has 3121 kernels of
such sweeps, about a quarter of an hour of two cores: 669 that were chosen at twelve widths in bf16, 971 that keep rows
as they were loaded (``--keeps tiles``), 468 whose programs have all of few rows (``--rows 64 --scheme COLUMN``, and
128), and 1013 others, drawn or compiled for an H200. ``weft/bench/ptxas_fit.py`` finds the weights of
``weft/plan/resources.py`` from it.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from functools import cache
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, get_args

import torch
from rich.progress import track
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from weft.bench.arguments import add_workloads
from weft.bench.workloads import WORKLOADS
from weft.capture.regions import capture
from weft.capture.trace import trace
from weft.errors import BuildError
from weft.ir.online import online
from weft.ir.program import Program
from weft.ir.simplify import simplify
from weft.ir.structure import analyse, split_straddling
from weft.plan.demand import Demand, features
from weft.plan.gpu_candidates import can_keep_tiles, candidates
from weft.plan.kernel import Keeps, Kernel, Plan, Schedule, Scheme, parse_kernel
from weft.plan.partition import cut
from weft.plan.planner import plan, plan_split
from weft.plan.resources import shared_bytes
from weft.plan.split import Split
from weft.render import triton
from weft.runtime import triton_build
from weft.runtime.triton_build import GpuTarget, Job, Variant
from weft.target import Target

WIDTHS = (128, 256, 512, 1024, 1152, 2048, 3072, 4096, 5120, 8192, 12288, 16384, 32768, 50257, 65536)
TYPES = {"bf16": torch.bfloat16, "f32": torch.float32, "f16": torch.float16}
SHARES = {"bf16": 4, "f32": 1, "f16": 1, "bf16, rows at run time": 1}
"""Schedules of a kernel that are compiled, by type of the data."""
ARCHITECTURES = (90, 90, 90, 90, 90, 90, 100)
"""To draw from: one kernel in seven is compiled for Blackwell."""
PLANNED = {"h200": 90, "gb200": 100}
"""Targets that are planned for with their architectures."""
CHOSEN_ELEMENTS = (2**26, 2**25)
MOST_PER_THREAD = 64
"""Elements of a row tile in a thread: more takes ptxas minutes to spill."""
ELEMENTS, LEAST_ROWS, MOST_ROWS = 2**26, 4096, 65536
"""Of the data: programs have many row tiles each."""
NARROWEST_LOOP = 4096
SLACK = 3.0
COLUMNS = (
    *(
        "workload",
        "dtype",
        "columns",
        "kernel",
        "chosen",
        "arch",
        "scheme",
        "rows_per_tile",
        "piece_widths",
        "warps",
        "stages",
        "chunks",
        "keeps",
    ),
    *("predicted_shared_bytes", "registers", "spill_bytes", "shared_bytes", "stack_bytes", "finish_registers"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile and write one line a kernel."""
    parser = argparse.ArgumentParser(prog="python -m weft.bench.ptxas_sweep", description=__doc__)
    parser.add_argument("--csv", type=Path, required=True)
    add_workloads(parser, list(WORKLOADS))
    parser.add_argument("--columns", type=int, nargs="+", default=list(WIDTHS))
    parser.add_argument("--dtype", choices=list(SHARES), nargs="+", default=list(SHARES))
    parser.add_argument("--chosen", action="store_true", help="what the planner chooses, not what it could")
    parser.add_argument(
        "--keeps", choices=get_args(Keeps), default="values", help="while rows are reduced; of drawn ones"
    )
    parser.add_argument(
        "--arch", type=int, choices=(90, 100), nargs="+", default=list(ARCHITECTURES), help="to draw from"
    )
    parser.add_argument("--rows", type=int, help="of the data, a multiple of 64; of drawn ones")
    parser.add_argument("--scheme", choices=get_args(Scheme), nargs="+", default=get_args(Scheme), help="of drawn ones")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    draw = random.Random(given.seed)
    jobs = [
        (name, dtype, columns, at, int(given.chosen), str(kernel), arch)
        for columns in given.columns
        for dtype in given.dtype
        for name in given.workload
        for at, kernel, arch in (
            _chosen(name, dtype, columns)
            if given.chosen
            else _drawn(kernels_of(name, dtype, columns, rows=given.rows), dtype, given, draw)
        )
    ]
    draw.shuffle(jobs)
    with ProcessPoolExecutor(given.processes, mp_context=get_context("spawn")) as pool, given.csv.open("w") as file:
        found = pool.map(used, [text for *_, text, _ in jobs], [arch for *_, arch in jobs], chunksize=2)
        writer: Any = None
        for (*labels, text, arch), usage in track(zip(jobs, found, strict=True), "compiling", total=len(jobs)):
            if isinstance(usage, str):
                print(f"{labels}: {usage}")
                continue
            row = line(labels, parse_kernel(text), arch, usage)
            if writer is None:
                writer = csv.DictWriter(file, list(row), lineterminator="\n")
                writer.writeheader()
            writer.writerow(row)
    return 0


def used(text: str, arch: int) -> list[dict[str, int]] | str:
    """What each function of a kernel uses; why it was not compiled."""
    kernel = parse_kernel(text)
    job = Job(kernel, triton.render(kernel), Variant.expected(kernel, {}), GpuTarget(arch))
    try:
        made = triton_build.read_artefact(triton_build.compile_artefact(job))
    except BuildError as error:
        return str(error)[:200]
    return [asdict(binary.usage) for binary in made.values()]


def line(labels: Sequence[Any], kernel: Kernel, arch: int, usage: Sequence[dict[str, int]]) -> dict[str, Any]:
    """labels: workload, dtype, columns, which kernel of it and whether the planner chose the schedule. usage: of the
    first function, and of the finish."""
    schedule, demand = kernel.schedule, Demand.of(kernel.program, kernel.schedule)
    own = (schedule.scheme, schedule.rows_per_tile, "+".join(map(str, schedule.pieces)), schedule.warps)
    finish = usage[1]["registers"] if len(usage) > 1 else ""
    figures = [usage[0][key] for key in ("registers", "spill_bytes", "shared_bytes", "stack_bytes")]
    own = (*own, schedule.stages, schedule.chunks, schedule.keeps)
    values = [*labels, arch, *own, shared_bytes(demand, schedule), *figures, finish]
    counts = {f"n_{name}": f"{count:g}" for name, count in features(demand, schedule).items()}
    return dict(zip(COLUMNS, values, strict=True)) | counts


def _drawn(
    kernels: Sequence[Kernel], dtype: str, given: argparse.Namespace, draw: random.Random
) -> Iterator[tuple[int, Kernel, int]]:
    """Some schedules of each kernel, of those that the options allow."""
    for at, kernel in enumerate(kernels):
        every = schedules(kernel) if given.keeps == "values" else _with_tiles(kernel)
        found = [schedule for schedule in every if schedule.scheme in given.scheme]
        for schedule in draw.sample(found, min(SHARES[dtype], len(found))):
            yield at, Kernel(kernel.program, schedule), draw.choice(given.arch)


def _chosen(name: str, dtype: str, columns: int) -> Iterator[tuple[int, Kernel, int]]:
    """What the planner takes for two amounts of data, each kernel once."""
    seen = set[tuple[int, Schedule, int]]()
    for (target, arch), elements in product(PLANNED.items(), CHOSEN_ELEMENTS):
        for at, kernel in enumerate(chosen_kernels(name, dtype, columns, target, elements // columns)):
            key = at, replace(kernel.schedule, chunks=0), arch
            if key not in seen:
                seen.add(key)
                yield at, kernel, arch


def schedules(kernel: Kernel) -> Iterator[Schedule]:
    """Every candidate, and more that do not fit. Of those that differ in the number of chunks alone, one: it makes a
    difference only to how often ptxas unrolls the loop of the finish."""
    target, seen = Target.named("h200"), set[Schedule]()
    split = Split.of(kernel.program, kernel.schedule.rows, kernel.schedule.columns, target, {})
    wide = split.width >= NARROWEST_LOOP
    for slack in (SLACK, 0):
        for schedule in candidates(split, slack):
            alike = replace(schedule, chunks=min(schedule.chunks, target.units))
            per_thread = schedule.rows_per_tile * (sum(schedule.pieces) or 1) / (32 * schedule.warps)
            rendered = schedule.scheme != "LOOP" or (schedule.finish == "none" and wide)
            if alike not in seen and rendered and per_thread <= MOST_PER_THREAD:
                seen.add(alike)
                yield alike


def _with_tiles(kernel: Kernel) -> Iterator[Schedule]:
    """Those of one row a tile that keep it as it was loaded."""
    for schedule in schedules(kernel):
        tiles = replace(schedule, keeps="tiles")
        streamed = schedule.scheme == "STREAM" and schedule.rows_per_tile == 1
        if streamed and can_keep_tiles(Demand.of(kernel.program, tiles)):
            yield tiles


@cache
def kernels_of(
    name: str, dtype: str, columns: int, target: str = "h200", rows: int | None = None
) -> tuple[Kernel, ...]:
    """The kernels of a plan, then the passes that were taken apart."""
    program, chosen = _planned(name, dtype, columns, target, rows)
    schedule = chosen.kernels[0].schedule
    rows_of, columns_of = schedule.rows, schedule.columns
    split = online(split_straddling(program, rows_of, columns_of), rows_of, columns_of)
    kernels = {str(k.program): k for k in chosen.kernels}
    for part in cut(split, analyse(split, rows_of), rows_of, {}).programs:
        kernels.setdefault(str(part), Kernel(part, schedule))
    return tuple(kernels.values())


def chosen_kernels(
    name: str, dtype: str, columns: int, target: str = "h200", rows: int | None = None
) -> tuple[Kernel, ...]:
    """The kernels of a plan."""
    return _planned(name, dtype, columns, target, rows)[1].kernels


@cache
def _planned(name: str, dtype: str, columns: int, target: str, rows: int | None) -> tuple[Program, Plan]:
    """A workload's program and its plan, worthwhile or not. rows: a multiple of 64 no larger than this."""
    rows = (rows or max(LEAST_ROWS, min(MOST_ROWS, ELEMENTS // columns))) // 64 * 64
    inputs = _untouched(name, (rows, columns), TYPES[dtype.split(",")[0]])
    graph = trace(WORKLOADS[name].fn, inputs, dynamic_rows="run time" in dtype).graph
    (region,) = capture(graph, name).regions
    program = simplify(region.program)
    chosen = plan(program, Target.named(target))
    if not isinstance(chosen, Plan):
        rest = tuple(d.name for d in program.dims if d.name != "n")
        chosen = plan_split(program, rest, ("n",), Target.named(target), {})
    assert isinstance(chosen, Plan)
    return program, chosen


def _untouched(name: str, shape: tuple[int, int], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Inputs without contents, whose memory is never used."""
    with FakeTensorMode():
        fakes = WORKLOADS[name].make_inputs(shape, dtype, "cpu")
    return tuple(torch.empty_strided(f.shape, f.stride(), dtype=f.dtype) for f in fakes)


if __name__ == "__main__":
    raise SystemExit(main())
