"""The pass over the rows of a C++ kernel: chunks of rows, tiles of a chunk, loops over columns, rows of a tile.

A tile is a few rows along the fastest row dimension. Every loop over the columns takes the rows of a tile together:
what is the same for all of them (a weight) is loaded once, and their column sums meet in registers.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from weft.backends.cpp.expressions import C_TYPES, COMBINE
from weft.backends.cpp.schedule import CppKernel
from weft.backends.cpp.statements import Statements
from weft.backends.source import Writer
from weft.ir.ops import ONLINE
from weft.ir.program import Output, Value
from weft.ir.structure import analyse, place_in_output


class Rows(Statements):
    """Writes the pass over rows."""

    def __init__(self, kernel: CppKernel, writer: Writer) -> None:
        super().__init__(kernel, writer)
        self.stages = analyse(self.program, self.rows).stages
        self.in_segment = tuple(r for r in self.rows if r not in self.segments)
        self.fast_row = self.in_segment[-1] if self.in_segment else None
        self.indexed = {name for name in self.types if self._is_per_row(name) and not self.is_vector(name)}
        self.indexed -= {v.name for v in self.program.values if v.op == "const"}

    def write(self) -> None:
        if self.outer:
            self._partials()
        if self.outer or any(self.loops.stores):
            self._chunks()

    def _is_per_row(self, name: str) -> bool:
        """Whether a value differs from row to row of a tile."""
        return self.fast_row is not None and self.fast_row in self.types[name][1]

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

    def _chunks(self) -> None:
        line = self.out.line
        line()
        if self.fast_row is None and not self.outer:
            with self.out.block(""):
                self._held_scratch()
                self._tile()
            return
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
                for value in self.outer:
                    kind, count, zero = (
                        C_TYPES[value.dtype],
                        self._numbers_kept(value),
                        self._nothing(value, value.dtype),
                    )
                    at = self._product("chunk", count)
                    line(f"{kind}* {value.name}_chunk = {value.name}_partial + {at};")
                    line(f"w::fill({value.name}_chunk, {count}, {zero});")
                self._tiles()

    def _tiles(self) -> None:
        """Tiles of a chunk. Where rows and chunks are whole tiles, that is one loop; where column sums keep all row
        dimensions, each its own, a chunk is one row."""
        line, fast = self.out.line, self.fast_row
        if fast is None:
            self._tile()
            return
        count, size = self.schedule.rows_per_tile, self.program.size_of(fast)
        if count == 1 or (isinstance(size, int) and size % count == 0 and self.schedule.rows_per_chunk % count == 0):
            with self.out.block(f"for (int64_t tile = first; tile < last; tile += {count})"):
                line(f"constexpr int tile_rows = {count};")
                self._tile()
        else:
            head = f"w::for_tiles<{count}>(first, last, {self.names.size(fast)}, [&](int64_t tile, auto whole)"
            with self.out.block(head, "});"):
                line("constexpr int tile_rows = whole.count;")
                self._tile()

    def _held_scratch(self) -> None:
        for name in self.schedule.held:
            if place_in_output(self.program, name) is not None:
                continue
            kind = C_TYPES[self.types[name][0]]
            count = self.names.product(self.columns)
            rows = f"{self.schedule.rows_per_tile} * " if self._is_per_row(name) else ""
            self.out.line(f"const auto {name}_held = w::scratch<{kind}>({rows}{count});")

    # a tile

    def _tile(self) -> None:
        """Everything the rows of a tile need: numbers of each row, then a loop over the columns, stage by stage."""
        if len(self.in_segment) > 1:
            self._row_indices(self.in_segment, "tile", "_first")
        used = {a for n in self.loops.scalars for a in self.by_name[n].args}.union(*self.loops.used)
        loads = [b for b in self.program.inputs if b.name in used and not self.is_vector(b.name)]
        self._numbers({b.name: self.names.element(b) for b in loads}, 0)
        for stage in range(len(self.loops.values)):
            self._stage(stage)
            self._results(stage)

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

    def _numbers(
        self, first: Mapping[str, str], stage: int, stores: Sequence[Output] = (), sums: Sequence[Value] = ()
    ) -> None:
        """Numbers of a row: ``first``, texts by name, and those that the loop of ``stage`` or a later one needs and
        that are known now; then what is stored or summed as a number."""
        line = self.out.line
        scalars = (self.by_name[name] for name in self.loops.scalars if self.stages[name] == stage)
        then = {v.name: self._expression(v, vector=False) for v in scalars if v.op != "const"}
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

    def _vector_stores(self, stage: int) -> list[Output]:
        return [o for o in self.loops.stores[stage] if set(o.buffer.dims) & set(self.columns)]

    def _vector_sums(self, stage: int) -> list[Value]:
        outer = (self.by_name[name] for name in self.loops.outer[stage])
        return [v for v in outer if self.is_vector(v.args[0])]

    def _stage(self, stage: int) -> None:
        """The loop over the columns: what the rows share, then each row, then the column sums of the tile."""
        loops, line = self.loops, self.out.line
        inner = [self.by_name[name] for name in loops.inner[stage]]
        outer, stores = self._vector_sums(stage), self._vector_stores(stage)
        if not (loops.values[stage] or inner or outer or stores):
            return
        for value in inner:
            count = "[tile_rows]" if value.name in self.indexed else ""
            line(f"w::{value.op.capitalize()}<{C_TYPES[value.dtype]}> {value.name}_lanes{count};")
        with self._column_loop():
            self._vectors(stage, per_row=False)
            for value in inner:
                if value.name not in self.indexed:
                    line(f"{value.name}_lanes.add({self._operand(value.args[0], vector=True)}, lanes);")
            for value in outer:
                if value.op in ONLINE:
                    at = f"{value.name}_chunk + {self._linear(value)}, {self._width(value)}"
                    line(f"auto {value.name}_tile = {self._statistic(value)}::load({at}, lanes);")
                else:
                    line(f"auto {value.name}_tile = w::vec({self._nothing(value, value.dtype)});")
            if outer or stores or any(map(self._is_per_row, (*loops.values[stage], *loops.inner[stage]))):
                with self._each_row():
                    self._vectors(stage, per_row=True)
                    for value in inner:
                        if value.name in self.indexed:
                            line(f"{value.name}_lanes[r].add({self._operand(value.args[0], vector=True)}, lanes);")
                    for output in stores:
                        self._guarded(self._store_vector(output), output.buffer.dims, (*self.rows, *self.columns))
                    for value in outer:
                        operand = self._operand(value.args[0], vector=True)
                        if value.op in ONLINE:
                            first = "true" if self.fast_row is None else "tile + r == first"
                            line(f"{value.name}_tile.add({operand}, {first});")
                            continue
                        combined = COMBINE[value.op].format(f"{value.name}_tile", operand)
                        self._guarded(f"{value.name}_tile = {combined};", self.types[value.args[0]][1], self.rows)
            for value in outer:
                at = f"{value.name}_chunk + {self._linear(value)}"
                if value.op in ONLINE:
                    line(f"{value.name}_tile.store({at}, {self._width(value)}, lanes);")
                    continue
                combined = COMBINE[value.op].format(f"w::load({at}, lanes)", f"{value.name}_tile")
                line(f"w::store({at}, {combined}, lanes);")

    def _vectors(self, stage: int, per_row: bool) -> None:
        """Loads and values of one loop, those of each row or those that rows share; a held value is kept by the first
        loop that has it."""
        loops = self.loops
        used = loops.used[stage]
        self._load_inputs({name for name in used if self._is_per_row(name) == per_row})
        for name in self.schedule.held:
            if name in used and name not in loops.values[stage] and self._is_per_row(name) == per_row:
                self._define(name, self._held(name))
        for name in loops.values[stage]:
            if self._is_per_row(name) != per_row:
                continue
            self._define(name, self._expression(self.by_name[name], vector=True))
            if name in self.schedule.held and place_in_output(self.program, name) is None:
                self.out.line(f"w::store({self._held_at(name)}, {name}, lanes);")

    def _held(self, name: str) -> str:
        """A value that an earlier loop computed, from the output or from the memory that keeps it."""
        output = place_in_output(self.program, name)
        return f"w::load({self._held_at(name)}, lanes)" if output is None else self._load(output.buffer)

    def _held_at(self, name: str) -> str:
        row = ""
        if self._is_per_row(name) and self.schedule.rows_per_tile > 1:
            row = f"{self._product('r', self.names.product(self.columns))} + "
        return f"{name}_held.get() + {row}{self.names.linear(self.columns)}"

    @contextmanager
    def _column_loop(self) -> Generator[None]:
        """Loops over all column dimensions; the last one W columns at a time."""
        with ExitStack() as stack:
            for dim in self.columns[:-1]:
                stack.enter_context(self.out.block(self._loop_over(dim)))
            if self.columns:
                head = self._columns_head("0", self.names.size(self.columns[-1]))
                stack.enter_context(self.out.block(head, "});"))
            yield

    def _results(self, stage: int) -> None:
        """After a loop: results of row reductions, numbers made from them, and what is stored or summed as a number."""
        rows = {name: "[r]" if name in self.indexed else "" for name in self.loops.inner[stage]}
        stores = [o for o in self.loops.stores[stage] if o not in self._vector_stores(stage)]
        outer = (self.by_name[name] for name in self.loops.outer[stage])
        sums = [v for v in outer if not self.is_vector(v.args[0])]
        self._numbers({name: f"{name}_lanes{row}.result()" for name, row in rows.items()}, stage + 1, stores, sums)
