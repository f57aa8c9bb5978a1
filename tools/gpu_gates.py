"""Bars for kernels on a GPU: ``python -m tools.gpu_gates`` times what the planner chose, and says what it missed.

Every cell, a workload at a width, is one call as a user makes it, compiled by weft with nothing tuned, beside
TorchInductor and a copy of the same bytes: all in turn, the level-two cache flushed before each, sums of device kernel
durations, medians over rounds. Results are compared with eager PyTorch in float64 first, as ``weft bench`` does.
``--json FILE`` writes the cells with versions and the machine; the exit code is 1 if a bar is missed or a result is
wrong. An interrupt, or a request to end, ends the run with what was measured so far, and exit code 130.

``--random SEED`` takes cells that are drawn from the seed in place of chosen ones, with bars of their own
(``gpu_drawn.py``). Several processes compile, and one at a time has the GPU for what is timed.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import shlex
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from filelock import FileLock
from rich.console import Console
from torch._inductor.utils import fresh_cache

from tools.arguments import add_workloads, require_gpu
from tools.gpu_drawn import bars_of, drawn, spread
from weft import target
from weft.bench.case import SIZES, traffic_bytes, workload_case
from weft.bench.correctness import check_candidate, reference
from weft.bench.gpu_peers import GPU_PEERS
from weft.bench.machine import machine, versions
from weft.bench.peers import copy_candidate, weft_call
from weft.bench.reason import Reason, UntimedError, attempt
from weft.bench.workloads import WORKLOADS
from weft.errors import RefusedError
from weft.ir.dtypes import NAMES, TORCH_DTYPES
from weft.options import Options
from weft.plan import gpu_candidates, gpu_schedules
from weft.plan.cost import estimates
from weft.plan.kernel import Kernel
from weft.runtime import calibration, launch, launcher
from weft.runtime.counters import counters
from weft.runtime.executable import Executable
from weft.runtime.timing import Candidate, medians_us
from weft.target import of_properties

FORWARDS = ("rms_norm_forward", "layer_norm_forward", "add_rms_norm_forward", "softmax_forward")
BACKWARDS = ("rms_norm_backward", "layer_norm_backward", "add_rms_norm_backward", "softmax_backward")
OTHERS = ("layer_norm_backward_bias", "modulated_layer_norm_backward", "thunder_layer_norm_backward")
FORWARD_COLUMNS = (256, 512, 1024, 2048, 3072, 4096, 5120, 8192, 12288, 16384)
BACKWARD_COLUMNS = (256, 512, 1024, 2048, 3072, 4096, 5120, 6144, 8192)
OTHER_COLUMNS = (512, 1024, 1152, 2048, 4096, 5120, 8192)
FORWARD_BAR, FORWARD_MEAN_BAR, BACKWARD_BAR, LAYER_NORM_BAR, OTHER_BAR = 0.92, 0.94, 0.90, 0.87, 0.84
"""Fractions of a copy of the same bytes, with 2^26 elements."""
SMALLER_BY, SMALL = 0.03, 2**25
"""How much lower these are with so many. With fewer there is none: a launch takes longer than the data."""
WIDE = ("softmax_forward", 32768, 50257)
"""Rows that are looped over: a cell with bars of its own, and none against a copy."""
WIDE_BARS = {False: 1.4, True: 1.2}
"""TorchInductor's time over weft's there, by whether the number of columns is known at run time only."""
SPEEDUP_BARS = {"inductor": 1.5, "inductor_pipelined": 1.25}
"""Of the backwards together, in geometric mean."""
OTHER_SPEEDUP_BAR = 1.5
"""Of TorchInductor's time, of each of the others, in geometric mean over widths."""
SLOWER_BAR = 1.02
"""No peer may take less than weft's time over this."""


