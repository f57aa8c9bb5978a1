"""Predicted time of a kernel, and what it is made of. On a CPU: bytes over bandwidth, arithmetic in cache, launches; on
a GPU what ``gpu_cost.py`` says of its schedule. Constants are data of the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from weft.ir import dtypes
from weft.ir.ops import lookup, states_of
from weft.ir.program import Buffer
from weft.ir.structure import is_outer, loops_of
from weft.plan.gpu_constants import constants
from weft.plan.gpu_cost import times_us
from weft.plan.kernel import Estimate, Kernel
from weft.plan.sizes import Sizes
from weft.plan.split import Split
from weft.target import Target


def estimates(kernels: Sequence[Kernel], target: Target, hints: Mapping[str, int]) -> tuple[Estimate, ...]:
    """Of kernels one after the other. Where a GPU's caches hold all that they read and write, a later one finds there
    what an earlier one had."""
    alone = tuple(estimate(kernel, target, hints) for kernel in kernels)
    if target.kind == "cpu" or sum(each.bytes_read + each.bytes_written for each in alone) > target.cache_bytes:
        return alone
    found, seen = list[Estimate](), set[str]()
    for kernel in kernels:
        warm = {b.name for b in kernel.program.inputs} <= seen
        found.append(estimate(kernel, target, hints, warm=warm))
        seen |= {b.name for b in kernel.program.buffers}
    return tuple(found)


def estimate(kernel: Kernel, target: Target, hints: Mapping[str, int], *, warm: bool = False) -> Estimate:
    """Bytes, workspace, launches and time of one kernel. warm: whether a GPU's caches have what it reads."""
    program, schedule = kernel.program, kernel.schedule
    sizes = Sizes(program, hints)
    operations, row_loops = _operations(kernel, target, sizes)
    counts = Estimate(
        kernel=kernel.name,
        launches=2 if schedule.finish == "separate" else 1,
        bytes_read=sum(map(sizes.bytes, program.moved_inputs)),
        bytes_written=sum(sizes.bytes(o.buffer) for o in program.outputs),
        workspace_bytes=_workspace_bytes(kernel, sizes),
        starts=_starts(kernel, target),
        vector_operations=operations,
        row_loops=row_loops,
        chunks=_chunks(kernel, sizes),
        strided_elements=sum(sizes.elements(b.dims) for b in program.buffers if _strided(b, kernel)),
    )
    if target.kind == "cpu":
        return _timed(counts, target)
    found = times_us(Split.of_kernel(kernel, target, hints), schedule, warm=warm)
    return replace(counts, start_us=found.start, memory_us=found.memory, compute_us=found.tiles, predicted_us=found.all)


def ideal(kernel: Kernel, plain: Estimate, target: Target, hints: Mapping[str, int]) -> Estimate:
    """As a well-made kernel does the same work. plain: its estimate. Where several chunks of rows add to a sum, one
    more start adds them up. On a CPU without strided access, and without partial sums in memory where each chunk of
    rows is a whole segment."""
    if target.kind == "gpu":
        again = target.launch_us if splits_sums(kernel, hints) else 0.0
        return replace(plain, start_us=plain.start_us + again, predicted_us=plain.predicted_us + again)
    if splits_sums(kernel, hints):
        return _timed(replace(plain, strided_elements=0, starts=plain.starts + 1), target)
    return _timed(replace(plain, strided_elements=0, starts=1, launches=1, workspace_bytes=0, chunks=0), target)


