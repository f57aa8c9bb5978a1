"""Predicted time of a CUDA C++ kernel under a schedule.

Three things go on side by side. Memory takes time for its bytes. A block takes time for each row tile: for its
instructions, which it shares a multiprocessor's schedulers for, and for what its warps wait for. A stage takes time to
be filled, and is then held while its tile is computed, so that a block whose stages are few waits for one; one thread
begins its copies, one after the other.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib import resources as files

from weft.backends.cuda import resources
from weft.backends.cuda.inputs import GRANULE_BYTES
from weft.backends.cuda.schedule import MOST_LANES, WARP_THREADS, CudaSchedule, chunk_parts
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


_INSTRUCTIONS = ("issue_ns", "latency_ns", "exchange_ns", "far_ns", "arrival_ns", "copy_ns", "behind_us", "group_ns")
_STARTS = ("pick_ns", "start_us", "gather_us", "finish_us", "barrier_us")


@dataclass(frozen=True)
class Constants:
    """bandwidth: of the target's copy bandwidth. issue_ns: of an operation on an element in a warp's scheduler;
    latency_ns: where nobody else has it. access: of a load or store of a vector, in operations. overhead: of a tile
    in a warp, operations, row: of each of its rows, number: of each that is reduced of a row; edge: of the first and
    of the last vector of a thread, of eight elements, for each such number and each output, where rows may begin
    between two; branch: of such a vector, whatever is done with it; shift: of one of weights, or two in one word, that
    are shifted for each row. busiest: how much the scheduler with the most warps of a block decides, the others the
    rest. pick_ns: for an element that is picked by its index; exchange_ns: for each exchange between warps, far_ns:
    more of it in a cluster of sixteen; arrival_ns: for each number of each warp of a cluster that is sent to a block.
    copy_ns: for each copy to begin. compute_power: how much the two parts of a tile's time add up; stage_power: the
    tiles and the stages that they wait for; power: memory and these, power_sums: where columns are added up. held: by
    how much longer these take where row tiles wait in registers, or exponentials, held_exponentials: more of it for
    each sum of exponentials of a row, held_sums: where columns are added up. start_us: of a launch. tail: tiles that
    end after memory has; drain: of the time of the tiles that all blocks are at, that memory is not busy at the
    beginning and the end. behind_us: of the end of a tile that comes behind, after the last one. group_ns: of a group
    that adds an element of a thread to column sums of a block. gather_us: of a finish for each column sum and round;
    finish_us: of one that is launched by itself; barrier_us: of one that all blocks wait for. cold: time of bytes that
    take the place of what others left in the second cache, cached: of those of partial sums, as a part of that of
    copying as many; again: of bytes that are copied for another row too. ahead: by how much longer memory takes if
    twice as much is copied ahead as is enough, ahead_between: where rows may begin between two vectors, scarce: if
    nothing is. Of rows that begin between two sectors of the second cache, bytes that are copied in the time that it
    takes more: partly_bytes: of what is stored at once of a row, for each warp of a multiprocessor, edge_bytes: of an
    element of the first and the last vector, for each row of a warp."""

    bandwidth: float
    issue_ns: float
    latency_ns: float
    access: float
    overhead: float
    row: float
    number: float
    edge: float
    branch: float
    shift: float
    busiest: float
    pick_ns: float
    exchange_ns: float
    far_ns: float
    arrival_ns: float
    copy_ns: float
    compute_power: float
    stage_power: float
    power: float
    power_sums: float
    held: float
    held_exponentials: float
    held_sums: float
    start_us: float
    tail: float
    drain: float
    behind_us: float
    group_ns: float
    gather_us: float
    finish_us: float
    barrier_us: float
    cold: float
    cached: float
    again: float
    ahead: float
    ahead_between: float
    scarce: float
    partly_bytes: float
    edge_bytes: float

    def warm(self) -> Constants:
        """Where the second cache has what a kernel reads."""
        return replace(self, cold=0.0, pick_ns=WARM_LATENCY * self.pick_ns)


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
    rows = schedule.group_rows
    tiles = work.tiles(schedule)
    chunks = min(schedule.chunks, tiles)
    waves = -(-chunks // resident)
    parts = chunk_parts(chunks, work.places(schedule))
    rounds: float = waves * -(-work.places_tiles(schedule) // chunks)
    if work.is_queued(schedule):
        rounds = max(1.0, tiles / min(resident, chunks))
    # a tile
    crowd = min(schedule.blocks, -(-chunks // max(1, resident // schedule.blocks)))
    is_held = schedule.tile != "shared"
    loads = len(work.copied) if schedule.tile == "registers" else work.loads
    moves, operations = loads + len(work.written), work.operations
    if schedule.weights == "shared":
        granules = sum(-(-work.lanes * size // GRANULE_BYTES) for size in work.kept)
        moves, operations = moves + granules * work.passes, operations - work.weight_casts
    each = work.lanes * operations + known.access * moves
    each += known.shift * len(work.kept) * work.shifts_weights(schedule)
    begun = known.overhead * (1 + work.exchanges) + (known.row + known.number * work.numbers) * rows
    edges = len(work.written) + work.numbers * (not work.clears_edges(schedule))
    # threads that keep nothing of their columns look for edges in each loop that loads a row
    looks = 1 if is_held or work.keeps_columns(schedule) else work.passes
    begun += known.branch * work.is_early * rows * min(2, schedule.vectors) * looks
    # the first and the last vector of a row are one warp's, or two warps', of all that share it
    row_warps = max(1.0, schedule.warps * schedule.cluster / schedule.groups)
    at_edge = known.edge * work.lanes / MOST_LANES * edges * work.is_early * rows
    row_lanes = min(WARP_THREADS, schedule.group_threads)
    mean_vectors = rows * resources.own_vectors(work, schedule.cluster) / schedule.group_threads
    if schedule.groups > 1:
        mean_vectors = rows * -(-resources.own_vectors(work, 1) // row_lanes) / max(1, schedule.group_warps)
    mean_warps, most_warps = schedule.warps / resources.SCHEDULERS, -(-schedule.warps // resources.SCHEDULERS)
    warps = crowd * (mean_warps + known.busiest * (most_warps - mean_warps))
    issue_ns = known.issue_ns * (mean_vectors * each + begun + at_edge * 2 / row_warps) * max(1.0, warps)
    begun += at_edge * (2 if row_warps == 1 else 1)
    wait_ns = known.latency_ns * (rows * schedule.vectors * each + begun) + known.pick_ns * work.picks
    if schedule.warps * schedule.cluster > schedule.groups:
        far_ns = known.far_ns if schedule.cluster > 8 else 0.0
        wait_ns += (known.exchange_ns + far_ns) * (work.exchanges - schedule.lag)
    if schedule.cluster > 1:
        wait_ns += known.arrival_ns * work.numbers * rows * schedule.warps * schedule.cluster
    tile_us = 1e-3 * together(issue_ns, wait_ns, known.compute_power)
    # memory
    stage = resources.stage_bytes(work, schedule)
    per_us = target.bandwidth_gbps * 1e3
    partial_bytes = 2 * 4 * work.sums * work.columns * parts
    more = known.held_exponentials * work.exponentials + known.held_sums * (work.sums > 0)
    held_share = is_held * (known.held + more)
    moved_us = work.moved_bytes / per_us / known.bandwidth * (1 + held_share)
    moved_us += known.cold * min(work.moved_bytes, target.cache_bytes) / per_us
    stores = work.columns / (work.lanes * row_lanes) * crowd * schedule.warps
    elements = (work.lanes - 1) * WARP_THREADS / row_lanes
    partly_bytes = known.partly_bytes * stores + known.edge_bytes * elements
    memory_us = moved_us + partly_bytes * work.stored_between_sectors / per_us
    memory_us += (known.cached * partial_bytes + known.again * work.copied_again_bytes) / per_us
    ahead_bytes = (schedule.stages - schedule.held_stages) * stage * crowd
    enough = ahead_bytes / resources.least_ahead_bytes(schedule)
    ahead = known.ahead_between if work.is_early else known.ahead
    memory_us *= 1 + ahead * max(0.0, enough - 1) + known.scarce * max(0.0, 1 - enough)
    # stages: each is held for a tile, for one more where tiles come behind, and for none where they are in registers
    filled_us = (work.distinct_bytes + known.again * work.copied_again_bytes) / per_us / known.bandwidth / crowd
    stages_us = (filled_us + rounds * schedule.held_stages * tile_us) / schedule.stages
    stages_us = together(stages_us, 1e-3 * known.copy_ns * rounds * work.copies(schedule), known.stage_power)
    tiles_us = together(rounds * tile_us, stages_us, known.stage_power)
    # beginning and end
    ends_us = known.start_us + known.tail * tile_us + known.drain * crowd * stage * target.units / per_us
    ends_us += known.behind_us * schedule.lag
    if schedule.groups > 1:
        own = schedule.vectors * work.lanes * work.sums
        ends_us += 1e-3 * known.group_ns * own * schedule.groups * waves
    if schedule.finish != "none":
        blocks = resident * schedule.cluster if schedule.finish == "same" else FINISH_BLOCKS * target.units
        turns = -(-work.segments * -(-work.columns // resources.FINISH_COLUMNS) // blocks)
        many = 32 if chunks >= MANY_CHUNKS else 8
        each = -(-parts // work.segments // (schedule.warps if schedule.finish == "same" else many))
        ends_us += known.gather_us * work.sums * turns * -(-each // FINISH_LOADS)
        ends_us += known.finish_us if schedule.finish == "separate" else known.barrier_us
    power = known.power_sums if work.accumulates else known.power
    return Times(together(memory_us, tiles_us, power) + ends_us, ends_us, memory_us, tiles_us)


@lru_cache(maxsize=16)
def constants(target: Target) -> Constants:
    """Of a GPU: those of the one that they were fitted on, with its times of instructions and of starts."""
    known, waits, starts = fitted_constants(), target.instruction_ratio, target.start_ratio
    ratios = dict.fromkeys(_INSTRUCTIONS, waits) | dict.fromkeys(_STARTS, starts)
    return replace(known, **{name: getattr(known, name) * ratio for name, ratio in ratios.items()})


@cache
def fitted_constants() -> Constants:
    """Of the GPU ``FITTED``."""
    file = files.files("weft.plan") / "calibration" / "clusters" / f"{FITTED}.json"
    return Constants(**json.loads(file.read_text()))