@dataclass(frozen=True)
class Cell:
    """group: that it was drawn for, empty if it was chosen. predicted_us: of weft's kernels; spill_bytes: of a thread
    of these. launches: kernels of weft in a call; schedules: of these. us: times by candidate. untimed: why peers have
    none. wrong: why a result is wrong, or a failure. dynamic: sizes known at run time only."""

    workload: str
    rows: int
    columns: int
    dtype: str
    launches: int = 0
    us: dict[str, float] | None = None
    wrong: str = ""
    dynamic: tuple[str, ...] = ()
    schedules: tuple[str, ...] = ()
    group: str = ""
    predicted_us: float = 0.0
    spill_bytes: int = 0
    untimed: tuple[str, ...] = ()

    @property
    def is_wide(self) -> bool:
        return (self.workload, self.rows, self.columns) == WIDE

    @property
    def schemes(self) -> tuple[str, ...]:
        """Of the schedules."""
        return tuple(schedule.split()[0] for schedule in self.schedules)

    @property
    def elements(self) -> int:
        return self.rows * self.columns

    @property
    def where(self) -> str:
        """As it is called where a bar is missed."""
        if self.has_copy_bar:
            return f"{self.workload} {self.columns}{_marked(self)}"
        return f"{self.workload} {self.rows}x{self.columns}{_marked(self)}"

    @property
    def of_copy(self) -> float:
        return self.us["copy"] / self.us["weft"] if self.us else 0.0

    @property
    def has_copy_bar(self) -> bool:
        """Whether there are rows enough for so many elements, or for as many whole rows as these are."""
        return not self.group and self.rows >= SMALL // self.columns and not self.is_wide

    @property
    def speedups(self) -> dict[str, float]:
        """Times of peers over weft's."""
        us = self.us or {}
        return {peer: us[peer] / us["weft"] for peer in us if peer not in ("copy", "weft")}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and compare with the bars."""
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_gates", description=__doc__)
    add_workloads(parser, (*FORWARDS, *BACKWARDS, *OTHERS))
    parser.add_argument("--columns", type=int, nargs="+", help="instead of those of each table")
    parser.add_argument("--elements", type=int, default=2**26, help="rows times columns")
    parser.add_argument("--rows", type=int, nargs="+", help="instead of elements over columns")
    parser.add_argument("--dynamic", nargs="+", choices=SIZES, default=[], help="sizes known at run time only")
    parser.add_argument(
        "--loop", action="store_true", help="loop over the columns of every row, whatever fits registers"
    )
    parser.add_argument("--unknown", action="store_true", help="as if no constants were fitted on this model of GPU")
    parser.add_argument("--dtype", choices=["bf16", "f16", "f32"], default="bf16")
    parser.add_argument("--against", nargs="*", choices=list(GPU_PEERS), default=["inductor", "inductor_pipelined"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--random", type=int, metavar="SEED", help="cells that are drawn, in place of chosen ones")
    parser.add_argument("--widths", type=int, default=40, help="of those; of some groups fewer")
    parser.add_argument("--group", nargs="+", default=[], help="of drawn cells, parts of their names")
    parser.add_argument("--processes", type=int, default=8, help="that compile")
    parser.add_argument("--seconds", type=float, default=1e9, help="after which no further cell is begun")
    parser.add_argument("--json", type=Path, help="write the cells to this file")
    given = parser.parse_args(arguments)
    require_gpu(parser)
    options = replace(Options.read(), tuned=False)
    cells, interrupted = list[Cell](), False
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for cell in measured(given, options):
            cells.append(cell)
            print(line(cell), flush=True)
    except KeyboardInterrupt:
        interrupted = True
        print(f"interrupted: {len(cells)} cells were measured", flush=True)
    missed = report(cells)
    if given.json is not None:
        shown = [given.json.name if word == str(given.json) else word for word in sys.argv[1:]]
        command = f"python -m tools.gpu_gates {shlex.join(shown)}"
        head: dict[str, Any] = {"command": command, "machine": machine("cuda"), "versions": versions(options)}
        head |= {"model_misses": counters.model_misses, "interrupted": interrupted}
        head |= {"cells": [asdict(cell) for cell in cells], "missed": missed}
        given.json.write_text(json.dumps(head, indent=1) + "\n")
    return 130 if interrupted else 1 if missed else 0


def cells_of(given: argparse.Namespace) -> Iterator[Cell]:
    """What the arguments ask for, not yet measured."""
    if given.random is not None:
        for each in drawn(given.random, given.widths, given.group):
            yield Cell(each.workload, each.rows, each.columns, each.dtype, group=each.group)
        return
    for name in given.workload:
        for columns in given.columns or columns_of(name):
            for rows in given.rows or [given.elements // columns]:
                yield Cell(name, rows, columns, NAMES[TORCH_DTYPES[given.dtype]], dynamic=tuple(given.dynamic))


def columns_of(name: str) -> tuple[int, ...]:
    return FORWARD_COLUMNS if name in FORWARDS else BACKWARD_COLUMNS if name in BACKWARDS else OTHER_COLUMNS


def measured(given: argparse.Namespace, options: Options) -> Iterator[Cell]:
    """The cells with their figures, by several processes if there may be."""
    if given.loop or given.processes == 1:
        for cell in cells_of(given):
            with looped() if given.loop else nullcontext(), unknown() if given.unknown else nullcontext():
                yield measure(cell, given.against, options, given.rounds)
        return
    cells, lock = list(cells_of(given)), str(Path(tempfile.mkdtemp()) / "gpu")
    ends = time.monotonic() + given.seconds
    one = partial(
        _measure_alone,
        against=given.against,
        options=options,
        rounds=given.rounds,
        lock=lock,
        ends=ends,
        is_unknown=given.unknown,
    )
    with ProcessPoolExecutor(given.processes, mp_context=get_context("spawn")) as pool:
        try:
            yield from (cell for cell in pool.map(one, cells) if cell is not None)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _measure_alone(
    cell: Cell, against: Sequence[str], options: Options, rounds: int, lock: str, ends: float, is_unknown: bool
) -> Cell | None:
    """One process compiles beside others, and has the GPU for itself when it times."""
    if time.monotonic() > ends:
        return None
    with unknown() if is_unknown else nullcontext():
        found = measure(cell, against, options, rounds, FileLock(lock))
    gc.collect()
    torch.cuda.empty_cache()
    return found


def measure(
    cell: Cell,
    against: Sequence[str],
    options: Options,
    rounds: int,
    alone: AbstractContextManager[Any] = nullcontext(),  # noqa: B008
) -> Cell:
    """The cell with its figures; a failure is one of them. alone: what the GPU is used in for more than a call."""
    torch._dynamo.reset()
    shape = (cell.rows, cell.columns)
    case = workload_case(WORKLOADS[cell.workload], shape, TORCH_DTYPES[cell.dtype], "cuda", cell.dynamic)
    try:
        mine = weft_call(case, options)
        found = {peer: attempt(peer, partial(GPU_PEERS[peer], case)) for peer in against}
        with alone:
            expected = reference(case.function, case.inputs)
            refusal = check_candidate(mine, case.inputs, expected)
            if refusal is not None:
                return replace(cell, wrong=f"{refusal.message} (have {refusal.have}, limit {refusal.limit})")
            bytes_moved = traffic_bytes((*case.inputs, *expected.eager))
            del expected
            made = {"copy": copy_candidate(bytes_moved, case.device), "weft": mine}
            made |= {peer: candidate for peer, candidate in found.items() if isinstance(candidate, Candidate)}
            times = medians_us([candidate.run for candidate in made.values()], rounds, case.device)
            torch.cuda.synchronize(case.device)
    except (RefusedError, UntimedError, RuntimeError) as error:
        return replace(cell, wrong=f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
    us = {peer: round(time, 2) for peer, time in zip(made, times, strict=True)}
    kernels = launched(mine.run)
    schedules = tuple(str(kernel.schedule) for kernel in kernels)
    machine_at_hand = calibration.at_hand(case.device, options)
    predicted_us = sum(each.predicted_us for each in estimates(kernels, machine_at_hand, {}))
    cell = replace(cell, predicted_us=round(predicted_us, 2))
    cell = replace(cell, spill_bytes=max((launch.usage(k).spill_bytes for k in kernels), default=0))
    untimed = tuple(str(reason) for reason in found.values() if isinstance(reason, Reason))
    return replace(cell, launches=mine.kernels or 0, us=us, schedules=schedules, untimed=untimed)


def launched(run: Callable[[], Any]) -> list[Kernel]:
    """The kernels of weft that a call starts, all of them from Python this time."""
    seen: list[Kernel] = []
    find = launch.find

    def recording(digest: str, text: str) -> Executable:
        executable = find(digest, text)
        seen.append(executable.kernel)
        return executable

    launcher.forget()
    with patch.object(launch, "find", recording):
        run()
    return seen


@contextmanager
def looped() -> Generator[None]:
    """No row fits the registers; a graph that Inductor has kept was planned otherwise."""
    gpu_schedules.forget()
    with patch.object(gpu_candidates, "WIDEST_ROW", 0), fresh_cache():
        yield
    gpu_schedules.forget()


@contextmanager
def unknown() -> Generator[None]:
    """The GPU at hand is of a model that no constants were fitted on: it is calibrated, as others are."""
    with patch.object(target, "of_properties", partial(of_properties, trusted=False)), fresh_cache():
        yield


def line(cell: Cell) -> str:
    """One cell as a line of text."""
    where = f"{cell.workload} {cell.rows}x{cell.columns} {cell.dtype}{_marked(cell)}"
    if cell.us is None:
        return f"{where}: {cell.wrong}"
    peers = [f"{peer} {x:.2f}x" for peer, x in cell.speedups.items()]
    schemes = f" {'+'.join(cell.schemes)}" if cell.schemes else ""
    how = f"{cell.launches} launch(es){schemes}"
    return f"{where}: {cell.us['weft']} us, {cell.of_copy:.3f} of copy, {how}  {'  '.join(peers)}"


def _marked(cell: Cell) -> str:
    return f" run-time {' and '.join(cell.dynamic)}" if cell.dynamic else ""


def report(cells: Sequence[Cell]) -> list[str]:
    """Prints means, and returns every bar that was missed."""
    console = Console()
    missed = [f"{line(cell)}" for cell in cells if cell.us is None]
    done = [cell for cell in cells if cell.us is not None]
    missed += _report_drawn(console, [cell for cell in done if cell.group])
    missed += [f"{line(cell)}: left to TorchInductor" for cell in done if not cell.launches]
    for cell in done:
        bar = round(bar_of(cell.workload) - SMALLER_BY * (cell.elements <= SMALL), 2)
        if cell.has_copy_bar and cell.of_copy < bar:
            missed.append(f"{cell.where}: {cell.of_copy:.3f} of copy, bar {bar}")
        missed += _misses_of_wide(cell)
        faster = {peer: x for peer, x in cell.speedups.items() if x * SLOWER_BAR < 1}
        missed += [f"{cell.where}: {1 / x:.3f}x of {peer}'s time" for peer, x in faster.items()]
    done = [cell for cell in done if cell.has_copy_bar]
    forward = _mean(cell.of_copy for cell in done if cell.workload in FORWARDS)
    if forward is not None:
        console.print(f"forwards: {forward:.3f} of copy in geometric mean, bar {FORWARD_MEAN_BAR}")
        missed += ["forwards in geometric mean"] if forward < FORWARD_MEAN_BAR else []
    bars = [("backwards", BACKWARDS, peer, bar) for peer, bar in SPEEDUP_BARS.items()]
    bars += [(name, (name,), "inductor", OTHER_SPEEDUP_BAR) for name in OTHERS]
    for what, names, peer, bar in bars:
        mean = _mean(cell.speedups[peer] for cell in done if cell.workload in names and peer in cell.speedups)
        if mean is not None:
            text = f"{what}: {mean:.2f}x of {peer} in geometric mean, bar {bar}"
            console.print(text, highlight=False)
            missed += [text] if mean < bar else []
    for reason, count in Counter(reason for cell in cells for reason in cell.untimed).items():
        console.print(f"not timed in {count} cell(s): {reason}", highlight=False, markup=False)
    for each in missed:
        console.print(f"missed: {each}", highlight=False)
    return missed


def _report_drawn(console: Console, cells: Sequence[Cell]) -> list[str]:
    """Prints a line for each group and workload of drawn cells, and what the model predicts; returns what is missed."""
    missed: list[str] = []
    for group in dict.fromkeys(cell.group for cell in cells):
        own = [cell for cell in cells if cell.group == group]
        least, mean = bars_of(group)
        for workload in dict.fromkeys(cell.workload for cell in own):
            alike = [cell for cell in own if cell.workload == workload]
            low, tenth, middle = spread([cell.of_copy for cell in alike])
            text = f"{group}: {workload} {low:.2f} {tenth:.2f} {middle:.3f} of copy in {len(alike)} cells"
            ratios = [1 / cell.speedups["inductor"] for cell in alike if "inductor" in cell.speedups]
            if ratios:
                text += f", {statistics.geometric_mean(ratios):.2f} of inductor's time, at most {max(ratios):.2f}"
            console.print(text, highlight=False)
            missed += [f"{text}: bar {least} at the least"] if low < least else []
        whole = spread([cell.of_copy for cell in own])[2]
        console.print(f"{group}: {whole:.3f} of copy in geometric mean", highlight=False)
        missed += [f"{group}: {whole:.3f} of copy in geometric mean, bar {mean}"] if whole < mean else []
    if cells:
        errors = [abs(math.log(cell.predicted_us / cell.us["weft"])) for cell in cells if cell.us and cell.predicted_us]
        near, far = (sum(error < math.log(most) for error in errors) / len(errors) for most in (1.15, 1.4))
        console.print(f"predicted times: {near:.0%} within 15 %, {far:.0%} within 40 %", highlight=False)
        slower = [cell.speedups["inductor"] for cell in cells if "inductor" in cell.speedups]
        late = sum(x * SLOWER_BAR < 1 for x in slower)
        console.print(f"{late} of {len(slower)} more than 2 % slower than inductor", highlight=False)
        console.print(f"{sum(cell.spill_bytes > 0 for cell in cells)} cells with kernels that spill", highlight=False)
    return missed


def _misses_of_wide(cell: Cell) -> list[str]:
    """Of the cell with bars of its own: so much faster than TorchInductor, and one kernel that loops where the number
    of columns is not known."""
    if not cell.is_wide:
        return []
    is_dynamic = "columns" in cell.dynamic
    bar, speedup, missed = WIDE_BARS[is_dynamic], cell.speedups.get("inductor"), list[str]()
    if is_dynamic and cell.schemes != ("LOOP",):
        missed.append(f"{cell.where}: {'+'.join(cell.schemes) or 'no kernel'} in place of one LOOP")
    if speedup is not None and speedup < bar:
        missed.append(f"{cell.where}: {speedup:.2f}x of inductor, bar {bar}")
    return missed


def bar_of(name: str) -> float:
    """Fraction of a copy that a workload has to reach."""
    if name in FORWARDS:
        return FORWARD_BAR
    return LAYER_NORM_BAR if name == "layer_norm_backward" else BACKWARD_BAR if name in BACKWARDS else OTHER_BAR


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return statistics.geometric_mean(found) if found else None


if __name__ == "__main__":
    raise SystemExit(main())
