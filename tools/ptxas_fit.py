"""Finds the weights of the model of registers: ``python -m tools.ptxas_fit [--polish] [--group X] [--csv FILE]``.

Writes ``weft/plan/calibration/schedules/registers.json``. For each scheme, non-negative weights that keep most kernels
within 16 registers or 15 % of what ptxas gave them, by a linear program for each of some values of the share of its
registers that a kernel can do with; what the planner chose counts twice. What spills has to be predicted to want all
registers there are; the threshold beyond which a kernel is said to spill then leaves out none of them. The same is done
with every other kernel, to say how many of the rest are met. With ``--polish`` no program is solved: the weights there
are moved one by one for as long as more kernels are met, fewer are said to spill that do not, or more that do.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

from tools.ptxas_kernels import (
    counted,
    given,
    has_room,
    is_odd,
    is_spilled,
    is_within,
    most_registers,
    summary,
    tolerance_of,
)
from tools.swept import COMPILED, FITS, TIMED, read
from weft.backends.triton.resources import Weights, given_registers, weights

GROUPS = (
    "ONE_SHOT",
    "ONE_SHOT_TILES",
    "LOOP",
    "COLUMN",
    "COLUMN_WHOLE",
    "STREAM",
    "STREAM_ROWS",
    "STREAM_TILES",
    "STREAM_INPUTS",
)
FEWEST = (1.0, 0.95, 0.9, 0.85, 0.8)
"""Shares of the registers it wants that a kernel can do with, to choose from."""
SPILLED_WANT = 1.08
"""Of all registers, what a kernel that spills wants at the least."""
CHOSEN_COUNTS, SPILLED_COUNTS = 2.0, 6.0
"""How much what the planner chose counts, and what spills and is predicted to want fewer registers than there are."""
LEAST_WANTED, MOST_WANTED = 16, 600
"""Registers; beyond it makes no difference."""
MISS_COSTS, LEAST_SHARE = 12.0, 0.7
"""Kernels that do not spill and are said to, for which one that does spill may be said to fit; and the least share of
the registers from which a kernel is said to spill."""
ROUNDS, FORGIVEN = 8, 0.1
"""In each round, what lay outside in the one before counts less: as many as can be should lie inside, and how far off
the others are matters little. ptxas gives two kernels that differ in nothing that is counted 128 and 241 registers."""
STEPS, LEAST_GAIN = (0.2, 0.1, 0.05, 0.025), 0.5
"""Shares of a weight by which it is moved, and kernels that are to be met more for it."""
NARROW = 0.02
"""How much the mere distance counts beside what lies outside the tolerance."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.ptxas_fit", description=__doc__)
    parser.add_argument("--csv", type=Path, nargs="+", default=[TIMED, COMPILED])
    parser.add_argument("--out", type=Path, default=FITS / "registers.json")
    parser.add_argument("--group", choices=GROUPS, action="append", default=[])
    parser.add_argument("--polish", action="store_true", help="begin with the weights there are")
    given = parser.parse_args(arguments)
    rows = [row for row in map(counted, read(given.csv)) if not is_odd(row)]
    fits = dict(weights())
    for scheme in given.group or GROUPS:
        own = [row for row in rows if row["group"] == scheme]
        find = partial(polished, fits[scheme]) if given.polish else fit
        fits[scheme], half, rest = find(own), find(own[::2]), [row for row in own[1::2] if not is_spilled(row)]
        met = sum(is_within(row, half) for row in rest)
        summed = f"{summary(own, fits[scheme])}; fitted to every other one, {met} of {len(rest)} others"
        fits[scheme] = replace(fits[scheme], met=summed)
        print(f"{scheme}: {summed}", flush=True)
    given.out.write_text(json.dumps({scheme: asdict(own) for scheme, own in fits.items()}, indent=2) + "\n")
    return 0


def fit(rows: Sequence[dict[str, str]]) -> Weights:
    """Of one scheme."""
    each = [(_Kernels.of(rows, fewest), _weights(rows, fewest)) for fewest in FEWEST]
    found = [(kernels, [own.get(name, 0.0) for name in kernels.names]) for kernels, own in each]
    kernels, best = max(found, key=lambda pair: pair[0].worth(pair[1]))
    return kernels.fitted(best)


def polished(fitted: Weights, rows: Sequence[dict[str, str]]) -> Weights:
    """Weights of which none is better a little larger or smaller, from others on."""
    kernels = _Kernels.of(rows, fitted.fewest)
    now = [fitted.weights.get(name, 0.0) for name in kernels.names]
    worth = kernels.worth(now)
    for step in STEPS:
        stuck = 0
        for k in cycle(range(len(now))):
            by = step * (now[k] or kernels.least[k])
            moved = [[*now[:k], max(0.0, now[k] + each), *now[k + 1 :]] for each in (-by, by)]
            gained, other = max((kernels.worth(each), each) for each in moved)
            stuck += 1
            if gained >= worth + LEAST_GAIN:
                worth, now, stuck = gained, other, 0
            if stuck == len(now):
                break
    return kernels.fitted(now)


