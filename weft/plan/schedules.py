"""The schedule of a kernel, and others that it can have, by whichever backend takes the least time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

from weft.backends.listed import backend_named, backends_of
from weft.plan.cost import estimate
from weft.plan.kernel import Kernel, Resources
from weft.plan.schedule import Schedule
from weft.plan.split import Split
from weft.target import Target


def schedule_for(part: Split) -> Schedule:
    """The one with the shortest predicted time of all backends for the target, of those that fit if any do."""
    every = backends_of(part.target.kind)
    best, least = None, (True, math.inf)
    moved, hints = sum(map(part.sizes.bytes, part.program.buffers)), dict(part.hints)
    for backend in every:
        if (False, backend.least_us(moved, part.target)) >= least:
            continue
        schedule = backend.choose(part)
        if schedule is not None and len(every) == 1:
            return schedule
        if schedule is None:
            continue
        us = estimate(Kernel(part.program, schedule), part.target, hints).predicted_us
        us *= backend.optimism(part, schedule)
        own = backend.check_fits(part) is not None, us
        if best is None or own < least:
            best, least = schedule, own
    assert best is not None, "some backend always has one"
    return best


def runner_up(
    kernel: Kernel, target: Target, hints: Mapping[str, int], registers: int, tried: Sequence[Schedule]
) -> Schedule | None:
    """What to take in place of a schedule whose kernel was missed: what its backend has then, or what another one would
    have chosen, by predicted time. registers: of a thread, 0 if it spills; others have to be faster than it with so
    many. tried: what is not to be taken."""
    own, part = backend_named(kernel.schedule.backend), Split.of_kernel(kernel, target, hints)

    def us(schedule: Schedule) -> float:
        return estimate(replace(kernel, schedule=schedule), target, hints).predicted_us

    most = own.us_with(part, kernel.schedule, registers) if registers else math.inf
    others = (backend.choose(part) for backend in backends_of(target.kind) if backend is not own)
    found = [s for s in others if s is not None and s not in tried and us(s) < most]
    next_own = own.runner_up(kernel, target, hints, registers, tried)
    return min(found if next_own is None else [next_own, *found], key=us, default=None)


def elsewhere(kernel: Kernel, target: Target, hints: Mapping[str, int]) -> Schedule | None:
    """What to take for calls of sizes that a kernel was not planned for: the schedule with the shortest predicted time
    for these, of any backend; None if none of them can be written. hints: the sizes of a call."""
    part = Split.of_kernel(kernel, target, hints)
    kernels = [
        made
        for backend in backends_of(target.kind)
        if (schedule := backend.choose(part)) is not None
        and backend.supports(made := replace(kernel, schedule=schedule), target) is None
    ]
    found = min(kernels, key=lambda made: estimate(made, target, hints).predicted_us, default=None)
    return None if found is None else found.schedule


def candidates(kernel: Kernel, target: Target, hints: Mapping[str, int]) -> tuple[Schedule, ...]:
    """All schedules with the split of the kernel; its own is the first, those of all backends follow in turn, by
    predicted time: tuning measures them, and a stored schedule must be one."""
    ranked = [backend.candidates(kernel, target, hints) for backend in backends_of(target.kind)]
    in_turn = (schedule for place in zip_longest(*ranked) for schedule in place if schedule is not None)
    return tuple(dict.fromkeys((kernel.schedule, *in_turn)))


def resources(kernel: Kernel, target: Target) -> Resources:
    """What a kernel is predicted to hold."""
    return backend_named(kernel.schedule.backend).resources(kernel, target)
