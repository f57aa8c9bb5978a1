"""Misses of the planner's model: a kernel that spills registers after all, or takes more than it was to have, gives way
to its runner-up. Which values share a kernel stays as it was decided."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from weft.backends.listed import backend_of
from weft.backends.resource_usage import ResourceUsage
from weft.plan.kernel import Kernel
from weft.plan.schedules import runner_up
from weft.plan.split import Split
from weft.target import Target

MOST_RUNNERS_UP = 5
"""That take the place of a kernel in turn: each is compiled."""


def without_miss(
    kernel: Kernel,
    used: ResourceUsage,
    target: Target,
    hints: Mapping[str, int],
    built: Callable[[Kernel], ResourceUsage | None],
) -> tuple[Kernel, ResourceUsage]:
    """The kernel or, if it is a miss, the best of it and of runners-up, with what that uses: what spills less, or takes
    less time with the registers that it was given. They may be of any backend. used: by the kernel. built: what another
    one uses that is compiled in its place; None if it cannot be."""
    split, tried = Split.of_kernel(kernel, target, hints), [kernel.schedule]

    def us_with(some: Kernel, registers: int) -> float:
        return backend_of(some).us_with(split, some.schedule, registers)

    with suppress(Exception):  # the kernel at hand is slow, not wrong
        while len(tried) <= MOST_RUNNERS_UP and is_missed(kernel, used, target):
            schedule = runner_up(kernel, target, hints, 0 if used.spill_bytes else used.registers, tried)
            other = None if schedule is None else replace(kernel, schedule=schedule)
            found = None if other is None else built(other)
            if other is None or found is None:
                break
            tried.append(other.schedule)
            times = us_with(other, found.registers), us_with(kernel, used.registers)
            if (found.spill_bytes, times[0]) < (used.spill_bytes, times[1]):
                kernel, used = other, found
    return kernel, used


def is_missed(kernel: Kernel, used: ResourceUsage, target: Target) -> bool:
    """Whether a kernel is not what was planned."""
    return backend_of(kernel).is_missed(kernel, used, target)
