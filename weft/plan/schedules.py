"""The schedule of a kernel, and others that it can have, by whichever backend takes the least time."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest

from weft.backends.listed import backend_named, backends_of
from weft.plan.cost import estimate
from weft.plan.kernel import Kernel, Resources
from weft.plan.schedule import Schedule
from weft.plan.split import Split
from weft.target import Target


def schedule_for(part: Split) -> Schedule:
    """The one with the shortest predicted time of all backends for the target."""
    every = backends_of(part.target.kind)
    fitting = [backend for backend in every if backend.check_fits(part) is None] if len(every) > 1 else every
    found = [schedule for backend in fitting or every if (schedule := backend.choose(part)) is not None]
    if len(found) == 1:
        return found[0]
    hints = dict(part.hints)
    return min(found, key=lambda each: estimate(Kernel(part.program, each), part.target, hints).predicted_us)


def candidates(kernel: Kernel, target: Target, hints: Mapping[str, int]) -> tuple[Schedule, ...]:
    """All schedules with the split of the kernel; its own is the first, those of all backends follow in turn, by
    predicted time: tuning measures them, and a stored schedule must be one."""
    ranked = [backend.candidates(kernel, target, hints) for backend in backends_of(target.kind)]
    in_turn = (schedule for place in zip_longest(*ranked) for schedule in place if schedule is not None)
    return tuple(dict.fromkeys((kernel.schedule, *in_turn)))


def resources(kernel: Kernel, target: Target) -> Resources:
    """What a kernel is predicted to hold."""
    return backend_named(kernel.schedule.backend).resources(kernel, target)
