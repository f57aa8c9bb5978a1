"""The schedule of a kernel, and others that it can have, by whichever backend takes the least time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest

from weft.backends.listed import backend_named, backends_of
from weft.plan.cost import estimate
from weft.plan.kernel import Kernel, Resources
from weft.plan.schedule import Schedule
from weft.plan.split import Split
from weft.target import Target


def schedule_for(part: Split) -> Schedule:
    """The one with the shortest time of all backends for the target, of those that fit if any do."""
    best = _chosen(part, lambda _: True)
    assert best is not None, "some backend always has one"
    return best


def _chosen(part: Split, may_have: Callable[[Schedule], bool]) -> Schedule | None:
    """The same, if there is one that is taken. may_have: says no to schedules that are not to be taken."""
    every = backends_of(part.target.kind)
    best, least = None, (True, math.inf)
    moved = sum(map(part.sizes.bytes, part.program.buffers))
    for backend in every:
        if (False, backend.least_us(moved, part.target)) >= least:
            continue
        schedule = backend.choose(part)
        if schedule is None or not may_have(schedule):
            continue
        if len(every) == 1:
            return schedule
        own = backend.check_fits(part) is not None, _likely_us(part, schedule)
        if best is None or own < least:
            best, least = schedule, own
    return best


def _likely_us(part: Split, schedule: Schedule) -> float:
    """What a schedule that is the best of its backend likely takes."""
    predicted_us = estimate(Kernel(part.program, schedule), part.target, dict(part.hints)).predicted_us
    return predicted_us * backend_named(schedule.backend).optimism(part, schedule)


def runner_up(
    kernel: Kernel, target: Target, hints: Mapping[str, int], registers: int, tried: Sequence[Schedule]
) -> Schedule | None:
    """What to take in place of a schedule whose kernel was missed: what its backend has then, or what another one would
    have chosen, by predicted time. registers: of a thread, 0 if it spills; others have to be faster than it with so
    many. tried: what is not to be taken."""
    own, part = backend_named(kernel.schedule.backend), Split.of_kernel(kernel, target, hints)

    most = math.inf
    if registers:
        most = own.us_with(part, kernel.schedule, registers) * own.optimism(part, kernel.schedule)
    others = (backend.choose(part) for backend in backends_of(target.kind) if backend is not own)
    found = [s for s in others if s is not None and s not in tried and _likely_us(part, s) < most]
    next_own = own.runner_up(kernel, target, hints, registers, tried)
    return min(found if next_own is None else [next_own, *found], key=partial(_likely_us, part), default=None)


def elsewhere(kernel: Kernel, target: Target, hints: Mapping[str, int]) -> Schedule | None:
    """What to take for calls of sizes that a kernel was not planned for: what would be planned for these, of backends
    that can write it; None if there is none. hints: the sizes of a call."""

    def can_be_written(schedule: Schedule) -> bool:
        return backend_named(schedule.backend).supports(replace(kernel, schedule=schedule), target) is None

    return _chosen(Split.of_kernel(kernel, target, hints), can_be_written)


def candidates(kernel: Kernel, target: Target, hints: Mapping[str, int]) -> tuple[Schedule, ...]:
    """All schedules with the split of the kernel; its own is the first, those of all backends follow in turn, by
    predicted time: tuning measures them, and a stored schedule must be one."""
    ranked = [backend.candidates(kernel, target, hints) for backend in backends_of(target.kind)]
    in_turn = (schedule for place in zip_longest(*ranked) for schedule in place if schedule is not None)
    return tuple(dict.fromkeys((kernel.schedule, *in_turn)))


def resources(kernel: Kernel, target: Target) -> Resources:
    """What a kernel is predicted to hold."""
    return backend_named(kernel.schedule.backend).resources(kernel, target)
