"""Finds the weights of the model of registers: ``python -m weft.bench.ptxas_fit [--csv FILE]``.

Writes ``weft/plan/calibration/schedules/registers.json``. For each scheme, non-negative weights that keep most kernels
within 16 registers or 15 % of what ptxas gave them, by a linear program for each of some values of the share of its
registers that a kernel can do with; what the planner chose counts twice. What spills has to be predicted to want all
registers there are; the threshold beyond which a kernel is said to spill then leaves out none of them. The same is done
with every other kernel, to say how many of the rest are met.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from weft.bench.swept import FOLDER, Swept, read
from weft.plan.demand import features
from weft.plan.resources import (
    MOST_REGISTERS,
    REGISTER_GRAIN,
    REGISTERS,
    Weights,
    given_registers,
    group_of,
    shared_bytes,
)
from weft.target import Target

GROUPS = ("ONE_SHOT", "ONE_SHOT_TILES", "LOOP", "COLUMN", "COLUMN_WHOLE", "STREAM", "STREAM_TILES")
TOLERANCE, TOLERATED = 0.15, 16
LARGE_SPILL_BYTES = 64
"""Below the limit nothing spills so much but what ``resources.spills`` knows for another reason, or hopeless cases."""
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
NARROW = 0.02
"""How much the mere distance counts beside what lies outside the tolerance."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m weft.bench.ptxas_fit", description=__doc__)
    parser.add_argument("--csv", type=Path, nargs="+", default=sorted(FOLDER.glob("*.csv")))
    parser.add_argument("--out", type=Path, default=FOLDER / "registers.json")
    given = parser.parse_args(arguments)
    rows = [row for row in map(counted, read(given.csv)) if not is_odd(row)]
    fits: dict[str, Weights] = {}
    for scheme in GROUPS:
        own = [row for row in rows if group(row) == scheme]
        fits[scheme] = fit(own)
        half, rest = fit(own[::2]), [row for row in own[1::2] if not is_spilled(row)]
        met = sum(is_within(row, half) for row in rest)
        summed = f"{summary(own, fits[scheme])}; fitted to every other one, {met} of {len(rest)} others"
        fits[scheme] = replace(fits[scheme], met=summed)
        print(f"{scheme}: {summed}", flush=True)
    given.out.write_text(json.dumps({scheme: asdict(own) for scheme, own in fits.items()}, indent=2) + "\n")
    return 0


def counted(kernel: Swept) -> dict[str, str]:
    """What is known of a kernel, and what the model counts, by name with an ``n_`` before it."""
    counts = features(kernel.demand, kernel.schedule)
    own = {
        "chosen": str(int(kernel.place == 0)),
        "predicted_shared_bytes": str(shared_bytes(kernel.demand, kernel.schedule)),
    }
    return kernel.figures | own | {f"n_{name}": f"{count:g}" for name, count in counts.items()}


def group(row: dict[str, str]) -> str:
    """Kernels with the same weights."""
    return group_of(row["scheme"], row["keeps"], int(row["stages"]))  # type: ignore[arg-type]


def fit(rows: Sequence[dict[str, str]]) -> Weights:
    """Of one scheme."""
    found = [_with_threshold(_weights(rows, fewest), rows, fewest) for fewest in FEWEST]
    return max(found, key=lambda each: sum(_worth(row) * is_within(row, each) for row in rows if not is_spilled(row)))


def _with_threshold(weights: dict[str, float], rows: Sequence[dict[str, str]], fewest: float) -> Weights:
    """What spills after all is compiled again under another schedule, what does not and is said to is never tried."""
    shares = sorted((wanted(row, weights) / most_registers(row), is_spilled(row)) for row in rows if has_room(row))
    best, threshold, worth = 0.0, LEAST_SHARE, 0.0
    for share, spilled in shares:
        worth += -MISS_COSTS if spilled else 1
        if worth >= best and share > LEAST_SHARE:
            best, threshold = worth, share
    if not any(spilled for _, spilled in shares):
        threshold = 1 / fewest
    return Weights(weights, fewest, math.ceil(1000 * min(threshold, 1 / fewest)) / 1000)


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
    tolerance = np.array([_tolerance(row) for row in rows])
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
    inside = [w for w in steps if abs(given(w, int(row["warps"]), fewest) - registers) <= _tolerance(row)]
    highest = 1.15 * most / fewest if inside and inside[-1] == steps[-1] else inside[-1] if inside else registers
    return (inside[0] if inside else registers), highest


def _tolerance(row: dict[str, str]) -> float:
    return max(TOLERATED, TOLERANCE * int(row["registers"]))


def _worth(row: dict[str, str]) -> float:
    return CHOSEN_COUNTS if row["chosen"] == "1" else 1.0


def wanted(row: dict[str, str], weights: dict[str, float]) -> float:
    return sum(weight * float(row[f"n_{name}"]) for name, weight in weights.items())


def predicted(row: dict[str, str], fitted: Weights) -> int:
    """Registers that a kernel is given."""
    return min(given(round(wanted(row, fitted.weights)), int(row["warps"]), fitted.fewest), most_registers(row))


@cache
def given(wanted: int, warps: int, fewest: float) -> int:
    return given_registers(wanted, warps, fewest)


def most_registers(row: dict[str, str]) -> int:
    return min(MOST_REGISTERS, REGISTERS // (32 * int(row["warps"])) // 8 * 8)


def is_spilled(row: dict[str, str]) -> bool:
    """Whether registers are spilled for want of more. ptxas also spills 4 to 56 bytes to stay within 64 or 128
    registers where there are more: its choice, which nothing but trying tells."""
    return int(row["spill_bytes"]) > 0 and int(row["registers"]) >= most_registers(row) - REGISTER_GRAIN


def has_room(row: dict[str, str]) -> bool:
    """Whether one program's shared memory is that of a multiprocessor or less: what has none is never chosen."""
    return int(row["predicted_shared_bytes"]) <= Target.named("h200").shared_bytes


def is_said_to_spill(row: dict[str, str], fitted: Weights) -> bool:
    """Whether the model says so."""
    return wanted(row, fitted.weights) > fitted.spilling * most_registers(row)


def is_within(row: dict[str, str], fitted: Weights) -> bool:
    """Whether the prediction is within the tolerance."""
    return abs(predicted(row, fitted) - int(row["registers"])) <= _tolerance(row)


def is_odd(row: dict[str, str]) -> bool:
    """Whether ptxas gave up: few registers and much spilled, which says nothing of what the kernel needs."""
    return int(row["spill_bytes"]) >= LARGE_SPILL_BYTES and not is_spilled(row)


def summary(rows: Sequence[dict[str, str]], fitted: Weights) -> str:
    whole = [row for row in rows if not is_spilled(row)]
    chosen = [row for row in whole if row["chosen"] == "1"]
    met, chosen_met = (sum(is_within(row, fitted) for row in some) for some in (whole, chosen))
    said = [is_said_to_spill(row, fitted) for row in rows]
    fits = sum(is_spilled(row) and has_room(row) and not yes for row, yes in zip(rows, said, strict=True))
    refused = sum(yes and not is_spilled(row) for row, yes in zip(rows, said, strict=True))
    return (
        f"{met} of {len(whole)} kernels within 16 registers or 15 %, {chosen_met} of {len(chosen)} that a planner "
        f"chose; of {len(rows) - len(whole)} that spill {fits} said to fit, {refused} others said to spill"
    )


if __name__ == "__main__":
    raise SystemExit(main())
