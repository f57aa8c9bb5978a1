"""Predicted time of a CUDA C++ kernel under a schedule.

Memory takes time for its bytes, more where too few of them are on their way (Little's law). A block takes time for each
row tile: for its instructions, which it shares a multiprocessor's schedulers for, and for what its warps wait for: the
copy, and each exchange. The two go on side by side.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib import resources as files

from weft.backends.cuda import resources
from weft.backends.cuda.schedule import CudaSchedule
from weft.backends.cuda.view import MANY_CHUNKS
from weft.backends.cuda.work import Work
from weft.backends.overlap import together
from weft.target import Target

FITTED = "h200"
"""The target whose constants are measured."""
FINISH_LOADS, FINISH_BLOCKS = 8, 4
"""That a warp of the finish has on the way at a time, and blocks of a multiprocessor of one that is launched by
itself."""


WARM_LATENCY = 0.4
"""Of what blocks wait for memory, that for the second cache: as programs of Triton do."""


_WAITS = ("in_flight_bytes", "tile_ns", "fill_ns", "pick_ns")
_INSTRUCTIONS = ("issue_ns", "latency_ns", "exchange_ns", "cluster_ns", "arrival_ns")
_STARTS = ("tile_ns", "fill_ns", "pick_ns", "chunk_us", "start_us", "gather_us", "finish_us", "barrier_us")


@dataclass(frozen=True)
class Constants:
    """bandwidth: of the target's copy bandwidth. in_flight_bytes: of a multiprocessor, below which memory waits, and
    sharpness: how suddenly. issue_ns: of an operation on an element in a warp's scheduler; latency_ns: where nobody
    else has it. access: of a load or store of a vector, in operations. overhead: of a tile in a warp, operations; edge:
    of a vector where rows may begin between two. tile_ns: that a block waits for a tile; fill_ns: more,
    where nothing is copied ahead; pick_ns: for an element that is picked by its index; exchange_ns: for each
    exchange between warps, and cluster_ns, beside that, between blocks, for each doubling of them; arrival_ns: for each
    number of each warp of a cluster that is sent to a block. power: how much the
    two parts of a tile's time, and memory and tiles, add up. uneven: how much of the time of memory multiprocessors
    that have nothing to do cost. start_us: of a launch. tail: tiles that end after memory has; drain: of the time
    of the tiles that all blocks are at, that memory is not busy at the beginning and the end; chunk_us: of each chunk
    that a cluster begins. gather_us: of a finish
    for each column sum and round; finish_us: of one that is launched by itself; barrier_us: of one that all blocks wait
    for. cached: time of bytes of partial sums, as a part of that of copying as many."""

    bandwidth: float
    in_flight_bytes: float
    sharpness: float
    issue_ns: float
    latency_ns: float
    access: float
    overhead: float
    edge: float
    tile_ns: float
    fill_ns: float
    pick_ns: float
    exchange_ns: float
    cluster_ns: float
    arrival_ns: float
    compute_power: float
    power: float
    uneven: float
    start_us: float
    tail: float
    drain: float
    chunk_us: float
    gather_us: float
    finish_us: float
    barrier_us: float
    cached: float

    def warm(self) -> Constants:
        """Where the second cache has what a kernel reads."""
        waits = {
            name: WARM_LATENCY * getattr(self, name) for name in ("in_flight_bytes", "tile_ns", "fill_ns", "pick_ns")
        }
        return replace(self, **waits)


@dataclass(frozen=True)
class Times:
    """Microseconds: of all, and of its parts."""

    all: float
    start: float
    memory: float
    tiles: float


def times_us(work: Work, schedule: CudaSchedule, target: Target, known: Constants) -> Times:
    """Of a kernel."""
    resident = resources.resident_clusters(schedule, target)
    rows = schedule.rows_per_tile
    tiles = -(-work.rows // rows)
    chunks = min(schedule.chunks, tiles)
    waves = -(-chunks * work.segments // resident)
    parts = chunks + (work.alike - 1) * work.keeps_columns
    rounds = waves * -(-work.rows // (chunks * rows))
    # a tile
    crowd = min(schedule.blocks, -(-chunks * work.segments * schedule.cluster // target.units))
    own = rows * schedule.vectors
    moves = work.loads + len(work.written) + len(work.weights) * work.passes * (schedule.weights == "shared")
    each = known.access * moves + known.edge * work.is_early * (work.passes + len(work.written))
    operations = own * (work.lanes * work.operations + each) + known.overhead * (1 + work.exchanges)
    issue_ns = known.issue_ns * operations * -(-crowd * schedule.warps // resources.SCHEDULERS)
    wait_ns = known.tile_ns + known.fill_ns * (schedule.stages == 1) + known.latency_ns * operations
    wait_ns += known.pick_ns * work.picks
    waited = work.exchanges - schedule.lag
    if schedule.warps * schedule.cluster > 1:
        wait_ns += known.exchange_ns * waited
    wait_ns += known.cluster_ns * waited * (schedule.cluster.bit_length() - 1)
    wait_ns += (
        known.arrival_ns * work.numbers * rows * schedule.warps * (schedule.cluster if schedule.cluster > 1 else 0)
    )
    tile_us = 1e-3 * together(issue_ns, wait_ns, known.compute_power)
    # memory
    stage = resources.stage_bytes(work, schedule.cluster, rows)
    in_flight = crowd * schedule.stages * stage
    scarce = together(1.0, known.in_flight_bytes / in_flight, known.sharpness)
    busy = work.rows * work.segments / (rounds * rows * resident)
    on_gpu = min(1.0, busy * resources.CLUSTERED[schedule.cluster])
    uneven = 1 + known.uneven * (1 / on_gpu - 1)
    per_us = target.bandwidth_gbps * 1e3
    partial_bytes = 2 * 4 * work.sums * work.columns * parts * work.segments
    memory_us = work.moved_bytes / per_us / known.bandwidth * scarce * uneven + known.cached * partial_bytes / per_us
    ends_us = known.start_us + known.tail * tile_us + known.chunk_us * waves * parts / chunks
    ends_us += known.drain * crowd * stage * target.units / per_us
    if schedule.finish != "none":
        blocks = resident * schedule.cluster if schedule.finish == "same" else FINISH_BLOCKS * target.units
        turns = -(-work.segments * -(-work.columns // resources.FINISH_COLUMNS) // blocks)
        many = 32 if chunks >= MANY_CHUNKS else 8
        each = -(-parts // (schedule.warps if schedule.finish == "same" else many))
        ends_us += known.gather_us * work.sums * turns * -(-each // FINISH_LOADS)
        ends_us += known.finish_us if schedule.finish == "separate" else known.barrier_us
    return Times(together(memory_us, rounds * tile_us, known.power) + ends_us, ends_us, memory_us, rounds * tile_us)


@lru_cache(maxsize=16)
def constants(target: Target) -> Constants:
    """Of a GPU: those of the one that they were fitted on, with its times of instructions and of starts."""
    known, waits, starts = fitted_constants(), target.instruction_ratio, target.start_ratio
    fitted = Target.named(FITTED)
    share = target.bandwidth_gbps / target.units / (fitted.bandwidth_gbps / fitted.units)
    ratios = dict.fromkeys(_INSTRUCTIONS, waits) | dict.fromkeys(_STARTS, starts)
    ratios |= {"in_flight_bytes": share * starts}
    return replace(known, **{name: getattr(known, name) * ratio for name, ratio in ratios.items()})


@cache
def fitted_constants() -> Constants:
    """Of the GPU ``FITTED``."""
    file = files.files("weft.plan") / "calibration" / "clusters" / f"{FITTED}.json"
    return Constants(**json.loads(file.read_text()))
