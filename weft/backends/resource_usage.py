"""What a compiled GPU kernel holds of an SM."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass


@dataclass(frozen=True)
class ResourceUsage:
    """registers: 32 bits each, of a thread. spill_bytes: of the stores and loads of spilled registers in the text of a
    thread. shared_bytes: of a program. stack_bytes: of a thread's stack frame, which holds spilled registers, and the
    arrays of some functions (``sin`` of large numbers)."""

    registers: int
    spill_bytes: int
    shared_bytes: int
    stack_bytes: int


def most_of(usages: Iterable[ResourceUsage]) -> ResourceUsage:
    """The most that any of several functions uses, of each thing."""
    return ResourceUsage(*map(max, zip((0, 0, 0, 0), *map(astuple, usages), strict=True)))
