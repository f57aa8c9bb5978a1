"""Schedules that a CUDA C++ kernel can have: all whose registers and shared memory a multiprocessor has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

from weft.backends.cuda import resources
from weft.backends.cuda.registers import wanted_registers
from weft.backends.cuda.schedule import MOST_LANES, SHARES, WARP_THREADS, CudaSchedule, Memory
from weft.backends.cuda.view import LINE_BYTES
from weft.backends.cuda.work import Work
from weft.plan.schedule import Finish
from weft.plan.split import Split

CLUSTERS = (1, 2, 4, 8, 16)
WARPS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 15, 16)
"""Of a block, that compute."""
GROUPS = (1, 2, 4, 8, 16)
"""Of these warps."""
BLOCKS = (1, 2, 3, 4, 6, 8)
"""Of a multiprocessor."""
ROWS = (1, 2, 4, 8)
"""Of a tile, of each group."""
LANES = (8, 4, 2)
"""Elements of a vector: fewer than most where groups of warps have whole rows, which are narrow then."""
MOST_ELEMENTS = 80
"""Of a row in a thread; each vector is a copy of the text of a loop."""
MOST_TILE = 128
"""Elements of a tile in a thread."""
LEAST_USED, LEAST_USED_OF_GROUPS = 0.7, 0.5
"""The part of a block's vectors, or of a group's, that are of the row, at the least. Not from a sweep."""
MOST_STAGES = 8
LEAST_AHEAD = 2
"""Row tiles of a multiprocessor."""


@dataclass(frozen=True)
class _Way:
    """A schedule but for blocks and stages. registers: that a thread wants; stage_bytes, other_bytes: of the shared
    memory of a block, for each stage and for all else."""

    schedule: CudaSchedule
    registers: float
    stage_bytes: int
    other_bytes: int


def candidates(split: Split, slack: float = 1.0) -> tuple[CudaSchedule, ...]:
    """All of them, none if no such kernel is written or it would not fit. slack: times as many registers as there are
    that a thread may want."""
    found: dict[int, Work] = {}
    for lanes in LANES:
        if any(each <= lanes for each in found):
            continue  # a thread loads no more elements at once, so that these vectors are those again
        if isinstance(work := Work.of(split, lanes), Work):
            found[work.lanes] = work
    return tuple(s for lanes, work in found.items() for s in _candidates(split, work, lanes, slack))


def _candidates(split: Split, work: Work, lanes: int, slack: float) -> Iterator[CudaSchedule]:
    target = split.target
    finishes: tuple[Finish, ...] = ("none",)
    if work.finishes:
        finishes = ("same", "separate") if target.exclusive else ("separate",)
    for base, rows in product(_divisions(split, work, lanes), ROWS):
        tile_rows = rows * base.groups
        if rows * base.vectors * work.lanes > MOST_TILE or tile_rows > work.rows:
            continue
        if base.groups > 1 and tile_rows > WARP_THREADS:
            continue
        blocks = [count for count in BLOCKS if count * (base.warps + 1) <= target.most_warps]
        most = [slack * resources.most_registers(base.warps, count, target) for count in blocks]
        for weights, finish in product(_places(work, base.groups), finishes):
            plain = base.but(rows_per_tile=tile_rows, weights=weights, finish=finish)
            wanted = [(each, wanted_registers(work, each)) for each in _ways(plain, work)]
            ways = [_Way(each, own, *resources.shared_parts(work, each)) for each, own in wanted if own <= max(most)]
            for count, registers in zip(blocks, most, strict=True):
                yield from _resident(count, [way for way in ways if way.registers <= registers], split, work)


def _divisions(split: Split, work: Work, lanes: int) -> Iterator[CudaSchedule]:
    """How a row may be divided among threads."""
    base = CudaSchedule("CLUSTER", *split.dims).but(lanes=lanes)
    clusters = [count for count in CLUSTERS if count <= resources.most_cluster(split.target)]
    pairs = [(warps, groups) for warps, groups in product(WARPS, GROUPS) if warps % groups == 0]
    pairs += [(warps, warps * each) for warps, each in product(GROUPS, SHARES)]  # so many groups share a warp
    for cluster, (warps, groups) in product(clusters, pairs):
        if (groups > 1 and cluster > 1) or (groups == 1 and lanes < MOST_LANES):
            continue
        own, threads = resources.own_vectors(work, cluster), WARP_THREADS * warps // groups
        vectors, least = -(-own // threads), LEAST_USED if groups == 1 else LEAST_USED_OF_GROUPS
        if vectors * work.lanes <= MOST_ELEMENTS and own >= least * vectors * threads:
            yield base.but(cluster=cluster, warps=warps, groups=groups, vectors=vectors)


def _places(work: Work, groups: int) -> tuple[Memory, ...]:
    """Where weights may wait; nowhere if no kernel has so many groups. Of 45 kernels of one group whose rows begin
    between vectors and that add up no columns, timed with both, none was faster with weights in registers, for rows
    that begin alike, than with those that are shifted."""
    has_weights, shifts = bool(work.weights), work.alike > 1 and not work.accumulates
    if groups > 1:
        registers = groups % work.alike == 0 or not (work.accumulates or has_weights)
        if work.outer > work.sums:
            return ()
    else:
        registers = not (shifts and has_weights)
    shared = has_weights and (groups == 1 or shifts)
    found: tuple[tuple[Memory, bool], ...] = (("registers", registers), ("shared", shared))
    return tuple(place for place, is_possible in found if is_possible)


def _resident(blocks: int, ways: Iterable[_Way], split: Split, work: Work) -> Iterator[CudaSchedule]:
    """Those that so many blocks of a multiprocessor have place for, with as many stages as copy enough ahead, or as
    there is place for."""
    place = resources.most_shared_bytes(blocks, split.target) // LINE_BYTES * LINE_BYTES
    for way in ways:
        ahead = -(-resources.least_ahead_bytes(way.schedule) // (blocks * way.stage_bytes))
        wanted = max(way.schedule.held_stages + ahead, -(-LEAST_AHEAD // blocks))
        stages = min(MOST_STAGES, (place - way.other_bytes) // way.stage_bytes, wanted)
        if stages * blocks >= LEAST_AHEAD and (not way.schedule.lag or stages >= 1 + LEAST_AHEAD):
            made = way.schedule.but(blocks=blocks, stages=stages)
            yield made.but(chunks=chunk_count(made, split, work))


def with_more_stages(schedule: CudaSchedule, split: Split, work: Work) -> CudaSchedule | None:
    """With one more, if there is place for it."""
    made = schedule.but(stages=schedule.stages + 1)
    fits = resources.shared_bytes(work, made) <= resources.most_shared_bytes(schedule.blocks, split.target)
    return made if fits and made.stages <= MOST_STAGES else None


def _ways(schedule: CudaSchedule, work: Work) -> Iterator[CudaSchedule]:
    """The same, the plainest first: with row tiles in registers, if they are read more than once, or what is made of
    them; and with what follows from row reductions behind, if a block has something to wait for."""
    yield schedule
    if work.loads > len(work.copied):
        yield schedule.but(tile="registers")
    if work.terms > 0:
        yield schedule.but(tile="exponentials")
    if schedule.warps * schedule.cluster > schedule.groups and work.exchanges:
        yield schedule.but(lag=1)


def chunk_count(schedule: CudaSchedule, split: Split, work: Work) -> int:
    """As many as clusters are resident."""
    return min(resources.resident_clusters(schedule, split.target), work.tiles(schedule))
