"""The statements of a C++ kernel: a loop over chunks of rows, loops over the columns of each row, the finish."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager

from weft.ir.ops import identity
from weft.ir.program import Buffer, Output, Value
from weft.ir.structure import analyse, loops_of
from weft.plan.kernel import Kernel
from weft.render.cpp_names import Names
from weft.render.expressions import C_TYPES, COMBINE, expression, literal
from weft.render.source import Writer

FINISH_COLUMNS = 512
"""Columns of one task of the finish: eight cache lines of float32 for each of 4 threads at N = 2048."""


class Body:
    """Writes one kernel. Index variables have the names of dimensions, values those they have in the program."""

    def __init__(self, kernel: Kernel, writer: Writer) -> None:
        self.program, self.schedule, self.out = kernel.program, kernel.schedule, writer
        self.rows, self.columns = kernel.schedule.rows, kernel.schedule.columns
        self.names = Names(kernel)
        self.types = self.program.types()
        self.by_name = self.program.by_name()
        self.inputs = {b.name: b for b in self.program.inputs}
        self.loops = loops_of(self.program, self.rows, self.columns, self.schedule.held)
        self.stages = analyse(self.program, self.rows).stages
        self.outer = [self.by_name[name] for names in self.loops.outer for name in names]
        self.segments = self.schedule.segments
        self.in_segment = tuple(r for r in self.rows if r not in self.segments)

    def write(self) -> None:
        self._declare()
        if self.outer:
            self._partials()
            self._chunks()
        elif self._has_early_work():
            self._plain_rows()
        if self.loops.epilogue_stores:
            self._finish()

    # declarations

    def _declare(self) -> None:
        line, program = self.out.line, self.program
        for i, parameter in enumerate(program.parameters):
            line(f"const int64_t {parameter} = parameters[{i}];")
        for dim in program.dims:
            kind = "const" if isinstance(dim.size, str) else "constexpr"
            line(f"{kind} int64_t {self.names.size(dim.name)} = {dim.size};")
        for i, buffer in enumerate(program.inputs):
            kind = C_TYPES[buffer.dtype]
            line(f"const {kind}* {self.names.data(buffer.name)} = static_cast<const {kind}*>(buffers[{i}]);")
        for i, output in enumerate(program.outputs, len(program.inputs)):
            kind = C_TYPES[output.buffer.dtype]
            line(f"{kind}* {self.names.data(output.buffer.name)} = static_cast<{kind}*>(buffers[{i}]);")

    def _partials(self) -> None:
        line = self.out.line
        line()
        line("// Column sums of every chunk of rows, combined in order by the finish below.")
        line(f"constexpr int64_t rows_per_chunk = {self.schedule.rows_per_chunk};")
        line(f"const int64_t rows = {self.names.product(self.in_segment)};")
        if self.segments:
            line(f"const int64_t segments = {self.names.product(self.segments)};")
        line("const int64_t chunks = w::chunks_of(rows, rows_per_chunk);")
        for value in self.outer:
            kind, count = C_TYPES[value.dtype], self._width(value)
            line(f"const auto {value.name}_partial = w::scratch<{kind}>({self._all_chunks()} * {count});")

    def _all_chunks(self) -> str:
        return "segments * chunks" if self.segments else "chunks"

    def _width(self, value: Value) -> str:
        """Number of column sums of one outer reduction."""
        return self.names.product(d for d in self.columns if d in value.dims)

    def _linear(self, value: Value) -> str:
        return self.names.linear(tuple(d for d in self.columns if d in value.dims))

    # the pass over rows

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
                line(f"{kind}* {value.name}_chunk = {value.name}_partial.get() + chunk * {count};")
                line(f"w::fill({value.name}_chunk, {count}, {zero});")
                line(f"const auto {value.name}_tile = w::scratch<{kind}>({count});")
            with self.out.block(f"for (int64_t tile = first; tile < last; tile += {self.schedule.rows_per_tile})"):
                for value in self.outer:
                    zero = literal(identity(value.op, value.dtype), value.dtype)
                    line(f"w::fill({value.name}_tile.get(), {self._width(value)}, {zero});")
                bound = f"std::min(tile + {self.schedule.rows_per_tile}, last)"
                with self.out.block(f"for (int64_t row = tile; row < {bound}; ++row)"):
                    self._row_indices(self.in_segment, "row")
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
            with self.out.block(f"for (int64_t row = 0; row < {self.names.product(self.rows)}; ++row)"):
                self._row_indices(self.rows, "row")
                self._row()

    def _held_scratch(self) -> None:
        for name in self.schedule.held:
            kind = C_TYPES[self.types[name][0]]
            count = self.names.product(self.columns)
            self.out.line(f"const auto {name}_held = w::scratch<{kind}>({count});")

    def _row_indices(self, dims: tuple[str, ...], flat: str) -> None:
        """Indices of the given dimensions from one running number."""
        for i, dim in enumerate(dims):
            inner = self.names.product(dims[i + 1 :])
            text = flat if i + 1 == len(dims) else f"{flat} / ({inner})"
            self.out.line(f"const int64_t {dim} = {text if i == 0 else f'{text} % {self.names.size(dim)}'};")

    def _has_early_work(self) -> bool:
        return any(self.loops.stores)

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

    def _load_numbers(self, used: set[str]) -> None:
        """Inputs without columns, each read once."""
        for name, buffer in self.inputs.items():
            if name in used and not self._is_vector(name):
                self._define(name, self.names.element(buffer))

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
            with self._column_loop("0", f"{self.names.size(self.columns[-1])}" if self.columns else "1"):
                self._vectors(stage)
                for value in inner:
                    line(f"{value.name}_lanes.add({self._operand(value.args[0], vector=True)}, lanes);")
                for output in vector_stores:
                    self._guarded(self._store_vector(output), output.buffer.dims)
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

    def _guarded(self, statement: str, dims: tuple[str, ...]) -> None:
        """Run once for all values of the row dimensions that the data does not vary over."""
        absent = [r for r in self.rows if r not in dims]
        condition = " && ".join(f"{r} == 0" for r in absent)
        self.out.line(f"if ({condition}) {statement}" if condition else statement)

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

    def _load_inputs(self, used: set[str]) -> None:
        for name, buffer in self.inputs.items():
            if name in used and self._is_vector(name):
                self._define(name, self._load(buffer))

    def _load(self, buffer: Buffer) -> str:
        address, fast = self.names.address(buffer), self.columns[-1]
        strides = dict(zip(buffer.dims, buffer.strides, strict=True))
        if fast not in strides:
            return f"w::vec({self.names.element(buffer)})"
        if strides[fast] == 1:
            return f"w::load({address}, lanes)"
        return f"w::load_strided({address}, {self.names.stride(strides[fast])}, lanes)"

    def _store_vector(self, output: Output) -> str:
        address, fast = self.names.address(output.buffer), self.columns[-1]
        strides = dict(zip(output.buffer.dims, output.buffer.strides, strict=True))
        value = self._operand(output.value, vector=True)
        if fast not in strides:
            return f"{self.names.element(output.buffer)} = {value}[0][0];"
        if strides[fast] == 1:
            return f"w::store({address}, {value}, lanes);"
        return f"w::store_strided({address}, {self.names.stride(strides[fast])}, {value}, lanes);"

    @contextmanager
    def _column_loop(self, begin: str, end: str) -> Generator[None]:
        """Loops over all column dimensions; the last one W columns at a time."""
        with ExitStack() as stack:
            for dim in self.columns[:-1]:
                head = f"for (int64_t {dim} = 0; {dim} < {self.names.size(dim)}; ++{dim})"
                stack.enter_context(self.out.block(head))
            if self.columns:
                head = f"w::for_columns({begin}, {end}, [&](int64_t {self.columns[-1]}, auto lanes)"
                stack.enter_context(self.out.block(head, "});"))
            yield

    # values

    def _is_vector(self, name: str) -> bool:
        return bool(set(self.types[name][1]) & set(self.columns))

    def _define(self, name: str, text: str) -> None:
        self.out.line(f"const auto {self.names.value(name)} = {text};")

    def _operand(self, name: str, vector: bool) -> str:
        value = self.by_name.get(name)
        text = self.names.value(name)
        if value is not None and value.op == "const":
            text = literal(value.attributes[0], value.dtype)
        return f"w::vec({text})" if vector and not self._is_vector(name) else text

    def _expression(self, value: Value, vector: bool) -> str:
        match value.op:
            case "const":
                return literal(value.attributes[0], value.dtype)
            case "size":
                return f"{C_TYPES[value.dtype]}({self.names.product(map(str, value.attributes))})"
            case "iota":
                dim = str(value.attributes[0])
                if self.columns and dim == self.columns[-1]:
                    return f"w::positions<{C_TYPES[value.dtype]}>({dim})"
                text = f"{C_TYPES[value.dtype]}({dim})"
                return f"w::vec({text})" if vector else text
            case _:
                operands = [self._operand(arg, vector) for arg in value.args]
                return expression(value.op, operands, value.dtype)

    # the finish

    def _finish(self) -> None:
        """One block for every set of row dimensions that results keep."""
        kept_sets = list(dict.fromkeys(self._kept(o) for o in self.loops.epilogue_stores))
        for kept in kept_sets:
            self._finish_block(kept, [o for o in self.loops.epilogue_stores if self._kept(o) == kept])

    def _kept(self, output: Output) -> tuple[str, ...]:
        return tuple(r for r in self.rows if r in output.buffer.dims)

    def _finish_block(self, kept: tuple[str, ...], outputs: list[Output]) -> None:
        line = self.out.line
        needed = self._needed([o.value for o in outputs])
        vector = any(set(o.buffer.dims) & set(self.columns) for o in outputs)
        line()
        with ExitStack() as stack:
            loops = int(bool(kept)) + int(vector)
            if loops:
                line(f"#pragma omp parallel for num_threads(threads) schedule(static) collapse({loops})")
            if kept:
                head = f"for (int64_t segment = 0; segment < {self.names.product(kept)}; ++segment)"
                stack.enter_context(self.out.block(head))
            width = self.names.size(self.columns[-1]) if vector else "1"
            if vector:
                head = f"for (int64_t block = 0; block < {width}; block += {FINISH_COLUMNS})"
                stack.enter_context(self.out.block(head))
            elif not kept:
                stack.enter_context(self.out.block(""))
            self._row_indices(kept, "segment")
            self._load_numbers({a for n in needed if n in self.by_name for a in self._args_in_epilogue(n)} | needed)
            for value in self.outer:
                if value.name in needed and not self._is_vector(value.name):
                    self._combine(value, kept, vector=False)
            for name in self.loops.epilogue_scalars:
                if name in needed and self.by_name[name].op != "const":
                    self._define(name, self._expression(self.by_name[name], vector=False))
            if vector:
                end = f"std::min<int64_t>(block + {FINISH_COLUMNS}, {width})"
                with self._column_loop("block", end):
                    self._finish_vectors(needed, outputs, kept)
            for output in outputs:
                if not set(output.buffer.dims) & set(self.columns):
                    line(f"{self.names.element(output.buffer)} = {self._operand(output.value, vector=False)};")

    def _finish_vectors(self, needed: set[str], outputs: list[Output], kept: tuple[str, ...]) -> None:
        self._load_inputs(
            {a for n in needed if n in self.by_name for a in self._args_in_epilogue(n)} | {o.value for o in outputs}
        )
        for value in self.outer:
            if value.name in needed and self._is_vector(value.name):
                self._combine(value, kept, vector=True)
        for name in self.loops.epilogue_values:
            if name in needed:
                self._define(name, self._expression(self.by_name[name], vector=True))
        for output in outputs:
            if set(output.buffer.dims) & set(self.columns):
                self.out.line(self._store_vector(output))

    def _args_in_epilogue(self, name: str) -> tuple[str, ...]:
        value = self.by_name[name]
        return () if value in self.outer else value.args

    def _needed(self, roots: list[str]) -> set[str]:
        """What the finish computes for these results: nothing behind an outer reduction."""
        needed: set[str] = set()
        stack = list(roots)
        while stack:
            name = stack.pop()
            if name in needed:
                continue
            needed.add(name)
            if name in self.by_name:
                stack.extend(self._args_in_epilogue(name))
        return needed

    def _combine(self, value: Value, kept: tuple[str, ...], vector: bool) -> None:
        """Add the chunks of one outer reduction in order, floats in double precision."""
        line = self.out.line
        wide = "double" if value.dtype in ("f32", "f64") and value.op == "sum" else C_TYPES[value.dtype]
        zero = literal(identity(value.op, value.dtype), "f64" if wide == "double" else value.dtype)
        total = f"{value.name}_total"
        line(f"auto {total} = {f'w::vec({wide}({zero}))' if vector else f'{wide}({zero})'};")
        own = tuple(s for s in self.segments if s in value.dims)
        with ExitStack() as stack:
            for dim in self.segments:
                if dim not in own:
                    head = f"for (int64_t {dim} = 0; {dim} < {self.names.size(dim)}; ++{dim})"
                    stack.enter_context(self.out.block(head))
            stack.enter_context(self.out.block("for (int64_t chunk = 0; chunk < chunks; ++chunk)"))
            row = f"(({self.names.linear(self.segments)}) * chunks + chunk)" if self.segments else "chunk"
            width, column = self._width(value), self._linear(value)
            at = row if width == "1" else f"{row} * {width if ' ' not in width else f'({width})'} + {column}"
            part = f"w::load({value.name}_partial.get() + {at}, lanes)" if vector else f"{value.name}_partial[{at}]"
            line(f"{total} = {COMBINE[value.op].format(total, f'w::cast<{wide}>({part})')};")
        self._define(value.name, f"w::cast<{C_TYPES[value.dtype]}>({total})")