@dataclass(frozen=True)
class _Kernels:
    """Of one group, in arrays of one element for each. names: of what has a weight; counts: how often there is each of
    these, kernels by names; least: of each, a weight to begin with where there is none. registers: of a thread, and the
    most that it can have; tolerance: by how many a prediction may be off. counted: how much it counts to meet one, 0 if
    it spills. room: whether its shared memory is there. fewest: as of ``Weights``. given: for each number of warps, the
    kernels with as many, and registers that a thread is given, by those that it wants."""

    names: list[str]
    counts: Any
    least: Any
    registers: Any
    most: Any
    tolerance: Any
    counted: Any
    spilled: Any
    room: Any
    fewest: float
    given: list[tuple[Any, Any]]

    @classmethod
    def of(cls, rows: Sequence[dict[str, str]], fewest: float) -> _Kernels:
        import numpy as np

        def each(found: Callable[[dict[str, str]], float]) -> Any:
            return np.array([found(row) for row in rows])

        names = [key[2:] for key in rows[0] if key.startswith("n_")]
        counts = np.array([[float(row[f"n_{name}"]) for name in names] for row in rows])
        warps = each(lambda row: int(row["warps"]))
        given = [
            (warps == own, np.array([given_registers(wanted, own, fewest) for wanted in range(2 * MOST_WANTED)]))
            for own in sorted({*warps.tolist()})
        ]
        registers = each(lambda row: int(row["registers"]))
        least = LEAST_GAIN / np.maximum(1, counts.max(axis=0))
        most, tolerance, worth = each(most_registers), each(tolerance_of), each(_worth)
        spilled, room = each(is_spilled), each(has_room)
        return cls(names, counts, least, registers, most, tolerance, worth * ~spilled, spilled, room, fewest, given)

    def worth(self, weights: Sequence[float]) -> float:
        """Kernels whose registers are met, less what spills that are missed and those that there are not cost."""
        import numpy as np

        wanted = np.minimum(self.counts @ weights, 2 * MOST_WANTED - 1)
        found = np.zeros(len(wanted))
        for own, table in self.given:
            found[own] = table[np.round(wanted[own]).astype(int)]
        met = abs(np.minimum(found, self.most) - self.registers) <= self.tolerance
        return float((self.counted * met).sum()) + self._threshold(weights)[1]

    def fitted(self, weights: Sequence[float]) -> Weights:
        """With the best threshold."""
        threshold = self._threshold(weights)[0] if (self.spilled & self.room).any() else math.inf
        own = {name: round(float(each), 3) for name, each in zip(self.names, weights, strict=True) if each >= 0.0005}
        return Weights(own, self.fewest, math.ceil(1000 * min(threshold, 1 / self.fewest)) / 1000)

    def _threshold(self, weights: Sequence[float]) -> tuple[float, float]:
        """Of the registers that there are, the share beyond which a kernel is best said to spill, and what that is
        worth. What spills after all is compiled again under another schedule, what does not and is said to is never
        tried."""
        import numpy as np

        shares = (self.counts @ weights / self.most)[self.room]
        order = np.argsort(shares, kind="stable")
        worth = np.cumsum(np.where(self.spilled[self.room][order], -MISS_COSTS, 1.0))
        worth, shares = worth[shares[order] > LEAST_SHARE], shares[order][shares[order] > LEAST_SHARE]
        if not len(worth) or worth.max() < 0:
            return LEAST_SHARE, 0.0
        last = len(worth) - 1 - int(worth[::-1].argmax())
        return float(shares[last]), float(worth[last])


def _weights(rows: Sequence[dict[str, str]], fewest: float) -> dict[str, float]:
    import numpy as np
    from scipy import sparse
    from scipy.optimize import linprog

    names = [key[2:] for key in rows[0] if key.startswith("n_")]
    a: Any = np.array([[float(row[f"n_{name}"]) for name in names] for row in rows])
    spilled = np.array([is_spilled(row) for row in rows])
    ranges = [_range(row, fewest) for row in rows]
    least, most = (np.array([each[k] for each in ranges], dtype=float) for k in (0, 1))
    middle = np.where(spilled, least, (least + most) / 2)
    tolerance = np.array([tolerance_of(row) for row in rows])
    count, width = a.shape
    own: Any = sparse.hstack([a, sparse.csr_matrix((count, count)), -sparse.identity(count)], format="csr")
    one, none = sparse.identity(count, format="csr"), sparse.csr_matrix((count, count))
    left = sparse.vstack(
        [
            sparse.hstack([a, -one, none]),
            sparse.hstack([-a, -one, none]),
            own[np.flatnonzero(~spilled)],
            sparse.hstack([-a, none, -one]),
        ],
        format="csr",
    )
    right = np.concatenate([most, -least, middle[~spilled], -middle])
    worth = np.array([_worth(row) for row in rows])
    weight, found = worth, np.zeros(width + 2 * count)
    for _ in range(ROUNDS):
        price = np.concatenate([np.zeros(width), weight / tolerance, NARROW / tolerance])
        found: Any = linprog(price, A_ub=left, b_ub=right, bounds=(0, None), method="highs").x
        beyond = found[width : width + count] / tolerance
        weight = worth * np.where(spilled, SPILLED_COUNTS, 1 / (1 + beyond / FORGIVEN))
    return {name: round(float(x), 3) for name, x in zip(names, found[:width], strict=True) if x >= 0.0005}


def _range(row: dict[str, str], fewest: float) -> tuple[float, float]:
    """Registers to be wanted by a kernel for which the right ones are predicted, or too few."""
    registers, most = int(row["registers"]), most_registers(row)
    if is_spilled(row):
        return SPILLED_WANT * most, 2.0 * MOST_WANTED
    steps = range(LEAST_WANTED, MOST_WANTED)
    inside = [w for w in steps if abs(given(w, int(row["warps"]), fewest) - registers) <= tolerance_of(row)]
    highest = 1.15 * most / fewest if inside and inside[-1] == steps[-1] else inside[-1] if inside else registers
    return (inside[0] if inside else registers), highest


def _worth(row: dict[str, str]) -> float:
    return CHOSEN_COUNTS if row["chosen"] == "1" else 1.0


if __name__ == "__main__":
    raise SystemExit(main())
