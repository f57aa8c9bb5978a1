"""Prints what a CUDA C++ kernel does with a row tile: waiting for it, numbers of its rows, row reductions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.backends.c_expressions import C_TYPES, COMBINE
from weft.backends.cuda.column_loops import ColumnLoops
from weft.backends.cuda.schedule import CudaKernel
from weft.backends.cuda.statements import REDUCTIONS, STATES
from weft.backends.source import Writer
from weft.ir.program import Buffer, Output, Value
from weft.lowering.nest import (
    Accumulate,
    Arrive,
    ColumnLoop,
    Compute,
    EachRow,
    Exponentials,
    Load,
    Receive,
    Reduce,
    Release,
    Send,
    Start,
    Statement,
    Store,
)


class RowTiles(ColumnLoops):
    """Statements of a tile, whose rows are in shared memory."""

    def __init__(self, kernel: CudaKernel, writer: Writer) -> None:
        super().__init__(kernel, writer)
        self.per_row = {b.name + "_number" for b in self.numbers()[1]}
        self.per_row |= {v.name for v in self.program.values if self._varies_in_tile(v)}
        self.tile = "tile" if self.is_grouped else "row"
        """The first row of a tile."""
        self.copies = False
        """Whether threads are meant that copy, not those that compute."""

    def _varies_in_tile(self, value: Value) -> bool:
        return not self.is_vector(value.name) and value.op != "const" and value not in self.outer

    @property
    def stage_rows(self) -> str:
        """Rows of a tile, of all groups; empty if that is one."""
        return "stage_rows" if self.is_grouped else "tile_rows" if self.several else ""

    @property
    def times_rows(self) -> str:
        return f" * {self.stage_rows}" if self.stage_rows else ""

    @property
    def place(self) -> str:
        """Of a row among those of a tile; empty if that is one."""
        if not self.is_grouped:
            return "r" if self.several else ""
        return "lane" if self.copies else "(r * groups + group)" if self.several else "group"

    def slot(self, buffer: Buffer) -> str:
        """Where what is copied at once of an input lies in a stage."""
        offset = self.stage_offsets[buffer.name]
        if not self.place or self.copies_tiles:
            return str(offset)
        return f"{offset} + " * (offset > 0) + f"{self.place} * {self.slot_bytes(buffer)}"

    def of_tile(self, statement: Statement) -> None:
        line = self.out.line
        match statement:
            case EachRow(body=body):
                self._numbers(body)
            case Arrive():
                self._arrive()
            case Release():
                line("ring.release();")
            case Start(value=name) if name in self.held_terms.values():
                kind = C_TYPES[self.by_name[name].dtype]
                line(f"w::Parts<w::Max, {kind}> {name}_largest{'[tile_rows]' if self.several else ''};")
            case Exponentials(values=names):
                for name in names:
                    self.exponentials(self.by_name[name])
            case Start(value=name):
                line(f"{self.state_type(self.by_name[name])} {name}_state{'[tile_rows]' if self.several else ''};")
            case Reduce(values=names) | Send(values=names) | Receive(values=names):
                self._reduce(statement, [self.by_name[name] for name in names])
            case ColumnLoop(body=(EachRow(body=body),)):
                self.column_loop(body)
            case _:
                raise AssertionError(f"nobody prints {statement}")

    def _reduce(self, statement: Reduce | Send | Receive, values: Sequence[Value]) -> None:
        line, own = self.out.line, [value for value in values if value.name not in self.centres]
        kind = C_TYPES[own[0].dtype]
        plain = {value.name: f"{value.name}_state" for value in own if value.op not in STATES}
        reduced = ", ".join(value.name if value.name in plain else f"{value.name}_state" for value in own)
        op, moments = REDUCTIONS.get(own[0].op, ""), own[0].op == "m2"
        if isinstance(statement, Receive):
            for value in own:
                declared = kind if value.name in plain else self.state_type(value)
                name = value.name if value.name in plain else f"{value.name}_state"
                line(f"{declared} {name}{'[tile_rows]' if self.several else ''};")
            call = (
                f"receive_moments(columns, sent, {reduced})" if moments else f"template receive<{op}>(sent, {reduced})"
            )
            line(f"exchange.{call};")
        else:
            self._define_numbers(kind, {name: f"{state}{self.of_row}.total()" for name, state in plain.items()})
            if isinstance(statement, Reduce):
                call = f"reduce_moments(columns, {reduced})" if moments else f"template reduce<{op}>({reduced})"
                line(f"exchange.{call};")
            else:
                call = f"send_moments({reduced})" if moments else f"template send<{op}>({reduced})"
                line(f"const unsigned sent = exchange.{call};")
        if isinstance(statement, Send):
            return
        centre = "elements()" if moments else "centre"
        found = {
            v.name: f"{self.centres[v.name]}_state{self.of_row}.{centre}" for v in values if v.name in self.centres
        }
        found |= {v.name: f"{v.name}_state{self.of_row}.total()" for v in own if v.op in STATES}
        self._define_numbers(kind if self.several else f"const {kind}", found)

    def _define_numbers(self, kind: str, texts: Mapping[str, str]) -> None:
        """What each row of a tile has one of, by its name. texts: of one row."""
        defined = ", ".join(f"{name}{self.of_row} = {text}" for name, text in texts.items())
        if texts and self.several:
            self.out.line(f"{kind} {', '.join(f'{name}[tile_rows]' for name in texts)};")
            self.out.line(f"for (int r = 0; r < tile_rows; ++r) {defined};")
        elif texts:
            self.out.line(f"{kind} {defined};")

    def _arrive(self) -> None:
        """Where the vectors of each row are in shared memory."""
        line = self.out.line
        if not self.has_next_rows:
            line("ring.wait_until_filled();")
        if self.several:
            if not self.keeps_columns:
                line("int before[tile_rows];")
            for buffer in self.copied():
                line(f"const {C_TYPES[buffer.dtype]}* {buffer.name}_stage[tile_rows];")
        with self.each_row():
            if not self.keeps_columns:
                head = "" if self.several else "const int "
                line(f"{head}{self.before} = beginning({self.reference.name}_at({self.row}));")
            if not self.copies_tiles:
                line(f"const int begin = max(first * lanes - {self.before}, 0);")
            for buffer in self.copied():
                stage = f"{buffer.name}_stage[r]" if self.several else f"const auto* const {buffer.name}_stage"
                if self.copies_tiles:
                    own = f"{self.place} * columns" if self.has_columns(buffer) else self.place
                    line(f"{stage} = ring.row({self.slot(buffer)}, {buffer.name}_at({self.tile}), 0) + {own};")
                elif self.has_columns(buffer):
                    line(f"{stage} = ring.row({self.slot(buffer)}, {buffer.name}_at({self.row}), begin);")
                else:
                    line(f"{stage} = ring.number<{C_TYPES[buffer.dtype]}>({self.slot(buffer)});")
        line("ring.next();")

    def _numbers(self, body: Sequence[Statement]) -> None:
        """What each row of a tile has one of."""
        line = self.out.line
        if self.several:
            for statement in body:
                if isinstance(statement, Load):
                    line(f"{C_TYPES[self.inputs[statement.buffer].dtype]} {statement.buffer}_number[tile_rows];")
                elif isinstance(statement, Compute):
                    line(f"{C_TYPES[self.by_name[statement.value].dtype]} {statement.value}[tile_rows];")
        with self.each_row():
            for statement in body:
                match statement:
                    case Load(buffer=name) if self.several:
                        kind = C_TYPES[self.inputs[name].dtype]
                        exists = self.exists()[0]
                        line(f"{self.number(name + '_number')} = {exists} ? *{name}_stage[r] : {kind}();")
                    case Load(buffer=name):
                        kind = C_TYPES[self.inputs[name].dtype]
                        found = (
                            f"{self.row} < end_row ? *{name}_stage : {kind}()" if self.is_grouped else f"*{name}_stage"
                        )
                        line(f"const {kind} {name}_number = {found};")
                    case Compute(value=name) if self.several:
                        line(f"{self.number(name)} = {self.expression(self.by_name[name])};")
                    case Compute(value=name):
                        self.define(name)
                    case Store(output=name):
                        self._store_number(self.outputs[name])
                    case Accumulate(value=name):
                        self._add_number(self.by_name[name])
                    case _:
                        raise AssertionError(f"nobody prints {statement}")

    def _store_number(self, output: Output) -> None:
        once = self.once(output.buffer.dims, (*self.segments, *self.inside))
        text = f"*{output.buffer.name}_at({self.row}) = {self.operand(output.value)};"
        with self.guarded(["first == 0", f"{self.thread} == 0", *self.exists(), *once]):
            self.out.line(text)

    def _add_number(self, value: Value) -> None:
        once = self.once(self.types[value.args[0]][1], (*self.segments, *self.inside))
        with self.guarded([*self.exists(), *once]):
            combined = COMBINE[value.op].format(value.name, self.operand(value.args[0]))
            self.out.line(f"{value.name} = {combined};")
