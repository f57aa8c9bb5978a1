"""Which kernels of regions of many loads spill registers: ``python -m tools.many_loads --regions 300 --seed 1``.

Regions of 2 to 40 loads are drawn at random, planned for GPUs of several architectures, and compiled by ptxas; no GPU
is needed. A kernel that spills at the first choice is a miss of its backend's ``resources.py``; one that
still does after the runners-up that a compile tries is what the exit status is 1 for.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from rich.progress import track

from tools.drawn_regions import drawn_region
from tools.processes import processes
from tools.ptxas_sweep import usages
from weft.backends.listed import supports
from weft.backends.resource_usage import ResourceUsage, most_of
from weft.errors import BuildError, Refusal
from weft.plan.kernel import Kernel
from weft.plan.planner import plan
from weft.plan.schedules import resources
from weft.runtime.misses import without_miss
from weft.target import TARGETS, Target

GPUS = ("h200", "b200")
"""Targets of compute capability 9.0 and 10.0."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw, plan, compile; list what spills. 1 if anything does after its runners-up."""
    parser = argparse.ArgumentParser(prog="python -m tools.many_loads", description=__doc__)
    parser.add_argument("--regions", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1, help="of the first region; the others follow")
    known = [name for name in TARGETS if Target.named(name).kind == "gpu"]
    parser.add_argument("--target", nargs="+", choices=known, default=GPUS)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--json", type=Path, help="file for the figures of every kernel")
    given = parser.parse_args(arguments)
    every = list(product(range(given.seed, given.seed + given.regions), given.target))
    with processes(given.processes) as pool:
        made = pool.map(compiled_region, *zip(*every, strict=True), chunksize=2)
        found = list(track(made, "compiling", total=len(every)))
    kernels = [kernel for some in found if not isinstance(some, str) for kernel in some]
    refused = [(*which, some) for which, some in zip(every, found, strict=True) if isinstance(some, str)]
    for line in (*map(str, refused), *(line for kernel in kernels for line in kernel.lines())):
        print(line)
    missed = sum(kernel.first.spill_bytes > 0 for kernel in kernels)
    left = sum(kernel.last.spill_bytes > 0 for kernel in kernels)
    print(f"{len(kernels)} kernels, {missed} spill at the first choice, {left} after their runners-up")
    if given.json:
        lines: list[dict[str, Any]] = [asdict(kernel) for kernel in kernels]
        given.json.write_text(json.dumps({"kernels": lines, "refused": refused}, indent=1) + "\n")
    return int(left > 0)


@dataclass(frozen=True)
class Compiled:
    """A kernel of a region's plan, at the first choice and with the schedule that it ends with.

    seed, columns: of the region. loads: of the kernel. predicted: registers of a thread at the first choice, by the
    model. text, other: the kernel, and the schedule of the runner-up in its place, if there is one."""

    seed: int
    target: str
    loads: int
    columns: int
    predicted: int | None
    first: ResourceUsage
    last: ResourceUsage
    text: str
    other: str

    def lines(self) -> list[str]:
        """What there is to say of a kernel that spills."""
        if not self.first.spill_bytes:
            return []
        name = self.text.splitlines()[1].split("(")[0]
        return [
            f"seed {self.seed} {self.target}, {self.loads} loads, {self.columns} columns, {name}: "
            f"{self.first.registers} registers ({self.predicted} predicted), {self.first.spill_bytes} bytes spilled; "
            f"{self.last.spill_bytes} in the end",
            f"  {self.text.splitlines()[0]}",
            *([f"  then {self.other}"] if self.other else []),
        ]


def compiled_region(
    seed: int, target: str, loads: int | None = None, columns: int | None = None
) -> list[Compiled] | str:
    """Kernels of a region that is drawn; why there are none. loads, columns: as of ``drawn_region``."""
    program, machine = drawn_region(seed, loads, columns), Target.named(target)
    planned = plan(program, machine)
    if isinstance(planned, Refusal):
        return str(planned)
    found: list[Compiled] = []

    def built(kernel: Kernel) -> ResourceUsage | None:
        if supports(kernel) is not None:
            return None
        try:
            each = usages(kernel, machine.architecture)
        except BuildError:
            return None
        return most_of(each)

    width = next(d.size for d in program.dims if d.name == "n")
    assert isinstance(width, int)
    for kernel in planned.kernels:
        first = built(kernel)
        if first is None:
            return f"{kernel.name} cannot be built"
        last, used = without_miss(kernel, first, machine, {}, built)
        other = "" if last is kernel else str(last.schedule)
        predicted = resources(kernel, machine).registers_per_thread
        own = (len(kernel.program.inputs), width, predicted, first, used, str(kernel), other)
        found.append(Compiled(seed, target, *own))
    return found


if __name__ == "__main__":
    raise SystemExit(main())
