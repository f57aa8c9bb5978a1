"""The schedule of a kernel on a GPU: of those that fit, the one with the shortest predicted time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache

from weft.ir.structure import KEPT
from weft.plan.demand import Demand
from weft.plan.gpu_candidates import candidates
from weft.plan.gpu_cost import Work, kernel_us
from weft.plan.kernel import Keeps, Kernel, Schedule
from weft.plan.resources import wanted_registers
from weft.plan.split import Split
from weft.target import Target

CLEARLY_FEWER = 0.9
"""The part of its registers that what replaces a kernel that spills wants at the most; that many of the predictions
are off by less than a tenth."""


@lru_cache(maxsize=KEPT)
def gpu_schedule(split: Split) -> Schedule:
    """The schedule of a kernel with the shortest predicted time. Once for a pass that several splits have in common."""
    found = candidates(split)
    return min(found, key=predictor(split, found[0]))


def forget() -> None:
    """Choose anew, for whoever changes what there is to choose from."""
    gpu_schedule.cache_clear()


def runner_up(kernel: Kernel, target: Target, hints: Mapping[str, int], registers: int = 0) -> Schedule | None:
    """What to take in place of a schedule whose kernel spills: the best of those that want clearly fewer registers by
    the model, or of any others; None if there is no other. registers: of a thread, if the kernel spills none but takes
    more than were counted on: then the best of the others, if it takes less time than the kernel with so many."""
    split, chosen = Split.of_kernel(kernel, target, hints), kernel.schedule
    found = [s for s in candidates(split) if s != chosen]
    if registers and found:
        us = predictor(split, chosen)
        best = min(found, key=us)
        demand, work = Demand.of(split.program, chosen), Work.of(split, chosen.scheme == "LOOP")
        return best if us(best) < kernel_us(work, demand, chosen, target, registers) else None
    most = CLEARLY_FEWER * wanted_registers(Demand.of(kernel.program, chosen), chosen)
    fewer = [s for s in found if wanted_registers(Demand.of(kernel.program, s), s) <= most]
    return min(fewer or found, key=predictor(split, chosen)) if found else None


def ranked(split: Split, found: Sequence[Schedule]) -> tuple[Schedule, ...]:
    """Its candidates, the one with the shortest predicted time first."""
    return tuple(sorted(found, key=predictor(split, found[0])))


def predictor(split: Split, first: Schedule) -> Callable[[Schedule], float]:
    """Microseconds of a candidate, by the model of time."""

    @cache
    def work(looped: bool) -> Work:
        return Work.of(split, looped)

    @cache
    def demand(looped: bool, keeps: Keeps) -> Demand:
        return Demand.of(split.program, replace(first, scheme="LOOP" if looped else "ONE_SHOT", keeps=keeps))

    def us(schedule: Schedule) -> float:
        looped = schedule.scheme == "LOOP"
        return kernel_us(work(looped), demand(looped, schedule.keeps), schedule, split.target)

    return us
