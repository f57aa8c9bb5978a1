"""Schedules that a kernel on a GPU can have: what fits registers and shared memory, and was ever among the best."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product

from weft.ir.structure import loops_of
from weft.plan.demand import Demand
from weft.plan.kernel import Finish, Inputs, Schedule, Scheme
from weft.plan.pieces import pieces_of, power_of_two, splits_of
from weft.plan.resources import (
    MOST_PROGRAMS,
    most_registers,
    most_wanted,
    registers_per_thread,
    shared_bytes,
    spills,
)
from weft.plan.split import Split
from weft.target import Target

STREAMED_COLUMNS = 8192
"""Columns of rows without column sums from which it was measured to be worth a thought to load the next rows while one
is in registers: a layer norm at 16384 columns and 2^25 elements went from 0.84 of a copy to 0.91."""
WIDEST_ROW = 65536
"""Columns of a row in registers at the most: 64 of 1024 threads."""
ROW_ELEMENTS = 4096
"""Elements of a tile that is a part of a row; where a row is narrower than that, of several rows at the most a quarter
of the largest tile."""
WARPS = (1, 2, 4, 8, 16)
SURE, LIKELY = 1.0, 1.001
"""Of the registers up to which no kernel of the sweep with column sums spilled: of 759 that do not spill 58 need more,
by the model. The second, of what is tried first, is no more than is needed to tell it from the first."""
COPIED = 2
"""Neighbouring columns of a thread at the least where loads run ahead: 4 bytes, of 16 bits each, are the least that is
copied into shared memory without passing through registers."""
_WIDTHS = {1: (1, 1024), 2: (128, 1024), 4: (1, WIDEST_ROW), 8: (512, WIDEST_ROW), 16: (4096, WIDEST_ROW)}
"""Columns of the widest piece for which so many warps are tried: outside they were never among the best."""
LEAST_ELEMENTS, MOST_ELEMENTS, MOST_STREAMED_ELEMENTS = 8, 96, 40
"""Elements of a thread: with fewer the exchange between threads is most of the time. More than the last are not worth
what they risk where rows are streamed: of 64 elements in one warp some kernels were the best by half a percent, and of
others ptxas spilled registers to stay at 128, 0.6 of a copy; of 48, one spilled or not by the order of its inputs, and
in geometric mean the choices lose 0.01 % by doing without."""
MOST_WIDE_ELEMENTS, WIDE_WARPS = 64, 8
"""Of a thread, and warps, of a row wider than ``STREAMED_COLUMNS`` with column sums: half the warps have twice the
registers each, and fewer of them are for what does not grow with the row. At 16384 columns ptxas spills nothing of
layer norm's backward so, 24 bytes with 16 warps; it took 0.88 of the time on an H200."""
PROGRAMS_PER_SM = (1, 2, 3, 4, 6, 8)
"""Of persistent programs: 1056 partial results cost 9 to 17 % of the bytes at 16384 rows, 132 cost 1 to 2 %."""
FEWEST_ELEMENTS: Mapping[Scheme, int] = {"ONE_SHOT": 8, "STREAM": 4}
"""Of a thread where there are no more rows than multiprocessors. Of 1 and 64 rows of 1024 columns on an H200 forwards
took the least time, or 0.1 us more at the most, with as many as the first; backwards want more threads."""
CACHES = 2
"""Of bytes that whole rows read, in level-two caches, from which these are to go last. With twice the cache and more 40
forwards on an H200 took 1.2 % less in geometric mean, up to 4 %; those of 1024 columns took up to 2 % more with once
the cache, up to 5 % with half of it. With column sums there is no difference (42 cells)."""
PROGRAM_NS = 80.0
"""In which a multiprocessor starts a program, whatever else goes on: on an H200 twenty kernels with 500 to 2000 of
them on each multiprocessor, of one or two rows of 256 or 512 columns, took 80 to 84 ns a program."""
MOST_COLUMN_ELEMENTS = 32
"""Of a thread where a program has all rows of some columns."""
MOST_WARPS_PER_SM = 16
"""Of persistent programs: more leave too few registers for each."""


