"""The schedule of a C++ kernel, and others that it can have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from math import log2, prod

from weft.backends.cpp.schedule import CppKernel, CppSchedule
from weft.ir import dtypes
from weft.ir.ops import EXPENSIVE_COST, lookup
from weft.ir.program import Program, Value
from weft.ir.structure import loops_of, place_in_output, reachable
from weft.plan.schedule import Scheme
from weft.plan.split import Split
from weft.target import Target

ROWS_PER_TILE = 4
"""Rows that go through the loops over columns together; see docs/notes/cpu_backend.md for the measurement."""
LONG_ROW_BYTES = 4096
"""Rows of a page and more: those of a tile are streams that the machine's prefetchers follow side by side."""
ROWS_PER_CHUNK = 64
"""Partial column sums are 1/64 of the rows: 1-3 % more bytes, while 4096 rows still make 64 units of parallel work."""
LONGEST_CHAIN, LONGEST_FLOAT32_CHAIN = 32, 16
"""Tiles whose column sums are added up one by one in float32 before chunks meet in double precision: a chain of 64 had
1.6 times eager's error, and so had one of 32 tiles of two rows. The shorter one is for sums that are stored in float32:
it costs partial sums of twice the size, up to a tenth of the time, and 16 bits do not show the difference."""
CHUNKS_WANTED = 32
"""Few rows are cut finer, down to one tile a chunk, so that every core has work."""
TILES = (1, 2, 4, 8)
CHUNKS = (8, 16, 32, 64, 128, 256)
"""That tuning tries."""


def schedule(split: Split) -> CppSchedule:
    """The scheme follows from the kind of the kernel."""
    program, rows, columns = split.program, split.rows, split.columns
    held = held_values(program, rows, columns)
    held = (*held, *stored_values(program, rows, columns, held))
    outer = split.has_outer
    scheme: Scheme = "STREAM" if outer and split.has_inner else "COLUMN" if outer else "ONE_SHOT"
    tile = rows_per_tile(split, held)
    chunk = min(rows_per_chunk(program, split.inside), longest_chain(program, split.inside) * tile)
    finish = "same" if outer else "none"
    return CppSchedule(scheme, *split.dims, tile, finish, held, rows_per_chunk=chunk)


def rows_per_tile(split: Split, held: tuple[str, ...]) -> int:
    """Rows of a tile: as many as half of the core's own cache holds, so that the later loops find them there; one where
    the machine reads rows from memory faster one after the other."""
    program, rows, types = split.program, split.inside, split.program.types()
    if not rows or _streams(split):
        return 1
    per_row = sum(
        dtypes.itemsize(b.dtype) for b in program.buffers if rows[-1] in b.dims and set(b.dims) & set(split.columns)
    )
    scratch = [name for name in held if place_in_output(program, name) is None]
    per_row += sum(dtypes.itemsize(types[name][0]) for name in scratch)
    fitting = split.target.cache_bytes // 2 // max(1, split.width * per_row)
    count = ROWS_PER_TILE
    while count > 1 and count > min(fitting, split.sizes.elements(rows[-1:])):
        count //= 2
    return count


def _streams(split: Split) -> bool:
    """Whether rows should be taken one by one: their neighbours follow in memory, they are written, and all of it is
    more than stays in the machine's caches. Long rows with column sums gain more from sharing the loads of those."""
    program, resident = split.program, split.target.resident_bytes
    if not resident or sum(map(split.sizes.bytes, program.buffers)) <= resident:
        return False
    row, columns, width = split.inside[-1], split.columns, split.width
    tall = [b for b in program.buffers if row in b.dims and columns and columns[-1] in b.dims]
    adjacent = all(b.stride_of[row] == width for b in tall)
    written = any(o.buffer in tall for o in program.outputs)
    longest = max((width * dtypes.itemsize(b.dtype) for b in tall), default=0)
    return adjacent and written and (not split.has_outer or longest < LONG_ROW_BYTES)


