"""What a thread and an SM must hold for a kernel on a GPU, predicted before any code exists.

A row lies in the registers of one block of threads. A thread holds, for each of its columns: inputs in their own dtype,
those with rows from their first loop to their last, those without for good; one accumulator for each column sum; and
the float32 values that are alive at the same time where most are. Measured with ptxas for the RMS norm backward with
256 threads: 32, 118 and 206 registers at N = 512, 4096 and 8192 (Triton 3.6, sm_90).
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.ir import dtypes
from weft.ir.ops import states_of
from weft.ir.program import Program
from weft.ir.structure import Loops, loops_of
from weft.plan.cost import Sizes
from weft.plan.kernel import Kernel, Resources
from weft.target import Target

THREADS = 256
STAGES = 3
"""Threads of a block, and row tiles on their way from memory at a time, as in the kernels that were measured."""
OVERHEAD_REGISTERS = 20
"""Addresses, indices and sums of a row; of the measured kernels."""
MOST_REGISTERS = 255
"""Registers that a thread can have on NVIDIA GPUs; what it needs beyond these is spilled to memory."""


def resources(kernel: Kernel, target: Target, hints: Mapping[str, int]) -> Resources:
    """Of one row a tile, as far as the model goes; nothing of a CPU's."""
    if target.kind == "cpu":
        return Resources(None, None, None, "model")
    program, columns = kernel.program, kernel.schedule.columns
    width = Sizes(program, hints).elements(columns)
    loops = loops_of(program, kernel.schedule.rows, columns, kernel.schedule.held)
    bits = held_bits(program, columns, loops) + 32 * live_values(program, loops)
    wanted = -(-width * bits // (32 * THREADS)) + OVERHEAD_REGISTERS
    tiles = [b for b in program.inputs if set(b.dims) & set(columns) and set(b.dims) & set(kernel.schedule.rows)]
    staged = STAGES if kernel.schedule.scheme in ("STREAM", "LOOP", "CLUSTER") else 0
    shared_bytes = staged * width * sum(dtypes.itemsize(b.dtype) for b in tiles)
    registers = min(wanted, MOST_REGISTERS)
    return Resources(registers, 4 * (wanted - registers), shared_bytes, "model")


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