def candidates(split: Split, slack: float = LIKELY) -> tuple[Schedule, ...]:
    """All schedules worth a thought, at least one. slack: by how much predicted registers may exceed what there is."""
    if not split.has_inner:
        found = all_by_columns(split)
        demand = Demand.of(split.program, found[0])
        return tuple(s for s in found if is_possible(demand, s, 1, split.target, slack)) or found
    wide = split.width >= STREAMED_COLUMNS
    schemes: tuple[Scheme, ...] = ("STREAM",) if split.has_outer else ("ONE_SHOT", "STREAM") if wide else ("ONE_SHOT",)
    held = tuple(s for each in schemes for s in _in_registers(split, each, slack))
    return held or tuple(_in_registers(split, schemes[0], SURE)) or tuple(_loops(split))


def fits_registers(split: Split) -> bool:
    """Whether one row, with what is held for its columns, fits the registers of a multiprocessor."""
    return any(any(_in_registers(split, _held_scheme(split), slack)) for slack in (LIKELY, SURE))


def registers_of_widest(split: Split) -> tuple[int, int]:
    """Registers that a thread needs for one row, and how many it can have, where that is closest: with as many threads
    as can share a row, or with half of them and twice the registers."""
    scheme, pieces, found = _held_scheme(split), pieces_of(split.width), list[tuple[int, int]]()
    for warps in (WARPS[-1], WIDE_WARPS):
        schedule = Schedule(scheme, *split.dims, 1, backend="triton", pieces=pieces, warps=warps, stages=2)
        if can_keep_tiles(Demand.of(split.program, schedule)):
            schedule = replace(schedule, keeps="tiles")
        demand = Demand.of(split.program, schedule)
        most = int(min(most_wanted(schedule, split.target), most_registers(warps, 1, split.target)))
        found.append((registers_per_thread(demand, schedule), most))
    return min(found, key=lambda each: each[0] / each[1])


def _held_scheme(split: Split) -> Scheme:
    """Of rows in registers, as a rule."""
    return "STREAM" if split.has_outer else "ONE_SHOT"