def _timed(counts: Estimate, target: Target) -> Estimate:
    """The estimate with times on a CPU: each is a count by a constant of the target."""
    moved = counts.bytes_read + counts.bytes_written + 2 * counts.workspace_bytes
    compute_us = (
        counts.vector_operations / 2**20 * target.vector_op_us_per_mega
        + counts.row_loops * target.row_overhead_us
        + counts.chunks * target.chunk_overhead_us
    ) / max(target.units, 1)
    start_us, memory_us = counts.starts * target.launch_us, moved / target.bandwidth_gbps / 1e3
    strided_us = counts.strided_elements / 2**20 * target.strided_us_per_mega
    return replace(
        counts,
        start_us=start_us,
        memory_us=memory_us,
        compute_us=compute_us,
        strided_us=strided_us,
        predicted_us=start_us + max(memory_us, compute_us) + strided_us,
    )


def _starts(kernel: Kernel, target: Target) -> int:
    """How often threads start: once, and once more for a finish, which on a CPU is a parallel loop of its own."""
    again = kernel.schedule.finish == "separate" or (kernel.schedule.finish == "same" and target.kind == "cpu")
    return 1 + again


def least_us(moved: int, target: Target) -> float:
    """What no kernel is predicted to undercut, under any schedule: it starts, and moves so many bytes. A copy's
    bandwidth was fitted beside what else kernels do, so that some ways to take rows have more."""
    if target.kind == "cpu":
        return moved / target.bandwidth_gbps / 1e3
    every = constants(target).values()
    start, share = min(known.start_us for known in every), max(known.bandwidth for known in every)
    return moved / (target.bandwidth_gbps * share) / 1e3 + start


def splits_sums(kernel: Kernel, hints: Mapping[str, int]) -> bool:
    """Whether several chunks of rows add to one column sum, so that somebody has to add up their parts."""
    sizes = Sizes(kernel.program, hints)
    return _chunks(kernel, sizes) > sizes.elements(kernel.schedule.segments)


def _chunks(kernel: Kernel, sizes: Sizes) -> int:
    """Chunks of rows that keep column sums of their own; none without an outer reduction."""
    schedule = kernel.schedule
    if schedule.finish == "none":
        return 0
    rows, segments = sizes.elements(schedule.rows), max(1, sizes.elements(schedule.segments))
    if schedule.backend == "triton":
        return segments * min(schedule.chunks, -(-rows // segments // schedule.rows_per_tile))
    return segments * -(-(rows // segments) // schedule.rows_per_chunk)


def _workspace_bytes(kernel: Kernel, sizes: Sizes) -> int:
    """Partial column sums: one row of every outer reduction a chunk."""
    program, schedule = kernel.program, kernel.schedule
    width = sum(
        sizes.elements(tuple(d for d in v.dims if d in schedule.columns))
        * dtypes.itemsize(v.dtype)
        * states_of(v.op, pivoted=schedule.backend == "triton")
        for v in program.values
        if is_outer(v, schedule.rows)
    )
    return _chunks(kernel, sizes) * width


def _operations(kernel: Kernel, target: Target, sizes: Sizes) -> tuple[float, int]:
    """Vector operations, by their cost, and loops over the columns of a row."""
    program, schedule = kernel.program, kernel.schedule
    loops = loops_of(program, schedule.rows, schedule.columns, schedule.held)
    by_name, types = program.by_name(), program.types()
    rows = sizes.elements(schedule.rows)
    columns = sizes.elements(schedule.columns)
    if schedule.columns:
        columns = -(-columns // (2 * target.lanes)) * 2 * target.lanes
    operations = 0.0
    for names, inner, outer in zip(loops.values, loops.inner, loops.outer, strict=True):
        sums = [n for n in outer if set(types[by_name[n].args[0]][1]) & set(schedule.columns)]
        operations += sum(lookup(by_name[n].op).cost for n in names) + len(inner) + 2 * len(sums)
    return rows * columns * operations, rows * len(loops.values)


def _strided(buffer: Buffer, kernel: Kernel) -> bool:
    """Whether neighbouring columns (or, without columns, rows) are not neighbours in this buffer."""
    fast = (kernel.schedule.columns or kernel.schedule.rows)[-1:]
    return bool(fast) and buffer.stride_of.get(fast[0], 1) != 1
