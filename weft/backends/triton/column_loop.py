"""Loops over the columns of a row that is too wide for registers, one for every stage: without masks in the main.

Statistics whose centre is a statistic itself are found in one loop, from a centre that moves: ``as_looped``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.backends.triton.expressions import COMBINE, TRITON_TYPES, literal
from weft.backends.triton.schedule import VECTOR_BYTES
from weft.backends.triton.statements import Statements
from weft.ir.dtypes import itemsize
from weft.ir.ops import ONLINE, identity
from weft.ir.program import Buffer, Output, Size, Value


class ColumnLoop(Statements):
    """Writes what a row needs of its columns, block by block.

    Rows of an odd width start anywhere between two vectors of memory. Where all tensors of a kernel have the same such
    rows, blocks start at the vector that the row starts in: the first block and the last one are masked, and all
    accesses of others are whole vectors.
    """

    def shifts(self, buffers: Sequence[Buffer]) -> bool:
        """Whether rows start between vectors, in the same place in all of these buffers."""
        rows, columns = self.places.rows, self.places.columns
        if self.schedule.rows_per_tile != 1 or len(rows) != 1 or len(columns) != 1 or self.places.segments:
            return False
        layouts = {(b.offset, *(b.stride_of[d] for d in (*rows, *columns))) for b in buffers}
        if len(layouts) != 1:
            return False
        _, row, column = layouts.pop()
        self.aligned = VECTOR_BYTES // min(itemsize(b.dtype) for b in buffers)
        return column == 1 and (isinstance(row, str) or row % self.aligned != 0)

    def shift(self, buffers: Sequence[Buffer]) -> None:
        """Where a row begins, in vectors, and by how many columns that is too early."""
        row = buffers[0].stride_of[self.places.rows[0]]
        offset = f"{buffers[0].offset} + " if buffers[0].offset else ""
        self.out.line(f"start_of_row = {offset}{self.places.tile} * {row}")
        self.out.line(f"early = tl.cast(start_of_row % {self.aligned}, tl.int32)")
        self.out.line(f"aligned = tl.multiple_of(start_of_row - early, {self.aligned})")
        for buffer in buffers:
            self.pointers[buffer.name] = f"{buffer.name}_at"
            self.out.line(f"{buffer.name}_at = {buffer.name} + aligned")
        self.places.shifted = True

    def column_loop(self, stage: int) -> None:
        """One loop over the columns of a row."""
        inner = [self.by_name[name] for name in self.loops.inner[stage]]
        along = [o for o in self.loops.stores[stage] if self._along_columns(o)]
        if not (self.loops.values[stage] or inner or along):
            return
        width, rows = self.schedule.tile_columns, self.schedule.rows_per_tile
        centres = {v.args[0]: self.states(v, None)[0] for v in inner if v.op == "sumexp"}
        self.lanes = {v.name: centres[v.args[0]] for v in inner if v.op == "max" and v.args[0] in centres}
        inner = [v for v in inner if v.name not in self.lanes]
        for value in inner:
            if value.op in ONLINE:
                self.start_states(value, rows, None, alike=False)
                continue
            shape, kind = f"[{rows}, {self.schedule.piece_columns}]", TRITON_TYPES[value.dtype]
            self.out.line(f"{value.name}_lanes = tl.full({shape}, {self._nothing(value)}, {kind})")
        stages = f", num_stages={self.schedule.stages}" if self.schedule.stages > 1 else ""
        count = self.places.count(self.schedule.columns)
        end = self._end(count)
        first = width if self.places.shifted else 0
        known = isinstance(count, int) and not self.places.shifted
        whole = str(int(count) // width * width) if known else f"{end} // {width} * {width}"
        if self.places.shifted:
            self._block("", stage, along, inner, masked=True)
        if whole != "0":
            with self.out.block(f"for start in tl.range({first}, {whole}, {width}{stages})"):
                self._block("start", stage, along, inner, masked=False)
        if known and int(count) % width == 0:
            return
        if known:
            start, rest = whole if whole != "0" else "", -(-(int(count) % width) // self.schedule.piece_columns)
            self._block(start, stage, along, inner, masked=True, pieces=rest)
            return
        if self.places.shifted:
            whole = f"tl.maximum({whole}, {width})"
        self.out.line(f"rest = {whole}")
        with self.out.block(f"if rest < {end}"):
            self._block("rest", stage, along, inner, masked=True)

    def _end(self, count: Size) -> str:
        """Where the columns end, of the type that their positions have: the same before, in and behind the loop."""
        text = str(count) if " " not in str(count) else f"({count})"
        if isinstance(count, str) and not self.places.has_wide_columns:
            text = f"tl.cast({count}, tl.int32)"
        return f"({text} + early)" if self.places.shifted else text

    def _block(
        self,
        start: str,
        stage: int,
        stores: list[Output],
        inner: list[Value],
        *,
        masked: bool,
        pieces: int | None = None,
    ) -> None:
        """One block of columns: so many pieces, or all that a block has."""
        several = range(self.schedule.pieces if pieces is None else pieces)
        for piece in several:
            self._define_columns(piece, start)
        self.masked_columns = masked
        self.whole_pieces = frozenset(several[1:]) if masked and not start and self._has_whole_block() else frozenset()
        if masked:
            for piece in several:
                if piece not in self.whole_pieces:
                    self._define_masks(piece, start)
        for buffer in self.program.inputs:
            if buffer.name in self.loops.used[stage] and self.places.has_columns(buffer):
                for piece in several:
                    self.load(buffer, piece)
        for piece in several:
            for name in self.loops.values[stage]:
                self.define(name, piece)
            for output in stores:
                self._store(output, piece)
        for value in inner:
            self._add_block(value, several)
        self.masked_columns = True

    def _add_block(self, value: Value, pieces: range) -> None:
        """What a row reduction has of the columns so far, with those of one more block."""
        operands = [self._guarded(value, piece, self.operand(value.args[0], piece)) for piece in pieces]
        if value.op not in ONLINE:
            text = f"{value.name}_lanes"
            for operand in operands:
                text = COMBINE[value.op].format(text, operand)
            self.out.line(f"{value.name}_lanes = {text}")
            return
        states = ", ".join(self.states(value, None))
        if value.op == "sumexp":
            self.out.line(f"{states} = w.sumexp_block({states}, ({', '.join(operands)},))")
            return
        for piece, operand in zip(pieces, operands, strict=True):
            masks = self.masks(piece, rows=False, columns=self.is_vector(value.args[0]))
            exists = f", {masks}" if masks else ""
            self.out.line(f"{states} = w.{value.op}_add({states}, {operand}{exists})")

    def _define_columns(self, piece: int, start: str) -> None:
        """The columns of a piece of the block that begins at ``start``."""
        width, column = self.schedule.piece_columns, self.places.column_of(piece)
        first = [start] if start and start != "0" else []
        first += [str(piece * width)] if piece else []
        text = " + ".join(first)
        if text.isdigit() or (len(first) == 2 and all(part.isdigit() for part in first)):
            text = str(sum(map(int, first)))
        if self.places.shifted:
            vector = f"vector{self.places.suffix(piece)}"
            self.define_index(vector, width, text)
            self.out.line(f"{column} = {vector} - early")
        else:
            self.define_index(column, width, text)

    def _define_masks(self, piece: int, start: str) -> None:
        if not self.places.shifted:
            self.define_column_mask(piece)
            return
        column, count = self.places.column_of(piece), self.places.count(self.schedule.columns)
        found = [f"({column} >= 0)"] if not start and not piece else []
        found += [] if not start and self._has_whole_block() else [f"({column} < {count})"]
        self.out.line(f"{self.column_mask(piece)} = {' & '.join(found)}")

    def _has_whole_block(self) -> bool:
        """Whether the first block of a row that starts between vectors ends in it."""
        count = self.places.count(self.schedule.columns)
        return isinstance(count, int) and count >= self.schedule.tile_columns

    def address(self, buffer: Buffer, piece: int) -> str:
        if self.places.shifted and buffer.name in self.pointers:
            return f"{self.pointers[buffer.name]} + vector{self.places.suffix(piece)}"
        return super().address(buffer, piece)

    # shared with the rows that are not looped over

    def _along_columns(self, output: Output) -> bool:
        """Whether an output is written for each column, or once a row."""
        return self.is_vector(output.value) or self.places.has_columns(output.buffer)

    def _store(self, output: Output, piece: int) -> None:
        along = self._along_columns(output)
        guard = self.once(output.buffer.dims, piece, self.schedule.segments)
        if self.places.has_rows(output.buffer):
            guard += self.once(output.buffer.dims, piece, self.places.rows)
        elif self.is_spread(output.value):
            guard.append(f"({self.places.row} == 0)")
        elif self.places.rows and not self.places.has_one_tile:
            guard.append("(tile == 0)")
        if along:
            guard += self.once(output.buffer.dims, piece, self.schedule.columns)
        elif self.places.splits_columns:
            guard.append(f"({self.places.block} == 0)")
        self.store(output, piece, guard)

    def _guarded(self, value: Value, piece: int, operand: str) -> str:
        """The operand of a row reduction, or what changes nothing where there is no column."""
        masks = self.masks(piece, rows=False, columns=self.is_vector(value.args[0]))
        return f"tl.where({masks}, {operand}, {self._nothing(value)})" if masks else operand

    def _nothing(self, value: Value) -> str:
        """What changes no result of a reduction; an online one of exponentials starts at minus infinity."""
        if value.op in ONLINE:
            return literal(-math.inf if value.op == "sumexp" else 0.0, value.dtype)
        return literal(identity(value.op, value.dtype), value.dtype)
