"""Schedules of kernels whose rows are shared by programs, or looped over, whether they fit a multiprocessor or not."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from weft.backends.triton.schedule import TritonSchedule
from weft.ir.structure import loops_of
from weft.plan.schedule import Finish, Scheme
from weft.plan.split import Split

MOST_PIECES = 8
"""Of a row: each has its own instructions for every value."""
WIDEST_PIECE = 32768
"""Columns of a piece at the most. By ptxas for six architectures, softmax and rms norm forward of 57600 to 65536
columns, kept as they were loaded, spill 240 to 284 and up to 56 bytes of a thread as one piece of 65536 columns, and
none and up to 32 as two pieces."""
LEAST_ELEMENTS, MOST_ELEMENTS = 4, 64
"""Of a thread: fewer than the first are no whole vector of 16 bytes even where each has four."""
MOST_WHOLE_ROWS, MOST_WHOLE_ROWS_ALONE = 1024, 4
"""That a program may take: it passes over them in tiles. The second, where it has all of their columns: backwards of
two rows of 512 to 4096 columns took 0.5 to 0.8 of the time of the best kernels with more programs, of three 0.6 to
1.05; of eight one in eight took less, of 16 to 64 none."""
MOST_COLUMN_ELEMENTS = 32
"""Of a thread where a program has all rows of some columns."""
LOOP_WARPS, LOOP_PIECES, LOOP_STAGES = (2, 4, 8, 16), (1, 2, 4), (1, 2, 3, 4)
"""Of programs that loop over the columns of a row, in blocks of pieces that have a vector for each thread."""
COLUMN_WIDTHS, POINTWISE_WIDTHS = (32, 64, 128, 256, 512, 1024), (2048, 4096)
"""Columns of programs that share a row; the second where nothing is added up, and a program has numbers of its rows to
compute before the first of 8 elements of each of its threads: 39 instructions an element in the gradient of a
cross-entropy, 21 with 32 elements."""


def by_columns(split: Split, least: int) -> Iterator[TritonSchedule]:
    """Of a kernel that reduces nothing along its rows, whether they fit a multiprocessor or not: programs share a
    row. least: elements of a thread, where there are as many."""
    columns, outer, segments = split.columns, split.has_outer, split.segment_count
    wide, tall = max(1, split.width), max(1, split.sizes.elements(split.rows))
    scheme: Scheme = "COLUMN" if outer else "ONE_SHOT"
    start = TritonSchedule(scheme, *split.dims, finish="separate" if outer else "none")
    if can_complete_sums(split):
        yield from _all_rows(start.but(finish="none"), wide, split)
    every = COLUMN_WIDTHS if outer else (*COLUMN_WIDTHS, *POINTWISE_WIDTHS)
    widths = [w for w in every if w < 2 * wide] or [power_of_two(wide)]
    for width, count, warps in product(widths if columns else [1], (1, 4, 8, 16, 32, 64, 128, 512, 1024), (4, 8)):
        if 1 < count >= 2 * tall:
            continue  # most of a tile would be rows that there are not
        per_thread = width * count / (32 * warps)
        if not (least <= per_thread <= MOST_ELEMENTS or (per_thread < least and (width, count) == (widths[-1], 1))):
            continue
        given = start.but(rows_per_tile=count, warps=warps, stages=1, piece_columns=width)
        if not outer:
            yield given
            continue
        blocks, tiles = -(-wide // width), -(-tall // (segments * count))
        most = [-(-each * split.target.units // (blocks * segments)) for each in (1, 2, 4)]
        for chunks in sorted({max(1, min(each, tiles)) for each in most}):
            for stages in (2, 3, 4) if split.is_dynamic or chunks < tiles else (2,):
                yield given.but(stages=stages, chunks=chunks)


def can_complete_sums(split: Split) -> bool:
    """Whether a program may take all rows of a segment: they are not so many that nobody would, and what is made of the
    sums keeps their segments."""
    if not split.has_outer or split.is_dynamic:
        return False
    if not 0 < split.sizes.elements(split.inside) <= (MOST_WHOLE_ROWS_ALONE if split.has_inner else MOST_WHOLE_ROWS):
        return False
    found, types = loops_of(split.program, split.rows, split.columns), split.program.types()
    kept = [types[name][1] for names in found.outer for name in names]
    kept += [o.buffer.dims for o in found.epilogue_stores]
    return all(set(dims) & set(split.rows) == set(split.segments) for dims in kept)


def _all_rows(start: TritonSchedule, wide: int, split: Split) -> Iterator[TritonSchedule]:
    """A program has all rows of some columns, in one tile if it can be."""
    rows = power_of_two(max(1, split.sizes.elements(split.inside)))
    widths = [w for w in (16, 32, 64, 128, 256, 512, 1024) if w < 2 * wide] or [power_of_two(wide)]
    for width, warps in product(widths if split.columns else [1], (4, 8)):
        count = max(1, min(rows, MOST_COLUMN_ELEMENTS * 32 * warps // width))
        yield start.but(rows_per_tile=count, warps=warps, stages=1, piece_columns=width, chunks=1)


def looped(split: Split) -> TritonSchedule:
    """A program loops over the columns of a row."""
    chunks = -(-4 * split.target.units // split.segment_count) if split.has_outer else 0
    finish: Finish = "separate" if split.has_outer else "none"
    return TritonSchedule("LOOP", *split.dims, 1, finish=finish, chunks=chunks)


def loops(split: Split, vector: int) -> Iterator[TritonSchedule]:
    """Programs loop over the columns of a row, whether they fit a multiprocessor or not. vector: columns that a thread
    loads at once; with fewer it has less of each tensor on its way."""
    start = looped(split)
    for warps, pieces, stages in product(LOOP_WARPS, LOOP_PIECES, LOOP_STAGES):
        yield start.but(piece_columns=vector * 32 * warps, pieces=pieces, warps=warps, stages=stages)


def pieces_of(width: int) -> tuple[tuple[int, int], ...]:
    """Columns of a piece and pieces that a row can be cut into, from the fewest pieces on, each time with fewer columns
    that are masked."""
    piece = min(power_of_two(width), WIDEST_PIECE)
    found = [(piece, -(-width // piece))]
    while piece > 1 and -(-width // (piece // 2)) <= MOST_PIECES:
        piece //= 2
        count = -(-width // piece)
        if piece * count < found[-1][0] * found[-1][1]:
            found.append((piece, count))
    return tuple(found)


def power_of_two(number: int) -> int:
    """The smallest one that is no less."""
    return 1 << max(0, number - 1).bit_length()
