"""Prints loops over blocks of columns, of rows that are too wide for registers.

Rows of an odd width start anywhere between two vectors of memory. Where all tensors of a kernel have the same such
rows, blocks start at the vector that the row starts in: the first block and the last one are masked, and all accesses
of others are whole vectors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from weft.backends.triton.expressions import COMBINE, TRITON_TYPES, literal
from weft.backends.triton.statements import Statements
from weft.ir.ops import ONLINE, identity
from weft.ir.program import Buffer, Value
from weft.lowering.nest import Block, Blocks, Rest, Statement


class ColumnBlocks(Statements):
    """What a row needs of its columns, block by block."""

    def print(self, body: Iterable[Statement]) -> None:
        raise NotImplementedError

    def _shift(self, buffers: Sequence[Buffer]) -> None:
        """Where a row begins, in vectors, and by how many columns that is too early."""
        row = buffers[0].stride_of[self.places.rows[0]]
        offset = f"{buffers[0].offset} + " if buffers[0].offset else ""
        self.out.line(f"start_of_row = {offset}{self.places.tile} * {row}")
        self.out.line(f"early = tl.cast(start_of_row % {self.aligned(buffers)}, tl.int32)")
        self.out.line(f"aligned = tl.multiple_of(start_of_row - early, {self.aligned(buffers)})")
        for buffer in buffers:
            self.pointers[buffer.name] = f"{buffer.name}_at"
            self.out.line(f"{buffer.name}_at = {buffer.name} + aligned")
        self.places.shifted = True

    def _start_lanes(self, value: Value) -> None:
        if value.op in ONLINE:
            self.start_states(value, self.schedule.rows_per_tile, None, alike=False)
            return
        shape, kind = f"[{self.schedule.rows_per_tile}, {self.schedule.piece_columns}]", TRITON_TYPES[value.dtype]
        self.out.line(f"{value.name}_lanes = tl.full({shape}, {self._nothing(value)}, {kind})")

    def _lanes(self, value: Value, own: str) -> str:
        """What threads have of a row reduction: lanes of its own, or the centre of another one that needs it."""
        return f"{own}_lanes" if own == value.name else self.states(self.by_name[own], None)[0]

    def _blocks(self, loop: Blocks) -> None:
        stages = f", num_stages={self.schedule.stages}" if self.schedule.stages > 1 else ""
        head = f"for start in tl.range({loop.first}, {self._whole()}, {self.schedule.tile_columns}{stages})"
        with self.out.block(head):
            self.print(loop.body)

    def _rest(self, rest: Rest) -> None:
        whole, after = self._whole(), rest.after
        self.out.line(f"rest = tl.maximum({whole}, {after})" if after else f"rest = {whole}")
        with self.out.block(f"if rest < {self._end()}"):
            self.print(rest.body)

    def _whole(self) -> str:
        """Where whole blocks end."""
        count, width = self.places.count(self.schedule.columns), self.schedule.tile_columns
        if isinstance(count, int) and not self.places.shifted:
            return str(count // width * width)
        return f"{self._end()} // {width} * {width}"

    def _end(self) -> str:
        """Where the columns end, of the type that their positions have: the same before, in and behind the loop."""
        count = self.places.count(self.schedule.columns)
        text = str(count) if " " not in str(count) else f"({count})"
        if isinstance(count, str) and not self.places.has_wide_columns:
            text = f"tl.cast({count}, tl.int32)"
        return f"({text} + early)" if self.places.shifted else text

    def _block(self, block: Block) -> None:
        start = "" if block.start == "head" else block.start
        for piece in range(block.pieces):
            self._define_columns(piece, start)
        self.masked_columns, self.whole_pieces = block.masked, frozenset(block.whole)
        if block.masked:
            for piece in range(block.pieces):
                if piece not in self.whole_pieces:
                    self._define_masks(piece, block)
        self.print(block.body)
        self.masked_columns = True

    def _add_block(self, value: Value, pieces: Sequence[int]) -> None:
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
        first = [start] if start else []
        first += [str(piece * width)] if piece else []
        text = " + ".join(first)
        if len(first) == 2 and all(part.isdigit() for part in first):
            text = str(sum(map(int, first)))
        if self.places.shifted:
            vector = f"vector{self.places.suffix(piece)}"
            self.define_index(vector, width, text)
            self.out.line(f"{column} = {vector} - early")
        else:
            self.define_index(column, width, text)

    def _define_masks(self, piece: int, block: Block) -> None:
        if not self.places.shifted:
            self.define_column_mask(piece)
            return
        column, count = self.places.column_of(piece), self.places.count(self.schedule.columns)
        is_head = block.start == "head"
        ends = not (is_head and isinstance(count, int) and count >= self.schedule.tile_columns)
        found = [f"({column} >= 0)"] if is_head and not piece else []
        found += [f"({column} < {count})"] if ends else []
        self.out.line(f"{self.column_mask(piece)} = {' & '.join(found)}")

    def address(self, buffer: Buffer, piece: int) -> str:
        if self.places.shifted and buffer.name in self.pointers:
            return f"{self.pointers[buffer.name]} + vector{self.places.suffix(piece)}"
        return super().address(buffer, piece)

    def _guarded(self, value: Value, piece: int, operand: str) -> str:
        """The operand of a row reduction, or what changes nothing where there is no column."""
        masks = self.masks(piece, rows=False, columns=self.is_vector(value.args[0]))
        return f"tl.where({masks}, {operand}, {self._nothing(value)})" if masks else operand

    def _nothing(self, value: Value) -> str:
        """What changes no result of a reduction; an online one of exponentials starts at minus infinity."""
        if value.op in ONLINE:
            return literal(-math.inf if value.op == "sumexp" else 0.0, value.dtype)
        return literal(identity(value.op, value.dtype), value.dtype)
