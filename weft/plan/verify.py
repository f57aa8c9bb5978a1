"""The rules every plan obeys: each kernel one pass, each buffer written once, before it is read."""

from __future__ import annotations

from math import prod

from weft.errors import VerificationError
from weft.ir.program import Program
from weft.ir.structure import analyse
from weft.ir.verify import verify
from weft.plan.kernel import Plan
from weft.plan.legality import kinds_of


def verify_plan(plan: Plan, program: Program) -> Plan:
    """Return ``plan``, or raise VerificationError naming the kernel and buffer at fault."""
    available = {b.name for b in program.inputs}
    for kernel in plan.kernels:
        verify(kernel.program)
        schedule = kernel.schedule
        split = sorted((*schedule.rows, *schedule.columns))
        if split != sorted(d.name for d in kernel.program.dims):
            raise VerificationError(f"{kernel.name}: rows and columns are {split}, not its dimensions")
        if not set(schedule.segments) <= set(schedule.rows):
            raise VerificationError(f"{kernel.name}: segments {schedule.segments} are no rows")
        if analyse(kernel.program, schedule.rows).pass_count != 1:
            raise VerificationError(f"{kernel.name}: is more than one pass")
        width = [n for n in map(kernel.program.size_of, schedule.columns) if isinstance(n, int)]
        is_held = schedule.scheme in ("ONE_SHOT", "STREAM") and kinds_of(kernel.program, schedule.columns)[0]
        if is_held and not schedule.holds(prod(width)):
            raise VerificationError(f"{kernel.name}: its programs hold no row of {prod(width)} columns")
        for buffer in kernel.program.inputs:
            if buffer.name not in available and buffer.within not in available:
                raise VerificationError(f"{kernel.name}: reads {buffer.name} before it is written")
        for output in kernel.program.outputs:
            if output.buffer.name in available:
                raise VerificationError(f"{kernel.name}: {output.buffer.name} is written twice")
            available.add(output.buffer.name)
        available |= {output.buffer.within for output in kernel.program.outputs} - {""}
    missing = {o.buffer.name for o in program.outputs} - available
    if missing:
        raise VerificationError(f"{program.name}: {sorted(missing)} are never written")
    return plan
