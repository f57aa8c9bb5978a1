"""Triton texts for where things are: sizes, indices, addresses and masks of one kernel.

All data is two-dimensional: rows of a tile down, columns of a piece across. What has no rows or no columns has a one
there. The row dimensions of a tile are one running index, the columns of a piece another; a buffer's address is taken
from these, by division only where its strides are not those of one dimension.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import takewhile

from weft.backends.triton.beginnings import alternating_tiles, early_rows_of
from weft.backends.triton.demand import spreads_once
from weft.backends.triton.division import blocks_in_turn, completes_sums, is_persistent, splits_columns, tiled_rows
from weft.backends.triton.schedule import VECTOR, TritonKernel
from weft.ir.program import Buffer, Size
from weft.lowering import addresses

LARGEST_INDEX = 2**31 - 1
"""Of 32-bit arithmetic, which is what indices are computed in if this is known to do."""


class Places:
    """Of a kernel whose own names are free."""

    def __init__(self, kernel: TritonKernel) -> None:
        self.schedule, self.program = kernel.schedule, kernel.program
        self.dims = {d.name: d.size for d in kernel.program.dims}
        self.columns, self.segments = kernel.schedule.columns, kernel.schedule.segments
        self.rows = tiled_rows(kernel)
        self.row = self.rows[0] if len(self.rows) == 1 else "row"
        self.column = self.columns[0] if len(self.columns) == 1 else "column"
        self.segment = self.segments[0] if len(self.segments) == 1 else "segment"
        self._blocks_in_turn = blocks_in_turn(kernel)
        self.splits_columns = splits_columns(kernel) and not (self._blocks_in_turn and self.blocks() == 1)
        self._completes_sums = completes_sums(kernel)
        self.shifted = False
        """Whether blocks of columns start at vectors of memory rather than at the first column."""
        self.early = early_rows_of(kernel)
        stays = is_persistent(kernel) and self.schedule.scheme == "STREAM" and self.schedule.rows_per_tile > 1
        self.spreads = stays or (spreads_once(self.schedule) and self.early is None)
        """Whether tiles have several rows, over which weights may be spread."""
        every = tuple(self.dims)
        self.phases = alternating_tiles(kernel)
        self.is_wide = any(self._extent(b, every) > LARGEST_INDEX for b in self.program.buffers)
        self.has_wide_columns = any(self._extent(b, self.columns) > LARGEST_INDEX for b in self.program.buffers)

    def _extent(self, buffer: Buffer, dims: tuple[str, ...]) -> int:
        """The largest index that some dimensions make, or more than can be if it is known at run time only. A single
        index of run-time size is taken to be of 32 bits."""
        total = buffer.offset
        for dim, stride in zip(buffer.dims, buffer.strides, strict=True):
            size = self.dims[dim]
            if dim not in dims or (len(dims) == 1 and stride == 1 and isinstance(size, str)):
                continue
            if isinstance(size, str) or isinstance(stride, str):
                return LARGEST_INDEX + 1
            total += max(size - 1, 0) * stride
        return total

    @property
    def block(self) -> str:
        """The number of the block of columns of a program."""
        return "block" if self._blocks_in_turn else "tl.program_id(1)"

    def blocks(self) -> Size:
        """Blocks of the columns of a row that are taken in turn; one where a program has a whole row."""
        count, width = self.count(self.columns), self.schedule.piece_columns
        if not self._blocks_in_turn:
            return 1
        return -(-count // width) if isinstance(count, int) else f"tl.cdiv({count}, {width})"

    @property
    def tile(self) -> str:
        """The number of a row tile, of as many bits as an address needs."""
        return "tl.cast(tile, tl.int64)" if self.is_wide else "tile"

    def tiles(self) -> Size:
        """Row tiles of a segment."""
        count, each, phases = self.count(self.rows), self.schedule.rows_per_tile, self.phases
        if isinstance(count, int):
            return -(-count // (phases * each)) * phases
        found = count if phases * each == 1 else f"tl.cdiv({count}, {phases * each})"
        return found if phases == 1 else f"{phases} * {found}"

    def last_row(self) -> Size:
        """The last row of a segment; of those that begin at the same place of a sector where tiles alternate."""
        count, phases = self.count(self.rows), self.phases
        if not isinstance(count, int):
            return f"{count} - 1"
        last = count - 1
        return last if phases == 1 else f"{last} - ({last % phases + phases} - tile % {phases}) % {phases}"

    def last_tile(self) -> Size:
        """The tile that has the last row of a segment."""
        count, together, phases = self.count(self.rows), self.schedule.rows_per_tile * self.phases, self.phases
        if isinstance(count, int):
            return (count - 1) // together * phases + (count - 1) % phases
        last = f"({count} - 1)"
        return f"{last} // {together} * {phases} + {last} % {phases}" if together > 1 else last

    @cached_property
    def has_one_tile(self) -> bool:
        """Whether all rows of a segment are one tile of one program, which adds up their columns."""
        return self._completes_sums and self.tiles() == 1

    def chunks(self) -> Size:
        """Chunks of a segment, in a variable where they are known at run time only."""
        tiles = self.tiles()
        return max(1, min(tiles, self.schedule.chunks)) if isinstance(tiles, int) else "chunks"

    @staticmethod
    def times(one: Size, other: Size) -> Size:
        if isinstance(one, int) and isinstance(other, int):
            return one * other
        return f"{one} * {other}" if one != 1 else other

    def count(self, dims: Iterable[str]) -> Size:
        """Number of elements of some dimensions, or its text where it is known at run time only."""
        return addresses.count(self.dims, dims)

    def suffix(self, piece: int) -> str:
        """What distinguishes the names of a piece: a letter, nothing if there is only one."""
        return f"_{string.ascii_lowercase[piece]}" if self.schedule.pieces > 1 else ""

    def column_of(self, piece: int) -> str:
        return f"{self.column}{self.suffix(piece)}"

    @property
    def splits_vectors(self) -> bool:
        """Whether rows begin between two vectors, and are loaded and stored by whole ones all the same."""
        return self.early is not None and self.early.splits_vectors

    def place_of(self, piece: int) -> str:
        """What is added to where a row is read from to have the address of a column."""
        return f"vector{self.suffix(piece)}" if self.early else self.column_of(piece)

    def piece_starts(self) -> list[int]:
        return [piece * self.schedule.piece_columns for piece in range(self.schedule.pieces)]

    def is_masked(self, piece: int) -> bool:
        """Whether columns of a piece may lie behind the last one."""
        count = self.count(self.columns)
        if isinstance(count, str) or (self.schedule.scheme == "LOOP" and self.shifted):
            return True
        width = self.schedule.piece_columns
        if self.splits_columns or self.schedule.scheme == "LOOP":
            return count % width != 0
        return self.piece_starts()[piece] + width > count or (piece == 0 and self.early is not None)

    @property
    def spreads_weights(self) -> bool:
        """Whether what has columns only is loaded for every row of a tile: a row is so narrow that Triton would spread
        it over the threads in another way than a tile, and move tiles through shared memory to meet it."""
        narrow = self.schedule.piece_columns < VECTOR * 32 * self.schedule.warps
        return narrow and self.spreads

    @property
    def rows_masked(self) -> bool:
        """Whether rows of a tile may lie behind the last one, which is loaded in place of them."""
        count, together = self.count(self.rows), self.schedule.rows_per_tile * self.phases
        return together > 1 and (isinstance(count, str) or count % together != 0)

    def index_of(self, dim: str, piece: int) -> str:
        """The index along one dimension."""
        for dims, flat in self._flats(piece):
            if dim in dims:
                return addresses.index(self.dims, dims, dim, dim, flat, "//")
        raise KeyError(dim)

    def has_rows(self, buffer: Buffer) -> bool:
        """Whether its address changes from row tile to row tile."""
        return self._varies(buffer, self.rows)

    def has_columns(self, buffer: Buffer) -> bool:
        return self._varies(buffer, self.columns)

    def is_uniform(self, buffer: Buffer) -> bool:
        """Whether all rows of a tile read the same elements of an input, other tiles others: angles of a position, by
        which all heads are turned. The input lacks the fastest dimensions of the rows, which are whole tiles."""
        each, uncertain = self.schedule.rows_per_tile, any(isinstance(self.dims[d], str) for d in self.rows[1:])
        tiled = each > 1 and not self.has_one_tile and self.schedule.scheme in ("ONE_SHOT", "STREAM")
        if not tiled or uncertain or self.early or self.phases > 1 or buffer not in self.program.inputs:
            return False
        same = takewhile(lambda dim: not self._varies(buffer, [dim]), reversed(self.rows))
        count = self.count(same) if self.has_rows(buffer) and self.has_columns(buffer) else 1
        return isinstance(count, int) and count % each == 0

    @staticmethod
    def _varies(buffer: Buffer, dims: Sequence[str]) -> bool:
        """Whether elements along some dimensions are not all the same one, as those of an expanded tensor are."""
        return any(dim in dims and stride != 0 for dim, stride in zip(buffer.dims, buffer.strides, strict=True))

    def row_offset(self, buffer: Buffer, row: str = "") -> str:
        """The part of an address that does not depend on the column; empty if there is none. row: index of another row
        than those of the tile."""
        terms = [str(buffer.offset)] if buffer.offset else []
        terms += self._terms(buffer, self.segments, self.segment)
        if not row and self.is_uniform(buffer):
            terms += self._terms(buffer, self.rows, self.tile, self.schedule.rows_per_tile)
        else:
            terms += self._terms(buffer, self.rows, row or self.row)
        return " + ".join(terms)

    def column_offset(self, buffer: Buffer, piece: int) -> str:
        return " + ".join(self._terms(buffer, self.columns, self.place_of(piece)))

    def address(self, buffer: Buffer, piece: int, row_pointer: str | None = None) -> str:
        """Pointers to the elements of a buffer. row_pointer: name of what the rows' part was put into."""
        start = [row_pointer] if row_pointer else [buffer.name, self.row_offset(buffer)]
        column = self.column_offset(buffer, piece) if self.has_columns(buffer) else ""
        return " + ".join(part for part in (*start, column) if part)

    def _flats(self, piece: int) -> Iterable[tuple[tuple[str, ...], str]]:
        yield self.segments, self.segment
        yield self.rows, self.row
        yield self.columns, self.column_of(piece)

    def _terms(self, buffer: Buffer, dims: Sequence[str], flat: str, step: int = 1) -> list[str]:
        """Of the part of an address that some dimensions make. step: elements that the running index counts as one."""
        return addresses.terms(self.dims, buffer, dims, flat, "//", step)