def rows_per_chunk(program: Program, rows: tuple[str, ...]) -> int:
    """A multiple of eight that makes enough chunks of a known number of rows; the largest if it is not known."""
    sizes = [program.size_of(row) for row in rows]
    known = [size for size in sizes if isinstance(size, int)]
    if len(known) < len(sizes):
        return ROWS_PER_CHUNK
    eights = -(-prod(known) // (CHUNKS_WANTED * 8))
    return min(ROWS_PER_CHUNK, max(1, eights) * 8)


def longest_chain(program: Program, rows: tuple[str, ...]) -> int:
    """Tiles of a chunk at the most."""
    sums = [o.buffer for o in program.outputs if not set(o.buffer.dims) & set(rows)]
    return LONGEST_FLOAT32_CHAIN if any(b.dtype == "f32" for b in sums) else LONGEST_CHAIN


def held_values(program: Program, rows: tuple[str, ...], columns: tuple[str, ...]) -> tuple[str, ...]:
    """Expensive values that more than one loop over the columns needs."""
    loops, by_name = loops_of(program, rows, columns), program.by_name()
    counts = Counter(name for names in loops.values for name in names)
    return tuple(n for n, count in counts.items() if count > 1 and lookup(by_name[n].op).cost >= EXPENSIVE_COST)


def stored_values(
    program: Program, rows: tuple[str, ...], columns: tuple[str, ...], held: tuple[str, ...]
) -> tuple[str, ...]:
    """Results of two or more inputs that one loop over the columns stores and another one needs: to read one tensor
    back from cache is less than to read and combine several."""
    loops, types, by_name = loops_of(program, rows, columns, held), program.types(), program.by_name()
    found: list[str] = []
    for names, stores in zip(loops.values, loops.stores, strict=True):
        for name in (o.value for o in stores if place_in_output(program, o.value) == o):
            again = sum(name in others for others in loops.values) > 1
            full = name in names and set(types[name][1]) == {*rows, *columns}
            if again and full and _vector_inputs(name, by_name, types, columns) > 1:
                found.append(name)
    return tuple(dict.fromkeys(found))


def _vector_inputs(
    name: str, by_name: Mapping[str, Value], types: Mapping[str, tuple[str, tuple[str, ...]]], columns: tuple[str, ...]
) -> int:
    """Inputs of whole rows that a value is made from."""

    def vectors(name: str) -> Iterable[str]:
        return (a for a in (by_name[name].args if name in by_name else ()) if set(types[a][1]) & set(columns))

    seen = {*reachable([name], vectors)}
    return len(seen - by_name.keys())


def candidates(
    kernel: CppKernel, target: Target, hints: Mapping[str, int], us: Callable[[CppKernel], float]
) -> tuple[CppSchedule, ...]:
    """Rows of a tile and of a chunk, and what is held; what is predicted to take the same time by how near it is to the
    kernel's own. us: predicted time."""

    def order(schedule: CppSchedule) -> tuple[float, ...]:
        predicted = us(replace(kernel, schedule=schedule))
        far = sum(
            abs(log2(mine / own))
            for mine, own in (
                (schedule.rows_per_tile, kernel.schedule.rows_per_tile),
                (schedule.rows_per_chunk, kernel.schedule.rows_per_chunk),
            )
        )
        return (predicted, far + (schedule.held != kernel.schedule.held))

    return tuple(sorted(_tilings(kernel, target, hints), key=order))


def _tilings(kernel: CppKernel, target: Target, hints: Mapping[str, int]) -> Iterator[CppSchedule]:
    program, own, split = kernel.program, kernel.schedule, Split.of_kernel(kernel, target, hints)
    rows = max(1, split.sizes.elements(split.inside))
    expensive = held_values(program, own.rows, own.columns)
    held = dict.fromkeys(
        (own.held, (), expensive, (*expensive, *stored_values(program, own.rows, own.columns, expensive)))
    )
    longest = longest_chain(program, split.inside) if own.finish != "none" else max(CHUNKS)
    for tile, chunk, kept in product(TILES, CHUNKS, held):
        if tile <= chunk <= longest * tile and (chunk < 2 * rows or chunk == min(CHUNKS)):
            yield replace(own, rows_per_tile=tile, rows_per_chunk=chunk, held=kept)
