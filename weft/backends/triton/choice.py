"""The schedule of a kernel on a GPU: of those that fit, the one with the shortest predicted time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial

from weft.backends.triton.candidates import candidates, more_candidates
from weft.backends.triton.cost import programs_per_sm, times_us
from weft.backends.triton.demand import Demand
from weft.backends.triton.register_cap import is_scarce
from weft.backends.triton.resources import most_wanted, registers_per_thread, shared_bytes, spills, wanted_registers
from weft.backends.triton.schedule import TritonKernel, TritonSchedule
from weft.ir.structure import KEPT
from weft.plan.doubt import CLEARLY_FEWER, DOUBTFUL_TIME
from weft.plan.schedule import Schedule
from weft.plan.split import Split
from weft.target import Target

WORTH_COMPILING = 0.97
"""The part of a kernel's predicted time that another one may take for which it is compiled as well: of 2229 kernels of
the sweeps 96 were, and what is lost by choices fell from 3.9 to 3.7 %, to 3.8 % without this and 235 compiled."""


@lru_cache(maxsize=KEPT)
def gpu_schedule(split: Split) -> TritonSchedule:
    """The schedule of a kernel with the shortest predicted time; one that may spill has to take clearly less than one
    that does not. Once for a pass that several splits have in common."""

    best, least = None, math.inf
    for schedule in candidates(split):
        us = predicted_us(split, schedule)
        if us < least and spills(Demand.of(split.program, schedule), schedule, split.target):
            us *= DOUBTFUL_TIME
        if us < least:
            best, least = schedule, us
    assert best is not None, "there is always a schedule"
    return best


def fits(split: Split, slack: float = 1.0) -> bool:
    """Whether registers hold what a thread wants under the schedule that is chosen. slack: by how much it may exceed
    them."""
    schedule = gpu_schedule(split)
    return not spills(Demand.of(split.program, schedule), schedule, split.target, slack)


def forget() -> None:
    """Choose anew, for whoever changes what there is to choose from."""
    gpu_schedule.cache_clear()


def runner_up(
    kernel: TritonKernel, target: Target, hints: Mapping[str, int], registers: int = 0, tried: Sequence[Schedule] = ()
) -> TritonSchedule | None:
    """What to take in place of a schedule whose kernel spills: the best of those that want clearly fewer registers by
    the model than all that was tried, or of any others; None if there is no other. registers: of a thread, if the
    kernel spills none but takes more than were counted on: then the best of those that are sure to have what they want,
    if it takes less time than the kernel with so many. tried: what is not to be taken either."""
    split, chosen = Split.of_kernel(kernel, target, hints), kernel.schedule
    every = dict.fromkeys((*candidates(split), *(() if registers else more_candidates(split))))
    found, us = [s for s in every if s not in (chosen, *tried)], partial(predicted_us, split)

    def wanted(schedule: TritonSchedule) -> int:
        return wanted_registers(Demand.of(split.program, schedule), schedule)

    if registers:
        sure = (s for s in found if not is_scarce(split, s) and wanted(s) <= CLEARLY_FEWER * most_wanted(s, target))
        best = min(sure, key=us, default=None)
        worth = best is not None and us(best) < WORTH_COMPILING * us(chosen, registers)
        return best if worth else None
    least = min(wanted(s) for s in (chosen, *tried) if isinstance(s, TritonSchedule))
    fewer = [s for s in found if wanted(s) <= CLEARLY_FEWER * least]
    return min(fewer or found, key=us, default=None)


def holds_fewer(kernel: TritonKernel, target: Target, registers: int) -> bool:
    """Whether fewer programs fit a multiprocessor than were counted on. registers: that a thread was given."""
    schedule, demand = kernel.schedule, Demand.of(kernel.program, kernel.schedule)
    if schedule.register_cap:
        return registers > schedule.register_cap
    shared = shared_bytes(demand, schedule)
    each = (registers, registers_per_thread(demand, schedule))
    given, counted = (programs_per_sm(number, schedule.warps, shared, target) for number in each)
    return given < counted


def ranked(split: Split, found: Sequence[TritonSchedule]) -> tuple[TritonSchedule, ...]:
    """Its candidates, the one with the shortest predicted time first."""
    return tuple(sorted(found, key=partial(predicted_us, split)))


def predicted_us(split: Split, schedule: TritonSchedule, registers: int = 0) -> float:
    """Microseconds of a kernel under a schedule, by the model of time. registers: of a thread, if that is known."""
    return times_us(split, schedule, registers).all
