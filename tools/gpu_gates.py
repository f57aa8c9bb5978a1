"""Bars for kernels on a GPU: ``python -m tools.gpu_gates`` times what the planner chose, and says what it missed.

Every cell, a workload at a width, is one call as a user makes it, compiled by weft with nothing tuned, beside
TorchInductor and a copy of the same bytes: all in turn, the level-two cache flushed before each, sums of device kernel
durations, medians over rounds. Results are compared with eager PyTorch in float64 first, as ``weft bench`` does.
``--json FILE`` writes the cells with versions and the machine; the exit code is 1 if a bar is missed or a result is
wrong. An interrupt, or a request to end, ends the run with what was measured so far, and exit code 130.

``--drawn`` draws widths from a seed; rows that begin between vectors are then held against even ones (``--even``),
and sizes known at run time only against known ones (``--known``). ``--random SEED`` takes cells that are drawn from
the seed in place of chosen ones, with bars of their own (``gpu_drawn.py``). Several processes compile, and one at a
time has the GPU for what is timed.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch._dynamo
from filelock import FileLock
from torch import Tensor
from torch._inductor.utils import fresh_cache

from tools.arguments import add_workloads, require_gpu
from tools.drawn_regions import VECTOR, drawn_widths
from tools.gpu_bars import BACKWARDS, FORWARDS, OTHERS, Cell, columns_of, line, report
from tools.gpu_drawn import drawn
from tools.processes import processes
from weft import target
from weft.backends.cuda import choice as clusters
from weft.backends.triton import candidates as gpu_candidates
from weft.backends.triton import choice as gpu_schedules
from weft.bench.case import Case, traffic_bytes, workload_case
from weft.bench.correctness import check_candidate, reference
from weft.bench.gpu_peers import GPU_PEERS
from weft.bench.inputs import Shape
from weft.bench.machine import machine, versions
from weft.bench.peers import copy_candidate, weft_call
from weft.bench.reason import Reason, UntimedError, attempt
from weft.bench.workloads import WORKLOADS
from weft.errors import RefusedError
from weft.ir.dtypes import NAMES, TORCH_DTYPES
from weft.options import Options
from weft.plan.cost import estimates
from weft.plan.kernel import Kernel
from weft.runtime import calibration, launch, launcher
from weft.runtime.counters import counters
from weft.runtime.executable import Executable
from weft.runtime.timing import Candidate, medians_us
from weft.target import of_properties

SIZES = ("rows", "columns")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and compare with the bars."""
    reader = parser()
    given = reader.parse_args(arguments)
    if given.known and not given.dynamic:
        reader.error("--known is beside sizes known at run time only: say which with --dynamic")
    require_gpu(reader)
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


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    made = argparse.ArgumentParser(prog="python -m tools.gpu_gates", description=__doc__)
    add_workloads(made, (*FORWARDS, *BACKWARDS, *OTHERS))
    made.add_argument("--columns", type=int, nargs="+", help="instead of those of each table")
    made.add_argument(
        "--drawn",
        type=int,
        nargs=5,
        metavar=("SEED", "COUNT", "LEAST", "MOST", "MULTIPLE"),
        help="widths besides these",
    )
    made.add_argument("--even", action="store_true", help="and the even width below each that is not even")
    made.add_argument("--known", action="store_true", help="sizes known at run time only beside known ones")
    made.add_argument("--elements", type=int, default=2**26, help="rows times columns")
    made.add_argument("--rows", type=int, nargs="+", help="instead of elements over columns")
    made.add_argument("--dynamic", nargs="+", choices=SIZES, default=[], help="sizes known at run time only")
    made.add_argument("--loop", action="store_true", help="loop over the columns of every row, whatever fits registers")
    made.add_argument("--unknown", action="store_true", help="as if no constants were fitted on this model of GPU")
    made.add_argument("--dtype", choices=["bf16", "f16", "f32"], default="bf16")
    made.add_argument("--against", nargs="*", choices=list(GPU_PEERS), default=["inductor", "inductor_pipelined"])
    made.add_argument("--rounds", type=int, default=7)
    made.add_argument("--random", type=int, metavar="SEED", help="cells that are drawn, in place of chosen ones")
    made.add_argument("--widths", type=int, default=40, help="of those; of some groups fewer")
    made.add_argument("--group", nargs="+", default=[], help="of drawn cells, parts of their names")
    made.add_argument("--processes", type=int, default=8, help="that compile")
    made.add_argument("--seconds", type=float, default=1e9, help="after which no further cell is begun")
    made.add_argument("--json", type=Path, help="write the cells to this file")
    return made


