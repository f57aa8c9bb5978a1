"""Loops over the columns of a row that is too wide for registers, one for every stage: without masks in the main."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weft.ir.ops import identity
from weft.ir.program import Buffer, Output, Size, Value
from weft.render.triton_expressions import COMBINE, TRITON_TYPES, literal
from weft.render.triton_statements import Statements

ALIGNED_ELEMENTS = 16
"""Columns that a vector access has at most: 16 bytes of 8 bits each."""


class ColumnLoop(Statements):
    """Writes what a row needs of its columns, block by block.

    Rows of an odd width start anywhere between two vectors of memory. Where all tensors of a kernel have the same such
    rows, blocks start at the vector that the row starts in: the first block and the last one are masked, and all
    accesses are whole vectors.
    """

    def shifts(self, buffers: Sequence[Buffer]) -> bool:
        """Whether rows start between vectors, in the same place in all of these buffers."""
        rows, columns = self.places.rows, self.places.columns
        if self.schedule.rows_per_tile != 1 or len(rows) != 1 or len(columns) != 1 or self.places.segments:
            return False
        layouts = {
            (b.offset, *(dict(zip(b.dims, b.strides, strict=True))[d] for d in (*rows, *columns))) for b in buffers
        }
        if len(layouts) != 1:
            return False
        _, row, column = layouts.pop()
        return column == 1 and (isinstance(row, str) or row % ALIGNED_ELEMENTS != 0)

    def shift(self, buffers: Sequence[Buffer]) -> None:
        """Where a row begins, in vectors, and by how many columns that is too early."""
        row = dict(zip(buffers[0].dims, buffers[0].strides, strict=True))[self.places.rows[0]]
        offset = f"{buffers[0].offset} + " if buffers[0].offset else ""
        self.out.line(f"start_of_row = {offset}{self.places.tile} * {row}")
        self.out.line(f"early = tl.cast(start_of_row % {ALIGNED_ELEMENTS}, tl.int32)")
        self.out.line(f"aligned = tl.multiple_of(start_of_row - early, {ALIGNED_ELEMENTS})")
        for buffer in buffers:
            self.pointers[buffer.name] = f"{buffer.name}_at"
            self.out.line(f"{buffer.name}_at = {buffer.name} + aligned")
        self.places.shifted = True

    def column_loop(self, stage: int) -> None:
        """One loop over the columns of a row."""
        names, stores = self.loops.values[stage], self.loops.stores[stage]
        inner = [self.by_name[name] for name in self.loops.inner[stage]]
        along = [o for o in stores if self._along_columns(o)]
        if not (names or inner or along):
            return
        width, rows = self.schedule.pieces[0], self.schedule.rows_per_tile
        for value in inner:
            kind = TRITON_TYPES[value.dtype]
            self.out.line(f"{value.name}_lanes = tl.full([{rows}, {width}], {self._nothing(value)}, {kind})")
        stages = f", num_stages={self.schedule.stages}" if self.schedule.stages > 1 else ""
        count = self.places.count(self.schedule.columns)
        end = self._end(count)
        first = width if self.places.shifted else 0
        known = isinstance(count, int) and not self.places.shifted
        whole = str(int(count) // width * width) if known else f"{end} // {width} * {width}"
        if self.places.shifted:
            self._block("", names, along, inner, masked=True)
        if whole != "0":
            with self.out.block(f"for start in tl.range({first}, {whole}, {width}{stages})"):
                self._block("start", names, along, inner, masked=False)
        if known and int(count) % width == 0:
            return
        if known:
            self._block(whole if whole != "0" else "", names, along, inner, masked=True)
            return
        if self.places.shifted:
            whole = f"tl.maximum({whole}, {width})"
        self.out.line(f"rest = {whole}")
        with self.out.block(f"if rest < {end}"):
            self._block("rest", names, along, inner, masked=True)

    def _end(self, count: Size) -> str:
        """Where the columns end, of the type that their positions have: the same before, in and behind the loop."""
        text = str(count) if " " not in str(count) else f"({count})"
        if isinstance(count, str) and not self.places.has_wide_columns:
            text = f"tl.cast({count}, tl.int32)"
        return f"({text} + early)" if self.places.shifted else text

    def _block(
        self, start: str, names: Iterable[str], stores: list[Output], inner: list[Value], *, masked: bool
    ) -> None:
        """One block of columns."""
        column = self.places.column_of(0)
        if self.places.shifted:
            self.define_index("vector", self.schedule.pieces[0], start)
            self.out.line(f"{column} = vector - early")
        else:
            self.define_index(column, self.schedule.pieces[0], start)
        self.masked_columns = masked
        if masked:
            self._define_masks(start)
        names = list(names)
        used = {a for n in names for a in self.by_name[n].args}
        used |= {v.args[0] for v in inner} | {o.value for o in stores}
        for buffer in self.program.inputs:
            if buffer.name in used and self.places.has_columns(buffer):
                self.load(buffer, 0)
        for name in names:
            self.define(name, 0)
        for output in stores:
            self._store(output, 0)
        for value in inner:
            operand = self._guarded(value, 0, self.operand(value.args[0], 0), rows=False)
            lanes = f"{value.name}_lanes"
            self.out.line(f"{lanes} = {COMBINE[value.op].format(lanes, operand)}")
        self.masked_columns = True

    def _define_masks(self, start: str) -> None:
        if not self.places.shifted:
            self.define_column_mask(0)
            return
        column, count = self.places.column_of(0), self.places.count(self.schedule.columns)
        before = f"({column} >= 0) & " if not start else ""
        self.out.line(f"{self.column_mask(0)} = {before}({column} < {count})")

    def address(self, buffer: Buffer, piece: int) -> str:
        if self.places.shifted and buffer.name in self.pointers:
            return f"{self.pointers[buffer.name]} + vector"
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
            guard.append("(tl.program_id(1) == 0)")
        self.store(output, piece, guard)

    def _guarded(self, value: Value, piece: int, operand: str, *, rows: bool) -> str:
        """The operand of a reduction, or what changes nothing where there is no element."""
        dims = self.types[value.args[0]][1]
        over = self.schedule.rows if rows else ()
        once = self.once(dims, piece, over)
        masks = self.masks(piece, rows=rows, columns=not rows and self.is_vector(value.args[0]), others=once)
        return f"tl.where({masks}, {operand}, {self._nothing(value)})" if masks else operand

    def _nothing(self, value: Value) -> str:
        return literal(identity(value.op, value.dtype), value.dtype)
