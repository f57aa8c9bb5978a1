"""Fits the constants of ``plan/gpu_cost.py``: ``python -m weft.bench.gpu_fit`` prints them and how well they choose.

``plan/calibration/schedules/h200.csv`` has times of schedules from ``weft.bench.gpu_sweep``, without those that
spilled. Constants are fitted to those that the planner chooses from. The *regret* of a cell (a workload and a shape) is
the time of the schedule that the constants choose over that of the best one measured of these. Constants are fitted
twice: to the times, near the best ones of each cell above all, and then, from there, to what is expected to be lost by
a choice that takes schedules the likelier, the shorter they are predicted to be, with the errors of the times as a part
of it, so that they stay times. Half of the cells, every other one, are fitted, and the regret of the other half is
shown too. ``--write`` puts the constants into ``h200.json`` beside the data, fitted to all cells, if they choose better
than those that there are. ``h200_unseen.csv`` has cells that nothing was ever fitted to, forwards of 2000 and 8192 rows
and backwards of 12288 columns and more: they say what the planner's choices lose where nobody has looked.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import least_squares, minimize

from weft.bench.workloads import WORKLOADS
from weft.capture.regions import capture
from weft.capture.trace import trace
from weft.ir.online import online
from weft.ir.program import Program
from weft.ir.simplify import simplify
from weft.ir.structure import split_straddling
from weft.plan.demand import Demand
from weft.plan.gpu_candidates import candidates
from weft.plan.gpu_cost import Constants, Load, Work, constants, way_of
from weft.plan.gpu_schedules import gpu_schedule
from weft.plan.kernel import Schedule
from weft.plan.split import Split
from weft.target import Target

BOUNDS = {
    "bandwidth": (0.8, 1.3),
    "in_flight_bytes": (1e3, 3e5),
    "sharpness": (1.2, 6.0),
    "crowded": (0.0, 0.5),
    "cached": (0.0, 1.5),
    "issue_ns": (0.01, 5.0),
    "latency_ns": (0.0, 5.0),
    "access": (0.0, 50.0),
    "shuffle": (0.0, 100.0),
    "overhead": (0.0, 500.0),
    "tile_ns": (0.0, 5e3),
    "exchange_warp_ns": (0.0, 200.0),
    "compute_power": (1.0, 12.0),
    "power": (1.3, 20.0),
    "start_us": (0.0, 12.0),
    "program_ns": (0.0, 200.0),
    "later_us": (0.0, 3.0),
    "tail": (0.0, 8.0),
    "step_us": (0.0, 3.0),
    "finish_us": (0.0, 6.0),
    "barrier_us": (0.0, 6.0),
    "segment_bytes": (0.0, 512.0),
}
COUNTED = {"program_ns": "programs", "later_us": "later", "step_us": "steps"}
"""Constants of what not all schedules have, with what counts it."""
START = Constants(1.1, 2.2e4, 2.2, 0.05, 0.4, 0.3, 0.2, 14.0, 10.0, 30.0, 10.0, 20.0, 3.0, 2.0, 3.5, 40.0, 0.5, 3.0, 0.35, 2.0, 1.5, 32.0)
NEAR, FLOOR = 0.2, 0.003
"""A schedule that takes as much longer than its cell's best one counts 1/e in the errors of the times; no less than the
second counts any."""
LIKELY_ERROR = 0.03
"""Of a time: larger ones count less."""
CERTAIN = 0.012
"""Schedules that are predicted to take so much longer than the first are taken 1/e as often."""
TIMES = 0.3
"""How much the errors of the times count beside what is lost by choices."""
WORST, ROUNDS = 0.4, 3
"""A loss so large counts twice; how often the search for the best choice begins anew."""
WORST_COUNTS = 0.1
"""Of the largest loss, beside the mean, where constants are compared: a search ends in one of several places."""
FITS = {"STREAM": ("STREAM",), "ONE_SHOT": ("ONE_SHOT", "STREAM_ROWS")}
"""Ways to take rows whose constants are fitted together, because the same kernels are run in both."""
TARGET = Target.named("h200")
FOLDER = resources.files("weft.plan") / "calibration" / "schedules"
SEEN, UNSEEN = "h200.csv", "h200_unseen.csv"
"""Times that constants are fitted to, and others."""
Cell = tuple[str, int, int]


@dataclass(frozen=True)
class Point:
    """A schedule that was timed. way: which constants its time is predicted with. is_candidate: whether the planner
    chooses from it and others, which asks the model of registers."""

    cell: Cell
    way: str
    load: Load
    schedule: Schedule
    measured_us: float
    is_candidate: bool


class Points:
    """Many of them, as arrays."""

    def __init__(self, points: Sequence[Point], ways: Sequence[str]) -> None:
        self.points = points
        columns = {f.name: np.array([float(getattr(p.load, f.name)) for p in points]) for f in fields(Load)}
        self.load = Load(**columns)
        self.way = np.array([ways.index(p.way) for p in points])
        self.ways = len(ways)
        self.names, self.cell = np.unique([f"{p.cell}" for p in points], return_inverse=True)
        us = np.array([p.measured_us for p in points])
        self.slower = us / _least(us, self.cell)[self.cell]
        self.log_us = np.log(us)

    def log_times(self, values: Sequence[float]) -> Any:
        """Logarithms of predicted times. values: of the constants of each way, one after the other."""
        each = np.split(np.asarray(values), self.ways)
        times = [self.load.us(_constants(own)) for own in each]
        return np.log(np.choose(self.way, times))

    def regrets(self, values: Sequence[float]) -> dict[str, float]:
        """Time of the chosen schedule over that of the best, by cell."""
        predicted = self.log_times(values)
        order = np.lexsort((predicted, self.cell))
        _, first = np.unique(self.cell[order], return_index=True)
        return dict(zip(self.names, self.slower[order[first]].tolist(), strict=True))


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit and print."""
    parser = argparse.ArgumentParser(prog="python -m weft.bench.gpu_fit", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the constants fitted to all cells")
    given = parser.parse_args(arguments)
    points = read_points()
    written: dict[str, dict[str, float]] = {}
    for name, ways in FITS.items():
        own = [p for p in points if p.way in ways and p.is_candidate]
        cells = sorted({p.cell for p in own})
        halves = [[p for p in own if p.cell in set(half)] for half in (cells[::2], cells[1::2])]
        some = fit(Points(halves[0], ways))
        for half, text in zip(halves, ("fitted", "not fitted"), strict=True):
            print(f"{name}, {text}: {describe(Points(half, ways).regrets(some))}")
        every = Points(own, ways)
        whole = min((fit(every), _present(ways)), key=lambda values: _lost(every.regrets(values)))
        near = every.slower < 1 + NEAR
        error = float(np.median(np.abs(every.log_times(whole) - every.log_us)[near]))
        print(f"{name}, fitted to all: {describe(every.regrets(whole))}; times near the best within {error:.1%}")
        for way, values in zip(ways, np.split(np.asarray(whole), len(ways)), strict=True):
            written[way] = {key: float(f"{value:.4g}") for key, value in zip(BOUNDS, values, strict=True)}
            for key, count in COUNTED.items():
                if not any(getattr(p.load, count) for p in own if p.way == way):
                    written[way][key] = 0.0  # nothing was fitted
            print(f"  {way}: {written[way]}")
    print(f"as planned with the constants before: {describe(planned(points))}")
    print(f"and of cells that nothing was fitted to: {describe(planned(read_points(UNSEEN)))}")
    if given.write:
        Path(str(FOLDER / "h200.json")).write_text(json.dumps(written, indent=2) + "\n")
    return 0


def _present(ways: Sequence[str]) -> list[float]:
    """The constants that there are, of all ways."""
    return [getattr(constants()[way], name) for way in ways for name in BOUNDS]


def _lost(regrets: dict[str, float]) -> float:
    """What the choices lose on average, and a part of the most that one does."""
    return statistics.geometric_mean(regrets.values()) - 1 + WORST_COUNTS * (max(regrets.values()) - 1)


def planned(points: Sequence[Point]) -> dict[str, float]:
    """Time of the schedule that the planner takes by itself, which asks the models of registers and of time, over that
    of the best one measured, by cell; cells whose schedule was not measured are left out."""
    cells: dict[Cell, list[Point]] = defaultdict(list)
    for point in points:
        cells[point.cell].append(point)
    found: dict[str, float] = {}
    for cell, own in cells.items():
        chosen = gpu_schedule(_split_at(*cell))
        us = [p.measured_us for p in own if p.schedule == replace(chosen, inputs="normal")]
        found |= {f"{cell}": us[0] / min(p.measured_us for p in own)} if us else {}
    return found


def read_points(file: str = SEEN) -> list[Point]:
    """Of a data file."""
    found: list[Point] = []
    for row in csv.DictReader((FOLDER / file).read_text().splitlines()):
        name, rows, columns = row["workload"], int(row["rows"]), int(row["columns"])
        split = _split_of(name, columns)
        pieces = tuple(int(piece) for piece in row["pieces"].split("+"))
        numbers = {key: int(row[key]) for key in ("rows_per_tile", "warps", "stages", "chunks")}
        own = {"pieces": pieces, "finish": row["finish"], "keeps": row["keeps"], **numbers}
        schedule = Schedule(row["scheme"], *split.dims, backend="triton", **own)  # type: ignore[arg-type]
        work, demand = facts_of(name, columns, row["scheme"], row["keeps"])
        batch = _batch(rows) if split.segments else 1
        work = replace(work, rows=rows // batch, segments=batch)
        load, cell = Load.of(work, demand, schedule, TARGET), (name, rows, columns)
        measured_us, is_candidate = float(row["us"]), schedule in _candidates_at(*cell)
        found.append(Point(cell, way_of(schedule, work.sums), load, schedule, measured_us, is_candidate))
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
def facts_of(name: str, columns: int, scheme: str, keeps: str = "values") -> tuple[Work, Demand]:
    """What the time of a workload's kernel of few rows depends on."""
    split = _split_of(name, columns)
    plain = Schedule(scheme, *split.dims, backend="triton", keeps=keeps)  # type: ignore[arg-type]
    return Work.of(split), Demand.of(split.program, plain)


@cache
def _split_of(name: str, columns: int) -> Split:
    """Of a workload's program of a few rows, its fastest dimension being the columns."""
    program = program_of(name, columns)
    names = tuple(d.name for d in program.dims)
    return Split.of(program, names[:-1], names[-1:], TARGET, {})


def _split_at(name: str, rows: int, columns: int) -> Split:
    """The same with so many rows."""
    split = _split_of(name, columns)
    batch = _batch(rows) if split.segments else 1
    sizes = {split.columns[0]: columns} | ({split.rows[0]: batch} if split.segments else {})
    dims = tuple(replace(d, size=sizes.get(d.name, rows // batch)) for d in split.program.dims)
    return replace(split, program=replace(split.program, dims=dims))


@cache
def _candidates_at(name: str, rows: int, columns: int) -> frozenset[Schedule]:
    """What the planner chooses from, whatever becomes of inputs in the caches."""
    return frozenset(replace(s, inputs="normal") for s in candidates(_split_at(name, rows, columns)))


def _batch(rows: int) -> int:
    """Batch elements of the modulated workloads."""
    return next(b for b in range(8, 0, -1) if rows % b == 0)


def fit(points: Points) -> list[float]:
    """Constants of all ways, one after the other: least squares of logarithms, then the choice."""
    low, high = (np.array([bounds[i] for bounds in BOUNDS.values()] * points.ways) for i in (0, 1))
    start = np.clip([getattr(START, name) for name in BOUNDS] * points.ways, low + 1e-6, high - 1e-6)
    weights = FLOOR + np.exp((1 - points.slower) / NEAR)
    roots = np.sqrt(weights)
    solved = least_squares(
        lambda values: roots * (points.log_times(values) - points.log_us),
        start, bounds=(low, high), loss="soft_l1", f_scale=LIKELY_ERROR, x_scale=np.maximum(1e-2, start),
    ).x  # fmt: skip
    scale = np.maximum(1e-2, np.abs(solved))

    def lost(scaled: Any) -> float:
        predicted = points.log_times(np.clip(scaled * scale, low, high))
        chances = np.exp((_least(predicted, points.cell)[points.cell] - predicted) / CERTAIN)
        totals = np.bincount(points.cell, chances)
        expected = np.bincount(points.cell, chances * points.slower) / totals - 1
        errors = np.sqrt(1 + ((predicted - points.log_us) / LIKELY_ERROR) ** 2) - 1
        times = LIKELY_ERROR * float(np.sum(weights * errors) / np.sum(weights))
        return float(np.mean(expected) + np.mean(expected**2) / WORST) + TIMES * times

    found = solved / scale
    for _ in range(ROUNDS):
        found = minimize(lost, found, method="Powell", options={"maxiter": 6, "xtol": 1e-3, "ftol": 1e-5}).x
    return np.clip(found * scale, low, high).tolist()


def _constants(values: Any) -> Constants:
    return Constants(**dict(zip(BOUNDS, values, strict=True)))


def _least(values: Any, cell: Any) -> Any:
    """The smallest value of each cell."""
    found = np.full(int(cell.max()) + 1, np.inf)
    np.minimum.at(found, cell, values)
    return found


def describe(found: dict[str, float]) -> str:
    """Geometric mean and worst."""
    mean = statistics.geometric_mean(found.values())
    worst = max(found, key=lambda cell: found[cell])
    return f"{len(found)} cells, regret {mean - 1:.1%} in geometric mean, worst {found[worst] - 1:.1%} at {worst}"


if __name__ == "__main__":
    raise SystemExit(main())
