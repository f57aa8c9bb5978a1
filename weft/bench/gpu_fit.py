"""Fits the constants of ``plan/gpu_cost.py``: ``python -m weft.bench.gpu_fit`` prints them and how well they choose.

``plan/calibration/schedules/h200.csv`` has times of candidate schedules from ``weft.bench.gpu_sweep``. Half of the
cells (a workload and a shape), every other one, are fitted; the *regret* of a cell is the time of the schedule that the
constants choose over that of the best one measured, and is shown for both halves. ``--write`` puts the constants into
``h200.json`` beside it, fitted to all cells.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path

import torch
from scipy.optimize import least_squares

from weft.bench.workloads import WORKLOADS
from weft.capture.regions import capture
from weft.capture.trace import trace
from weft.ir.online import online
from weft.ir.program import Program
from weft.ir.simplify import simplify
from weft.ir.structure import split_straddling
from weft.plan.gpu_cost import Constants, Work, constants, kernel_us
from weft.plan.kernel import Schedule
from weft.plan.resources import Demand
from weft.plan.schedules import segments_of
from weft.target import Target

FITTED = (
    *("bandwidth", "in_flight_bytes", "crowded", "issue_ns", "lone_warps", "tile_ns", "exchange_ns"),
    *("exchange_warp_ns", "power", "start_us"),
)
BOUNDS = {
    "bandwidth": (0.8, 1.3),
    "in_flight_bytes": (1e3, 3e5),
    "crowded": (0.0, 0.5),
    "issue_ns": (0.05, 5.0),
    "lone_warps": (0.0, 100.0),
    "tile_ns": (1.0, 5e3),
    "exchange_ns": (1.0, 2e3),
    "exchange_warp_ns": (0.0, 100.0),
    "power": (1.5, 12.0),
    "start_us": (0.0, 8.0),
}
SLOW, SLOW_WEIGHT = 0.7, 0.3
"""Schedules below this fraction of a copy are never chosen, and count less."""
TARGET = Target.named("h200")
FOLDER = resources.files("weft.plan") / "calibration" / "schedules"
Cell = tuple[str, int, int]


@dataclass(frozen=True)
class Point:
    """A schedule that was timed. measured_us, of_copy: its time, and the time of a copy over it."""

    cell: Cell
    work: Work
    demand: Demand
    schedule: Schedule
    measured_us: float
    of_copy: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit and print."""
    parser = argparse.ArgumentParser(prog="python -m weft.bench.gpu_fit", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the constants fitted to all cells")
    given = parser.parse_args(arguments)
    points = read_points()
    written: dict[str, dict[str, float]] = {}
    for scheme in ("STREAM", "ONE_SHOT"):
        own = [p for p in points if p.schedule.scheme == scheme]
        cells = sorted({p.cell for p in own})
        fitted = fit([p for p in own if p.cell in set(cells[::2])], constants()[scheme])
        for name, half in (("fitted", cells[::2]), ("not fitted", cells[1::2])):
            print(f"{scheme}, {name}: {describe(regrets([p for p in own if p.cell in set(half)], fitted))}")
        whole = fit(own, fitted)
        print(f"{scheme}, fitted to all: {describe(regrets(own, whole))}")
        print(f"  {whole}")
        written[scheme] = {name: float(f"{value:.4g}") for name, value in asdict(whole).items()}
    if given.write:
        Path(str(FOLDER / "h200.json")).write_text(json.dumps(written, indent=2) + "\n")
    return 0


def read_points() -> list[Point]:
    """Of the data file."""
    found: list[Point] = []
    for row in csv.DictReader((FOLDER / "h200.csv").read_text().splitlines()):
        name, rows, columns = row["workload"], int(row["rows"]), int(row["columns"])
        program = program_of(name, columns)
        names = tuple(d.name for d in program.dims)
        segments = segments_of(program, names[:-1])
        pieces = tuple(int(piece) for piece in row["pieces"].split("+"))
        numbers = {key: int(row[key]) for key in ("rows_per_tile", "warps", "stages", "chunks")}
        split = ((*segments, *(n for n in names[:-1] if n not in segments)), names[-1:], segments)
        schedule = Schedule(row["scheme"], *split, backend="triton", pieces=pieces, finish=row["finish"], **numbers)  # type: ignore[arg-type]
        work, demand = facts_of(name, columns, row["scheme"])
        batch = _batch(rows) if segments else 1
        work = replace(work, rows=rows // batch, segments=batch)
        found.append(Point((name, rows, columns), work, demand, schedule, float(row["us"]), float(row["of_copy"])))
    return found


@cache
def program_of(name: str, columns: int) -> Program:
    """A workload's, of a few rows."""
    inputs = WORKLOADS[name].make_inputs((16, columns), torch.bfloat16, "cpu")
    (region,) = capture(trace(WORKLOADS[name].fn, inputs).graph, name).regions
    program = simplify(region.program)
    names = tuple(d.name for d in program.dims)
    return online(split_straddling(program, names[:-1], names[-1:]), names[:-1], names[-1:])


@cache
def facts_of(name: str, columns: int, scheme: str) -> tuple[Work, Demand]:
    """What the time of a workload's kernel of few rows depends on."""
    program = program_of(name, columns)
    names = tuple(d.name for d in program.dims)
    plain = Schedule(scheme, names[:-1], names[-1:], segments_of(program, names[:-1]), backend="triton")  # type: ignore[arg-type]
    return Work.of(program, plain, {}), Demand.of(program, plain)


def _batch(rows: int) -> int:
    """Batch elements of the modulated workloads."""
    return next(b for b in range(8, 0, -1) if rows % b == 0)


def fit(points: Sequence[Point], start: Constants) -> Constants:
    """Least squares of logarithms, large errors counting less."""

    def error(values: Sequence[float]) -> list[float]:
        tried = replace(start, **dict(zip(FITTED, map(float, values), strict=True)))
        return [
            math.log(kernel_us(p.work, p.demand, p.schedule, TARGET, tried) / p.measured_us)
            * (1 if p.of_copy > SLOW else SLOW_WEIGHT)
            for p in points
        ]

    low, high = zip(*(BOUNDS[name] for name in FITTED), strict=True)
    first = [
        min(max(getattr(start, name), lo * 1.001 + 1e-9), hi * 0.999)
        for name, lo, hi in zip(FITTED, low, high, strict=True)
    ]
    solved = least_squares(
        error, first, bounds=(low, high), loss="soft_l1", f_scale=0.04, x_scale=[max(1e-3, f) for f in first]
    )
    return replace(start, **dict(zip(FITTED, map(float, solved.x), strict=True)))


def regrets(points: Iterable[Point], known: Constants) -> dict[Cell, float]:
    """Time of the chosen schedule over that of the best, by cell."""
    cells: dict[Cell, list[Point]] = defaultdict(list)
    for point in points:
        cells[point.cell].append(point)
    found: dict[Cell, float] = {}
    for cell, own in cells.items():
        chosen = min(own, key=lambda p: kernel_us(p.work, p.demand, p.schedule, TARGET, known))
        found[cell] = chosen.measured_us / min(p.measured_us for p in own)
    return found


def describe(found: dict[Cell, float]) -> str:
    """Geometric mean and worst."""
    mean = statistics.geometric_mean(found.values())
    worst = max(found, key=lambda cell: found[cell])
    return f"{len(found)} cells, regret {mean - 1:.1%} in geometric mean, worst {found[worst] - 1:.1%} at {worst}"


if __name__ == "__main__":
    raise SystemExit(main())
