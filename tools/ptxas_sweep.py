"""What ptxas gives kernels at shapes drawn at random: ``python -m tools.ptxas_sweep --target l40s b200 --csv
FILE``; no GPU.

The kernels are drawn as those of ``tools.gpu_sweep`` are, for targets in turn, with lines of the same form but
no times. ``tools/ptxas_fit.py`` finds the weights of ``weft/backends/triton/resources.py`` from both. With ``--backend
cuda`` schedules of CUDA C++ are drawn whose registers may be too few, of those with the shortest predicted times;
``tools/cuda_registers.py`` fits to them.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.progress import track

from tools.arguments import add_workloads
from tools.gpu_cells import Cell, cells_of_regions, drawn_cells, parts_of
from tools.gpu_sweep import NOT_SWEPT, drawn_schedules
from tools.processes import processes
from tools.swept import CLUSTER_COLUMNS, COLUMNS, TARGET, line
from weft.backends.binary import Job, Variant
from weft.backends.cuda import candidates as clusters
from weft.backends.cuda import choice, resources
from weft.backends.cuda.registers import wanted_registers
from weft.backends.cuda.schedule import CudaSchedule
from weft.backends.cuda.work import Work
from weft.backends.listed import backend_of, render
from weft.backends.resource_usage import ResourceUsage
from weft.bench.workloads import WORKLOADS
from weft.errors import BuildError
from weft.plan.kernel import Kernel, parse_kernel
from weft.plan.split import Split
from weft.target import TARGETS, Target

NEAR = (0.75, 1.2)
"""Of the registers that there are, what a thread of a drawn CUDA C++ kernel is predicted to want."""
WIDE = 0.7
"""The part of the shapes of CUDA C++ kernels that is beyond 8192 columns, by default."""
ELEMENTS = (2**24, 2**26)
"""Of shapes of CUDA C++ kernels."""
MOST_LOADS = 24
"""Inputs of regions that are drawn: of residual streams that are mixed kernels have 17."""
FIRST = 100
"""By predicted time, those that are drawn of."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile and write one line a kernel."""
    parser = argparse.ArgumentParser(prog="python -m tools.ptxas_sweep", description=__doc__)
    add_workloads(parser, [name for name in WORKLOADS if name not in NOT_SWEPT])
    parser.add_argument("--csv", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True, help="of what is drawn")
    parser.add_argument("--cells", type=int, default=100)
    parser.add_argument("--most", type=int, default=10, help="schedules of a kernel")
    gpus = [name for name in TARGETS if Target.named(name).kind == "gpu"]
    parser.add_argument("--target", nargs="+", choices=gpus, default=[TARGET.name], help="to take in turn")
    parser.add_argument("--backend", choices=("triton", "cuda"), default="triton", help="whose schedules")
    parser.add_argument("--wide", type=float, default=WIDE, help="the part of shapes beyond 8192 columns, of cuda")
    parser.add_argument("--regions", action="store_true", help="drawn ones, in place of workloads, of cuda")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    given = parser.parse_args(arguments)
    targets, is_cuda = [Target.named(name) for name in given.target], given.backend == "cuda"
    if is_cuda:
        cells = drawn_cells(given.seed, given.workload, given.cells, elements=ELEMENTS, wide=given.wide)
        if given.regions:
            cells = cells_of_regions(given.seed, given.cells, ELEMENTS, MOST_LOADS)
        found = list(near_the_limit(given.seed, cells, given.most, targets))
    else:
        found = list(drawn_kernels(given.seed, given.workload, given.cells, given.most, targets))
    archs = [target.architecture for target, *_ in found]
    with processes(given.processes) as pool, given.csv.open("w") as file:
        writer = csv.DictWriter(file, CLUSTER_COLUMNS if is_cuda else COLUMNS, lineterminator="\n")
        writer.writeheader()
        made = pool.map(used, [str(kernel) for *_, kernel in found], archs, chunksize=2)
        for (_, cell, part, place, kernel), arch, usage in track(
            zip(found, archs, made, strict=True), "compiling", total=len(found)
        ):
            row: dict[str, Any] = line(cell, part, place, kernel.schedule) | {"arch": arch}
            if isinstance(usage, str):
                writer.writerow(row | {"failure": usage})
            else:
                own = {key: usage[0][key] for key in ("registers", "spill_bytes", "shared_bytes")}
                writer.writerow(row | own)
    return 0


def drawn_kernels(
    seed: int, workloads: Sequence[str], count: int, most: int, targets: Sequence[Target] = (TARGET,)
) -> Iterator[tuple[Target, Cell, str, int, Kernel]]:
    """Of drawn cells, with the target that a cell is planned for, the names of its parts and the places of their
    schedules by predicted time."""
    draw = random.Random(seed)
    for cell in drawn_cells(seed, workloads, count):
        target = draw.choice(targets)
        for part, split in parts_of(cell, target).items():
            for place, schedule in enumerate(drawn_schedules(split, most, draw)):
                own = schedule.but(register_cap=0)  # of what ptxas takes by itself the weights are
                yield target, cell, part, place, Kernel(split.program, own)


def near_the_limit(
    seed: int, cells: Sequence[Cell], most: int, targets: Sequence[Target] = (TARGET,)
) -> Iterator[tuple[Target, Cell, str, int, Kernel]]:
    """The same of CUDA C++, of cells."""
    draw = random.Random(seed)
    for cell in cells:
        target = draw.choice(targets)
        for part, split in parts_of(cell, target).items():
            found = _near_the_limit(split)
            for place, schedule in draw.sample(found, min(most, len(found))):
                yield target, cell, part, place, Kernel(split.program, schedule)


def _near_the_limit(split: Split) -> list[tuple[int, CudaSchedule]]:
    least, slack = NEAR

    def share(schedule: CudaSchedule) -> float:
        work = Work.under(split, schedule)
        assert isinstance(work, Work)
        most = resources.most_registers(schedule.warps, schedule.blocks, split.target)
        return wanted_registers(work, schedule) / most

    found = sorted(clusters.candidates(split, slack), key=lambda each: choice.times_of(split, each).all)
    return [(place, each) for place, each in enumerate(found[:FIRST]) if share(each) >= least]


def used(text: str, arch: int) -> list[dict[str, int]] | str:
    """What each function of a kernel uses; why it was not compiled."""
    try:
        return [asdict(usage) for usage in usages(parse_kernel(text), arch)]
    except BuildError as error:
        return str(error)[:200]


def usages(kernel: Kernel, arch: int) -> list[ResourceUsage]:
    """What each function of a kernel uses, compiled anew. Raises BuildError."""
    job = Job(kernel, render(kernel), Variant.expected(kernel, {}), arch)
    return [binary.usage for binary in backend_of(kernel).compile(job)]


if __name__ == "__main__":
    raise SystemExit(main())
