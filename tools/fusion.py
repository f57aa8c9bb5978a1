"""Whether the right values share a kernel, measured on a GPU: ``python -m tools.fusion --json FILE``.

``over``: backwards of a block with a residual mix that read 6 to 19 buffers, weft beside TorchInductor with kernels of
both directions, without them, and with its pipelined ones. ``under``: regions drawn from a seed, the chosen plan beside
the other partitions of their outputs and TorchInductor. ``sweep``: two workloads from 256 to 16384 rows and columns, in
one kernel and with rows and columns apart. Several processes compile; one at a time has the GPU, and all of a cell run
in turn, the level-two cache flushed before each. Figures are medians over rounds of sums of kernel durations; results
are compared with float64. The exit status is 1 if a bar is missed or a result is wrong. ``--offline`` needs no GPU: it
compiles the kernels of all plans for an H200, and says what spills.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from rich.console import Console
from rich.table import Table
from torch import Tensor

from tools.arguments import require_gpu
from tools.fusion_cells import SEED, Cell, case_of, cells_of, compared, plans_of, program_of
from tools.processes import processes
from tools.ptxas_sweep import used
from weft.backends.listed import render
from weft.bench.correctness import check_candidate, poison_of, reference
from weft.bench.gpu_peers import inductor_pipelined
from weft.bench.kernel_run import KernelRun, input_tensors, what_is_wrong
from weft.bench.machine import machine, versions
from weft.bench.peers import inductor_call, weft_call
from weft.bench.reason import attempt
from weft.ir.interpret import sizes_of
from weft.ir.program import Program
from weft.options import MixedOrder, Options
from weft.plan.kernel import Plan
from weft.plan.planner import plan
from weft.runtime import calibration, launch
from weft.runtime.counters import MIXED_ORDER
from weft.runtime.layout import allocate
from weft.runtime.timing import Candidate, medians_us
from weft.target import Target

PARTS = ("over", "under", "sweep")
BARS = {"over": 1.02, "under": 1.05, "sweep": 1.03}
"""What is chosen may take so many times as long as the best that was measured beside it."""
MAX_READS = 10
"""TorchInductor's default."""
SWITCH = "triton.mix_order_reduction"
DEVICE = "cuda"


