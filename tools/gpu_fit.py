"""Fits the constants of ``backends/triton/cost.py``: ``python -m tools.gpu_fit`` prints them and how well they choose.

``tools/sweeps/h200_schedules.csv`` has times of schedules from ``tools.gpu_sweep``, at shapes drawn at random.
The *regret* of a kernel (of a workload at a shape) is the time of the schedule that the constants choose over that of
the best one measured of it. Constants of all ways to take rows are fitted together, by gradients, to two things at
once: what is expected to be lost by a choice that takes schedules the likelier, the shorter they are predicted to be;
and the errors of the times, near the best ones of each kernel above all. The shapes are fitted in two halves, to say
how well those that were left out are met. ``--write`` puts the constants, fitted to all, into ``h200.json``. With
``--only WAY ...`` the constants of all other ways stay, and with them what is chosen among these. ``--ratios TARGET``
fits nothing: it says what ratios of another GPU, to these constants, bring them nearest to what was measured there.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tools.swept import FITS, TARGET, TIMED, Swept, read
from weft.backends.triton.constants import FITTED, Constants, fitted_constants, scaled
from weft.backends.triton.cost import Load, way_of
from weft.backends.triton.resources import spills
from weft.backends.triton.work import Work
from weft.target import Target

BOUNDS: dict[str, tuple[float, float, float]] = {
    "bandwidth": (0.8, 1.35, 1.1),
    "in_flight_bytes": (1e3, 1e5, 5e3),
    "sharpness": (1.2, 20.0, 12.0),
    "crowded": (1e-4, 0.5, 0.05),
    "cached": (0.05, 1.5, 0.7),
    "cold": (1e-3, 2.0, 0.2),
    "issue_ns": (0.01, 5.0, 0.6),
    "latency_ns": (1e-3, 5.0, 0.5),
    "again": (0.2, 10.0, 1.0),
    "edge": (1e-2, 50.0, 2.0),
    "access": (1e-2, 50.0, 15.0),
    "shuffle": (1e-1, 100.0, 12.0),
    "overhead": (1.0, 500.0, 30.0),
    "tile_ns": (1.0, 3e3, 100.0),
    "block_reduction_ns": (0.1, 1000.0, 30.0),
    "compute_power": (1.0, 12.0, 2.0),
    "power": (1.01, 20.0, 1.2),
    "overlap": (0.01, 20.0, 1.0),
    "start_us": (0.1, 6.0, 1.2),
    "program_ns": (1e-1, 200.0, 60.0),
    "later_us": (1e-3, 3.0, 0.3),
    "tail": (1e-2, 8.0, 1.0),
    "step_us": (1e-3, 3.0, 0.3),
    "finish_us": (0.5, 6.0, 2.0),
    "barrier_us": (0.3, 6.0, 1.2),
    "segment_bytes": (0.1, 512.0, 30.0),
    "gather_us": (1e-3, 5.0, 0.03),
    "level_us": (1e-3, 1.0, 0.12),
    "spread_us": (1e-4, 0.5, 0.05),
    "fill_ns": (1.0, 3e3, 500.0),
    "same_ns": (1e-1, 200.0, 10.0),
    "sm_share": (1.0, 8.0, 2.0),
    "open": (1e-4, 2.0, 0.1),
}
"""Of each constant the least, the most, and where the search begins."""
WAYS = (
    "ONE_SHOT",
    "ONE_SHOT_SPLIT",
    "POINTWISE",
    "STREAM",
    "STREAM_SPLIT",
    "STREAM_TILES",
    "STREAM_ONCE",
    "STREAM_ROWS",
    "STREAM_ROWS_SPLIT",
    "LOOP",
    "LOOP_SPLIT",
    "COLUMN",
    "COLUMN_WHOLE",
)
NEAR, FLOOR = 0.2, 0.02
"""A schedule that takes as much longer than its kernel's best one counts 1/e in the errors of the times; no less than
the second counts any."""
LIKELY_ERROR = 0.05
"""Of a time: larger ones count less."""
CERTAIN = 0.03
"""Schedules that are predicted to take so much longer than the first are taken 1/e as often."""
TIMES = 1.0
"""How much the errors of the times count beside what is lost by choices."""
STEPS, RATE = 2500, 0.03
LEAST_SPILL_BYTES = 16
"""Kernels that spill more are not fitted to."""


@dataclass(frozen=True)
class Point:
    """A schedule that was timed. can_be_chosen: whether the model of registers lets it."""

    swept: Swept
    way: str
    load: Load
    us: float
    can_be_chosen: bool

    @property
    def kernel(self) -> tuple[Any, str]:
        return self.swept.cell, self.swept.split.program.name


class Points:
    """Many of them, as tensors."""

    def __init__(self, points: Sequence[Point]) -> None:
        self.points = points
        self.ways = {way: torch.tensor([i for i, p in enumerate(points) if p.way == way]) for way in WAYS}
        self.loads = {way: self._load([p for p in points if p.way == way]) for way in WAYS}
        self.log_us = torch.tensor([p.us for p in points], dtype=torch.float64).log()
        numbers: dict[Any, int] = {}
        self.at = torch.tensor([numbers.setdefault(p.kernel, len(numbers)) for p in points])
        self.kernels = list(numbers)
        self.allowed = torch.tensor([p.can_be_chosen for p in points])
        best = torch.full((len(numbers),), math.inf, dtype=torch.float64)
        self.slower = self.log_us - best.scatter_reduce(0, self.at, self.log_us, "amin")[self.at]

    @staticmethod
    def _load(own: Sequence[Point]) -> Load:
        return Load(
            **{f.name: torch.tensor([float(getattr(p.load, f.name)) for p in own]).double() for f in fields(Load)}
        )

    def log_times(self, values: Mapping[str, Constants]) -> Tensor:
        """Logarithms of predicted times."""
        found = torch.zeros_like(self.log_us)
        for way, at in self.ways.items():
            if len(at):
                found = found.index_put((at,), self.loads[way].us(values[way]).log())
        return found

    def lost(self, predicted: Tensor) -> Tensor:
        """What is minimised."""
        scores = torch.where(self.allowed, -predicted / CERTAIN, -math.inf)
        most = torch.full((len(self.kernels),), -math.inf, dtype=torch.float64)
        most = most.scatter_reduce(0, self.at, scores.detach(), "amax")
        chances = torch.where(self.allowed, (scores - most.nan_to_num(neginf=0.0)[self.at]).exp(), 0.0)
        zeros = torch.zeros(len(self.kernels), dtype=torch.float64)
        totals = zeros.scatter_add(0, self.at, chances)
        expected = zeros.scatter_add(0, self.at, chances * (self.slower.exp() - 1)) / totals.clamp(min=1e-300)
        weights = FLOOR + (-self.slower / NEAR).exp()
        errors = LIKELY_ERROR * ((1 + ((predicted - self.log_us) / LIKELY_ERROR) ** 2).sqrt() - 1)
        return expected.mean() + (expected**2).mean() + TIMES * (weights * errors).sum() / weights.sum()

    def regrets(self, predicted: Tensor) -> dict[Any, float]:
        """Time of the choice over the best one measured, by kernel."""
        first: dict[int, int] = {}
        for i, (at, allowed) in enumerate(zip(self.at.tolist(), self.allowed.tolist(), strict=True)):
            if allowed and (at not in first or predicted[i] < predicted[first[at]]):
                first[at] = i
        return {self.kernels[at]: math.exp(float(self.slower[i])) for at, i in first.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit, print, and write if asked to."""
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_fit", description=__doc__)
    parser.add_argument("--csv", type=Path, nargs="+", default=[TIMED])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", nargs="+", choices=WAYS, default=list(WAYS), metavar="WAY", help="ways to fit")
    parser.add_argument(
        "--halves", action="store_true", help="fit to one half of the shapes, and say how the other is met"
    )
    parser.add_argument("--ratios", metavar="TARGET", help="that the files were measured on")
    given = parser.parse_args(arguments)
    if given.ratios:
        target = Target.named(given.ratios)
        waits, starts, error = ratios(Points(points_of(given.csv, target=target)), target)
        print(f"{target.name}: instruction_ratio {waits:.2f}, start_ratio {starts:.2f}: rms {error:.3f} of logarithms")
        return 0
    points = points_of(given.csv)
    if given.halves:
        numbers = {cell: i for i, cell in enumerate(dict.fromkeys(p.swept.cell for p in points))}
        halves = [Points([p for p in points if numbers[p.swept.cell] % 2 == k]) for k in (0, 1)]
        found = fit(halves[0], given.only)
        for name, half in zip(("fitted", "left out"), halves, strict=True):
            print(f"{name}:\n{describe(half, half.log_times(found))}")
    every = Points(points)
    found = fit(every, given.only)
    print(f"all:\n{describe(every, every.log_times(found))}")
    if given.write:
        (FITS / f"{FITTED}.json").write_text(json.dumps(rounded(found), indent=2) + "\n")
    return 0


