"""Whether the model of registers meets what ptxas gave a kernel: of lines of sweeps, with what the model counts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from tools.swept import Swept
from weft.backends.triton.demand import features
from weft.backends.triton.resources import (
    MOST_REGISTERS,
    REGISTER_GRAIN,
    REGISTERS,
    Weights,
    given_registers,
    group_of,
    shared_bytes,
)
from weft.target import Target

TOLERANCE, TOLERATED = 0.15, 16
LARGE_SPILL_BYTES = 64
"""Below the limit nothing spills so much but what ``resources.spills`` knows for another reason, or hopeless cases."""


def counted(kernel: Swept) -> dict[str, str]:
    """What is known of a kernel, and what the model counts, by name with an ``n_`` before it."""
    counts = features(kernel.demand, kernel.schedule)
    own = {
        "chosen": str(int(kernel.place == 0)),
        "group": group_of(kernel.schedule),
        "predicted_shared_bytes": str(shared_bytes(kernel.demand, kernel.schedule)),
    }
    return kernel.figures | own | {f"n_{name}": f"{count:g}" for name, count in counts.items()}


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
    return abs(predicted(row, fitted) - int(row["registers"])) <= tolerance_of(row)


def is_odd(row: dict[str, str]) -> bool:
    """Whether its registers say nothing of what a kernel needs: ptxas gave up, with few registers and much spilled, or
    had a bound, up to which it takes what makes no other program wait."""
    gave_up = int(row["spill_bytes"]) >= LARGE_SPILL_BYTES and not is_spilled(row)
    return gave_up or row["register_cap"] != "0"


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


def tolerance_of(row: dict[str, str]) -> float:
    return max(TOLERATED, TOLERANCE * int(row["registers"]))