@dataclass(frozen=True)
class Result:
    """Figures of a cell. us: by what was measured, the chosen one first; predicted_us: of plans. wrong: why a result is
    wrong, or what failed. refused: kernels of both directions that ``max_reads`` of ``MAX_READS`` refuses."""

    cell: Cell
    us: dict[str, float] = field(default_factory=dict[str, float])
    predicted_us: dict[str, float] = field(default_factory=dict[str, float])
    wrong: str = ""
    refused: int = 0

    @property
    def chosen(self) -> str:
        return next(iter(self.us))

    @property
    def best(self) -> str:
        """The best beside which the chosen one is judged; weft with a limit is measured, but judges nothing."""
        others = [name for name in self.us if name not in (self.chosen, "weft_limited")]
        return min(others or [self.chosen], key=lambda name: self.us[name])

    @property
    def ratio(self) -> float:
        """Time of the chosen one over that of the best other."""
        return self.us[self.chosen] / self.us[self.best]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write, and compare with the bars."""
    parser = argparse.ArgumentParser(prog="python -m tools.fusion", description=__doc__)
    parser.add_argument("--json", type=Path, help="write what was measured so far after each cell")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--seed", type=int, default=SEED, help="of drawn regions")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1e9, help="after which no further cell is begun")
    parser.add_argument("--processes", type=int, default=min(16, os.cpu_count() or 1), help="that compile")
    parser.add_argument("--most", type=int, help="cells of a part, evenly over it")
    parser.add_argument("--offline", action="store_true", help="compile only, for an H200")
    given = parser.parse_args(arguments)
    cells = [cell for part in given.part for cell in some(cells_of(part, given.seed), given.most)]
    if given.offline:
        return offline(cells, given.processes)
    require_gpu(parser)
    # no further processes: each cell's own compiles
    options, found, ends = (
        replace(Options.read(), tuned=False, build_threads=1),
        dict[int, Result](),
        time.monotonic() + given.seconds,
    )
    head = {"command": " ".join(["python -m tools.fusion", *sys.argv[1:]])}
    head |= {"machine": machine(DEVICE), "versions": versions(options)}
    one = partial(measured, options=options, rounds=given.rounds, lock=tempfile.mkdtemp(), ends=ends)
    with processes(given.processes) as pool:
        futures = {pool.submit(one, cell): place for place, cell in enumerate(cells)}
        for done in as_completed(futures):
            if (result := done.result()) is not None:
                found[futures[done]] = result
                print(line(result), flush=True)
            if given.json is not None:
                own = [asdict(found[at]) for at in sorted(found)]
                record = head | {"cells": own, "missed": missed([found[at] for at in sorted(found)])}
                given.json.write_text(json.dumps(record, indent=1) + "\n")
    results, console = [found[at] for at in sorted(found)], Console()
    for part in given.part:
        console.print(table(part, [result for result in results if result.cell.part == part]))
    for text in missed(results):
        console.print(f"missed: {text}", highlight=False, markup=False)
    return 1 if missed(results) else 0


def some(cells: list[Cell], most: int | None) -> list[Cell]:
    """So many of them at the most, evenly over all."""
    return cells if most is None or most >= len(cells) else [cells[at * len(cells) // most] for at in range(most)]


def measured(cell: Cell, options: Options, rounds: int, lock: str, ends: float) -> Result | None:
    """The figures of a cell; a failure is one of them. One process compiles beside others, and has the GPU for itself
    when it runs anything. lock: a folder."""
    if time.monotonic() > ends:
        return None
    torch._dynamo.reset()
    try:
        program = program_of(cell)
        measure = over if cell.part == "over" else partitions
        return measure(cell, program, options, rounds, FileLock(str(Path(lock) / "gpu")))
    except Exception as error:  # the other cells are measured all the same
        return Result(cell, wrong=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
    finally:
        gc.collect()
        torch.cuda.empty_cache()


def over(cell: Cell, program: Program, options: Options, rounds: int, alone: FileLock) -> Result:
    """Calls of weft, of weft with ``MAX_READS``, and of TorchInductor in its ways to do it."""
    case = case_of(cell, DEVICE)
    target = calibration.at_hand(case.device, options)
    limited = plan(program, target, mixed_order=MixedOrder(max_reads=MAX_READS))
    rules = [cut.rule for cut in limited.cuts] if isinstance(limited, Plan) else []
    refused = sum(rule in MIXED_ORDER for rule in rules)
    makers: dict[str, Callable[[], Any]] = {
        "weft": lambda: weft_call(case, options),
        "weft_limited": lambda: weft_call(case, replace(options, max_reads=MAX_READS)),
        "inductor_mixed": lambda: inductor_call(case, "inductor_mixed", {SWITCH: True}),
        "inductor_apart": lambda: inductor_call(case, "inductor_apart", {SWITCH: False}),
        "inductor_pipelined": lambda: inductor_pipelined(case),
    }
    made = {name: found for name, make in makers.items() if isinstance(found := attempt(name, make), Candidate)}
    if "weft" not in made or len(made) < 3:
        return Result(cell, wrong=f"only {', '.join(made) or 'nothing'} could be compiled", refused=refused)
    with alone:
        expected = reference(case.function, case.inputs)
        for name in ("weft", "weft_limited"):
            reason = check_candidate(made[name], case.inputs, expected) if name in made else None
            if reason is not None:
                return Result(cell, wrong=f"{reason.message} (have {reason.have}, limit {reason.limit})")
        del expected
        times = medians_us([each.run for each in made.values()], rounds, case.device)
    us = {name: round(time, 2) for name, time in zip(made, times, strict=True)}
    return Result(cell, us, refused=refused)


def partitions(cell: Cell, program: Program, options: Options, rounds: int, alone: FileLock) -> Result:
    """Kernels of plans, and for a drawn region a call of TorchInductor."""
    device = torch.device(DEVICE)
    plans = compared(cell, plans_of(program, calibration.at_hand(device, options)))
    kernels = [kernel for each in plans.values() for kernel in each.kernels]
    launch.prepare(kernels, list(map(render, kernels)), options)  # compiles, for the cache
    others = {"inductor": inductor_call(case_of(cell, DEVICE)).run} if cell.part == "under" else {}
    with alone:
        given, expected = input_tensors(program, (), device), list[Tensor]()
        made = {name: PlanRun(each, program, given, options) for name, each in plans.items()}
        runs: dict[str, Callable[[], Any]] = made | others
        for name, run in made.items():
            run.poison()
            run()
            torch.cuda.synchronize(device)
            if text := what_is_wrong(program, given, run.outputs, (), expected):
                return Result(cell, wrong=f"{name}: {text}")
            expected = expected or [tensor.clone() for tensor in run.outputs]
        times = medians_us([*runs.values()], rounds, device)
    us = {name: round(time, 2) for name, time in zip(runs, times, strict=True)}
    return Result(cell, us, {name: round(each.predicted_us, 2) for name, each in plans.items()})


class PlanRun:
    """The kernels of a plan on tensors of its own. inputs: bound to those of the program."""

    def __init__(self, chosen: Plan, program: Program, inputs: Sequence[Tensor], options: Options) -> None:
        tensors = {b.name: t for b, t in zip(program.inputs, inputs, strict=True)}
        sizes, self._kernels = sizes_of(program, ()), list[KernelRun]()
        for kernel in chosen.kernels:
            written = [allocate(o.buffer, sizes, inputs[0].device) for o in kernel.program.outputs]
            own = [tensors[b.name] for b in kernel.program.inputs]
            tensors |= {o.buffer.name: t for o, t in zip(kernel.program.outputs, written, strict=True)}
            self._kernels.append(KernelRun(kernel, own, written, (), options))
        self.outputs = [tensors[o.buffer.name] for o in program.outputs]

    def poison(self) -> None:
        """Fill all that is written with what no result has."""
        for tensor in (t for kernel in self._kernels for t in kernel.outputs):
            tensor.fill_(poison_of(tensor.dtype))

    def __call__(self) -> None:
        for kernel in self._kernels:
            kernel()


def offline(cells: Sequence[Cell], count: int) -> int:
    """Compiles the kernels of all plans that would be measured; the exit status is 1 if one cannot be."""
    target, failed, kernels = Target.named("h200"), 0, dict[str, str]()
    for cell in cells:
        found = plans_of(program_of(cell), target)
        plans = dict([*found.items()][:1]) if cell.part == "over" else compared(cell, found)
        for name, each in plans.items():
            kernels |= {str(kernel): f"{cell.name} {cell.rows}x{cell.columns}, {name}" for kernel in each.kernels}
    with processes(count) as pool:
        archs = [target.architecture] * len(kernels)
        for where, usage in zip(kernels.values(), pool.map(used, kernels, archs, chunksize=2), strict=True):
            if isinstance(usage, str) or any(each["spill_bytes"] for each in usage):
                failed += isinstance(usage, str)
                print(f"{where}: {usage}", flush=True)
    print(f"{len(kernels)} kernels of {len(cells)} cells, {failed} failed")
    return 1 if failed else 0


def missed(results: Sequence[Result]) -> list[str]:
    """Bars that are missed, and wrong results."""
    found = [line(result) for result in results if result.wrong or result.ratio > BARS[result.cell.part]]
    refusals = [result.refused for result in results if result.cell.part == "over"]
    return found + ["over: nothing is refused with max_reads"] * (bool(refusals) and not any(refusals))


def line(result: Result) -> str:
    """A cell as a line of text."""
    where = f"{result.cell.part}: {result.cell.name} {result.cell.rows}x{result.cell.columns}"
    if result.wrong:
        return f"{where}: {result.wrong}"
    times = f"{result.us[result.chosen]} us, best other {result.us[result.best]} us"
    return f"{where}: {result.ratio:.3f} of the time of {result.best}; {result.chosen} {times}"


def table(part: str, results: Sequence[Result]) -> Table:
    """A line a cell, the bar in the title."""
    shown = Table("cell", "shape", "chosen", "us", "best other", "us", "ratio", title=f"{part}, bar {BARS[part]}")
    for result in results:
        shape = f"{result.cell.rows}x{result.cell.columns}"
        if result.wrong:
            shown.add_row(result.cell.name, shape, "wrong", result.wrong)
            continue
        times = [f"{result.us[name]:.2f}" for name in (result.chosen, result.best)]
        mark = f"{result.ratio:.3f}" + " missed" * (result.ratio > BARS[part])
        shown.add_row(result.cell.name, shape, result.chosen, times[0], result.best, times[1], mark)
    return shown


if __name__ == "__main__":
    raise SystemExit(main())
