"""How many registers of a thread a GPU's compiler is told of.

Told of none, ptxas orders the instructions of a kernel so that as many programs fit a multiprocessor as can, and lets
loads wait for each other to that end, also where a multiprocessor has no more than one or two programs.
"""

from __future__ import annotations

from weft.backends.triton.cost import programs_of, programs_per_sm
from weft.backends.triton.demand import Demand
from weft.backends.triton.resources import most_registers, registers_per_thread, shared_bytes, wanted_registers
from weft.backends.triton.schedule import TritonSchedule
from weft.backends.triton.work import Work
from weft.plan.split import Split

FEW_PROGRAMS, NEARLY_CAPPED = 3, 0.9
"""Programs of a multiprocessor up to which one less is a third less or more, and the share of the registers that they
have from which a thread's are capped. Rms norm and softmax of 22808 columns were given 76 and 70 registers where 64 let
a second program in, and took 1.3 times as long; capped, they spill none."""


def with_register_cap(split: Split, schedule: TritonSchedule) -> TritonSchedule:
    """The schedule with ``register_cap`` set."""
    demand = Demand.of(split.program, schedule)
    cap = _spare(split, schedule, demand) or _scarce(split, schedule, demand)
    return schedule.but(register_cap=cap) if cap else schedule


def is_scarce(split: Split, schedule: TritonSchedule) -> bool:
    """Whether a thread is given fewer registers than it would take."""
    return _scarce(split, schedule, Demand.of(split.program, schedule)) > 0


def _spare(split: Split, schedule: TritonSchedule, demand: Demand) -> int:
    """Registers of a thread with which those programs fit that a multiprocessor has, where more would fit; 0 elsewhere.
    Of 1000 rows of 1536 columns, of which a multiprocessor has two programs of 4 rows, sums along both took 6.4 us with
    the 96 registers that ptxas chose, one load after the other, and 4.1 with 166 (H100)."""
    if split.is_dynamic:
        return 0
    programs = -(-programs_of(Work.of(split, schedule.scheme == "LOOP"), schedule) // split.target.units)
    registers, shared = registers_per_thread(demand, schedule), shared_bytes(demand, schedule)
    fitting = programs_per_sm(registers, schedule.warps, 0, split.target)
    resident = min(programs, programs_per_sm(registers, schedule.warps, shared, split.target))
    return most_registers(schedule.warps, resident, split.target) if resident < fitting else 0


def _scarce(split: Split, schedule: TritonSchedule, demand: Demand) -> int:
    """Registers of a thread with which as many programs fit a multiprocessor as are predicted to, where these are few
    and a thread could use about as many or more; 0 elsewhere, and for persistent programs."""
    if schedule.chunks or schedule.scheme not in ("ONE_SHOT", "LOOP") or not split.has_inner:
        return 0
    held, wanted = registers_per_thread(demand, schedule), wanted_registers(demand, schedule)
    fitting = (n for n in range(FEW_PROGRAMS, 1, -1) if held <= most_registers(schedule.warps, n, split.target))
    most = next((most_registers(schedule.warps, n, split.target) for n in fitting), 0)
    return most if wanted > NEARLY_CAPPED * most else 0
