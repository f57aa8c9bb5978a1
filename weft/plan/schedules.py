"""The schedule of a kernel, and others that it can have, by whichever backend takes the least time."""

from __future__ import annotations

from collections.abc import Mapping

from weft.backends.listed import backend_named, backends_of
from weft.plan.cost import estimate
from weft.plan.kernel import Kernel, Resources
from weft.plan.schedule import Schedule
from weft.plan.split import Split
from weft.target import Target


def schedule_for(part: Split) -> Schedule:
    """The one with the shortest predicted time of all backends for the target."""
    found = [backend.choose(part) for backend in backends_of(part.target.kind)]
    if len(found) == 1:
        return found[0]
    hints = dict(part.hints)
    return min(found, key=lambda each: estimate(Kernel(part.program, each), part.target, hints).predicted_us)


def candidates(kernel: Kernel, target: Target, hints: Mapping[str, int]) -> tuple[Schedule, ...]:
    """All schedules with the split of the kernel; its own is the first, the others follow by predicted time: tuning
    measures them, and a stored schedule must be one."""
    ranked = backend_named(kernel.schedule.backend).candidates(kernel, target, hints)
    return tuple(dict.fromkeys((kernel.schedule, *ranked)))


def resources(kernel: Kernel, target: Target) -> Resources:
    """What a kernel is predicted to hold."""
    return backend_named(kernel.schedule.backend).resources(kernel, target)
