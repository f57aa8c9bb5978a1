"""Where rows of a CUDA C++ kernel begin, between two vectors or with one, and which of them a thread has together."""

from __future__ import annotations

import math
from collections.abc import Iterable

from weft.backends.cuda.inputs import Inputs
from weft.ir.dtypes import itemsize
from weft.ir.program import Buffer, Size
from weft.lowering import addresses

TURN = 3.6
"""Times as long as copies of as many bytes as a block stores and loads between rows of two places, beside the copies of
all other blocks. With what this gives all of 19 kernels that were timed with six numbers of tiles for it take within
1.3 % of the shortest time of these."""
MOST_COUNTED = 2**31 - 1
"""In 32 bits."""


class Beginnings(Inputs):
    """The same, and how far rows are apart that begin alike."""

    @property
    def reference(self) -> Buffer:
        """Where a row begins in it, between two vectors or with one, a block's vectors begin."""
        return self.streamed()[0]

    def begins_with_vectors(self, buffer: Buffer) -> list[str] | None:
        """Parameters that are multiples of 16 where all of its rows begin with a vector, if it starts with one; None if
        they do not, whatever parameters are."""
        return self._whole([(step, 0) for step in self._steps(buffer)])

    def begins_alike(self, buffer: Buffer) -> list[str] | None:
        """Parameters that are multiples of 16 where its rows begin as those of the reference do, between two vectors or
        with one, if both start with one; None if they do not."""
        return self._whole(list(zip(self._steps(buffer), self._steps(self.reference), strict=True)))

    def _whole(self, pairs: list[tuple[Size, Size]]) -> list[str] | None:
        """Parameters that are multiples of 16 where all differences are whole vectors."""
        apart = [pair for pair in pairs if pair[0] != pair[1]]
        known = ((0 if isinstance(size, str) else size for size in pair) for pair in apart)
        if any((a - b) % self.lanes != 0 for a, b in known):
            return None
        return list(dict.fromkeys(size for pair in apart for size in pair if isinstance(size, str)))

    def _steps(self, buffer: Buffer) -> list[Size]:
        return [buffer.offset, *(buffer.stride_of.get(row, 0) for row in self.rows)]

    @property
    def keeps_columns(self) -> bool:
        """Whether a thread keeps something of its columns from row to row, so that it has the same of all rows."""
        return bool(self.outer or (self.weights() and not self.shifts_weights))

    @property
    def shifts_weights(self) -> bool:
        """Whether weights lie in shared memory so that a thread can take those of any columns, as rows begin between
        two vectors."""
        return self.schedule.weights == "shared" and self.alike > 1 and not self.outer and bool(self.weights())

    @property
    def is_grouped(self) -> bool:
        """Whether groups of warps, or of lanes, have rows of their own: of a tile each has every so many."""
        return self.schedule.groups > 1

    @property
    def alike(self) -> int:
        """How far rows of a segment are apart that begin at the same place between two vectors. Rows that are not
        equally far apart in memory have no such number: more than one, then."""
        steps = [self.reference.stride_of.get(row, 0) for row in self.inside]
        if all(isinstance(s, int) and s % self.lanes == 0 for s in steps):
            return 1
        last = steps[-1]
        if not isinstance(last, int) or not self.is_one_index(self.reference):
            return self.lanes
        return self.lanes // math.gcd(self.lanes, last)

    @property
    def apart(self) -> int:
        """How far the rows of a place are apart: they begin alike, between two vectors or with one, where a thread
        keeps something of its columns. The rows of a group do anyway."""
        return self.alike if self.keeps_columns and not self.is_grouped else 1

    def is_one_index(self, buffer: Buffer) -> bool:
        """Whether the rows of a segment are equally far apart in memory."""
        strides = [buffer.stride_of.get(row, 0) for row in self.inside]
        for outer, inner, dim in zip(strides, strides[1:], self.inside[1:], strict=False):
            size = self.program.size_of(dim)
            if isinstance(outer, str) or isinstance(inner, str) or isinstance(size, str) or outer != inner * size:
                return False
        return True

    def is_packed(self, buffer: Buffer) -> bool:
        """Whether the rows of a segment lie together in memory, or the numbers that rows have one of."""
        sizes = {dim.name: dim.size for dim in self.program.dims}
        width = addresses.count(sizes, self.columns if self.has_columns(buffer) else ())
        return self.is_one_index(buffer) and [buffer.stride_of.get(row, 0) for row in self.inside][-1:] == [width]

    @property
    def has_parts(self) -> bool:
        """Whether chunks have a part for each place that they have row tiles of: a segment, or the rows of it that
        begin alike."""
        return bool(self.segments) or self.apart > 1

    @property
    def turn(self) -> int:
        """Row tiles that a chunk could do in the time from rows of one place to those of another."""
        sums = sum(1 for value in self.outer if self.sums_vectors(value))
        weights, copied, written = map(_sizes, (self.weights(), self.streamed(), self.row_outputs()))
        return turn_tiles(sums, weights, copied, written, self.schedule.rows_per_tile)

    def most_counted(self, rows: int, segments: int) -> int:
        """The largest number that parts of chunks, and their row tiles, are counted with, as ``ChunkParts`` and
        ``tiles_of`` do. rows: of a segment."""
        places, chunks, step = segments * self.apart, self.schedule.chunks + 1, self.apart * self.schedule.rows_per_tile
        tiles = -(-rows // step) + self.turn
        return max((places * tiles + 1) * chunks, places * (places + chunks), rows + step)

    @property
    def part_type(self) -> str:
        """What these are counted in: 32 bits if they are known to do, or if sizes are known at run time only; calls are
        checked then. Divisions of 64 bits take many registers."""
        rows, segments = self.count(self.inside), self.count(self.segments)
        if rows is None or segments is None or self.most_counted(rows, segments) <= MOST_COUNTED:
            return "int"
        return "int64_t"

    @property
    def between_rows(self) -> str:
        """By how much rows of a group's tile are apart, as a factor."""
        return " * apart" if self.apart > 1 else " * groups" if self.is_grouped else ""


def turn_tiles(
    sums: int, weights: Iterable[int], copied: Iterable[int], written: Iterable[int], rows_per_tile: int
) -> int:
    """Row tiles that a chunk could do while it stores column sums, and loads weights that are shifted. The others:
    bytes of an element of each of them."""
    return round(TURN * (4 * sums + sum(weights)) / (rows_per_tile * (sum(copied) + sum(written))))


def _sizes(buffers: Iterable[Buffer]) -> list[int]:
    return [itemsize(buffer.dtype) for buffer in buffers]
