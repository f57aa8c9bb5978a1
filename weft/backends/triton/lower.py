"""What the first function of a Triton kernel does: tiles of rows that programs take, or loop over where they add up
columns, and of rows that are too wide for registers loops over blocks of columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weft.backends.triton.division import completes_sums, is_persistent
from weft.backends.triton.schedule import TritonKernel, TritonSchedule
from weft.backends.triton.view import View
from weft.ir.ops import ONLINE
from weft.ir.program import Buffer, Value
from weft.lowering.lower import Lowering
from weft.lowering.nest import (
    Accumulate,
    Block,
    Blocks,
    Chunks,
    Columns,
    Compute,
    Early,
    Keep,
    Load,
    Nest,
    Point,
    Reduce,
    Rest,
    Rows,
    Segment,
    Start,
    Statement,
    Store,
    Tiles,
)

MOST_TOGETHER = 4
"""Sums of one block-wide reduction."""


def lower(kernel: TritonKernel) -> tuple[Nest, ...]:
    """The nests of the functions of a kernel whose own names are free: one for all, or one for the finish, where that
    is launched by itself."""
    return TritonLowering(kernel).functions(completes_sums=completes_sums(kernel))


class TritonLowering(Lowering[TritonSchedule], View):
    """Loads come first, since nothing waits for them then."""

    def __init__(self, kernel: TritonKernel) -> None:
        super().__init__(kernel)
        self.looped = self.schedule.scheme == "LOOP"
        self.lanes: dict[str, str] = {}
        """Of the row reductions of a stage, what they have of the blocks of columns, where that is another one's."""

    def pieces(self) -> range:
        return range(self.schedule.pieces) if self.schedule.columns else range(1)

    def body(self) -> Iterator[Statement]:
        if not self.looped and not self.places.early:
            yield Columns()
        if is_persistent(self.kernel):
            yield from self._persistent()
        elif completes_sums(self.kernel):
            yield from self._all_rows()
        else:
            if self.places.rows:
                yield Rows(of_program=True)
            yield from self._early("tile")
            yield self.tile()

    # programs

    def _persistent(self) -> Iterator[Statement]:
        """Programs that stay, each with chunks of rows where something is added up or rows begin between sectors."""
        in_chunks = bool(self.outer) or self.places.early is not None
        of = "chunk" if in_chunks else "program"
        body = [*self._early(of), *self._invariants(), *self.start_sums()]
        body.append(Tiles((self.tile(),), of, self._runs_ahead()))
        body += [Keep(v.name, piece) for v in self.outer for piece in self.pieces_of(v)]
        if in_chunks:
            yield Chunks(tuple(body))
        else:
            yield from body

    def _all_rows(self) -> Iterator[Statement]:
        """All rows of a segment in one program, and what is done with their sums."""
        if self.places.segments:
            yield Segment()
        yield from self._invariants()
        yield from self.start_sums()
        yield self.tile() if self.places.has_one_tile else Tiles((self.tile(),), "segment", self._runs_ahead())
        yield from self.totals()

    def _runs_ahead(self) -> bool:
        return self.schedule.stages > 1 and not self.looped

    def _early(self, of: str) -> Iterator[Statement]:
        """Columns from the sector on that the rows of a program begin in, if they do not all begin with one."""
        if self.places.early is not None:
            weights = (b for b in self.used_inputs() if self.places.has_columns(b) and not self.places.has_rows(b))
            yield Early(of, tuple(b.name for b in weights))

    def _invariants(self) -> Iterator[Statement]:
        """Inputs that are the same for all rows of a segment, and stay in registers."""
        loaded_again = self.looped or self.schedule.remat == "tiles"
        for buffer in self.used_inputs():
            if not self.places.has_rows(buffer) and not (loaded_again and self.places.has_columns(buffer)):
                yield from self.load(buffer)

    # a tile

    def of_tile(self) -> Iterator[Statement]:
        if self.places.rows:
            yield Rows()
        buffers = tuple(b.name for b in self.row_buffers())
        if self.looped and self._shifts():
            self.places.shifted = True
            yield Point(buffers, shifted=True)
        elif buffers:
            yield Point(buffers)
        for buffer in self._in_order(self.used_inputs()):
            rows, columns = self.places.has_rows(buffer), self.places.has_columns(buffer)
            wanted = not columns or (not self.looped and (rows or self.schedule.hoisted))
            if wanted and buffer.name not in self.defined:
                yield from self.load(buffer)
        yield from self.scalars()
        yield from self.stages()

    def _in_order(self, inputs: list[Buffer]) -> list[Buffer]:
        """What a tile loads first: what all of its rows have in common, and tiles then. Triton moves what is loaded
        first to meet what is loaded last: a statistic of as many rows as there are threads is loaded before tiles, too,
        which would be laid out a row to a thread otherwise. A single row is loaded before weights, for which nobody
        waits as long."""
        several, tall = self.schedule.rows_per_tile > 1, self.schedule.rows_per_tile >= 32 * self.schedule.warps

        def place(buffer: Buffer) -> int:
            if several:
                is_tile = self.places.has_columns(buffer) or not tall
                return int(is_tile and self.places.has_rows(buffer) and not self.places.is_uniform(buffer))
            return int(not self.places.has_rows(buffer) and self.places.has_columns(buffer))

        return sorted(inputs, key=place)

    def recomputes(self, stage: int) -> bool:
        return self.schedule.remat != "none" and any(self.loops.inner[:stage])

    def columns_of(self, stage: int) -> Iterator[Statement]:
        return self._column_loop(stage) if self.looped else super().columns_of(stage)

    def reduce(self, names: tuple[str, ...]) -> Reduce:
        return Reduce(names, tuple(self.lanes.get(name, name) for name in names) if self.looped else ())

    def block_reductions(self, values: Sequence[Value]) -> Iterator[Sequence[Value]]:
        """Sums of one type and shape, four at a time."""
        groups: dict[tuple[object, ...], list[Value]] = {}
        for value in values:
            rows = self.extent(value.args[0])[0], self.is_spread(value.args[0])
            alone = value.name if value.op != "sum" else ""
            groups.setdefault((value.op, value.dtype, *rows, alone), []).append(value)
        for group in groups.values():
            if self.looped and group[0].op in ONLINE:
                yield from ([value] for value in group)
            else:
                yield from (group[i : i + MOST_TOGETHER] for i in range(0, len(group), MOST_TOGETHER))

    # loops over columns

    def _shifts(self) -> bool:
        """Whether rows start between vectors, in the same place in all buffers that have rows and columns."""
        rows, columns, buffers = self.places.rows, self.places.columns, self.row_buffers()
        if self.schedule.rows_per_tile != 1 or len(rows) != 1 or len(columns) != 1 or self.places.segments:
            return False
        layouts = {(b.offset, *(b.stride_of[d] for d in (*rows, *columns))) for b in buffers}
        if len(layouts) != 1:
            return False
        _, row, column = layouts.pop()
        return column == 1 and (isinstance(row, str) or row % self.aligned(buffers) != 0)

    def _column_loop(self, stage: int) -> Iterator[Statement]:
        """One loop over the columns of a row, without masks in the main."""
        self.lanes = {}
        inner = [self.by_name[name] for name in self.loops.inner[stage]]
        if not (self.loops.values[stage] or inner or self.stores(stage)):
            return
        centres = {v.args[0]: v.name for v in inner if v.op == "sumexp"}
        self.lanes = {v.name: centres[v.args[0]] for v in inner if v.op == "max" and v.args[0] in centres}
        inner = [v.name for v in inner if v.name not in self.lanes]
        yield from (Start(name, lanes=True) for name in inner)
        width, every = self.schedule.tile_columns, self.schedule.pieces
        count, shifted = self.places.count(self.schedule.columns), self.places.shifted
        long = isinstance(count, int) and count >= width
        if shifted:
            whole = tuple(range(1, every)) if long else ()
            body = self._block(stage, inner, list(range(every)))
            yield Block(body, "head", every, masked=True, whole=whole)
        if not isinstance(count, int) or shifted or long:
            body = self._block(stage, inner, list(range(every)))
            yield Blocks((Block(body, "start", every),), width if shifted else 0)
        if isinstance(count, int) and not shifted:
            if count % width:
                rest = -(-(count % width) // self.schedule.piece_columns)
                start = str(count // width * width) if long else ""
                yield Block(self._block(stage, inner, list(range(rest))), start, rest, masked=True)
            return
        body = self._block(stage, inner, list(range(every)))
        yield Rest((Block(body, "rest", every, masked=True),), width if shifted else 0)

    def _block(self, stage: int, inner: list[str], pieces: list[int]) -> tuple[Statement, ...]:
        """What is done with one block of columns."""
        found = list[Statement]()
        for buffer in self.program.inputs:
            if buffer.name in self.loops.used[stage] and self.places.has_columns(buffer):
                found += [Load(buffer.name, piece) for piece in pieces]
        stores = [output.buffer.name for output in self.stores(stage)]
        for piece in pieces:
            found += [Compute(name, piece) for name in self.loops.values[stage] if not self.is_const(name)]
            found += [Store(name, piece) for name in stores]
        found += [Accumulate(name, tuple(pieces), lanes=True) for name in inner]
        return tuple(found)
