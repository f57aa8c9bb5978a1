"""What a CUDA C++ kernel is predicted to hold: registers of a thread, shared memory of a block, blocks at a time."""

from __future__ import annotations

from weft.backends.cuda.schedule import WARP_THREADS, CudaSchedule
from weft.backends.cuda.view import number_bytes, rounded_up, row_bytes
from weft.backends.cuda.work import Work
from weft.target import Target

MOST_REGISTERS = 255
"""Of a thread."""
SCHEDULERS = 4
"""Of a multiprocessor."""
REGISTER_GRAIN = 8
"""Registers of a thread are a multiple of that."""
BLOCK_BYTES = 1024
"""Of shared memory, that the system takes of each block (CUDA Programming Guide, from compute capability 8.0 on)."""
FINISH_COLUMNS = 128
"""Of a task of the finish, at the most."""
CLUSTERED = {1: 1.0, 2: 1.0, 4: 0.91, 8: 0.91, 16: 0.85}
"""By the blocks of a cluster, what part of the multiprocessors of an H200 clusters hold at a time
(``cuOccupancyMaxActiveClusters``): those of a cluster are in one group of 14 to 18 multiprocessors."""
AHEAD_BYTES, AHEAD_OF_HELD_BYTES = 48 * 1024, 64 * 1024
"""That a multiprocessor copies ahead, at the least, if there is place for it: beside a tile in shared memory, and where
that waits in registers, so that nothing is copied while it is loaded to these. Of 80 kernels that differ in stages
alone those with the least number of them for that, or one more, were the fastest, but for 8, which lose 0.3 to 1.9 %;
with the most that there is place for, 96 to 200 KB, they take 1 to 5 % longer. Row tiles in registers with 41 to 56 KB
ahead took 4 to 12 % longer than predicted where clusters have column sums or weights."""
PORTABLE_CLUSTER = 8
"""Blocks of a cluster that all GPUs with clusters hold (CUDA Programming Guide)."""
WHOLE_HOPPER = (90, 132)
"""Compute capability and multiprocessors of an H200, which was seen to hold seven clusters of sixteen, and of an H100
SXM, which is the same chip."""


def most_cluster(target: Target) -> int:
    """Blocks of a cluster that a GPU is sure to hold."""
    return 16 if (target.architecture, target.units) == WHOLE_HOPPER else PORTABLE_CLUSTER


def own_vectors(work: Work, cluster: int) -> int:
    """Of a row of the likely width in a block."""
    return -(-(work.columns + work.is_early * (work.lanes - 1)) // (cluster * work.lanes))


def place_vectors(work: Work, schedule: CudaSchedule) -> int:
    """Of a row, that a block has place for, as ``View`` says of a kernel."""
    if work.is_any_width:
        return schedule.vectors * schedule.group_threads
    return -(-work.columns // (work.lanes * schedule.cluster))


def stage_bytes(work: Work, schedule: CudaSchedule) -> int:
    """Of a row tile of all inputs that are copied ahead."""
    vectors, rows = place_vectors(work, schedule), schedule.rows_per_tile
    together, each = (rows, 1) if work.copies_tiles(schedule) else (0, rows)
    slots = sum(row_bytes(vectors, work.lanes, size, together) for size in work.copied)
    return rounded_up(each * (slots + work.row_numbers * number_bytes(together)))


def least_ahead_bytes(schedule: CudaSchedule) -> int:
    """That is enough to be copied ahead in a multiprocessor."""
    return AHEAD_BYTES if schedule.held_stages else AHEAD_OF_HELD_BYTES


def shared_bytes(work: Work, schedule: CudaSchedule) -> int:
    """Of a block."""
    each, others = shared_parts(work, schedule)
    return rounded_up(schedule.stages * each + others)


def shared_parts(work: Work, schedule: CudaSchedule) -> tuple[int, int]:
    """Bytes of a block for each stage, and for all else."""
    weights = 0
    if schedule.weights == "shared":
        vectors = place_vectors(work, schedule) + (3 if work.shifts_weights(schedule) else 1)
        weights = sum(rounded_up(vectors * work.lanes * size) for size in work.kept)
    numbers = max(1, work.numbers) * schedule.group_rows
    finish = 4 * FINISH_COLUMNS * schedule.warps if schedule.finish == "same" else 0
    places = schedule.exchange_places
    exchange = places * 8 * schedule.cluster * schedule.groups * schedule.group_warps * numbers
    sums = 0
    if schedule.groups > 1:
        sums = work.sums * rounded_up(4 * (place_vectors(work, schedule) + 1) * work.lanes)
    is_queued = work.is_queued(schedule)
    told = 2 * (is_queued and schedule.cluster > 1)
    each = stage_bytes(work, schedule) + 8 * (2 + told + (is_queued or work.has_parts(schedule)))
    barriers = schedule.groups * places + told * schedule.untaken_places
    return each, weights + sums + exchange + finish + 8 * barriers


def most_shared_bytes(blocks: int, target: Target) -> int:
    """Of each of so many blocks of a multiprocessor."""
    return min(target.shared_bytes, (target.shared_bytes + BLOCK_BYTES) // blocks - BLOCK_BYTES)


def most_registers(warps: int, blocks: int, target: Target) -> int:
    """That a thread may have, so that a multiprocessor has place for so many blocks: each of its schedulers has its own
    registers, for the same number of warps. warps: that compute."""
    each = target.registers // SCHEDULERS // (-(-blocks * (warps + 1) // SCHEDULERS) * WARP_THREADS)
    return min(MOST_REGISTERS, each // REGISTER_GRAIN * REGISTER_GRAIN)


def resident_clusters(schedule: CudaSchedule, target: Target) -> int:
    """That a GPU holds at a time."""
    return max(1, int(target.units * schedule.blocks * CLUSTERED[schedule.cluster] / schedule.cluster))