def points_of(files: Sequence[Path], every: int = 1, target: Target = TARGET) -> list[Point]:
    """What was timed, right, and did not spill. every: shapes of which those of one are read. target: it was timed
    on."""
    found: list[Point] = []
    for swept in read(files, every):
        row, schedule, demand = swept.figures, swept.schedule, swept.demand
        if not row["us"] or row["wrong"] or int(row["spill_bytes"]) > LEAST_SPILL_BYTES:
            continue
        work = Work.of(swept.split, schedule.scheme == "LOOP")
        load = Load.of(work, demand, schedule, target)
        allowed = not spills(demand, schedule, target)
        found.append(Point(swept, way_of(schedule, work, demand), load, float(row["us"]), allowed))
    return found


def fit(points: Points, only: Sequence[str] = WAYS, steps: int = STEPS) -> dict[str, Constants]:
    """Constants of all ways, those that are not fitted as they are."""
    low, high, start = (torch.tensor([b[i] for b in BOUNDS.values()], dtype=torch.float64).log() for i in range(3))
    share = (start - low) / (high - low)
    free = torch.logit(share).repeat(len(only), 1).requires_grad_()

    def constants() -> dict[str, Constants]:
        values: Any = (low + (high - low) * free.sigmoid()).exp()
        fitted = {way: Constants(**dict(zip(BOUNDS, values[i], strict=True))) for i, way in enumerate(only)}
        return {way: fitted.get(way) or fitted_constants()[way] for way in WAYS}

    optimizer = torch.optim.Adam([free], RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        points.lost(points.log_times(constants())).backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        return constants()


def ratios(points: Points, target: Target) -> tuple[float, float, float]:
    """Of a GPU's instructions and starts to those that the constants were fitted on, and what is left of errors then,
    near the best schedules of each kernel above all."""
    from scipy.optimize import minimize

    weights = FLOOR + (-points.slower / NEAR).exp()

    def error(logs: Sequence[float]) -> float:
        known = {way: scaled(own, target, *map(math.exp, logs)) for way, own in fitted_constants().items()}
        return math.sqrt((weights * (points.log_times(known) - points.log_us) ** 2).sum() / weights.sum())

    found = minimize(error, (0.0, 0.0), method="Nelder-Mead", options={"xatol": 1e-3, "fatol": 1e-6})
    waits, starts = map(math.exp, found.x)
    return waits, starts, float(found.fun)


def rounded(found: Mapping[str, Constants]) -> dict[str, dict[str, float]]:
    """Four digits of each."""
    return {way: {name: float(f"{float(getattr(own, name)):.4g}") for name in BOUNDS} for way, own in found.items()}


def describe(points: Points, predicted: Tensor) -> str:
    """Of each way, and of all choices: errors of times, and what the choices lose."""
    error, near = (predicted - points.log_us).abs(), points.slower < math.log(1.15)
    lines = list[str]()
    for way, at in points.ways.items():
        own = at[near[at]] if len(at) else at
        if len(own):
            shares = [float((error[own] < math.log(most)).double().mean()) for most in (1.15, 1.4)]
            found = f"{shares[0]:.0%} within 15 %, {shares[1]:.0%} within 40 %"
            lines.append(f"  {way}: {len(at)} schedules; of {len(own)} near the best {found}")
    regrets = points.regrets(predicted)
    worst = sorted(regrets, key=lambda kernel: -regrets[kernel])
    mean, ninth = statistics.geometric_mean(regrets.values()), sorted(regrets.values())[int(0.9 * len(regrets))]
    lines.append(f"  {len(regrets)} kernels, regret {mean - 1:.1%} in geometric mean, {ninth - 1:.1%} of one in ten")
    lines += [f"    {regrets[kernel] - 1:.0%} {kernel[0]} {kernel[1]}" for kernel in worst[:8]]
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
