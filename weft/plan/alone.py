"""One reduction with nothing to fuse, and what TorchInductor's kernels take for it where it adds up columns.

It does as well there as weft, or better, where the rows are cut into equal parts of whole blocks, and much worse where
they are not: with as many bytes, 25216 x 2304 of bfloat16 takes 59 us and 37 in weft's kernels, 16384 x 2048 22 and 24.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sympy import divisors

from weft.ir.ops import lookup
from weft.ir.program import Program, Value
from weft.plan.kernel import Estimate, Kernel
from weft.plan.sizes import Sizes
from weft.target import Target

START_US = 3.4
"""Of both of its kernels: of one that adds up a part of the rows, and of one that adds up what these are."""
SHARES = {True: 0.77, False: 0.51}
"""Of a copy's bandwidth: of parts that are whole blocks, and of others. These three are the least errors, 14 % by root
mean square, for 40 sums of 2^17 to 2^27 numbers of bfloat16 on an H200, torch 2.11, of which 33 were drawn at random.
By them, and by what weft's are predicted to take, 37 of the 40 are left to the faster one; the others are 0.91, 1.00
and 1.00 times as fast in weft's kernels."""
BLOCK_ROWS, BLOCK_COLUMNS = 4, 128
"""Of its kernels, by which it finds how many parts there are to be (``reduction_split_factor`` of ``InductorChoices``,
torch 2.11, as the next three figures)."""
LEAST_STEPS = 32
"""Blocks that a program adds up, one after the other."""
THREADS, UNIT_THREADS = 256, 2048
"""Of a program, and of a multiprocessor."""
NEAR = 20
"""How far a divisor of the rows may be from the number of blocks that keeps all multiprocessors busy."""
WHOLE_ROWS = 32
"""That a part is a multiple of, if none of its blocks have less rows than others."""


def lone_reduction(program: Program) -> Value | None:
    """The reduction of a program that has one, with pointwise work on what it reduces and on its result at the most."""
    reductions = [v for v in program.values if lookup(v.op).kind == "reduction"]
    if len(reductions) != 1:
        return None
    (reduction,), types = reductions, program.types()
    alone = all(set(types[output.value][1]) <= set(reduction.dims) for output in program.outputs)
    return reduction if alone else None


def with_inductors_time(kernel: Kernel, plain: Estimate, target: Target, hints: Mapping[str, int]) -> Estimate | None:
    """The estimate of a kernel on a GPU with the time that TorchInductor takes for it; None if the kernel does anything
    but add up all rows of its columns. plain: its own."""
    reduction, schedule = lone_reduction(kernel.program), kernel.schedule
    if target.kind != "gpu" or reduction is None or schedule.scheme != "COLUMN":
        return None
    if not schedule.columns or set(map(str, reduction.attributes)) != set(schedule.rows):
        return None
    sizes = Sizes(kernel.program, hints)
    is_even = cuts_evenly(sizes.elements(schedule.rows), sizes.elements(schedule.columns), target.units)
    bytes_per_us = target.bandwidth_gbps * 1e3 * SHARES[is_even]
    memory_us, start_us = (plain.bytes_read + plain.bytes_written) / bytes_per_us, START_US * target.start_ratio
    return replace(plain, start_us=start_us, memory_us=memory_us, compute_us=0.0, predicted_us=start_us + memory_us)


def cuts_evenly(rows: int, columns: int, units: int) -> bool:
    """Whether TorchInductor cuts the rows of a sum into equal parts that are whole blocks."""
    steps = LEAST_STEPS
    if rows * columns >= LEAST_STEPS * units * UNIT_THREADS:
        programs = -(-(units * UNIT_THREADS // THREADS) // -(-columns // BLOCK_COLUMNS))
        busy = -(-rows // (BLOCK_ROWS * programs))
        divisor = min(divisors(rows), key=lambda n: abs(n - busy))
        steps = max(divisor, LEAST_STEPS) if abs(divisor - busy) < NEAR else busy
    parts = max(1, -(-rows // (BLOCK_ROWS * steps)))
    return rows % parts == 0 and rows // parts % WHOLE_ROWS == 0
