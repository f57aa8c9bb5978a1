"""Prints the pass of a C++ kernel over its rows: chunks, tiles of a chunk, loops over columns, rows of a tile."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager

from weft.backends.c_expressions import C_TYPES, COMBINE
from weft.backends.cpp.schedule import CppKernel
from weft.backends.cpp.statements import Statements
from weft.backends.source import Writer
from weft.ir.ops import ONLINE
from weft.ir.program import Output, Value
from weft.ir.structure import place_in_output
from weft.lowering.nest import (
    Accumulate,
    Chunks,
    ColumnLoop,
    Compute,
    EachRow,
    Hold,
    Keep,
    Load,
    Reduce,
    Restore,
    Start,
    Statement,
    Store,
    Tile,
    Tiles,
)


class Rows(Statements):
    """Prints the statements of the pass over rows."""

    def __init__(self, kernel: CppKernel, writer: Writer) -> None:
        super().__init__(kernel, writer)
        self.indexed = {name for name in self.types if self.is_per_row(name) and not self.is_vector(name)}
        self.indexed -= {v.name for v in self.program.values if v.op == "const"}

    def write(self, body: Sequence[Statement]) -> None:
        if self.outer:
            self._partials()
        for statement in body:
            self.out.line()
            match statement:
                case Chunks():
                    self._chunks(statement)
                case Tile():
                    with self.out.block(""):
                        self._held_scratch()
                        self._tile(statement)
                case _:
                    raise AssertionError(f"nobody prints {statement}")

    # chunks

    def _partials(self) -> None:
        line = self.out.line
        line()
        line("// Column sums of every chunk of rows, combined in order by the finish below.")
        self._chunk_sizes()
        for slot, value in enumerate(self.outer):
            kind, count = C_TYPES[value.dtype], self._product(self._all_chunks(), self._numbers_kept(value))
            line(f"const w::Workspace<{kind}, {slot}> {value.name}_kept({count});")
            line(f"{kind}* {value.name}_partial = {value.name}_kept.data();")

    def _chunk_sizes(self) -> None:
        line = self.out.line
        line(f"constexpr int64_t rows_per_chunk = {self.schedule.rows_per_chunk};")
        line(f"const int64_t rows = {self.names.product(self.in_segment)};")
        if self.segments:
            line(f"const int64_t segments = {self.names.product(self.segments)};")
        line("const int64_t chunks = w::chunks_of(rows, rows_per_chunk);")

    def _all_chunks(self) -> str:
        return "segments * chunks" if self.segments else "chunks"

    def _chunks(self, loop: Chunks) -> None:
        line = self.out.line
        if not self.outer:
            self._chunk_sizes()
            line()
        line("#pragma omp parallel num_threads(threads)")
        with self.out.block(""):
            self._held_scratch()
            line("#pragma omp for schedule(static)")
            with self.out.block(f"for (int64_t chunk = 0; chunk < {self._all_chunks()}; ++chunk)"):
                if self.segments:
                    line("const int64_t segment = chunk / chunks;")
                    self._row_indices(self.segments, "segment")
                if self.in_segment:
                    number = "chunk % chunks" if self.segments else "chunk"
                    line(f"const int64_t first = {number} * rows_per_chunk;")
                    line("const int64_t last = std::min(first + rows_per_chunk, rows);")
                for statement in loop.body:
                    if isinstance(statement, Start):
                        self._start_chunk(self.by_name[statement.value])
                    else:
                        assert isinstance(statement, Tiles)
                        self._tiles(statement)

    def _start_chunk(self, value: Value) -> None:
        kind, count, zero = C_TYPES[value.dtype], self._numbers_kept(value), self._nothing(value, value.dtype)
        self.out.line(f"{kind}* {value.name}_chunk = {value.name}_partial + {self._product('chunk', count)};")
        self.out.line(f"w::fill({value.name}_chunk, {count}, {zero});")

    def _tiles(self, loop: Tiles) -> None:
        """Where rows and chunks are whole tiles, that is one loop; where column sums keep all row dimensions, each its
        own, a chunk is one row."""
        line, fast = self.out.line, self.fast_row
        (tile,) = loop.body
        assert isinstance(tile, Tile)
        if fast is None:
            self._tile(tile)
            return
        count, size = self.schedule.rows_per_tile, self.program.size_of(fast)
        if count == 1 or (isinstance(size, int) and size % count == 0 and self.schedule.rows_per_chunk % count == 0):
            with self.out.block(f"for (int64_t tile = first; tile < last; tile += {count})"):
                line(f"constexpr int tile_rows = {count};")
                self._tile(tile)
        else:
            head = f"w::for_tiles<{count}>(first, last, {self.names.size(fast)}, [&](int64_t tile, auto whole)"
            with self.out.block(head, "});"):
                line("constexpr int tile_rows = whole.count;")
                self._tile(tile)

    def _held_scratch(self) -> None:
        for name in self.schedule.held:
            if place_in_output(self.program, name) is not None:
                continue
            kind = C_TYPES[self.types[name][0]]
            count = self.names.product(self.columns)
            rows = f"{self.schedule.rows_per_tile} * " if self.is_per_row(name) else ""
            self.out.line(f"const auto {name}_held = w::scratch<{kind}>({rows}{count});")

    # a tile

    def _tile(self, tile: Tile) -> None:
        if len(self.in_segment) > 1:
            self._row_indices(self.in_segment, "tile", "_first")
        for statement in tile.body:
            match statement:
                case EachRow():
                    self._numbers(statement.body)
                case Start():
                    value = self.by_name[statement.value]
                    count = "[tile_rows]" if value.name in self.indexed else ""
                    self.out.line(f"w::{value.op.capitalize()}<{C_TYPES[value.dtype]}> {value.name}_lanes{count};")
                case ColumnLoop():
                    with self._column_loop():
                        for each in statement.body:
                            self._in_columns(each)
                case _:
                    raise AssertionError(f"nobody prints {statement}")

    @contextmanager
    def _each_row(self) -> Generator[None]:
        """The rows of the tile, with the index of the fastest row dimension."""
        if self.fast_row is None:
            yield
            return
        if self.schedule.rows_per_tile > 1:
            self.out.line("#pragma GCC unroll 16")
        first = f"{self.fast_row}_first" if len(self.in_segment) > 1 else "tile"
        head = "for (int r = 0; r < tile_rows; ++r)"
        with self.out.block(head), self.out.index(self.fast_row, f"{first} + r"):
            yield

    def _numbers(self, body: Sequence[Statement]) -> None:
        """Numbers of a row: those that are loaded or result from a reduction, and then those that are made of them;
        what is stored or summed as a number in between."""
        line, first, then = self.out.line, dict[str, str](), dict[str, str]()
        stores, sums = list[Output](), list[Value]()
        for statement in body:
            match statement:
                case Load(buffer=name):
                    first[name] = self.names.element(self.inputs[name])
                case Reduce(values=(name,)):
                    first[name] = f"{name}_lanes{'[r]' if name in self.indexed else ''}.result()"
                case Compute(value=name):
                    then[name] = self._expression(self.by_name[name], vector=False)
                case Store(output=name):
                    stores.append(self.outputs[name])
                case Accumulate(value=name):
                    sums.append(self.by_name[name])
                case _:
                    raise AssertionError(f"nobody prints {statement}")
        for name, text in (*first.items(), *then.items()):
            if name not in self.indexed:
                self._define(name, text)
        self._declare(name for name in (*first, *then) if name in self.indexed)
        for value in sums:
            line(f"{C_TYPES[value.dtype]} {value.name}_tile = {self._nothing(value, value.dtype)};")
        if stores or sums or not self.indexed.isdisjoint((*first, *then)):
            with self._each_row():
                self._assign(first)
                for output in stores:
                    text = f"{self.names.element(output.buffer)} = {self._operand(output.value, vector=False)};"
                    self._guarded(text, output.buffer.dims, self.rows)
                for value in sums:
                    combined = COMBINE[value.op].format(f"{value.name}_tile", self._operand(value.args[0], False))
                    self._guarded(f"{value.name}_tile = {combined};", self.types[value.args[0]][1], self.rows)
                self._assign(then)
        for value in sums:
            combined = COMBINE[value.op].format(f"{value.name}_chunk[0]", f"{value.name}_tile")
            line(f"{value.name}_chunk[0] = {combined};")

    def _declare(self, names: Iterable[str]) -> None:
        """Arrays with one number a row of the tile, a line a type."""
        by_kind: dict[str, list[str]] = {}
        for name in names:
            by_kind.setdefault(C_TYPES[self.types[name][0]], []).append(f"{name}[tile_rows]")
        for kind, arrays in by_kind.items():
            self.out.line(f"{kind} {', '.join(arrays)};")

    def _assign(self, texts: Mapping[str, str]) -> None:
        for name, text in texts.items():
            if name in self.indexed:
                self.out.line(f"{name}[r] = {text};")

    # one loop over the columns

    def _in_columns(self, statement: Statement) -> None:
        line = self.out.line
        match statement:
            case EachRow():
                with self._each_row():
                    for each in statement.body:
                        self._in_columns(each)
            case Load(buffer=name):
                self._define(name, self._load(self.inputs[name]))
            case Restore(value=name):
                self._define(name, self._held(name))
            case Compute(value=name):
                self._define(name, self._expression(self.by_name[name], vector=True))
            case Hold(value=name):
                line(f"w::store({self._held_at(name)}, {name}, lanes);")
            case Store(output=name):
                output = self.outputs[name]
                self._guarded(self._store_vector(output), output.buffer.dims, (*self.rows, *self.columns))
            case Accumulate(value=name, lanes=True):
                row = "[r]" if name in self.indexed else ""
                line(f"{name}_lanes{row}.add({self._operand(self.by_name[name].args[0], vector=True)}, lanes);")
            case Accumulate(value=name):
                self._accumulate(self.by_name[name])
            case Start(value=name):
                self._start_tile(self.by_name[name])
            case Keep(value=name):
                self._keep(self.by_name[name])
            case _:
                raise AssertionError(f"nobody prints {statement}")

    def _start_tile(self, value: Value) -> None:
        """The column sums of a tile; statistics go on from those of the chunk so far."""
        if value.op in ONLINE:
            at = f"{value.name}_chunk + {self._linear(value)}, {self._width(value)}"
            self.out.line(f"auto {value.name}_tile = {self._statistic(value)}::load({at}, lanes);")
        else:
            self.out.line(f"auto {value.name}_tile = w::vec({self._nothing(value, value.dtype)});")

    def _accumulate(self, value: Value) -> None:
        operand = self._operand(value.args[0], vector=True)
        if value.op in ONLINE:
            first = "true" if self.fast_row is None else "tile + r == first"
            self.out.line(f"{value.name}_tile.add({operand}, {first});")
            return
        combined = COMBINE[value.op].format(f"{value.name}_tile", operand)
        self._guarded(f"{value.name}_tile = {combined};", self.types[value.args[0]][1], self.rows)

    def _keep(self, value: Value) -> None:
        """The column sums of a tile into those of its chunk."""
        at = f"{value.name}_chunk + {self._linear(value)}"
        if value.op in ONLINE:
            self.out.line(f"{value.name}_tile.store({at}, {self._width(value)}, lanes);")
            return
        combined = COMBINE[value.op].format(f"w::load({at}, lanes)", f"{value.name}_tile")
        self.out.line(f"w::store({at}, {combined}, lanes);")

    def _held(self, name: str) -> str:
        """A value that an earlier loop computed, from the output or from the memory that keeps it."""
        output = place_in_output(self.program, name)
        return f"w::load({self._held_at(name)}, lanes)" if output is None else self._load(output.buffer)

    def _held_at(self, name: str) -> str:
        row = ""
        if self.is_per_row(name) and self.schedule.rows_per_tile > 1:
            row = f"{self._product('r', self.names.product(self.columns))} + "
        return f"{name}_held.get() + {row}{self.names.linear(self.columns)}"
