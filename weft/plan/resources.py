"""What a thread and an SM must hold for a kernel on a GPU, predicted before any code exists.

A row lies in the registers of one block of threads. A thread holds, for each of its columns: inputs in their own dtype,
those with rows from their first loop to their last, those without for good; one accumulator for each column sum; and
the float32 values that are alive at the same time where most are. Measured with ptxas for the RMS norm backward with
256 threads: 32, 118 and 206 registers at N = 512, 4096 and 8192 (Triton 3.6, sm_90).
"""

from __future__ import annotations

from weft.ir import dtypes
from weft.ir.ops import states_of
from weft.ir.program import Program
from weft.ir.structure import Loops, loops_of
from weft.plan.kernel import Kernel, Resources, Schedule
from weft.target import Target

OVERHEAD_REGISTERS = 20
"""Addresses, indices and sums of a row; of the measured kernels."""
MOST_REGISTERS = 255
"""Registers that a thread can have on NVIDIA GPUs; what it needs beyond these is spilled to memory."""
REGISTER_GRAIN = 8
"""Registers are given to threads in so many."""


def resources(kernel: Kernel, target: Target) -> Resources:
    """Of a kernel on a GPU; nothing of a CPU's."""
    if target.kind == "cpu":
        return Resources(None, None, None, "model")
    wanted = registers_per_thread(kernel.program, kernel.schedule)
    most = most_registers(kernel.schedule.warps, 1, target)
    shared_bytes = staged_bytes(kernel.program, kernel.schedule)
    return Resources(min(wanted, most), 4 * max(0, wanted - most), shared_bytes, "model")


def registers_per_thread(program: Program, schedule: Schedule) -> int:
    """Registers that a thread needs: of every column it has, and beside them."""
    return thread_registers(column_bits(program, schedule.rows, schedule.columns), schedule)


def column_bits(program: Program, rows: tuple[str, ...], columns: tuple[str, ...]) -> int:
    """Bits that a thread holds for each of its columns, whatever the schedule."""
    loops = loops_of(program, rows, columns)
    return held_bits(program, columns, loops) + 32 * live_values(program, loops)


def thread_registers(bits: int, schedule: Schedule) -> int:
    """bits: of a column, as ``column_bits`` says."""
    columns = max(1, schedule.rows_per_tile * (sum(schedule.pieces) or 1) / (32 * schedule.warps))
    return int(-(-columns * bits // 32)) + OVERHEAD_REGISTERS


def most_registers(warps: int, programs: int, target: Target) -> int:
    """Registers that a thread can have with so many programs of so many warps on a multiprocessor."""
    share = target.registers // (32 * warps * programs)
    return min(MOST_REGISTERS, share // REGISTER_GRAIN * REGISTER_GRAIN)


def staged_bytes(program: Program, schedule: Schedule) -> int:
    """Shared memory for row tiles that are on their way from memory."""
    return stage_bytes(program, schedule) * (schedule.stages if schedule.stages > 1 else 0)


def stage_bytes(program: Program, schedule: Schedule) -> int:
    """Bytes of one row tile in memory."""
    rows, columns = set(schedule.rows), set(schedule.columns)
    tiles = [b for b in program.inputs if set(b.dims) & columns and set(b.dims) & rows]
    elements = schedule.rows_per_tile * sum(schedule.pieces)
    return elements * sum(dtypes.itemsize(b.dtype) for b in tiles)


def held_bits(program: Program, columns: tuple[str, ...], loops: Loops) -> int:
    """Bits a column that stay in registers while the row is worked on: inputs, and accumulators of column sums."""
    types, by_name = program.types(), program.by_name()
    inputs = sum(8 * dtypes.itemsize(b.dtype) for b in program.inputs if set(b.dims) & set(columns))
    outer = [by_name[name] for names in loops.outer for name in names]
    sums = [v for v in outer if set(types[v.args[0]][1]) & set(columns)]
    return inputs + sum(8 * dtypes.itemsize(v.dtype) * states_of(v.op) for v in sums)


def live_values(program: Program, loops: Loops) -> int:
    """The most values of a column that are alive at the same time, in any loop over the columns of a row."""
    by_name = program.by_name()
    most = 0
    for names in loops.values:
        order = {name: at for at, name in enumerate(names)}
        last = dict(order)
        for name in names:
            last |= {arg: order[name] for arg in by_name[name].args if arg in order}
        most = max([most, *(sum(order[n] <= at <= last[n] for n in names) for at in order.values())])
    return most
