"""A CUDA C++ kernel as its text is made of it: how a row is divided, and where it lies in shared memory."""

from __future__ import annotations

from itertools import accumulate

from weft.backends.cuda.beginnings import Beginnings
from weft.ir.dtypes import itemsize
from weft.ir.program import Buffer, Value

LINE_BYTES = 128
"""Of the second cache. Copies begin with a line, whatever it has before what is copied: those that begin between two
take some 6 % longer. So does what lies in shared memory."""
NUMBER_BYTES = 8
"""Of the place of a number of a row in a stage."""
MANY_CHUNKS = 128
"""From which a finish that is launched by itself has all the warps that a block can have."""


class View(Beginnings):
    """A kernel in one pass, and how its rows are divided among threads."""

    @property
    def own_vectors(self) -> int:
        """Vectors of a row that a block has place for, if rows begin with a vector; else it has one more."""
        columns = self.count(self.columns)
        if columns is None:
            return self.schedule.vectors * self.schedule.group_threads
        return -(-columns // (self.lanes * self.schedule.cluster))

    @property
    def unknown_sizes(self) -> list[str]:
        """Parameters that are sizes of columns."""
        sizes = (self.program.size_of(dim) for dim in self.columns)
        return [size for size in sizes if isinstance(size, str)]

    def most_columns(self, *, divisible: bool) -> int:
        """That the blocks of a cluster have place for. divisible: whether a parameter that is a size of columns is a
        multiple of 16; else a vector begins before a row at the cost of that place."""
        most = self.own_vectors * self.lanes * self.schedule.cluster
        return most if divisible or not self.unknown_sizes else most - self.lanes + 1

    @property
    def is_queued(self) -> bool:
        """Whether clusters take row tiles from a queue: a tile has nothing to do with those before it, and row
        reductions keep the blocks of a cluster together, so that none is told of more tiles than it has place for."""
        together = self.schedule.cluster == 1 or any(self.loops.inner)
        return not self.outer and not self.has_parts and together

    @property
    def has_next_rows(self) -> bool:
        """Whether what comes with the copies of a row tile is the first row of the next one: the copying thread alone
        knows which that is. Else tiles are equally far apart."""
        return self.is_queued or self.has_parts

    @property
    def finish_warps(self) -> int:
        """Of a block of a finish that is launched by itself."""
        return 32 if self.schedule.chunks >= MANY_CHUNKS else 8

    @property
    def copies_tiles(self) -> bool:
        """Whether the rows of a tile lie together in memory, and are copied at once; else one by one."""
        schedule = self.schedule
        several = schedule.rows_per_tile > 1 and schedule.cluster == 1 and self.apart == 1
        return several and all(map(self.is_packed, self.copied()))

    @property
    def copies_by_lanes(self) -> bool:
        """Whether each lane of the warp that copies has a row of a tile; else one thread has all."""
        return self.is_grouped and not self.copies_tiles

    @property
    def copies_numbers(self) -> bool:
        """Whether numbers of rows are copied one by one."""
        return bool(self.numbers()[1]) and not self.copies_tiles

    @property
    def stage_offsets(self) -> dict[str, int]:
        """Where what a row tile comes with begins in a stage, by the names of inputs."""
        ends = accumulate(map(self._tile_bytes, self.copied()), initial=0)
        return {buffer.name: at for buffer, at in zip(self.copied(), ends, strict=False)}

    @property
    def stage_bytes(self) -> int:
        """Of a row tile of all inputs that are copied ahead."""
        return rounded_up(sum(map(self._tile_bytes, self.copied())))

    def _tile_bytes(self, buffer: Buffer) -> int:
        return self.slot_bytes(buffer) * (1 if self.copies_tiles else self.schedule.rows_per_tile)

    def slot_bytes(self, buffer: Buffer) -> int:
        """In a stage, of what is copied at once of an input: a row or its number, or those of a tile."""
        rows = self.schedule.rows_per_tile * self.copies_tiles
        if not self.has_columns(buffer):
            return number_bytes(rows)
        return row_bytes(self.own_vectors, self.lanes, itemsize(buffer.dtype), rows)

    def kept_bytes(self, weights: tuple[Buffer, ...]) -> int:
        """Of weights in shared memory."""
        vectors = self.own_vectors + (3 if self.shifts_weights else 1)
        return rounded_up(vectors * self.lanes * self.kept_size(weights))

    def sums_bytes(self, value: Value) -> int:
        """Of what the groups of a block have of a column sum together."""
        return rounded_up((self.own_vectors + 1) * self.lanes * itemsize(value.dtype))


def row_bytes(vectors: int, lanes: int, size: int, rows: int) -> int:
    """In a stage, of a row of so many vectors of elements of so many bytes, with a vector more where that begins
    between two of them, and what is copied around it. rows: that are copied at once; zero where one is by itself."""
    return rounded_up((max(1, rows) * vectors + 1) * lanes * size + LINE_BYTES)


def number_bytes(rows: int) -> int:
    """In a stage, of a number of a row. rows: whose numbers are copied at once, with what lies around them; zero where
    one is by itself."""
    return rounded_up(NUMBER_BYTES * rows + LINE_BYTES) if rows else NUMBER_BYTES


def rounded_up(count: int) -> int:
    """Bytes of what the next begins behind in shared memory."""
    return -(-count // LINE_BYTES) * LINE_BYTES
