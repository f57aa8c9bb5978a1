"""Predicted time of a kernel: what it moves and computes, which is counted here, and what its backend makes of that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.backends.listed import backend_named, backends_of
from weft.ir import dtypes
from weft.ir.ops import lookup, states_of
from weft.ir.program import Buffer
from weft.ir.structure import is_outer, loops_of
from weft.plan.kernel import Estimate, Kernel
from weft.plan.sizes import Sizes
from weft.target import Target


def estimates(kernels: Sequence[Kernel], target: Target, hints: Mapping[str, int]) -> tuple[Estimate, ...]:
    """Of kernels one after the other. Where caches hold all that they read and write, a later one finds there what an
    earlier one had."""
    alone = tuple(estimate(kernel, target, hints) for kernel in kernels)
    if sum(each.bytes_read + each.bytes_written for each in alone) > target.cache_bytes:
        return alone
    found, seen = list[Estimate](), set[str]()
    for kernel in kernels:
        warm = {b.name for b in kernel.program.inputs} <= seen
        found.append(estimate(kernel, target, hints, warm=warm))
        seen |= {b.name for b in kernel.program.buffers}
    return tuple(found)


def estimate(kernel: Kernel, target: Target, hints: Mapping[str, int], *, warm: bool = False) -> Estimate:
    """Bytes, workspace, launches and time of one kernel. warm: whether caches have what it reads."""
    program, schedule = kernel.program, kernel.schedule
    sizes = Sizes(program, hints)
    operations, row_loops = _operations(kernel, target, sizes)
    counts = Estimate(
        kernel=kernel.name,
        launches=2 if schedule.finish == "separate" else 1,
        bytes_read=sum(map(sizes.bytes, program.moved_inputs)),
        bytes_written=sum(sizes.bytes(o.buffer) for o in program.outputs),
        workspace_bytes=_workspace_bytes(kernel, sizes),
        starts=schedule.starts,
        vector_operations=operations,
        row_loops=row_loops,
        chunks=_parts(kernel, sizes),
        strided_elements=sum(sizes.elements(b.dims) for b in program.buffers if _strided(b, kernel)),
    )
    return backend_named(schedule.backend).timed(kernel, counts, target, hints, warm)


def ideal(kernel: Kernel, plain: Estimate, target: Target, hints: Mapping[str, int]) -> Estimate:
    """As a well-made kernel does the same work. plain: its estimate."""
    return backend_named(kernel.schedule.backend).ideal(kernel, plain, target, splits_sums(kernel, hints))


def least_us(moved: int, target: Target) -> float:
    """What no kernel is predicted to undercut, of any backend and under any schedule, that moves so many bytes."""
    return min(backend.least_us(moved, target) for backend in backends_of(target.kind))


def splits_sums(kernel: Kernel, hints: Mapping[str, int]) -> bool:
    """Whether there are several partial results of one column sum, so that somebody has to add them up."""
    sizes = Sizes(kernel.program, hints)
    return _parts(kernel, sizes) > sizes.elements(kernel.schedule.segments)


def _parts(kernel: Kernel, sizes: Sizes) -> int:
    """Partial results of each column sum; none without an outer reduction."""
    schedule = kernel.schedule
    if schedule.finish == "none":
        return 0
    rows, segments = sizes.elements(schedule.rows), max(1, sizes.elements(schedule.segments))
    return schedule.part_count(rows // segments, segments)


def _workspace_bytes(kernel: Kernel, sizes: Sizes) -> int:
    """Partial column sums."""
    program, schedule = kernel.program, kernel.schedule
    width = sum(
        sizes.elements(tuple(d for d in v.dims if d in schedule.columns))
        * dtypes.itemsize(v.dtype)
        * states_of(v.op, pivoted=schedule.has_pivots)
        for v in program.values
        if is_outer(v, schedule.rows)
    )
    return _parts(kernel, sizes) * width


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
