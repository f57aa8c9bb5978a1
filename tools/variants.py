"""A kernel in CUDA C++ beside itself with changes to its text.

``python -m tools.variants --workload layer_norm_backward --columns 51493 --change "no turns" "int turn = [0-9]+" "int
turn = 0"``: what takes how long is found by leaving parts out, whatever that does to results. Registers and spilled
bytes are the compiler's, for an H200, and need no GPU; where there is one, all variants and a copy of the same bytes
are timed in turn, the level-two cache flushed before each, sums of device kernel durations, medians over rounds. The
schedule is the one that is chosen for an H200, but for fields that are given. ``--even`` takes the even width below, as
it is, with the same schedule as well.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import patch

import torch
from rich.console import Console
from rich.table import Table

from tools.arguments import add_workloads
from tools.drawn_regions import VECTOR
from tools.gpu_cells import Cell, parts_of
from tools.swept import CLUSTER_WORDS, TARGET
from weft.backends.binary import Job, Variant
from weft.backends.cuda import choice
from weft.backends.cuda.schedule import CudaSchedule
from weft.backends.listed import backend_of, render
from weft.backends.source import Source
from weft.bench import kernel_run
from weft.bench.case import traffic_bytes
from weft.bench.kernel_run import KernelRun, input_tensors, output_tensors
from weft.bench.peers import copy_candidate
from weft.bench.workloads import WORKLOADS
from weft.options import Options
from weft.plan.kernel import Kernel
from weft.runtime.timing import medians_us

PLAIN = "as it is"


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile, time if there is a GPU, and print."""
    parser = argparse.ArgumentParser(prog="python -m tools.variants", description=__doc__)
    add_workloads(parser, list(WORKLOADS))
    parser.add_argument("--columns", type=int, required=True)
    parser.add_argument("--rows", type=int, help="instead of 2^26 elements over columns")
    parser.add_argument("--schedule", nargs="+", default=[], metavar="FIELD=VALUE", help="in place of those chosen")
    parser.add_argument("--change", nargs=3, action="append", default=[], metavar=("NAME", "PATTERN", "TEXT"))
    parser.add_argument("--even", action="store_true", help="and the even width below, with this schedule")
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args(arguments)
    console = Console(highlight=False)
    for name in given.workload:
        try:
            made = variants(name, given)
        except (TypeError, ValueError) as error:  # of a change, or of a field of the schedule
            parser.error(str(error))
        first = made[PLAIN][0]
        console.print(f"{name} {given.columns}: {first.schedule}", markup=False)
        console.print(table_of(made, given.rounds))
    return 0


def variants(name: str, given: argparse.Namespace) -> dict[str, tuple[Kernel, Source]]:
    """By their names. Raises ValueError where a pattern is not in the text, or there is no kernel."""
    rows = given.rows or 2**26 // given.columns
    part = parts_of(Cell(name, "bf16", rows, given.columns), TARGET)[name]
    schedule = choice.chosen(part)
    if schedule is None:
        raise ValueError(f"{name} of {given.columns} columns has no kernel in CUDA C++")
    schedule = with_fields(schedule, given.schedule)
    kernel = Kernel(part.program, schedule)
    source = render(kernel)
    made = {PLAIN: (kernel, source)}
    for what, pattern, text in given.change:
        changed, count = re.subn(pattern, text, made.get(what, (kernel, source))[1].text)
        if count == 0:
            raise ValueError(f"{what}: {pattern!r} is not in the text of the kernel; ``weft show`` prints it")
        made[what] = kernel, replace(source, text=changed)
    if given.even:
        columns = given.columns // VECTOR * VECTOR
        even = parts_of(Cell(name, "bf16", rows, columns), TARGET)[name]
        made[f"{columns} columns"] = (other := Kernel(even.program, schedule)), render(other)
    return made


def with_fields(schedule: CudaSchedule, given: Sequence[str]) -> CudaSchedule:
    """A schedule with some fields as they are given. Raises TypeError where it has no such field, and ValueError."""
    fields = dict(field.split("=", 1) for field in given)
    return replace(schedule, **{name: text if name in CLUSTER_WORDS else int(text) for name, text in fields.items()})


def table_of(made: dict[str, tuple[Kernel, Source]], rounds: int) -> Table:
    """Of variants, what the compiler says, and times if there is a GPU."""
    table = Table("variant", "registers", "spilled", "us", "of copy")
    times = times_of(made, rounds) if torch.cuda.is_available() else {}
    for what, (kernel, source) in made.items():
        job = Job(kernel, source, Variant.expected(kernel, {}), 90)
        used = [binary.usage for binary in backend_of(kernel).compile(job)]
        took = (f"{times[what]:.2f}", f"{times['copy'] / times[what]:.3f}") if times else ("", "")
        table.add_row(what, str(used[0].registers), str(max(each.spill_bytes for each in used)), *took)
    return table


def times_of(made: dict[str, tuple[Kernel, Source]], rounds: int) -> dict[str, float]:
    """Microseconds of each, and of a copy."""
    device, runs = torch.device("cuda"), dict[str, KernelRun]()
    for what, (kernel, source) in made.items():
        tensors = input_tensors(kernel.program, (), device), output_tensors(kernel.program, (), device)
        with patch.object(kernel_run, "render", lambda _, source=source: source):
            runs[what] = KernelRun(kernel, *tensors, (), Options.read())
        runs[what]()
    torch.cuda.synchronize(device)
    plain = runs[PLAIN]
    copied = copy_candidate(traffic_bytes((*plain.inputs, *plain.outputs)), device)
    return dict(zip(("copy", *runs), medians_us([copied.run, *runs.values()], rounds, device), strict=True))


if __name__ == "__main__":
    raise SystemExit(main())
