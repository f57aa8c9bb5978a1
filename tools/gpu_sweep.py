"""Candidate schedules of kernels at shapes drawn at random, timed: ``python -m tools.gpu_sweep --seed N --csv
FILE``.

For each cell, a workload at a drawn shape, every kernel that it may be made of (rows and columns together, and apart)
is rendered under some of its candidate schedules: those with the shortest predicted times, and others drawn from all,
those that are predicted not to fit included. They are compiled by several processes, run once on poisoned outputs and
compared with the reference, and timed: all candidates and a copy of the same bytes in turn, the level-two cache flushed
before each, sums of device kernel durations. The file has a line a candidate, with the registers that ptxas gave it;
what the planner's constants are fitted to is in ``plan/calibration``. ``--gates --sample 12`` takes every candidate of
as many cells that the gates draw from the seed, those with few rows left out, and prints the *regret* of each kernel:
the time of its first choice over that of the best.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tools.arguments import add_workloads, require_gpu
from tools.gpu_cells import WIDEST, Cell, cells_of_regions, drawn_cells, parts_of
from tools.gpu_drawn import FEW_COLUMNS, FEW_ROWS, drawn
from tools.processes import processes
from tools.swept import CLUSTER_COLUMNS, COLUMNS, TARGET, line
from weft.backends.binary import Job, Variant
from weft.backends.cuda import choice as clusters
from weft.backends.listed import render, supports
from weft.backends.triton.backend import SLACK
from weft.backends.triton.candidates import candidates
from weft.backends.triton.choice import gpu_schedule, ranked
from weft.backends.triton.schedule import TritonSchedule
from weft.bench.case import traffic_bytes
from weft.bench.kernel_run import KernelRun, input_tensors, output_tensors, what_is_wrong
from weft.bench.peers import copy_candidate
from weft.bench.workloads import WORKLOADS
from weft.options import Options
from weft.plan.kernel import Kernel, parse_kernel
from weft.plan.schedule import Schedule
from weft.plan.split import Split
from weft.runtime.gpu import function as gpu
from weft.runtime.gpu.builds import binaries
from weft.runtime.timing import medians_us

FIRST = 0.5
"""The part of the schedules of a kernel that are those with the shortest predicted times."""
MOST_SPILLED_ELEMENTS = 80
"""Of a thread: ptxas takes minutes to spill more."""
MOST_FEW = 0.7
"""The part of the gates' cells of few rows that is left out: there are many."""
DATA = (2**14, 2**26)
"""Elements of drawn regions, by default."""
NOT_SWEPT = ("batch_norm_forward", "row_column_amax", "modulated_layer_norm_forward", "qk_norm_backward")
"""Workloads whose kernels are as those of others."""
Part = tuple[Cell, str]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write one line a candidate."""
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_sweep", description=__doc__)
    add_workloads(parser, [name for name in WORKLOADS if name not in NOT_SWEPT])
    parser.add_argument("--seed", type=int, required=True, help="of what is drawn")
    parser.add_argument("--cells", type=int, default=100)
    parser.add_argument("--gates", action="store_true", help="cells as the gates draw them, with passes as they are")
    parser.add_argument("--sample", type=int, default=0, help="of these with many rows, with all schedules of each")
    parser.add_argument("--columns", type=int, nargs="+", help="in place of drawn shapes")
    parser.add_argument("--rows", type=int, nargs="+", help="with these columns; 2^26 elements without")
    parser.add_argument("--regions", action="store_true", help="that are drawn themselves, in place of workloads")
    parser.add_argument("--elements", type=int, nargs=2, metavar=("LEAST", "MOST"), help="of drawn shapes")
    parser.add_argument("--dtype", default="bf16", help="of these")
    parser.add_argument("--wide", type=float, default=0.3, help="the part of drawn shapes beyond 8192 columns")
    parser.add_argument("--widest", type=int, default=WIDEST, help="columns of these")
    parser.add_argument("--backend", choices=("triton", "cuda"), default="triton", help="whose schedules")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--most", type=int, default=20, help="schedules of a kernel")
    parser.add_argument("--seconds", type=float, default=1e9, help="after which no further cell is begun")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--csv", type=Path, required=True)
    given = parser.parse_args(arguments)
    if given.sample and not given.gates:
        parser.error("--sample is of the cells of --gates")
    require_gpu(parser)
    options, start, draw = Options.read(), time.perf_counter(), random.Random(given.seed)
    cells = list(cells_of(given))
    found: dict[Part, list[Kernel]] = {}
    others: dict[Part, Kernel] = {}
    for cell in cells:
        for name, split in parts_of(cell, TARGET).items():
            if given.gates and cell.rows > FEW_ROWS[-1] and name.endswith(("_rows", "_columns")):
                continue
            if given.backend == "cuda":
                schedules = drawn_of(clusters.ranked(split), given.most, draw)
            elif given.sample:
                schedules = _rendered(split, ranked(split, candidates(split)))
            else:
                schedules = drawn_schedules(split, given.most, draw)
            if schedules:
                found[cell, name] = [Kernel(split.program, s) for s in schedules]
                if given.backend == "cuda":
                    others[cell, name] = Kernel(split.program, gpu_schedule(split))
    capability = torch.cuda.get_device_capability()
    wanted = [(kernel for kernel in (*found[part], others.get(part)) if kernel is not None) for part in found]
    texts = [(str(kernel), 10 * capability[0] + capability[1]) for kernels in wanted for kernel in kernels]
    with processes(given.processes) as pool:
        made, lines = pool.map(_compile, texts, chunksize=4), list[dict[str, Any]]()
        with given.csv.open("w", newline="") as file:
            columns = CLUSTER_COLUMNS if given.backend == "cuda" else COLUMNS
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            writer.writeheader()
            for (cell, name), kernels in found.items():
                other = others.get((cell, name))
                failures = [next(made) for _ in kernels]
                failed = next(made) if other is not None else ""
                if time.perf_counter() - start > given.seconds:
                    break
                own = list(_measure(cell, name, kernels, failures, options, given.rounds, None if failed else other))
                writer.writerows(own)
                lines += own
                file.flush()
        print(f"{len(texts)} kernels in {time.perf_counter() - start:.0f} s", flush=True)
        pool.shutdown(cancel_futures=True)
    lost = regrets(lines)
    for kernel in sorted(lost, key=lambda each: -lost[each]):
        print(f"{lost[kernel] - 1:.1%} {' '.join(map(str, kernel))}")
    if lost:
        mean, most = statistics.geometric_mean(lost.values()) - 1, max(lost.values()) - 1
        print(f"first choices of {len(lost)} kernels lose {mean:.1%} in geometric mean, {most:.1%} at most")
    return 0


def cells_of(given: argparse.Namespace) -> Iterator[Cell]:
    """What the arguments ask for."""
    if given.gates:
        cells = [Cell(d.workload, d.dtype, d.rows, d.columns) for d in drawn(given.seed, given.cells)]
        few = [cell for cell in cells if cell.rows <= FEW_ROWS[-1] and cell.columns <= FEW_COLUMNS[-1]]
        draw = random.Random(given.seed)
        left_out = set(few if given.sample else draw.sample(few, round(MOST_FEW * len(few))))
        kept = [cell for cell in cells if cell not in left_out and cell.workload in given.workload]
        yield from draw.sample(kept, given.sample) if given.sample else kept
    elif given.regions:
        yield from cells_of_regions(given.seed, given.cells, given.elements or DATA)
    elif not given.columns:
        yield from drawn_cells(given.seed, given.workload, given.cells, given.elements, given.wide, given.widest)
    else:
        for name, columns in product(given.workload, given.columns):
            for rows in given.rows or [2**26 // columns]:
                yield Cell(name, given.dtype, rows, columns)


def drawn_schedules(split: Split, most: int, draw: random.Random) -> list[TritonSchedule]:
    """Schedules of a kernel, the one that is predicted to be the best first."""
    first = _rendered(split, ranked(split, candidates(split)))
    count = max(1, round(FIRST * most))
    others = _rendered(split, dict.fromkeys((*first[count:], *candidates(split, SLACK))))
    others = [s for s in others if s.elements <= MOST_SPILLED_ELEMENTS]
    return list(dict.fromkeys((*first[:count], *draw.sample(others, min(len(others), most - count)))))


def drawn_of(ranked: Sequence[Schedule], most: int, draw: random.Random) -> list[Schedule]:
    """So many of some schedules, that which is predicted to be the best first; half of them drawn."""
    count = max(1, round(FIRST * most))
    return [*ranked[:count], *draw.sample(ranked[count:], max(0, min(len(ranked), most) - count))]


def _rendered(split: Split, schedules: Iterable[TritonSchedule]) -> list[TritonSchedule]:
    return [s for s in schedules if supports(Kernel(split.program, s)) is None]


def regrets(lines: Iterable[Mapping[str, Any]]) -> dict[tuple[Any, ...], float]:
    """Of each kernel the time of its first schedule over that of the best. lines: as the file has them; those without a
    time, and wrong ones, are left out, and kernels whose first schedule is one of these."""
    of: dict[tuple[Any, ...], dict[int, float]] = {}
    for each in lines:
        if each.get("us") and not each.get("wrong"):
            kernel = tuple(each[key] for key in ("workload", "dtype", "rows", "columns", "part"))
            of.setdefault(kernel, {})[int(each["place"])] = float(each["us"])
    return {kernel: times[0] / min(times.values()) for kernel, times in of.items() if 0 in times}


def _compile(job: tuple[str, int]) -> str:
    """Into the cache; why not, if that fails."""
    text, arch = job
    kernel = parse_kernel(text)
    try:
        found = Job(kernel, render(kernel), Variant.expected(kernel, {}), arch)
        binaries(found, Options.read())
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
    return ""


def _measure(
    cell: Cell,
    name: str,
    kernels: Sequence[Kernel],
    failures: Sequence[str],
    options: Options,
    rounds: int,
    other: Kernel | None = None,
) -> Iterator[dict[str, Any]]:
    """Lines of one kernel's schedules. other: what another backend makes of it, timed beside them."""
    program, device = kernels[0].program, torch.device("cuda")
    inputs, outputs = input_tensors(program, (), device, positive=True), output_tensors(program, (), device)
    expected, capability = list[Tensor](), torch.cuda.get_device_capability()
    runs: list[tuple[KernelRun, dict[str, Any]]] = []
    for place, (kernel, failure) in enumerate(zip(kernels, failures, strict=True)):
        row = line(cell, name, place, kernel.schedule)
        refusal = supports(kernel)
        if failure or refusal is not None:
            yield row | {"failure": failure or (refusal and refusal.rule)}
            continue
        try:
            run = KernelRun(kernel, inputs, outputs, (), options)
            binaries = run.function.binaries(Variant.expected(kernel, {}), gpu.architecture_of(device))
            usage = binaries[render(kernel).entry].usage
            row["arch"] = 10 * capability[0] + capability[1]
            row |= {key: getattr(usage, key) for key in ("registers", "spill_bytes", "shared_bytes")}
            run.run_poisoned()
        except Exception as error:
            yield row | {"failure": f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"}
            continue
        row["wrong"] = what_is_wrong(program, inputs, outputs, (), expected)
        expected = expected or [t.clone() for t in outputs]
        runs.append((run, row))
    copied = copy_candidate(traffic_bytes((*inputs, *outputs)), device)
    beside = [] if other is None else [KernelRun(other, inputs, outputs, (), options)]
    times = medians_us([copied.run, *(run for run, _ in runs), *beside], rounds, device)
    known = {} if other is None else {"other_us": round(times[-1], 2)}
    for (_, row), own in zip(runs, times[1:], strict=False):
        yield row | {"us": round(own, 2), "copy_us": round(times[0], 2)} | known
    best = min(range(len(runs)), key=lambda i: times[1 + i], default=None)
    if best is not None:
        chosen, least = times[1], times[1 + best]
        wrong = sum(bool(row["wrong"]) for _, row in runs)
        beside_us = f", {times[-1]:.1f} of another backend" if beside else ""
        print(
            f"{cell} {name}: {chosen:.1f} us chosen, {least:.1f} best of {len(runs)}, copy {times[0]:.1f}{beside_us}"
            f", {wrong} wrong; {runs[best][0].kernel.schedule}",
            flush=True,
        )


if __name__ == "__main__":
    raise SystemExit(main())
