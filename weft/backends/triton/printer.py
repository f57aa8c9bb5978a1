"""Prints the nest of a Triton kernel's first function."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weft.backends.source import Writer
from weft.backends.triton.column_blocks import ColumnBlocks
from weft.backends.triton.division import partial_name, sum_columns
from weft.backends.triton.expressions import COMBINE, reduction
from weft.backends.triton.schedule import TritonKernel
from weft.ir.ops import ONLINE
from weft.ir.program import Output, Size, Value
from weft.lowering.nest import (
    Accumulate,
    Block,
    Blocks,
    Chunks,
    Columns,
    Compute,
    Early,
    Gather,
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
    Tile,
    Tiles,
    Total,
)


def write_nest(kernel: TritonKernel, nest: Nest, writer: Writer) -> None:
    """Everything of a function but its head. kernel: whose own names are free."""
    Printer(kernel, writer).write(nest)


class Printer(ColumnBlocks):
    """One method a statement, or a few lines of ``_one``."""

    def __init__(self, kernel: TritonKernel, writer: Writer) -> None:
        super().__init__(kernel, writer)
        self.outputs = {o.buffer.name: o for o in self.program.outputs}

    def write(self, nest: Nest) -> None:
        self.blocks = self.places.blocks()
        if isinstance(self.blocks, str):
            self.out.line(f"blocks = tl.cast({self.blocks}, tl.int32)")
            self.blocks = "blocks"
        if self.blocks != 1:
            self.out.line(f"block = tl.program_id(0) % {self.blocks}")
        self.print(nest.body)

    def print(self, body: Iterable[Statement]) -> None:
        for statement in body:
            self._one(statement)

    def _one(self, statement: Statement) -> None:
        value = self.by_name.get(getattr(statement, "value", ""))
        match statement:
            case Columns():
                self._columns()
            case Early():
                self._early(statement)
            case Segment():
                self._define_segment("tl.program_id(0)")
            case Rows(of_program=True):
                self.out.line("tile = tl.program_id(0)" + (f" // {self.blocks}" if self.blocks != 1 else ""))
            case Rows():
                self._rows()
            case Point():
                self._point(statement)
            case Load():
                self.load(self.inputs[statement.buffer], statement.piece)
            case Compute():
                self.again = statement.again
                self.define(statement.value, statement.piece)
            case Reduce():
                self._reduce([self.by_name[name] for name in statement.values], statement.lanes)
            case Start(lanes=True) if value is not None:
                self._start_lanes(value)
            case Start() if value is not None:
                self.start_states(value, self.schedule.rows_per_tile, statement.piece, alike=True)
            case Accumulate(lanes=True) if value is not None:
                self._add_block(value, statement.pieces)
            case Accumulate() if value is not None:
                self._add(value, statement.pieces[0])
            case Keep() if value is not None:
                self._keep(value, statement.piece)
            case Gather():
                self.gather([self.by_name[name] for name in statement.values])
            case Total() if value is not None:
                totals = ", ".join(self._chunk_totals(value, 0))
                self.out.line(f"{value.name} = {f'w.{value.op}_total({totals})' if value.op in ONLINE else totals}")
            case Store(complete=True):
                self.store_complete(self.outputs[statement.output], self.first_block())
            case Store():
                self._store(self.outputs[statement.output], statement.piece)
            case Chunks():
                self._chunks(statement)
            case Tiles():
                with self.out.block(f"for {self._tiles(statement)}"):
                    self.print(statement.body)
            case Tile():
                pointers = dict(self.pointers)
                self.print(statement.body)
                self.pointers = pointers
            case Blocks():
                self._blocks(statement)
            case Block():
                self._block(statement)
            case Rest():
                self._rest(statement)
            case _:
                raise AssertionError(f"nobody prints {statement}")

    # rows

    def _chunks(self, loop: Chunks) -> None:
        """One for each program, more if fewer programs could be started. What is added up, or where rows begin, is that
        of a chunk."""
        segments, chunks = self.places.count(self.places.segments), self.places.chunks()
        if not self.places.segments:
            with self.out.block(f"for chunk in range(tl.program_id(0), {chunks}, tl.num_programs(0))"):
                self.print(loop.body)
            return
        head = f"for part in range(tl.program_id(0), {self.places.times(segments, chunks)}, tl.num_programs(0))"
        with self.out.block(head):
            self._define_segment(f"part // {chunks}")
            self.out.line(f"chunk = part % {chunks}")
            self.print(loop.body)

    def _tiles(self, loop: Tiles) -> str:
        first: str
        step: Size
        match loop.of:
            case "chunk":
                first, step = "chunk", self.places.chunks()
            case "segment":
                first, step = "0", 1
            case _:
                first, step = "tl.program_id(0)", "tl.num_programs(0)"
        ahead = f", num_stages={self.schedule.stages}" if loop.ahead else ""
        return f"tile in tl.range({first}, {self.places.tiles()}, {step}{ahead})"

    def _define_segment(self, text: str) -> None:
        self.out.line(f"{self.places.segment} = {f'tl.cast({text}, tl.int64)' if self.places.is_wide else text}")

    def _columns(self) -> None:
        width = self.schedule.piece_columns
        for piece, start in enumerate(self.places.piece_starts()):
            block = self.places.block
            block = f"tl.cast({block}, tl.int64)" if self.places.has_wide_columns else block
            text = f"{block} * {width}" if self.places.splits_columns else str(start) if start else ""
            if self.schedule.columns:
                self.define_index(self.places.place_of(piece), width, text)
                self.define_column_mask(piece)

    def _early(self, statement: Early) -> None:
        early = self.places.early
        assert early is not None
        row = {"chunk": "chunk", "tile": self.places.tile}[statement.of]
        first = self.places.row_offset(self.row_buffers()[0], row=row)
        text = f"({first}) % {early.sector}" if " + " in first else f"{first} % {early.sector}"
        if self.places.is_wide:
            text = f"tl.cast({text}, tl.int32)"  # masks are made of it
        self.out.line(f"early = {f'tl.multiple_of({text}, {early.step})' if early.step > 1 else text}")
        self._columns()
        for name in statement.buffers:
            offset = self.places.row_offset(self.inputs[name])
            self.out.line(f"{name}_at = {name} + {offset} - early" if offset else f"{name}_at = {name} - early")
            self.pointers[name] = f"{name}_at"

    def _rows(self) -> None:
        each, phases = self.schedule.rows_per_tile, self.places.phases
        start = "" if self.places.has_one_tile else "tile" if each == 1 else f"{self.places.tile} * {each}"
        if phases > 1:
            start = f"{self.places.tile} // {phases} * {phases * each} + tile % {phases}"
        self.define_index(self.places.row, each, start, axis=0, step=phases)
        if self.places.splits_vectors:
            self.out.line(f"is_last = tile == {self.places.last_tile()}")
        if self.places.rows_masked:
            self.out.line(f"row_exists = {self.places.row} < {self.places.count(self.places.rows)}")
            self.out.line(f"{self.places.row} = tl.minimum({self.places.row}, {self.places.last_row()})")

    def _point(self, statement: Point) -> None:
        buffers = [self.inputs.get(name) or self.outputs[name].buffer for name in statement.buffers]
        if statement.shifted:
            self._shift(buffers)
            return
        for buffer in buffers:
            name, offset, early = f"{buffer.name}_at", self.places.row_offset(buffer), self.places.early
            if early is not None:
                sector, one = early.sector, self.schedule.rows_per_tile == 1
                offset = self.places.row_offset(buffer, row=self.places.tile) if one else offset
                multiple = f"tl.multiple_of({offset} - early, {sector if one else [sector] * 2})"
                self.out.line(f"{name} = {buffer.name} + {multiple}")
            else:
                self.out.line(f"{name} = {buffer.name} + {offset}")
            self.pointers[buffer.name] = name

    # row reductions

    def _reduce(self, values: list[Value], lanes: Sequence[str]) -> None:
        """All pieces pre-reduced, all values in one block-wide reduction."""
        names, op = ", ".join(value.name for value in values), values[0].op
        if lanes and op in ONLINE:
            (value,) = values
            self.out.line(f"{value.name} = w.{op}_of_row({', '.join(self.states(value, None))})")
            return
        if lanes:
            found = [self._lanes(*each) for each in zip(values, lanes, strict=True)]
            self.out.line(f"{names} = {reduction(op, found, 1)}")
            return
        combined: list[str] = []
        for value in values:
            text, *others = (self._reduced(value, piece) for piece in self.pieces())
            for other in others:
                text = COMBINE[op].format(text, other)
            combined.append(text)
        self.out.line(f"{names} = {reduction(op, combined, 1)}")

    def _reduced(self, value: Value, piece: int) -> str:
        """What a row reduction reduces of a piece."""
        if not self.is_vector(value.args[0]):
            raise AssertionError(f"{value.name} reduces no columns")
        operand = self._guarded(value, piece, self.operand(value.args[0], piece))
        rows, columns = self.extent(value.args[0])
        if columns:
            return operand
        shape = f"[{self.schedule.rows_per_tile if rows else 1}, {self.schedule.piece_columns}]"
        return f"tl.broadcast_to({operand}, {shape})"

    # column sums

    def _add(self, value: Value, piece: int) -> None:
        if value.op in ONLINE:
            states, operand = ", ".join(self.states(value, piece)), self.operand(value.args[0], piece)
            exists = ", row_exists" if self.places.rows_masked else ""
            self.out.line(f"{states} = w.{value.op}_add({states}, {operand}{exists})")
            return
        (name,) = self.states(value, piece)
        combined = COMBINE[value.op].format(name, self.operand(value.args[0], piece))
        once = self.once(self.types[value.args[0]][1], piece, self.schedule.rows)
        masks = self.masks(piece, rows=True, columns=False, others=once)
        self.out.line(f"{name} = {f'tl.where({masks}, {combined}, {name})' if masks else combined}")

    def _keep(self, value: Value, piece: int) -> None:
        part = "part" if self.places.segments else "chunk"
        count, vectors = self.places.count(sum_columns(self.kernel, value)), self.sums_vectors(value)
        if vectors and not self.is_vector(value.name):
            raise AssertionError(f"{value.name} is a sum of columns without columns")
        offset = part if count == 1 else f"{part} * {count}"
        if vectors and self.places.early:
            offset = f"({offset} - early)"
        column = f" + {self.places.place_of(piece)}" if vectors else " + tl.arange(0, 1)[None, :]"
        first = [f"({self.places.block} == 0)"] if self.places.splits_columns and not vectors else []
        masks = self.masks(piece, rows=False, columns=vectors, others=first)
        masked = f", mask={masks}" if masks else ""
        for number, total in enumerate(self._chunk_totals(value, piece)):
            self.out.line(f"tl.store({partial_name(value, number)} + {offset}{column}, {total}{masked})")

    def _chunk_totals(self, value: Value, piece: int) -> list[str]:
        """The numbers that make up a partial result, over all rows of a chunk."""
        states = self.states(value, piece)
        if value.op not in ONLINE:
            return [reduction(value.op, states, 0)]
        self.out.line(f"{', '.join(states)} = w.{value.op}_rows({', '.join(states)})")
        return states

    def gather(self, values: Sequence[Value]) -> None:
        raise AssertionError(f"{values[0].name} is complete before its finish")

    def first_block(self) -> str:
        """What holds for one of the programs that share a row."""
        return f"({self.places.block} == 0)" if self.places.splits_columns else ""

    def _store(self, output: Output, piece: int) -> None:
        along = self.along_columns(output)
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
            guard.append(self.first_block())
        self.store(output, piece, guard)
