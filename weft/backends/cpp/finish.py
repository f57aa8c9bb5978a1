"""The finish of a C++ kernel: totals of the column sums of all chunks, in order, and the epilogue on them."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager

from weft.backends.cpp.expressions import C_TYPES, COMBINE
from weft.backends.cpp.statements import Statements
from weft.ir.ops import ONLINE
from weft.ir.program import Output, Value

FINISH_COLUMNS = 512
"""Columns of one task of the finish: its totals take 4 KB of the first-level cache, and it reads 2 KB at a time."""


class Finish(Statements):
    """Writes everything that happens once the rows are done."""

    def write(self) -> None:
        """One block for every set of row dimensions that results keep."""
        if any(set(o.buffer.dims) & set(self.columns) for o in self.loops.epilogue_stores):
            self.out.line()
            self.out.line(f"constexpr int64_t finish_columns = {FINISH_COLUMNS};")
        for kept, outputs in self.loops.epilogue_blocks(self.rows).items():
            self._finish_block(kept, outputs)

    def _finish_block(self, kept: tuple[str, ...], outputs: list[Output]) -> None:
        needed = self.needed_behind_sums(outputs)
        vector = [o for o in outputs if set(o.buffer.dims) & set(self.columns)]
        loops = [f"for (int64_t segment = 0; segment < {self.names.product(kept)}; ++segment)"] if kept else []
        if vector:
            loops += [self._loop_over(dim) for dim in self.columns[:-1]]
            loops.append(
                f"for (int64_t block = 0; block < {self.names.size(self.columns[-1])}; block += finish_columns)"
            )
        self.out.line()
        if loops:
            collapse = f" collapse({len(loops)})" if len(loops) > 1 else ""
            self.out.line(f"#pragma omp parallel for num_threads(threads) schedule(static){collapse}")
        with ExitStack() as stack:
            for head in loops or [""]:
                stack.enter_context(self.out.block(head))
            self._row_indices(kept, "segment")
            self._load_numbers(needed)
            for value in self.outer:
                if value.name in needed and not self.is_vector(value.name):
                    self._combine_numbers(value)
            for name in self.loops.epilogue_scalars:
                if name in needed and self.by_name[name].op != "const":
                    self._define(name, self._expression(self.by_name[name], vector=False))
            if vector:
                self._finish_vectors(needed, vector)
            for output in outputs:
                if output not in vector:
                    text = f"{self.names.element(output.buffer)} = {self._operand(output.value, vector=False)};"
                    self.out.line(text)

    def _finish_vectors(self, needed: set[str], outputs: list[Output]) -> None:
        """Totals of a block of columns, chunk by chunk in order, then the epilogue."""
        fast = self.columns[-1]
        vectors = [v for v in self.outer if v.name in needed and self.is_vector(v.name)]
        self.out.line(f"const int64_t end = std::min(block + finish_columns, {self.names.size(fast)});")
        for value in vectors:
            if value.op in ONLINE:
                self._merge_statistics(value)
            else:
                self._combine_vectors(value)
        with self.out.block(self._columns_head("block", "end"), "});"):
            self._load_inputs(needed)
            for value in vectors:
                here = f"{value.name}_total + {fast} - block"
                total = f"w::load({here}, lanes)"
                if value.op in ONLINE:
                    pair = f"w::Total{{{total}, w::load({here} + finish_columns, lanes)}}"
                    total = f"{self._statistic(value)}::result({pair})"
                self._define(value.name, f"w::cast<{C_TYPES[value.dtype]}>({total})")
            for name in self.loops.epilogue_values:
                if name in needed:
                    self._define(name, self._expression(self.by_name[name], vector=True))
            for output in outputs:
                self._guarded(self._store_vector(output), output.buffer.dims, self.columns)

    def _combine_numbers(self, value: Value) -> None:
        """The total of an outer reduction without columns."""
        wide = self._wide(value)
        self.out.line(f"auto {value.name}_total = {C_TYPES[wide]}({self._nothing(value, wide)});")
        with self._chunks_in_order(value) as row:
            part = f"w::cast<{C_TYPES[wide]}>({value.name}_partial[{row}])"
            self.out.line(f"{value.name}_total = {COMBINE[value.op].format(f'{value.name}_total', part)};")
        self._define(value.name, f"w::cast<{C_TYPES[value.dtype]}>({value.name}_total)")

    def _combine_vectors(self, value: Value) -> None:
        """The totals of an outer reduction for a block of columns."""
        wide, fast, total = self._wide(value), self.columns[-1], f"{value.name}_total"
        self.out.line(f"{C_TYPES[wide]} {total}[finish_columns];")
        self.out.line(f"w::fill({total}, finish_columns, {self._nothing(value, wide)});")
        with self._chunks_in_order(value) as row:
            width = self._width(value)
            with self.out.block(self._columns_head("block", "end"), "});"):
                at = f"{value.name}_partial + {self._product(row, width)} + {self._linear(value)}"
                part = f"w::cast<{C_TYPES[wide]}>(w::load({at}, lanes))"
                here = f"{total} + {fast} - block"
                self.out.line(f"w::store({here}, {COMBINE[value.op].format(f'w::load({here}, lanes)', part)}, lanes);")

    def _merge_statistics(self, value: Value) -> None:
        """Centre and total of all chunks for a block of columns, in double precision."""
        fast, total, statistic = self.columns[-1], f"{value.name}_total", self._statistic(value)
        self.out.line(f"double {total}[2 * finish_columns];")
        self.out.line(f"w::fill({total}, finish_columns, {statistic}::start);")
        self.out.line(f"w::fill({total} + finish_columns, finish_columns, 0.0);")
        self.out.line(f"int64_t {value.name}_rows = 0;")
        with self._chunks_in_order(value) as row:
            self.out.line("const int64_t more = std::min(rows_per_chunk, rows - chunk * rows_per_chunk);")
            with self.out.block(self._columns_head("block", "end"), "});"):
                product = self._product(row, self._numbers_kept(value))
                at = f"{value.name}_partial + {product} + {self._linear(value)}, {self._width(value)}"
                here = f"{total} + {fast} - block"
                self.out.line(f"w::Total all{{w::load({here}, lanes), w::load({here} + finish_columns, lanes)}};")
                self.out.line(f"{statistic}::merge(all, {statistic}::load({at}, lanes), {value.name}_rows, more);")
                self.out.line(f"w::store({here}, all.centre, lanes);")
                self.out.line(f"w::store({here} + finish_columns, all.sum, lanes);")
            self.out.line(f"{value.name}_rows += more;")

    @contextmanager
    def _chunks_in_order(self, value: Value) -> Generator[str]:
        """Loops over the chunks of all segments that the value does not keep; yields the row of its partial results."""
        own = tuple(s for s in self.segments if s in value.dims)
        with ExitStack() as stack:
            for dim in self.segments:
                if dim not in own:
                    stack.enter_context(self.out.block(self._loop_over(dim)))
            stack.enter_context(self.out.block("for (int64_t chunk = 0; chunk < chunks; ++chunk)"))
            yield f"(({self.names.linear(self.segments)}) * chunks + chunk)" if self.segments else "chunk"

    def _wide(self, value: Value) -> str:
        """Chunks of floats are added up in double precision."""
        return "f64" if value.op == "sum" and value.dtype == "f32" else value.dtype