def cells_of(given: argparse.Namespace) -> Iterator[Cell]:
    """What the arguments ask for, not yet measured."""
    if given.random is not None:
        for each in drawn(given.random, given.widths, given.group):
            yield Cell(each.workload, each.rows, each.columns, each.dtype, group=each.group)
        return
    dtype = NAMES[TORCH_DTYPES[given.dtype]]
    for name in given.workload:
        for columns, known in product(_widths(given) or columns_of(name), [False, True][: 1 + given.known]):
            for rows in given.rows or [given.elements // columns]:
                yield Cell(name, rows, columns, dtype, dynamic=() if known else tuple(given.dynamic))


def _widths(given: argparse.Namespace) -> list[int]:
    """Those that are given, and those that are drawn, in order."""
    found = list(given.columns or ())
    if given.drawn:
        seed, *wanted = given.drawn
        found += sorted(drawn_widths(random.Random(seed), *wanted))
    if given.even:
        found = [width for each in found for width in dict.fromkeys((each, max(1, each // VECTOR) * VECTOR))]
    return list(dict.fromkeys(found))


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
    with processes(given.processes) as pool:
        yield from (cell for cell in pool.map(one, cells) if cell is not None)


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


def with_marks(case: Case, shape: Shape, dynamic: Sequence[str]) -> Case:
    """A case some of whose sizes code is not to be compiled for; its inputs are marked so."""
    for tensor in case.inputs:
        mark(tensor, shape, dynamic)
    return replace(case, dynamic=None if dynamic else False)


def mark(tensor: Tensor, shape: Shape, dynamic: Sequence[str]) -> None:
    """Mark sizes of a tensor as known at run time only: the last one as columns, others as rows, where it has as many.
    A size of one is compiled in by torch.compile whatever is said."""
    rows, columns = shape
    for axis, size in enumerate(tensor.shape):
        is_columns = axis == tensor.ndim - 1 and size == columns
        which = "columns" if is_columns else "rows" if size == rows else None
        if which in dynamic and size > 1:
            torch._dynamo.mark_dynamic(tensor, axis)


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
    case = workload_case(WORKLOADS[cell.workload], shape, TORCH_DTYPES[cell.dtype], "cuda")
    case = with_marks(case, shape, cell.dynamic)
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
            torch.cuda.empty_cache()  # of the reference, before another process makes its own
    except (RefusedError, UntimedError, RuntimeError) as error:
        return replace(cell, wrong=f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
    us = {peer: round(time, 2) for peer, time in zip(made, times, strict=True)}
    kernels, sizes = launched(mine.run)
    schedules = tuple(str(kernel.schedule) for kernel in kernels)
    machine_at_hand = calibration.at_hand(case.device, options)
    predicted_us = sum(each.predicted_us for each in estimates(kernels, machine_at_hand, sizes))
    cell = replace(cell, predicted_us=round(predicted_us, 2))
    cell = replace(cell, spill_bytes=max((launch.usage(k).spill_bytes for k in kernels), default=0))
    untimed = tuple(str(reason) for reason in found.values() if isinstance(reason, Reason))
    return replace(cell, launches=mine.kernels or 0, us=us, schedules=schedules, untimed=untimed)


def launched(run: Callable[[], Any]) -> tuple[list[Kernel], dict[str, int]]:
    """The kernels of weft that a call starts, all of them from Python this time, and sizes that they are told, by
    name."""
    seen, sizes, call = list[Kernel](), dict[str, int](), Executable.__call__

    def recording(executable: Executable, inputs: Any, outputs: Any, parameters: Sequence[int], options: str) -> None:
        kernel = executable.kernel
        seen.append(kernel)
        sizes.update(zip(kernel.program.parameters, parameters, strict=True))
        call(executable, inputs, outputs, parameters, options)

    launcher.forget()
    with patch.object(Executable, "__call__", recording):
        run()
    return seen, sizes


@contextmanager
def looped() -> Generator[None]:
    """No row fits the registers, nor a cluster; a graph that Inductor has kept was planned otherwise."""
    gpu_schedules.forget()
    no_cluster = patch.object(clusters, "chosen", lambda _: None)
    with patch.object(gpu_candidates, "WIDEST_ROW", 0), no_cluster, fresh_cache():
        yield
    gpu_schedules.forget()


@contextmanager
def unknown() -> Generator[None]:
    """The GPU at hand is of a model that no constants were fitted on: it is calibrated, as others are."""
    with patch.object(target, "of_properties", partial(of_properties, trusted=False)), fresh_cache():
        yield


if __name__ == "__main__":
    raise SystemExit(main())
