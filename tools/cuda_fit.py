"""Constants of the model of time of CUDA C++ kernels: ``python -m tools.cuda_fit --write``.

``tools/sweeps/h200_clusters.csv`` has times of schedules from ``tools.gpu_sweep --backend cuda``, at shapes drawn at
random, and at some large ones. Constants are those with the least errors of the logarithm of time, schedules near the
best of their kernel counting most, as what is chosen depends on them. Kernels of every fourth shape are left out of the
fit and described apart.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from tools.gpu_cells import Cell
from tools.swept import CLUSTERS_FIT, CLUSTERS_TIMED, TARGET, read_clusters
from weft.backends.cuda.cost import Constants, fitted_constants, times_us
from weft.backends.cuda.schedule import CudaSchedule
from weft.backends.cuda.work import Work

LEAST, MOST = 0.1, 10.0
"""By which constants may differ from those that they start at."""
SHARES = {
    "bandwidth": (0.85, 1.15),
    "compute_power": (0.7, 8.0),
    "stage_power": (0.7, 14.0),
    "power": (1.0, 12.0),
    "power_sums": (1.0, 12.0),
    "start_us": (1.0, 4.0),
    "exchange_ns": (10.0, 1000.0),
    "tail": (0.1, 3.0),
    "ahead": (0.012, 0.02),
    "ahead_between": (0.012, 0.06),
    "scarce": (0.1, 0.2),
}
"""Where that is too far. What is copied ahead: from pairs of schedules that differ in stages alone, as most of the
sweeps have as many of these as there is place for."""
NEAR, FLOOR = 0.12, 0.1
"""By how much slower than the best, in logarithms, schedules count a third, and what all count at the least."""
AMONG = 2.0
"""How much more errors count by which schedules of a kernel differ than the one that they have in common: what is
chosen depends on those alone."""
LEFT_OUT = 4
NAMES = tuple(field.name for field in fields(Constants))


@dataclass(frozen=True)
class Point:
    """A schedule that was timed. slower: the logarithm of its time over the best one's of its kernel."""

    cell: Cell
    part: str
    work: Work
    schedule: CudaSchedule
    us: float
    copy_us: float
    slower: float = 0.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit, and say how good that is."""
    parser = argparse.ArgumentParser(prog="python -m tools.cuda_fit", description=__doc__)
    parser.add_argument("--csv", type=Path, nargs="+", default=[CLUSTERS_TIMED])
    parser.add_argument("--check", type=Path, nargs="*", default=[], help="files that constants are only checked on")
    parser.add_argument("--rounds", type=int, default=3, help="of fits, each from where the last one ended")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, help="constants that are fitted")
    parser.add_argument("--write", action="store_true", help="into the package")
    given = parser.parse_args(arguments)
    points, known = points_of(given.csv), fitted_constants()
    cells = list(dict.fromkeys(point.cell for point in points))
    left_out = set(cells[::LEFT_OUT])
    used = [point for point in points if point.cell not in left_out]
    print("before\n" + describe(points, known))
    for _ in range(given.rounds):
        known = fit(used, known, given.only)
    print("fitted to\n" + describe(used, known))
    print("left out\n" + describe([point for point in points if point.cell in left_out], known))
    if given.check:
        print("checked on\n" + describe(points_of(given.check), known))
    found = {name: float(f"{value:.4g}") for name, value in asdict(known).items()}
    print(json.dumps(found))
    if given.write:
        CLUSTERS_FIT.write_text(json.dumps(found, indent=2) + "\n")
    return 0


def points_of(files: Sequence[Path], every: int = 1) -> list[Point]:
    """What was timed, right, and spilled nothing. every: shapes of which those of one are read."""
    found: list[Point] = []
    for cell, split, schedule, row in read_clusters(files, every):
        work = Work.under(split, schedule)
        if row["us"] and not row["wrong"] and not int(row["spill_bytes"]) and isinstance(work, Work):
            found.append(Point(cell, row["part"], work, schedule, float(row["us"]), float(row["copy_us"])))
    best: dict[tuple[Cell, str], float] = {}
    for point in found:
        key = point.cell, point.part
        best[key] = min(point.us, best.get(key, math.inf))
    return [
        Point(p.cell, p.part, p.work, p.schedule, p.us, p.copy_us, math.log(p.us / best[p.cell, p.part])) for p in found
    ]


def fit(points: Sequence[Point], start: Constants, names: Sequence[str] = NAMES) -> Constants:
    """The least weighted errors, from ``start``, whose other constants stay as they are."""
    first = np.log([getattr(start, name) for name in names])
    low, high = (np.log([SHARES.get(name, (0, 0))[i] or 1 for name in names]) for i in range(2))
    for i, name in enumerate(names):
        if name not in SHARES:
            low[i], high[i] = first[i] + math.log(LEAST), first[i] + math.log(MOST)
    weights = np.array([FLOOR + math.exp(-point.slower / NEAR) for point in points])
    numbers: dict[tuple[Cell, str], int] = {}
    kernels = np.array([numbers.setdefault((point.cell, point.part), len(numbers)) for point in points])
    totals = np.bincount(kernels, weights)
    logs = np.log([point.us for point in points])

    def with_values(values: np.ndarray) -> Constants:
        return replace(start, **dict(zip(names, np.exp(values).tolist(), strict=True)))

    def errors(values: np.ndarray) -> np.ndarray:
        known = with_values(values)
        predicted = [times_us(point.work, point.schedule, TARGET, known).all for point in points]
        found = np.log(predicted) - logs
        common = (np.bincount(kernels, weights * found) / totals)[kernels]
        return np.concatenate([np.sqrt(weights) * common, AMONG * np.sqrt(weights) * (found - common)])

    inside = np.clip(first, low + 1e-6, high - 1e-6)
    found = least_squares(errors, inside, bounds=(low, high), loss="soft_l1", f_scale=0.1, max_nfev=40)
    return with_values(found.x)


def describe(points: Sequence[Point], known: Constants) -> str:
    """Errors near the best, and what choices lose."""
    kernels: dict[tuple[Cell, str], list[tuple[float, float, Point]]] = {}
    near: list[float] = []
    for point in points:
        predicted = times_us(point.work, point.schedule, TARGET, known).all
        kernels.setdefault((point.cell, point.part), []).append((predicted, point.us, point))
        if point.slower < math.log(1.15):
            near.append(abs(math.log(predicted / point.us)))
    lost = {key: min(each, key=lambda e: e[0])[1] / min(e[1] for e in each) for key, each in kernels.items()}
    off = {key: min(each, key=lambda e: e[0]) for key, each in kernels.items()}
    shares = [sum(error < math.log(most) for error in near) / len(near) for most in (1.1, 1.25)]
    lines = [
        f"  {len(points)} schedules of {len(kernels)} kernels; near the best {shares[0]:.0%} within 10 %, "
        f"{shares[1]:.0%} within 25 %; choices lose {statistics.geometric_mean(lost.values()) - 1:.1%}"
    ]
    for key in sorted(lost, key=lambda key: -lost[key])[:8]:
        predicted, us, point = off[key]
        best = min(kernels[key], key=lambda e: e[1])
        lines.append(
            f"    {lost[key] - 1:.0%} {key[0]} {key[1]}: {predicted:.0f} predicted, {us:.0f}; best {best[1]:.0f}, "
            f"{best[0]:.0f} predicted, of copy {point.copy_us / best[1]:.2f}: "
            f"{str(best[2].schedule).partition('backend=cuda ')[2]}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