def _in_registers(split: Split, scheme: Scheme, slack: float) -> Iterator[Schedule]:
    """A row is in the registers of one program."""
    if any(isinstance(split.program.size_of(c), str) for c in split.columns):
        return  # no number of registers is enough for a width that is not known
    width, target, outer = split.width, split.target, split.has_outer
    if width > WIDEST_ROW:
        return
    streams = scheme == "STREAM"
    tall = split.sizes.elements(split.inside)
    finish: Finish = ("same" if target.exclusive else "separate") if outer else "none"
    inputs: Inputs = "normal" if outer else _inputs(split)
    start = Schedule(scheme, *split.dims, backend="triton", finish=finish, inputs=inputs)
    demand = Demand.of(split.program, start)
    if split.has_few_rows:
        if outer or not streams:
            yield from _one_row_each(start, width, max(1, tall), demand, target, slack)
        return
    wide = width > ROW_ELEMENTS and can_keep_tiles(demand)
    tiles = Demand.of(split.program, replace(start, keeps="tiles")) if wide else demand
    for tile in _tiles_of_rows(split, start, slack):
        one, held = tile, demand
        if wide and one.rows_per_tile == 1 and spills(demand, one, target, min(slack, LIKELY)):
            one, held = replace(tile, keeps="tiles"), tiles
        if one.stages == 2 and shared_bytes(held, replace(one, stages=3)) <= target.shared_bytes:
            continue  # one tile on its way is too little where two can be
        several = [each for each in PROGRAMS_PER_SM if each == 1 or each * one.warps <= MOST_WARPS_PER_SM]
        for per_sm in several if streams else (1,):
            chunks = max(1, per_sm * target.units // split.segment_count) if streams else 0
            given = replace(one, chunks=chunks)
            if is_possible(held, given, per_sm, target, slack):
                yield given


def _tiles_of_rows(split: Split, start: Schedule, slack: float) -> Iterator[Schedule]:
    """Schedules that differ in the rows of a tile, its pieces, warps and stages, of shapes that were ever good."""
    width, tall, streams = split.width, split.sizes.elements(split.inside), start.scheme == "STREAM"
    counts = [r for r in (1, 2, 4, 8, 16, 32, 64) if r == 1 or (r * width <= 4 * ROW_ELEMENTS and r <= tall)]
    if not streams:
        least = _least_rows(split)
        counts = [r for r in counts if r >= least] or counts[-1:]
    wide = streams and split.has_outer and width > STREAMED_COLUMNS
    for pieces, count, warps in product(splits_of(width), counts, WARPS):
        if not _WIDTHS[warps][0] <= max(pieces) <= _WIDTHS[warps][1]:
            continue
        most = MOST_STREAMED_ELEMENTS if streams else MOST_ELEMENTS
        if wide and warps == WIDE_WARPS:
            most = MOST_WIDE_ELEMENTS
        given = replace(start, rows_per_tile=count, pieces=pieces, warps=warps)
        few = given.elements < LEAST_ELEMENTS and (count, warps) != (counts[-1], WARPS[0])
        if few or given.elements > most:
            continue
        if streams and slack > SURE and warps > 1 and len(pieces) > 1 and not given.folds:
            continue  # Triton would move rows through shared memory: 0.8 of a copy where 0.93 is possible
        if warps == 1 and not streams and count < counts[-1] and tall > count * MOST_PROGRAMS * split.target.units:
            continue  # on an H200 16 such forwards took 0.7 % less time with more warps, at most 4 %
        for stages in (2, 3, 4, 5) if wide else (3, 4, 5) if streams else (1,):
            yield replace(given, stages=stages)


def can_keep_tiles(demand: Demand) -> bool:
    """Whether values can be computed again from a row as it was loaded: only casts are written in other words, so that
    compilers keep what is made of float32. Worth it only where a wide row does not fit otherwise: on an H200 the best
    of seven backwards that fit either way took 0 to 2 % more time so at 5120 to 12288 columns (modulated layer norm 6 %
    at 5120), four at 1152 columns 6 to 32 % more."""
    live, tiles = demand.live, demand.live.tiles
    return bool(live.inner and live.outer and tiles) and all(b.dtype in ("bf16", "f16") for b in tiles)


def _least_rows(split: Split) -> float:
    """Of a program of many, so that what they move takes as long as to start them."""
    columns, target = set(split.columns), split.target
    buffers = [*split.program.inputs, *(o.buffer for o in split.program.outputs)]
    whole = sum(split.sizes.bytes(b) for b in buffers if set(b.dims) & columns and set(b.dims) & set(split.rows))
    rows = max(1, split.sizes.elements(split.rows))
    return PROGRAM_NS * target.bandwidth_gbps / target.units * rows / max(1, whole)


def _inputs(split: Split) -> Inputs:
    """Which of the caches' bytes go first: those of whole rows that are read, or those that are written."""
    columns = set(split.columns)
    rows = [b for b in split.program.inputs if set(b.dims) & columns and set(b.dims) - columns]
    return "evict_last" if sum(map(split.sizes.bytes, rows)) > CACHES * split.target.cache_bytes else "normal"


def _one_row_each(
    start: Schedule, width: int, rows: int, demand: Demand, target: Target, slack: float
) -> Iterator[Schedule]:
    """A program has one row and adds nothing up; sums are left to a second function, for which nobody waits."""
    if start.scheme == "STREAM":
        start = replace(start, chunks=rows, finish="separate")
    for pieces, warps in product(splits_of(width), WARPS):
        given = replace(start, rows_per_tile=1, stages=1, pieces=pieces, warps=warps)
        worth = sum(pieces) >= FEWEST_ELEMENTS[start.scheme] * 32 * warps or warps == WARPS[0]
        if worth and is_possible(demand, given, 1, target, slack):
            yield given


def is_possible(demand: Demand, schedule: Schedule, per_sm: int, target: Target, slack: float) -> bool:
    """Whether so many programs have the registers and the shared memory of a multiprocessor."""
    if spills(demand, schedule, target, slack if schedule.scheme == "STREAM" else max(1.0, slack / LIKELY)):
        return False
    if (
        schedule.stages > 1
        and schedule.pieces
        and schedule.pieces[-1] * schedule.rows_per_tile < COPIED * 32 * schedule.warps
    ):
        return False
    resident = slack * most_registers(schedule.warps, per_sm, target)
    fits = per_sm == 1 or registers_per_thread(demand, schedule) <= resident
    return fits and per_sm * shared_bytes(demand, schedule) <= target.shared_bytes


def all_by_columns(split: Split) -> tuple[Schedule, ...]:
    """Of a kernel that reduces nothing along its rows, whether they fit a multiprocessor or not."""
    return tuple(_by_columns(split))


def _by_columns(split: Split) -> Iterator[Schedule]:
    """Programs share a row: nothing is reduced along it."""
    columns, outer, segments = split.columns, split.has_outer, split.segment_count
    wide, tall = max(1, split.width), max(1, split.sizes.elements(split.rows))
    scheme: Scheme = "COLUMN" if outer else "ONE_SHOT"
    start = Schedule(scheme, *split.dims, backend="triton", finish="separate" if outer else "none")
    if can_complete_sums(split):
        yield from _all_rows(replace(start, finish="none"), wide, split)
        return
    widths = [w for w in (32, 64, 128, 256, 512, 1024) if w < 2 * wide] or [power_of_two(wide)]
    for width, count, warps in product(widths if columns else [1], (1, 4, 8, 16, 32, 64, 128, 512, 1024), (4, 8)):
        per_thread = width * count / (32 * warps)
        if not (8 <= per_thread <= 64 or (per_thread < 8 and (width, count) == (widths[-1], 1))):
            continue
        given = replace(start, rows_per_tile=count, warps=warps, stages=1, pieces=(width,) if columns else ())
        if not outer:
            yield given
            continue
        blocks = -(-wide // width)
        for stages, each in product((2, 3, 4), (1, 2, 4)):
            parts = -(-each * split.target.units // (blocks * segments))
            yield replace(given, stages=stages, chunks=max(1, min(parts, -(-tall // (segments * count)))))


def can_complete_sums(split: Split) -> bool:
    """Whether a program of a kernel that reduces nothing along its rows had best take all of them: there are few, so
    that partial sums would take longer than the sums, and what is made of the sums keeps their segments."""
    if split.has_inner or not split.has_outer or not split.has_few_rows:
        return False
    loops, types = loops_of(split.program, split.rows, split.columns), split.program.types()
    kept = [types[name][1] for names in loops.outer for name in names]
    kept += [o.buffer.dims for o in loops.epilogue_stores]
    return all(set(dims) & set(split.rows) == set(split.segments) for dims in kept)


def _all_rows(start: Schedule, wide: int, split: Split) -> Iterator[Schedule]:
    """A program has all rows of some columns, in one tile if it can be."""
    rows = power_of_two(max(1, split.sizes.elements(split.inside)))
    widths = [w for w in (16, 32, 64, 128, 256, 512, 1024) if w < 2 * wide] or [power_of_two(wide)]
    for width, warps in product(widths if split.columns else [1], (4, 8)):
        count = max(1, min(rows, MOST_COLUMN_ELEMENTS * 32 * warps // width))
        pieces = (width,) if split.columns else ()
        yield replace(start, rows_per_tile=count, warps=warps, stages=1, pieces=pieces, chunks=1)


def _loops(split: Split) -> Iterator[Schedule]:
    """Programs loop over the columns of a row."""
    finish: Finish = "separate" if split.has_outer else "none"
    start = Schedule("LOOP", *split.dims, 1, backend="triton", finish=finish)
    chunks = -(-4 * split.target.units // split.segment_count) if split.has_outer else 0
    for width, warps, stages in product((1024, 2048, 4096, 8192), (4, 8, 16), (1, 2, 3)):
        if 8 <= width / (32 * warps) <= 32:
            yield replace(start, pieces=(width,), warps=warps, stages=stages, chunks=chunks)
