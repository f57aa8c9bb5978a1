"""Finds the weights of the model of registers: ``python -m weft.bench.ptxas_fit [--csv FILE]``.

Writes ``weft/plan/register_weights.py``. For each scheme, non-negative weights that keep most kernels within 16
registers or 15 % of what ptxas gave them, by a linear program. What spills has to be predicted to need all registers
there are; the threshold beyond which a kernel is said to spill then leaves out none of them.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weft.plan.resources import MOST_REGISTERS, REGISTER_GRAIN

FOLDER = Path(__file__).parent.parent / "plan"
SCHEMES = ("ONE_SHOT", "LOOP", "COLUMN", "STREAM")
TOLERANCE, TOLERATED = 0.15, 16
FILE_REGISTERS = 65536
LARGE_SPILL_BYTES = 64
"""Below the limit nothing spills so much but what ``resources.spills`` knows for another reason, or hopeless cases."""
ROUNDS, FORGIVEN = 8, 0.1
"""In each round, what lay outside in the one before counts less: as many as can be should lie inside, and how far off
the others are matters little. ptxas gives two kernels that differ in nothing that is counted 128 and 241 registers."""
NARROW = 0.02
"""How much the mere distance counts beside what lies outside the tolerance."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m weft.bench.ptxas_fit", description=__doc__)
    parser.add_argument("--csv", type=Path, default=FOLDER / "calibration" / "ptxas_sm90.csv")
    parser.add_argument("--out", type=Path, default=FOLDER / "register_weights.py")
    given = parser.parse_args(arguments)
    with given.csv.open() as file:
        rows = list(csv.DictReader(file))
    weights: dict[str, dict[str, float]] = {}
    spilling: dict[str, float] = {}
    notes: list[str] = []
    for scheme in SCHEMES:
        own = [row for row in rows if row["scheme"] == scheme and not is_odd(row)]
        weights[scheme], spilling[scheme] = fit(own)
        notes.append(f"{scheme}: {summary(own, weights[scheme], spilling[scheme])}")
    given.out.write_text(_module(weights, spilling, notes))
    print("\n".join(notes))
    return 0


def fit(rows: Sequence[dict[str, str]]) -> tuple[dict[str, float], float]:
    """Weights by feature, and the share of all registers beyond which a kernel spills."""
    import numpy as np
    from scipy.optimize import linprog

    names = [key[2:] for key in rows[0] if key.startswith("n_")]
    a: Any = np.array([[float(row[f"n_{name}"]) for name in names] for row in rows])
    most = np.array([most_registers(row) for row in rows])
    spilled = np.array([is_spilled(row) for row in rows])
    wanted = np.where(spilled, most, [float(row["registers"]) for row in rows])
    open_above = wanted >= most - 7  # ptxas may have wanted more
    tolerance = np.maximum(TOLERATED, TOLERANCE * wanted)
    count, width = a.shape
    one, none = np.eye(count), np.zeros((count, count))
    above = ~open_above
    slack = np.where(spilled, 0.0, tolerance)
    left = np.vstack(
        [
            np.hstack([a, -one, none])[above],
            np.hstack([-a, -one, none]),
            np.hstack([a, none, -one])[above],
            np.hstack([-a, none, -one]),
        ]
    )
    right = np.concatenate([(wanted + tolerance)[above], slack - wanted, wanted[above], -wanted])
    weight: Any = np.ones(count)
    found: Any = None
    for _ in range(ROUNDS):
        price = np.concatenate([np.zeros(width), weight / tolerance, NARROW / tolerance])
        found = linprog(price, A_ub=left, b_ub=right, bounds=(0, None), method="highs").x
        beyond = found[width : width + count] / tolerance
        weight = np.where(spilled, 1.0, 1 / (1 + beyond / FORGIVEN))
    weights = {name: round(float(x), 3) for name, x in zip(names, found[:width], strict=True) if x >= 0.0005}
    shares = [predicted(row, weights) / most_registers(row) for row in rows if is_spilled(row)]
    threshold = min([1.0, *(share - 0.005 for share in shares)])
    return weights, int(threshold * 100) / 100


def predicted(row: dict[str, str], weights: dict[str, float]) -> float:
    return sum(weight * float(row[f"n_{name}"]) for name, weight in weights.items())


def most_registers(row: dict[str, str]) -> int:
    return min(MOST_REGISTERS, FILE_REGISTERS // (32 * int(row["warps"])) // 8 * 8)


def is_spilled(row: dict[str, str]) -> bool:
    """Whether registers are spilled for want of more. ptxas also spills 4 to 48 bytes to stay within 64 or 128
    registers where there are more: its choice, which nothing but trying tells."""
    return int(row["spill_bytes"]) > 0 and int(row["registers"]) >= most_registers(row) - REGISTER_GRAIN


def is_within(row: dict[str, str], weights: dict[str, float]) -> bool:
    """Whether the prediction is within the tolerance."""
    registers = int(row["registers"])
    off = abs(min(predicted(row, weights), most_registers(row)) - registers)
    return off <= max(TOLERATED, TOLERANCE * registers)


def is_odd(row: dict[str, str]) -> bool:
    """Whether ptxas gave up: few registers and much spilled, which says nothing of what the kernel needs."""
    return int(row["spill_bytes"]) >= LARGE_SPILL_BYTES and not is_spilled(row)


def summary(rows: Sequence[dict[str, str]], weights: dict[str, float], threshold: float) -> str:
    whole = [row for row in rows if not is_spilled(row)]
    within = sum(is_within(row, weights) for row in whole)
    said = [predicted(row, weights) > threshold * most_registers(row) for row in rows]
    fits = sum(is_spilled(row) and not yes for row, yes in zip(rows, said, strict=True))
    refused = sum(yes and not is_spilled(row) for row, yes in zip(rows, said, strict=True))
    return (
        f"{within} of {len(whole)} kernels within 16 registers or 15 %; of {len(rows) - len(whole)} that "
        f"spill {fits} said to fit, {refused} others said to spill"
    )


def _module(weights: dict[str, dict[str, float]], spilling: dict[str, float], notes: Sequence[str]) -> str:
    lines = [
        '"""Weights of the model of registers in ``plan/resources.py``; written by ``python -m weft.bench.ptxas_fit``.',
        "",
        "Fitted to ``calibration/ptxas_sm90.csv``, what ptxas of Triton 3.6 gives kernels for sm_90 and sm_100.",
        *(f"{note}." for note in notes),
        '"""',
        "",
        "# Registers of a thread for each unit of a feature: of registers that are alive, of elements, or of each one.",
        "WEIGHTS: dict[str, dict[str, float]] = {",
    ]
    for scheme, own in weights.items():
        lines += [f'    "{scheme}": {{', *(f'        "{name}": {weight},' for name, weight in own.items()), "    },"]
    lines += [
        "}",
        "# The share of all registers beyond which a kernel is said to spill.",
        f"SPILLING = {{{', '.join(f'{chr(34)}{s}{chr(34)}: {x}' for s, x in spilling.items())}}}",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
