"""Prints the finish of a C++ kernel: totals of the column sums of all chunks, in order, and the epilogue on them."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager

from weft.backends.c_expressions import C_TYPES, COMBINE
from weft.backends.cpp.statements import Statements
from weft.ir.ops import ONLINE
from weft.ir.program import Value
from weft.lowering.nest import ColumnLoop, Compute, Gather, Load, Statement, Store, Tasks, Total

FINISH_COLUMNS = 512
"""Columns of one task of the finish: its totals take 4 KB of the first-level cache, and it reads 2 KB at a time."""


class Finish(Statements):
    """Prints everything that happens once the rows are done."""

    def write(self, body: Sequence[Statement]) -> None:
        if any(self._has_vectors(tasks) for tasks in body):
            self.out.line()
            self.out.line(f"constexpr int64_t finish_columns = {FINISH_COLUMNS};")
        for tasks in body:
            assert isinstance(tasks, Tasks)
            self._tasks(tasks)

    def _has_vectors(self, tasks: Statement) -> bool:
        return isinstance(tasks, Tasks) and any(isinstance(each, ColumnLoop) for each in tasks.body)

    def _tasks(self, tasks: Tasks) -> None:
        loops = (
            [f"for (int64_t segment = 0; segment < {self.names.product(tasks.kept)}; ++segment)"] if tasks.kept else []
        )
        if self._has_vectors(tasks):
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
            self._row_indices(tasks.kept, "segment")
            self.ends = False
            for statement in tasks.body:
                self._one(statement)

    def _one(self, statement: Statement) -> None:
        """Outside of the loop over columns."""
        match statement:
            case Load(buffer=name):
                self._define(name, self.names.element(self.inputs[name]))
            case Gather(values=(name,)) if not self.is_vector(name):
                self._combine_numbers(self.by_name[name])
            case Gather(values=(name,)):
                self._end_of_block()
                value = self.by_name[name]
                if value.op in ONLINE:
                    self._merge_statistics(value)
                else:
                    self._combine_vectors(value)
            case Compute(value=name):
                self._define(name, self._expression(self.by_name[name], vector=False))
            case ColumnLoop():
                self._end_of_block()
                with self.out.block(self._columns_head("block", "end"), "});"):
                    for each in statement.body:
                        self._in_columns(each)
            case Store(output=name):
                output = self.outputs[name]
                self.out.line(f"{self.names.element(output.buffer)} = {self._operand(output.value, vector=False)};")
            case _:
                raise AssertionError(f"nobody prints {statement}")

    def _end_of_block(self) -> None:
        """Once a task."""
        if not self.ends:
            size = self.names.size(self.columns[-1])
            self.out.line(f"const int64_t end = std::min(block + finish_columns, {size});")
        self.ends = True

    def _in_columns(self, statement: Statement) -> None:
        match statement:
            case Load(buffer=name):
                self._define(name, self._load(self.inputs[name]))
            case Total(value=name):
                self._total(self.by_name[name])
            case Compute(value=name):
                self._define(name, self._expression(self.by_name[name], vector=True))
            case Store(output=name):
                output = self.outputs[name]
                self._guarded(self._store_vector(output), output.buffer.dims, self.columns)
            case _:
                raise AssertionError(f"nobody prints {statement}")

    def _total(self, value: Value) -> None:
        here = f"{value.name}_total + {self.columns[-1]} - block"
        total = f"w::load({here}, lanes)"
        if value.op in ONLINE:
            pair = f"w::Total{{{total}, w::load({here} + finish_columns, lanes)}}"
            total = f"{self._statistic(value)}::result({pair})"
        self._define(value.name, f"w::cast<{C_TYPES[value.dtype]}>({total})")

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
