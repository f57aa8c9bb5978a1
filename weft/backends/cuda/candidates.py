"""Schedules that a CUDA C++ kernel can have: all whose registers and shared memory a multiprocessor has."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product

from weft.backends.cuda import resources
from weft.backends.cuda.registers import wanted_registers
from weft.backends.cuda.schedule import CudaSchedule, Memory
from weft.backends.cuda.work import Work
from weft.ir.structure import KEPT
from weft.plan.schedule import Finish
from weft.plan.split import Split

CLUSTERS = (1, 2, 4, 8, 16)
WARPS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 15, 16)
"""Of a block, that compute."""
BLOCKS = (1, 2, 3, 4, 6, 8)
"""Of a multiprocessor."""
ROWS = (1, 2, 4, 8)
"""Of a tile."""
MOST_VECTORS = 10
"""Of a row in a thread; each is a copy of the text of a loop."""
MOST_TILE = 16
"""Vectors of a tile in a thread."""
LEAST_USED = 0.7
"""The part of a block's vectors that are of the row, at the least. Not from a sweep."""
MOST_STAGES = 8
LEAST_AHEAD = 2
"""Row tiles of a multiprocessor."""


@lru_cache(maxsize=KEPT)
def candidates(split: Split, slack: float = 1.0) -> tuple[CudaSchedule, ...]:
    """All of them, none if no such kernel is written or it would not fit. slack: times as many registers as there are
    that a thread may want."""
    work = Work.of(split)
    return tuple(_candidates(split, work, slack)) if isinstance(work, Work) else ()


def _candidates(split: Split, work: Work, slack: float) -> Iterator[CudaSchedule]:
    target, base = split.target, CudaSchedule("CLUSTER", *split.dims)
    finishes: tuple[Finish, ...] = ("none",)
    if work.finishes:
        finishes = ("same", "separate") if target.exclusive else ("separate",)
    clusters = [count for count in CLUSTERS if count <= resources.most_cluster(target)]
    for cluster, warps in product(clusters, WARPS):
        own = resources.own_vectors(work, cluster)
        vectors = -(-own // (32 * warps))
        if vectors > MOST_VECTORS or own < LEAST_USED * vectors * 32 * warps:
            continue
        for blocks, rows, finish in product(BLOCKS, ROWS, finishes):
            if rows * vectors > MOST_TILE or rows > work.rows:
                continue
            for weights in _places(work):
                plain = base.but(
                    rows_per_tile=rows,
                    finish=finish,
                    cluster=cluster,
                    warps=warps,
                    blocks=blocks,
                    vectors=vectors,
                    weights=weights,
                )
                most = slack * resources.most_registers(warps, blocks, target)
                if wanted_registers(work, plain) > most or (made := _with_stages(plain, split, work)) is None:
                    continue
                made = made.but(chunks=chunk_count(made, split, work))
                others = (_holding(made, work), _lagging(made, split, work))
                yield made
                yield from (each for each in others if each is not None and wanted_registers(work, each) <= most)


def _places(work: Work) -> tuple[Memory, ...]:
    """Where weights may wait. Of 45 kernels whose rows begin between vectors and that add up no columns, timed with
    both, none was faster with weights in registers, for rows that begin alike, than with those that are shifted."""
    if not work.weights:
        return ("registers",)
    return ("shared",) if work.alike > 1 and not work.accumulates else ("registers", "shared")


def _with_stages(schedule: CudaSchedule, split: Split, work: Work) -> CudaSchedule | None:
    """As many as there is place for; None if there is too little of it."""
    place = resources.most_shared_bytes(schedule.blocks, split.target)
    left = place - resources.shared_bytes(work, schedule)
    stages = min(MOST_STAGES, left // resources.stage_bytes(work, schedule))
    while stages >= 1 and resources.shared_bytes(work, schedule.but(stages=stages)) > place:
        stages -= 1
    if stages < 1 or stages * schedule.blocks < LEAST_AHEAD:
        return None
    return schedule.but(stages=stages)


def _lagging(schedule: CudaSchedule, split: Split, work: Work) -> CudaSchedule | None:
    """The same, if a block has place for a tile whose row reductions are under way beside the others."""
    made = schedule.but(lag=1)
    place = resources.most_shared_bytes(schedule.blocks, split.target)
    if schedule.warps * schedule.cluster == 1 or not work.exchanges:
        return None
    while made.stages > 1 + LEAST_AHEAD and resources.shared_bytes(work, made) > place:
        made = made.but(stages=made.stages - 1)
    if made.stages < 1 + LEAST_AHEAD or resources.shared_bytes(work, made) > place:
        return None
    return made


def _holding(schedule: CudaSchedule, work: Work) -> CudaSchedule | None:
    """The same with row tiles in registers, if they are read more than once."""
    return None if work.loads == len(work.copied) else schedule.but(tile="registers")


def chunk_count(schedule: CudaSchedule, split: Split, work: Work) -> int:
    """Of a segment: as many as clusters are resident."""
    count = max(1, resources.resident_clusters(schedule, split.target) // work.segments)
    return min(count, -(-work.rows // schedule.rows_per_tile))
