"""The schedule of a kernel on a GPU: which of its candidates is taken, and what instead of one that spills."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache

from weft.ir.structure import KEPT
from weft.plan.demand import Demand
from weft.plan.gpu_candidates import (
    LIKELY,
    ROW_ELEMENTS,
    SURE,
    all_by_columns,
    can_complete_sums,
    candidates,
    is_possible,
)
from weft.plan.gpu_cost import Work, kernel_us
from weft.plan.kernel import Keeps, Kernel, Schedule
from weft.plan.resources import wanted_registers
from weft.plan.split import Split
from weft.target import Target

LOOP_COLUMNS = 4096
"""Columns of a block of a loop over them."""
COLUMN_PROGRAMS, COLUMN_STAGES = 4, 4
"""Of kernels with column sums only: programs of a multiprocessor, and tiles on their way."""
ROWS_PER_WARP = 16
"""Of a program that has all rows of some columns."""
CLEARLY_FEWER = 0.9
"""The part of its registers that what replaces a kernel that spills wants at the most; that many of the predictions
are off by less than a tenth."""


@lru_cache(maxsize=KEPT)
def gpu_schedule(split: Split) -> Schedule:
    """The schedule of a kernel with the shortest predicted time, whether its rows fit the registers of a
    multiprocessor or not. Once for a pass that several splits have in common."""
    if split.has_inner:
        return _best(split, candidates(split))
    found = all_by_columns(split)  # most cannot be the best: these are not looked at
    demand, in_order = Demand.of(split.program, found[0]), ranked(split, found)
    return next((s for s in in_order if is_possible(demand, s, 1, split.target, LIKELY)), in_order[0])


def forget() -> None:
    """Choose anew, for whoever changes what there is to choose from."""
    gpu_schedule.cache_clear()


def runner_up(kernel: Kernel, target: Target, hints: Mapping[str, int]) -> Schedule | None:
    """What to take in place of a schedule whose kernel spills: the best of those that want clearly fewer registers by
    the model, or of any others that it is sure of; None if there is no other."""
    split, chosen = Split.of_kernel(kernel, target, hints), kernel.schedule
    found = [s for s in candidates(split, SURE) if s != chosen]
    most = CLEARLY_FEWER * wanted_registers(Demand.of(kernel.program, chosen), chosen)
    fewer = [s for s in found if wanted_registers(Demand.of(kernel.program, s), s) <= most]
    return _best(split, fewer or found) if found else None


def _best(split: Split, found: Sequence[Schedule]) -> Schedule:
    return min(found, key=_order(split, found[0]))


def ranked(split: Split, found: Sequence[Schedule]) -> tuple[Schedule, ...]:
    """Its candidates, the one with the shortest predicted time first."""
    return tuple(sorted(found, key=_order(split, found[0])))


def _order(split: Split, first: Schedule) -> Callable[[Schedule], tuple[float, ...]]:
    """Less is better. first: of the candidates."""
    if first.scheme == "LOOP":
        return _loop_order
    if not split.has_inner:
        order = _all_rows_order if can_complete_sums(split) else _column_order
        return lambda schedule: order(schedule, split)
    if split.has_few_rows:
        return _few_order
    work = Work.of(split)

    @cache
    def demand(keeps: Keeps) -> Demand:
        return Demand.of(split.program, replace(first, keeps=keeps))

    return lambda schedule: (kernel_us(work, demand(schedule.keeps), schedule, split.target),)


def _loop_order(schedule: Schedule) -> tuple[float, ...]:
    """Less is better. Of 24 schedules of softmax over 50257 and 131072 columns on an H200 the first was the best and
    within 2 % of the best; two stages were the worst at both."""
    elements = schedule.pieces[0] / (32 * schedule.warps)
    return (abs(schedule.pieces[0] - LOOP_COLUMNS), abs(elements - 16), schedule.stages != 3)


def _few_order(schedule: Schedule) -> tuple[float, ...]:
    """Less is better, where each program has one row. Of 36 schedules of 64 rows of two norms' backwards on an H200, at
    1024 and 4096 columns, the first was the best or within 1 % of it in three cases, and 6 % slower in the fourth."""
    return (-schedule.warps, len(schedule.pieces))


def _all_rows_order(schedule: Schedule, split: Split) -> tuple[float, ...]:
    """Less is better, where each program has all rows of some columns. Of six schedules of two norms' column sums on an
    H200, behind the kernel of the rows, the first was the best or within 0.1 us of it, of 3 to 5 us, with 16, 64 and
    128 rows of 1024 and 4096 columns."""
    width = sum(schedule.pieces) or 1
    programs = split.segment_count * (-(-split.width // width) if split.columns else 1)
    rows = schedule.rows_per_tile
    return (max(programs, split.target.units), width, -rows, abs(schedule.warps - rows / ROWS_PER_WARP))


def _column_order(schedule: Schedule, split: Split) -> tuple[float, ...]:
    """Less is better, for kernels that reduce nothing along rows. Of 40 schedules of GELU's gradient with a bias on an
    H200 the first was the best at 1024 and at 4096 columns."""
    width = sum(schedule.pieces) or 1
    blocks = -(-split.width // width) if split.columns else 1
    programs = schedule.chunks * blocks * split.segment_count
    wanted = COLUMN_PROGRAMS * split.target.units
    return (
        abs(schedule.rows_per_tile * width - ROW_ELEMENTS),
        schedule.warps,
        -width,
        abs(schedule.stages - COLUMN_STAGES),
        abs(programs - wanted),
    )
