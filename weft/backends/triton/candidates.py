"""Schedules that a kernel on a GPU can have: all that fit its registers and its shared memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import product

from weft.backends.triton.beginnings import beginnings
from weft.backends.triton.column_schedules import (
    LEAST_ELEMENTS,
    MOST_ELEMENTS,
    MOST_PIECES,
    by_columns,
    can_complete_sums,
    looped,
    loops,
    pieces_of,
)
from weft.backends.triton.demand import Demand
from weft.backends.triton.register_cap import with_register_cap
from weft.backends.triton.resources import (
    demanded,
    most_registers,
    most_shared_bytes,
    registers_per_thread,
    shared_bytes,
    spills,
)
from weft.backends.triton.schedule import VECTOR, VECTOR_BYTES, Inputs, Remat, TritonSchedule
from weft.ir.structure import loops_of
from weft.plan.doubt import DOUBTFUL
from weft.plan.schedule import Finish
from weft.plan.split import Split
from weft.target import Target

WIDEST_ROW = 65536
"""Columns of a row in registers at the most: 64 of 1024 threads."""
WIDEST_WITH_WEIGHTS = 8192
"""Of a piece of a row without column sums whose weights stay as they were loaded: by ptxas for 9.0, layer norm forward
of 29160 and 31792 columns in 16 warps spills 36 and 8 bytes of a thread as one piece, none as eight (0.83 to 0.87 of a
copy at eight widths; 0.72 to 0.77 under other schedules). Its backward beyond 14336 columns spills more, and drops from
0.86 to 0.73. In programs of one warp weights do not stay: four norms' backwards of 1040 to 1112 columns took 1.15 to
1.25 times as long as predicted."""
MOST_TILE = 16384
"""Elements of a tile of several rows."""
MOST_ROWS = 256
"""Of a tile."""
WARPS = (1, 2, 4, 8, 16, 32)
LEAST_KEPT = 16
"""Elements of a thread from which a row may be kept as it was loaded: two vectors."""
STAGES = (2, 3, 4, 5)
"""Row tiles of a program that loads ahead, that in registers included."""
LEAST_DOUBTFUL = 1.03
"""Of these, those are taken whose registers exceed what there is by no more than so many times the least: of eight
kernels of the sweeps they lost 0.6 % of the best time, where the model of time chose among all of them 9 %."""
COPIED = 2
"""Neighbouring columns of a thread at the least where loads run ahead: 4 bytes, of 16 bits each, are the least that is
copied into shared memory without passing through registers."""
PROGRAMS_PER_SM = (1, 2, 3, 4, 6, 8)
"""Of persistent programs: 1056 partial results cost 9 to 17 % of the bytes at 16384 rows, 132 cost 1 to 2 %."""
MOST_WARPS_PER_SM = 16
"""Of persistent programs: more leave too few registers for each."""
CACHES = 2
"""Of bytes that whole rows read, in level-two caches, from which these are to go last. With twice the cache and more 40
forwards on an H200 took 1.2 % less in geometric mean, up to 4 %; those of 1024 columns took up to 2 % more with once
the cache, up to 5 % with half of it. With column sums there is no difference (42 cells)."""
NARROWEST_LOOP = 8192
"""Columns of rows that may be looped over though they fit the registers."""


def candidates(split: Split, slack: float = 1.0) -> tuple[TritonSchedule, ...]:
    """All schedules worth a thought, at least one. slack: by how much predicted registers may exceed what there is."""
    return tuple(with_register_cap(split, schedule) for schedule in _candidates(split, slack))


def _candidates(split: Split, slack: float) -> tuple[TritonSchedule, ...]:
    if not split.has_inner:
        return next(_by_columns_that_fit(split, slack), ()) or tuple(by_columns(split, VECTOR))
    held = tuple(_in_registers(split, slack)) or _least_doubtful(split, slack)
    if held and not can_loop(split):
        return held
    return (*held, *next(_loops_that_fit(split, slack), ())) or (next(loops(split, vector_of(split))),)


def more_candidates(split: Split) -> tuple[TritonSchedule, ...]:
    """Schedules that are worth a thought only where the candidates spill: with less of each tensor on its way, and
    loops over rows that registers were to hold."""
    if not split.has_inner:
        every = _by_columns_that_fit(split, 1.0)
    else:
        every = _loops_that_fit(split, 1.0) if not sums_columns(split) else iter(())
    return tuple(with_register_cap(split, schedule) for way in every for schedule in way)


def _by_columns_that_fit(split: Split, slack: float) -> Iterator[tuple[TritonSchedule, ...]]:
    """Those with at least a vector for each thread and, if there are any, those with at least half of one."""
    return _fitting((by_columns(split, least) for least in (VECTOR, LEAST_ELEMENTS)), split, slack)


def _loops_that_fit(split: Split, slack: float) -> Iterator[tuple[TritonSchedule, ...]]:
    """Those in whole vectors and, if there are any, those in halves."""
    vector = vector_of(split)
    halves = sorted({vector, min(vector, LEAST_ELEMENTS)}, reverse=True)
    return _fitting((loops(split, each) for each in halves), split, slack)


def _fitting(
    ways: Iterable[Iterator[TritonSchedule]], split: Split, slack: float
) -> Iterator[tuple[TritonSchedule, ...]]:
    """Of each list of schedules those that fit a multiprocessor, where there are any."""
    for way in ways:
        fit = (s for s in way if is_possible(Demand.of(split.program, s), s, 1, split.target, slack))
        if found := tuple(fit):
            yield found


def vector_of(split: Split) -> int:
    """Columns that a thread loads at once in a loop over them."""
    return VECTOR_BYTES // Demand.of(split.program, looped(split)).item_bytes


def _least_doubtful(split: Split, slack: float) -> tuple[TritonSchedule, ...]:
    """Of schedules whose predicted registers exceed what there is those that do so by the least: spills cost more than
    all else that these differ in."""
    every = (
        (s, demanded(Demand.of(split.program, s), s, split.target)) for s in _in_registers(split, slack * DOUBTFUL)
    )
    excess = {schedule: need / most for schedule, (need, most) in every}
    return tuple(s for s, each in excess.items() if each <= LEAST_DOUBTFUL * min(excess.values()))


def fits_registers(split: Split) -> bool:
    """Whether one row, with what is held for its columns, fits the registers of a multiprocessor."""
    return any(True for _ in _in_registers(split, DOUBTFUL))


def registers_of_widest(split: Split) -> tuple[int, int]:
    """Registers that a thread needs for one row, and how many it can have, where that is closest."""
    found = list[tuple[int, int]]()
    piece, pieces = pieces_of(split.width)[-1]
    start = TritonSchedule("STREAM", *split.dims, 1, piece_columns=piece, pieces=pieces, stages=2)
    for warps in WARPS[-3:]:
        schedule = start.but(warps=warps)
        if can_keep_tiles(Demand.of(split.program, schedule)):
            schedule = schedule.but(remat="tiles")
        demand = Demand.of(split.program, schedule)
        need, most = demanded(demand, schedule, split.target)
        found.append((math.ceil(need), int(min(most, most_registers(warps, 1, split.target)))))
    return min(found, key=lambda each: each[0] / each[1])


def _in_registers(split: Split, slack: float) -> Iterator[TritonSchedule]:
    """A row is in the registers of one program: a program for each row tile, where nothing is summed up over rows, or
    persistent programs that load ahead."""
    if any(isinstance(split.program.size_of(c), str) for c in split.columns):
        return  # no number of registers is enough for a width that is not known
    if split.width > WIDEST_ROW:
        return
    for scheme in ("STREAM",) if split.has_outer else ("ONE_SHOT", "STREAM"):
        start = TritonSchedule(scheme, *split.dims, inputs="normal" if split.has_outer else _inputs(split))
        demand = Demand.of(split.program, start)
        again: dict[Remat, Demand] = {}
        if can_keep_tiles(demand):
            stay: tuple[Remat, ...] = ("inputs",) if demand.live.lasting and scheme == "STREAM" else ()
            again = {remat: Demand.of(split.program, start.but(remat=remat)) for remat in ("tiles", *stay)}
        for tile in _row_tiles(split, start, VECTOR_BYTES // demand.item_bytes):
            ways: dict[Remat, Demand] = {"none": demand}
            if tile.rows_per_tile == 1 and tile.elements >= LEAST_KEPT:
                ways |= {remat: held for remat, held in again.items() if remat == "tiles" or tile.warps > 1}
            for remat, held in ways.items():
                kept = tile.but(remat=remat)
                if remat == "inputs" and not split.has_outer:
                    kept = _finer(kept, split.width)
                for one in _hoisted_or_not(kept, held, split.target, slack):
                    for given, per_sm in _persistent(split, one) if scheme == "STREAM" else ((one, 1),):
                        if is_possible(held, given, per_sm, split.target, slack):
                            yield given


def _finer(tile: TritonSchedule, width: int) -> TritonSchedule:
    """A row tile of one wide piece in as many pieces as there may be, if each of these has columns."""
    piece = tile.piece_columns // MOST_PIECES
    if tile.pieces > 1 or tile.piece_columns <= WIDEST_WITH_WEIGHTS or width <= (MOST_PIECES - 1) * piece:
        return tile
    return tile.but(pieces=MOST_PIECES, piece_columns=piece)


def _hoisted_or_not(tile: TritonSchedule, demand: Demand, target: Target, slack: float) -> tuple[TritonSchedule, ...]:
    """The schedule, and the same one with weights loaded before row reductions, if they fit; the second alone
    where it takes no more registers, since nothing is waited for longer then. With slack, for what is measured, both.
    Of persistent programs weights stay for all rows, or there is no register for them to wait in."""
    can = tile.scheme == "ONE_SHOT" and demand.live.block_reductions and demand.live.lasting
    ways = (tile, tile.but(hoisted=True)) if can else (tile,)
    fit = tuple(way for way in ways if not spills(demand, way, target, slack))
    as_many = len({registers_per_thread(demand, way) for way in fit}) == 1
    return fit[-1:] if as_many and slack == 1.0 else fit


def _row_tiles(split: Split, start: TritonSchedule, vector: int) -> Iterator[TritonSchedule]:
    """Schedules that differ in the rows of a tile, its pieces and warps. vector: elements that a thread loads at once,
    of which each piece of several has one for every thread."""
    tall, rows = split.sizes.elements(split.inside), 1
    begins = beginnings(split.program, *split.dims)
    widths = dict.fromkeys((*pieces_of(split.width), *pieces_of(split.width + (begins.most_early if begins else 0))))
    while rows == 1 or (rows <= MOST_ROWS and rows < 2 * tall and rows * split.width <= MOST_TILE):
        for (piece, pieces), warps in product(widths, WARPS):
            given = start.but(rows_per_tile=rows, piece_columns=piece, pieces=pieces, warps=warps, stages=1)
            whole = pieces == 1 or rows * piece >= vector * 32 * warps
            least = LEAST_ELEMENTS if warps > 1 else 0
            if whole and least <= given.elements <= MOST_ELEMENTS:
                yield given
        rows *= 2


def _persistent(split: Split, tile: TritonSchedule) -> Iterator[tuple[TritonSchedule, int]]:
    """Programs that stay: how many, how far they load ahead, and where sums over rows are completed."""
    target = split.target
    tiles = -(-split.sizes.elements(split.inside) // tile.rows_per_tile)
    finishes: tuple[Finish, ...] = ("none",)
    if split.has_outer:
        finishes = ("same", "separate") if target.exclusive else ("separate",)
    if tile.pieces == 1 and can_complete_sums(split):
        for stages in (1,) if tiles == 1 else STAGES[:2]:
            yield tile.but(stages=stages, chunks=1, finish="none"), 1
    begins = beginnings(split.program, *split.dims) if tile.remat != "tiles" else None
    known = set[int]()
    for per_sm in PROGRAMS_PER_SM:
        if per_sm > 1 and per_sm * tile.warps > MOST_WARPS_PER_SM:
            break
        chunks = max(1, per_sm * target.units // split.segment_count)
        if not split.is_dynamic and chunks >= tiles:
            chunks = max(1, tiles)
        elif begins and chunks > begins.phases:
            chunks -= chunks % begins.phases
        if chunks in known:
            break
        known.add(chunks)
        ahead = split.is_dynamic or tiles > chunks
        if not ahead and not split.has_outer:
            break
        for stages, finish in product(STAGES if ahead else (1,), finishes):
            if finish == "separate" and ahead and target.exclusive:
                continue
            yield tile.but(stages=stages, chunks=chunks, finish=finish), per_sm


def can_loop(split: Split) -> bool:
    """Whether the rows of a kernel that fit the registers may be looped over as well."""
    return split.width >= NARROWEST_LOOP and not sums_columns(split)


def sums_columns(split: Split) -> bool:
    """Whether something with columns is summed up over rows."""
    found, columns = loops_of(split.program, split.rows, split.columns), set(split.columns)
    types = split.program.types()
    return any(set(types[name][1]) & columns for names in found.outer for name in names)


def can_keep_tiles(demand: Demand) -> bool:
    """Whether values can be computed again from a row as it was loaded: only casts are written in other words, so that
    compilers keep what is made of float32."""
    live, tiles = demand.live, demand.live.tiles
    return bool(live.inner and tiles) and all(b.dtype in ("bf16", "f16") for b in tiles)


def _inputs(split: Split) -> Inputs:
    """Which of the caches' bytes go first: those of whole rows that are read, or those that are written."""
    columns = set(split.columns)
    rows = [b for b in split.program.inputs if set(b.dims) & columns and set(b.dims) - columns]
    return "evict_last" if sum(map(split.sizes.bytes, rows)) > CACHES * split.target.cache_bytes else "normal"


def is_possible(demand: Demand, schedule: TritonSchedule, per_sm: int, target: Target, slack: float) -> bool:
    """Whether so many programs have the registers and the shared memory of a multiprocessor."""
    if spills(demand, schedule, target, slack):
        return False
    threads = 32 * schedule.warps
    if schedule.stages > 1 and schedule.piece_columns * schedule.rows_per_tile < COPIED * threads:
        return False
    resident = slack * most_registers(schedule.warps, per_sm, target)
    fits = per_sm == 1 or registers_per_thread(demand, schedule) <= resident
    fits = fits and most_shared_bytes(demand, schedule) <= target.shared_bytes
    return fits and per_sm * shared_bytes(demand, schedule) <= target.shared_bytes
