"""Kernels whose rows are of a width that is known at run time only, for calls of one width."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weft.ir.specialise import specialised
from weft.plan.kernel import Kernel
from weft.plan.schedules import elsewhere
from weft.target import Target


def widths_of(kernel: Kernel) -> tuple[str, ...]:
    """Parameters that say how wide rows are and, if there are any, those that say how far apart they are and nothing
    else."""
    program = kernel.program
    columns, rows = (
        {size for dim in dims if isinstance(size := program.size_of(dim), str)}
        for dims in (kernel.schedule.columns, kernel.schedule.rows)
    )
    strides = {stride for buffer in program.buffers for stride in buffer.strides}
    return tuple(p for p in program.parameters if p in columns or (columns and p in strides - rows))


def exact(kernel: Kernel, target: Target, hints: Mapping[str, int]) -> Kernel | None:
    """The kernel for calls whose rows are as wide as is said here, which is called as the kernel is, with the schedule
    that is best for them; None if none can be written, or rows have one element. hints: the sizes of a call."""
    known = {name: hints[name] for name in widths_of(kernel)}
    if min(known.values(), default=0) < 2:
        return None
    made = replace(kernel, program=specialised(kernel.program, known))
    schedule = elsewhere(made, target, hints)
    return None if schedule is None else replace(made, schedule=schedule)
