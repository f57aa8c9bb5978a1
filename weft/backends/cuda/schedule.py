"""Schedules of CUDA C++ kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from weft.hashing import hash_once
from weft.plan.kernel import Kernel
from weft.plan.schedule import Schedule

Memory = Literal["registers", "shared"]
Tile = Literal["registers", "shared", "exponentials"]
WARP_THREADS = 32
MOST_LANES = 8
"""Elements of a vector."""
SHARES = (2, 4)
"""Groups that may share a warp."""


@hash_once
@dataclass(frozen=True)
class CudaSchedule(Schedule):
    """How a CUDA C++ kernel runs.

    cluster: thread blocks that share a row, each with an equal part of its columns. warps: of a block, that compute;
    one more copies. groups: of these warps, each with rows of its own of every tile; where there are more of them than
    warps, several share one. blocks: that a multiprocessor has place for at a time: while one waits, others compute.
    vectors: vectors of a row that a thread has; lanes: elements of one, at the most: it has no more than what a thread
    loads at once. stages: row tiles that a block has place for in shared memory: one is computed with while the others
    are copied to. chunks: of all rows, that one cluster has; column sums of a chunk, or of its part of a segment, are
    taken together, in order, before those of all are combined in order; fixed here, so that results do not depend on
    how many blocks are resident; where row tiles are of a queue, the clusters that take them. lag: row tiles by which
    what follows from the last row reductions of a tile comes behind: 1, so that nobody waits for them, or 0. weights:
    where inputs wait that are the same for all rows of a chunk. tile: where a row tile waits that is computed with: in
    registers, so that its stage is free for the next one, or in shared memory. exponentials: those that are terms of a
    sum wait in registers in its place, as float32, once they are added up, so that none is computed twice.
    """

    backend: ClassVar[str] = "cuda"

    cluster: int = 1
    warps: int = 0
    groups: int = 1
    blocks: int = 1
    vectors: int = 0
    lanes: int = MOST_LANES
    stages: int = 0
    chunks: int = 0
    weights: Memory = "registers"
    lag: Literal[0, 1] = 0
    tile: Tile = "shared"

    @property
    def threads(self) -> int:
        """Of a block, that compute."""
        return WARP_THREADS * self.warps

    @property
    def group_threads(self) -> int:
        """That share the vectors of a row in a block."""
        return self.threads // self.groups

    @property
    def group_warps(self) -> int:
        """Of a group; zero where several share one."""
        return self.warps // self.groups

    @property
    def group_rows(self) -> int:
        """Of a tile, of each group."""
        return self.rows_per_tile // self.groups

    @property
    def held_stages(self) -> int:
        """That a block computes with, so that nothing is copied to them."""
        return 1 + self.lag if self.tile == "shared" else 0

    @property
    def exchange_places(self) -> int:
        """Of row reductions in shared memory: two that are used in turn, and as many more where one is sent before
        another is received."""
        return 2 + 2 * self.lag

    @property
    def queue_places(self) -> int:
        """Of numbers of row tiles in the shared memory of each block, that its cluster's first one sends: as many as
        that can be ahead of what another has taken. Blocks wait for each other's row reductions alone, and a stage may
        be free before those of its tile are sent."""
        return self.stages + self.untaken_places if self.cluster > 1 else 0

    @property
    def untaken_places(self) -> int:
        """Of these, beside one for each stage."""
        return 2 + self.lag

    def part_count(self, rows: int, segments: int) -> int:
        return chunk_parts(min(self.chunks, segments * -(-rows // self.rows_per_tile)), segments)

    def __str__(self) -> str:
        return (
            f"{self.split_text} finish={self.finish} backend={self.backend} cluster={self.cluster} warps={self.warps} "
            f"groups={self.groups} blocks={self.blocks} vectors={self.vectors} lanes={self.lanes} "
            f"stages={self.stages} chunks={self.chunks} weights={self.weights} lag={self.lag} tile={self.tile}"
        )


def chunk_parts(chunks: int, places: int) -> int:
    """Parts of chunks, as ``ChunkParts`` counts them. places: that chunks may have parts in, of segments and of rows
    that begin alike."""
    return chunks if chunks % places == 0 else chunks + places - 1


CudaKernel = Kernel[CudaSchedule]
