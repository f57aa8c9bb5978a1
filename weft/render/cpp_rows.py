"""The pass over the rows of a C++ kernel: chunks of rows, tiles of a chunk, rows of a tile, loops over columns."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager

from weft.ir.ops import identity
from weft.ir.structure import Loops, analyse
from weft.plan.kernel import Kernel
from weft.render.cpp_statements import Statements
from weft.render.expressions import C_TYPES, COMBINE, literal
from weft.render.source import Writer


class Rows(Statements):
    """Writes the pass over rows."""

    def __init__(self, kernel: Kernel, loops: Loops, writer: Writer) -> None:
        super().__init__(kernel, loops, writer)
        self.stages = analyse(self.program, self.rows).stages
        self.in_segment = tuple(r for r in self.rows if r not in self.segments)

    def write(self) -> None:
        if self.outer:
            self._partials()
            self._chunks()
        elif any(self.loops.stores):
            self._plain_rows()

    def _partials(self) -> None:
        line = self.out.line
        line()
        line("// Column sums of every chunk of rows, combined in order by the finish below.")
        line(f"constexpr int64_t rows_per_tile = {self.schedule.rows_per_tile};")
        line(f"constexpr int64_t rows_per_chunk = {self.schedule.rows_per_chunk};")
        line(f"const int64_t rows = {self.names.product(self.in_segment)};")
        if self.segments:
            line(f"const int64_t segments = {self.names.product(self.segments)};")
        line("const int64_t chunks = w::chunks_of(rows, rows_per_chunk);")
        for slot, value in enumerate(self.outer):
            kind, count = C_TYPES[value.dtype], self._width(value)
            line(f"{kind}* {value.name}_partial = w::workspace<{kind}, {slot}>({self._all_chunks()} * {count});")

    def _all_chunks(self) -> str:
        return "segments * chunks" if self.segments else "chunks"

    def _chunks(self) -> None:
        line = self.out.line
        line()
        line("#pragma omp parallel for num_threads(threads) schedule(static)")
        with self.out.block(f"for (int64_t chunk = 0; chunk < {self._all_chunks()}; ++chunk)"):
            if self.segments:
                line("const int64_t segment = chunk / chunks;")
                line("const int64_t first = chunk % chunks * rows_per_chunk;")
            else:
                line("const int64_t first = chunk * rows_per_chunk;")
            line("const int64_t last = std::min(first + rows_per_chunk, rows);")
            self._held_scratch()
            for value in self.outer:
                kind, count = C_TYPES[value.dtype], self._width(value)
                zero = literal(identity(value.op, value.dtype), value.dtype)
                line(f"{kind}* {value.name}_chunk = {value.name}_partial + chunk * {count};")
                line(f"w::fill({value.name}_chunk, {count}, {zero});")
                line(f"const auto {value.name}_tile = w::scratch<{kind}>({count});")
            with self.out.block("for (int64_t tile = first; tile < last; tile += rows_per_tile)"):
                for value in self.outer:
                    zero = literal(identity(value.op, value.dtype), value.dtype)
                    line(f"w::fill({value.name}_tile.get(), {self._width(value)}, {zero});")
                row = self.in_segment[0] if len(self.in_segment) == 1 else "row"
                head = f"for (int64_t {row} = tile; {row} < std::min(tile + rows_per_tile, last); ++{row})"
                with self.out.block(head):
                    self._row_indices(self.in_segment, row)
                    self._row_indices(self.segments, "segment")
                    self._row()
                for value in self.outer:
                    combined = COMBINE[value.op].format(f"{value.name}_chunk[i]", f"{value.name}_tile[i]")
                    line(f"for (int64_t i = 0; i < {self._width(value)}; ++i) {value.name}_chunk[i] = {combined};")

    def _plain_rows(self) -> None:
        line = self.out.line
        line()
        line("#pragma omp parallel num_threads(threads)")
        with self.out.block(""):
            self._held_scratch()
            line("#pragma omp for schedule(static)")
            row = self.rows[0] if len(self.rows) == 1 else "row"
            with self.out.block(f"for (int64_t {row} = 0; {row} < {self.names.product(self.rows)}; ++{row})"):
                self._row_indices(self.rows, row)
                self._row()

    def _held_scratch(self) -> None:
        for name in self.schedule.held:
            kind = C_TYPES[self.types[name][0]]
            count = self.names.product(self.columns)
            self.out.line(f"const auto {name}_held = w::scratch<{kind}>({count});")

    def _row(self) -> None:
        """Everything one row needs: numbers of the row, then a loop over its columns, stage by stage."""
        self._load_numbers(self._used_by_rows())
        for stage in range(len(self.loops.values)):
            for name in self.loops.scalars:
                if self.stages[name] == stage and self.by_name[name].op != "const":
                    self._define(name, self._expression(self.by_name[name], vector=False))
            self._stage(stage)

    def _used_by_rows(self) -> set[str]:
        loops = self.loops
        names = {n for group in (*loops.values, *loops.inner, *loops.outer, loops.scalars) for n in group}
        stored = {output.value for group in loops.stores for output in group}
        return stored | {arg for name in names for arg in self.by_name[name].args}

    def _stage(self, stage: int) -> None:
        loops, line = self.loops, self.out.line
        inner = [self.by_name[name] for name in loops.inner[stage]]
        outer = [self.by_name[name] for name in loops.outer[stage]]
        stores = list(loops.stores[stage])
        for value in inner:
            line(f"w::{value.op.capitalize()}<{C_TYPES[value.dtype]}> {value.name}_lanes;")
        vector_outer = [v for v in outer if self._is_vector(v.args[0])]
        vector_stores = [o for o in stores if set(o.buffer.dims) & set(self.columns)]
        if loops.values[stage] or inner or vector_outer or vector_stores:
            with self._column_loop():
                self._vectors(stage)
                for value in inner:
                    line(f"{value.name}_lanes.add({self._operand(value.args[0], vector=True)}, lanes);")
                for output in vector_stores:
                    self._guarded(self._store_vector(output), output.buffer.dims, self.columns)
                for value in vector_outer:
                    at = f"{value.name}_tile.get() + {self._linear(value)}"
                    combined = COMBINE[value.op].format(
                        f"w::load({at}, lanes)", self._operand(value.args[0], vector=True)
                    )
                    self._guarded(f"w::store({at}, {combined}, lanes);", self.types[value.args[0]][1])
        for value in inner:
            self._define(value.name, f"{value.name}_lanes.result()")
        for output in stores:
            if output not in vector_stores:
                text = f"{self.names.element(output.buffer)} = {self._operand(output.value, vector=False)};"
                self._guarded(text, output.buffer.dims)
        for value in outer:
            if value not in vector_outer:
                tile = f"{value.name}_tile[0]"
                combined = COMBINE[value.op].format(tile, self._operand(value.args[0], vector=False))
                self._guarded(f"{tile} = {combined};", self.types[value.args[0]][1])

    def _vectors(self, stage: int) -> None:
        """Loads and vector values of one loop; a held value is kept by the first loop that has it."""
        loops = self.loops
        roots = [*loops.inner[stage], *loops.outer[stage]]
        used = {arg for name in (*loops.values[stage], *roots) for arg in self.by_name[name].args}
        used |= {o.value for o in loops.stores[stage]}
        self._load_inputs(used)
        for name in self.schedule.held:
            if name in used and name not in loops.values[stage]:
                self._define(name, f"w::load({name}_held.get() + {self._held_at()}, lanes)")
        for name in loops.values[stage]:
            self._define(name, self._expression(self.by_name[name], vector=True))
            if name in self.schedule.held:
                self.out.line(f"w::store({name}_held.get() + {self._held_at()}, {self.names.value(name)}, lanes);")

    def _held_at(self) -> str:
        return self.names.linear(self.columns)

    @contextmanager
    def _column_loop(self) -> Generator[None]:
        """Loops over all column dimensions; the last one W columns at a time."""
        with ExitStack() as stack:
            for dim in self.columns[:-1]:
                stack.enter_context(self.out.block(self._loop_over(dim)))
            if self.columns:
                fast = self.columns[-1]
                head = f"w::for_columns(0, {self.names.size(fast)}, [&](int64_t {fast}, auto lanes)"
                stack.enter_context(self.out.block(head, "});"))
            yield
