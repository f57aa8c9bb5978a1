"""Prints the pass of a CUDA C++ kernel over its rows: the warp that copies, and those that compute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager

from weft.backends.c_expressions import C_TYPES, COMBINE, expression, literal
from weft.backends.cuda.places import Places
from weft.backends.cuda.schedule import CudaKernel
from weft.backends.source import Writer
from weft.ir.dtypes import HALVES
from weft.ir.ops import identity
from weft.ir.program import Buffer, Output, Value
from weft.ir.rounding import ROUGH, is_rounded_again, rounded_at_once
from weft.lowering.nest import (
    Accumulate,
    Arrive,
    Chunks,
    ColumnLoop,
    Compute,
    Copy,
    EachRow,
    Keep,
    Load,
    Reduce,
    Release,
    Start,
    Statement,
    Store,
    Tile,
    Tiles,
)

REDUCTIONS = {"sum": "w::Sum", "max": "w::Max", "min": "w::Min"}


class Statements(Places):
    """Expressions, by the names that values have."""

    def __init__(self, kernel: CudaKernel, writer: Writer) -> None:
        super().__init__(kernel)
        self.out = writer
        self.outputs = {o.buffer.name: o for o in self.program.outputs}
        self.several = self.schedule.rows_per_tile > 1
        self.column = "column"
        self.row = "row"
        self.rounded_again, self.rounded_at_once = is_rounded_again(self.program), rounded_at_once(self.program)
        self.per_row = set[str]()
        """Numbers that each row of a tile has one of."""

    def number(self, name: str) -> str:
        """What has no columns."""
        return f"{name}[r]" if self.several and name in self.per_row else name

    def operand(self, name: str) -> str:
        value = self.by_name.get(name)
        if value is not None and value.op == "const":
            return literal(value.attributes[0], value.dtype)
        if name in self.inputs:
            return self.loaded(self.inputs[name])
        return name if self.is_vector(name) else self.number(name)

    def loaded(self, buffer: Buffer) -> str:
        """An element of an input."""
        return self.number(buffer.name + "_number")

    def expression(self, value: Value) -> str:
        kind = C_TYPES[value.dtype]
        match value.op:
            case "parameter":
                return f"{kind}({value.attributes[0]})"
            case "size":
                return f"{kind}({self.product(map(str, value.attributes))})"
            case "iota":
                return f"{kind}({self.index_of(str(value.attributes[0]), self.column, self.row)})"
            case "pick":
                buffer, index = self.inputs[value.args[0]], self.operand(value.args[1])
                return f"w::pick({buffer.name}_at({self.row}), {index}, columns)"
            case _:
                operands = [self.operand(arg) for arg in value.args]
                again = value.name in self.rounded_at_once or (self.rounded_again and self.is_vector(value.name))
                if again and value.dtype == "f32" and value.op in ROUGH:
                    return f"w::{value.op}_rounded({', '.join(operands)})"
                return expression(value.op, operands, value.dtype)

    def define(self, name: str) -> None:
        value = self.by_name[name]
        self.out.line(f"const {C_TYPES[value.dtype]} {name} = {self.expression(value)};")

    @contextmanager
    def guarded(self, conditions: Iterable[str]) -> Generator[None]:
        found = list(conditions)
        if not found:
            yield
            return
        with self.out.block(f"if ({' && '.join(found)})"):
            yield


class Printer(Statements):
    """Prints the statements of roles."""

    def __init__(self, kernel: CudaKernel, writer: Writer) -> None:
        super().__init__(kernel, writer)
        uses = Counter(arg for value in self.program.values for arg in value.args)
        self.moving = {b.name for b in self.numbers()[1]}
        self.per_row = {name + "_number" for name in self.moving}
        self.per_row |= {v.name for v in self.program.values if self._varies_in_tile(v)}
        self.late = {n for n, v in self.by_name.items() if self._is_only_stored(v, uses[n])}
        """What is cast to 16 bits, two at a time, where it is stored."""
        self.offsets = dict[str, int]()
        at = 0
        for buffer in self.streamed():
            self.offsets[buffer.name] = at
            at += self.slot_bytes(buffer) * self.schedule.rows_per_tile
        self.fixed_beginning = bool(self.weights() or self.outer)
        """Whether all rows of a chunk begin alike between two vectors."""

    def _varies_in_tile(self, value: Value) -> bool:
        return not self.is_vector(value.name) and value.op != "const" and value not in self.outer

    def _is_only_stored(self, value: Value, uses: int) -> bool:
        is_cast = value.op == "cast" and value.dtype in HALVES and self.types[value.args[0]][0] == "f32"
        return is_cast and uses == 0 and self.is_vector(value.name) and value.args[0] not in self.inputs

    # the warp that copies

    def producer(self, loop: Chunks) -> None:
        with self.out.block("if (threadIdx.x == threads)"), self._chunks(self.streamed()):
            for statement in loop.body:
                assert isinstance(statement, Tiles)
                with self._tiles():
                    self.out.line("ring.wait_until_free();")
                    for copy in statement.body:
                        assert isinstance(copy, Copy)
                        self._copy([self.inputs[name] for name in copy.buffers])
                    self.out.line("ring.copied();")

    def _copy(self, buffers: Sequence[Buffer]) -> None:
        with self._each_row(), self.guarded(self._exists()):
            self.out.line(f"const int before = beginning({self.reference.name}_at({self.row}));")
            self.out.line("const int begin = max(first * lanes - before, 0);")
            self.out.line("const int end = min((first + own) * lanes - before, columns);")
            for buffer in buffers:
                row, slot = f"{buffer.name}_at({self.row})", self._slot(buffer)
                self.out.line(f"ring.copy({slot}, {row} + begin, {row} + end, {buffer.name} + {self.end(buffer)});")

    def _slot(self, buffer: Buffer) -> str:
        offset = self.offsets[buffer.name]
        return f"{offset} + r * {self.slot_bytes(buffer)}" if self.several else str(offset)

    # loops over rows

    @contextmanager
    def _chunks(self, addressed: Iterable[Buffer]) -> Generator[None]:
        """addressed: buffers whose rows are looked for."""
        total = "segments * chunks" if self.segments else "chunks"
        line = self.out.line
        with self.out.block(f"for (int64_t part = blockIdx.x / cluster; part < {total}; part += gridDim.x / cluster)"):
            if self.segments:
                line("const int64_t segment = part / chunks, chunk = part % chunks;")
            else:
                line("const int64_t chunk = part;")
            for buffer in dict.fromkeys(addressed):
                offset = self.offset(buffer)
                at = f"{buffer.name} + {offset}" if offset else buffer.name
                line(f"const auto {buffer.name}_at = [&](int64_t row) {{ return {at}; }};")
            yield

    @contextmanager
    def _tiles(self) -> Generator[None]:
        step = "tile_rows * chunks" if self.several else "chunks"
        with self.out.block(f"for (int64_t row = chunk; row < rows; row += {step})"):
            yield

    @contextmanager
    def _each_row(self, ahead: str = "") -> Generator[None]:
        """The rows of a tile, those of the next one with what is added to the first row of this."""
        first = f"row + {ahead}" if ahead else "row"
        if not self.several:
            before, self.row = self.row, first
            yield
            self.row = before
            return
        self.out.line("#pragma unroll")
        with self.out.block("for (int r = 0; r < tile_rows; ++r)"):
            before, self.row = self.row, f"({first} + r * chunks)"
            yield
            self.row = before

    # the warps that compute

    def consumers(self, loop: Chunks) -> None:
        addressed = [*self.streamed(), *self.weights(), *(b for some in self.numbers() for b in some)]
        addressed += [o.buffer for stores in self.loops.stores for o in stores]
        with self._chunks(addressed):
            if self.fixed_beginning:
                self.out.line(f"const int before = beginning({self.reference.name}_at(chunk));")
            for statement in loop.body:
                self._of_chunk(statement)

    def _of_chunk(self, statement: Statement) -> None:
        line = self.out.line
        match statement:
            case Load(buffer=name) if self.has_columns(self.inputs[name]):
                self._load_weight(self.inputs[name])
            case Load(buffer=name):
                buffer = self.inputs[name]
                line(f"const {C_TYPES[buffer.dtype]} {name}_number = *{name}_at(chunk);")
            case Start(value=name):
                value = self.by_name[name]
                self._start(value)
            case EachRow(body=body):
                for each in body:
                    assert isinstance(each, Load)
                    self._load_ahead(self.inputs[each.buffer], first=True)
            case Tiles(body=(Tile(body=body),)):
                with self._tiles():
                    for each in body:
                        self._of_tile(each)
            case Keep(value=name):
                self._keep(self.by_name[name])
            case _:
                raise AssertionError(f"nobody prints {statement}")

    def _load_weight(self, buffer: Buffer) -> None:
        """The vectors of a thread, which no other reads."""
        name, kind = buffer.name, C_TYPES[buffer.dtype]
        vectors = f"w::Vector<{kind}, lanes>"
        if self.schedule.weights == "registers":
            self.out.line(f"{vectors} {name}_tile[thread_vectors];")
        else:
            self.out.line(f"{vectors}* const {name}_tile = {name}_memory + thread;")
        with self._vectors():
            at = "k" if self.schedule.weights == "registers" else "k * threads"
            loaded = f"w::load_row<lanes, {name}_together, ragged>({name}_at(chunk), column, columns)"
            self.out.line(f"{name}_tile[{at}] = {loaded};")

    def _start(self, value: Value) -> None:
        kind, nothing = C_TYPES[value.dtype], literal(identity(value.op, value.dtype), value.dtype)
        if not self.sums_vectors(value):
            self.out.line(f"{kind} {value.name} = {nothing};")
            return
        self.out.line(f"{kind} {value.name}[thread_vectors][lanes];")
        self.out.line("#pragma unroll")
        self.out.line("for (int k = 0; k < thread_vectors; ++k)")
        self.out.line("#pragma unroll")
        self.out.line(f"  for (int i = 0; i < lanes; ++i) {value.name}[k][i] = {nothing};")

    def _load_ahead(self, buffer: Buffer, *, first: bool) -> None:
        name, kind = buffer.name, C_TYPES[buffer.dtype]
        if first:
            self.out.line(f"{kind} {name}_next{'[tile_rows]' if self.several else ''};")
        ahead = "" if first else "tile_rows * chunks" if self.several else "chunks"
        if first:
            with self.out.block(""):
                self.out.line("const int64_t row = chunk;")
                self._read_next(buffer, ahead)
        else:
            self._read_next(buffer, ahead)

    def _read_next(self, buffer: Buffer, ahead: str) -> None:
        name, kind = buffer.name, C_TYPES[buffer.dtype]
        with self._each_row(ahead):
            to = f"{name}_next{'[r]' if self.several else ''}"
            self.out.line(f"{to} = {self.row} < rows ? *{name}_at({self.row}) : {kind}();")

    # a tile

    def _of_tile(self, statement: Statement) -> None:
        line = self.out.line
        match statement:
            case EachRow(body=body):
                self._numbers(body)
            case Arrive():
                self._arrive()
            case Release():
                line("ring.release();")
            case Start(value=name):
                value = self.by_name[name]
                nothing = literal(identity(value.op, value.dtype), value.dtype)
                if self.several:
                    line(f"{C_TYPES[value.dtype]} {name}[tile_rows];")
                    line(f"for (int r = 0; r < tile_rows; ++r) {name}[r] = {nothing};")
                else:
                    line(f"{C_TYPES[value.dtype]} {name} = {nothing};")
            case Reduce(values=names):
                line(f"exchange.template reduce<{REDUCTIONS[self.by_name[names[0]].op]}>({', '.join(names)});")
            case ColumnLoop(body=(EachRow(body=body),)):
                self._column_loop(body)
            case _:
                raise AssertionError(f"nobody prints {statement}")

    def _arrive(self) -> None:
        """Where the vectors of each row are in shared memory."""
        line, several = self.out.line, "[tile_rows]" if self.several else ""
        line("ring.wait_until_filled();")
        if not self.fixed_beginning:
            line(f"int before{several};")
        for buffer in self.streamed():
            line(f"const {C_TYPES[buffer.dtype]}* {buffer.name}_stage{several};")
        with self._each_row():
            r = "[r]" if self.several else ""
            if not self.fixed_beginning:
                line(f"before{r} = beginning({self.reference.name}_at({self.row}));")
            line(f"const int begin = max(first * lanes - {self._before}, 0);")
            for buffer in self.streamed():
                name = buffer.name
                line(f"{name}_stage{r} = ring.row({self._slot(buffer)}, {name}_at({self.row}), begin);")

    @property
    def _before(self) -> str:
        return "before[r]" if self.several and not self.fixed_beginning else "before"

    def _numbers(self, body: Sequence[Statement]) -> None:
        """What each row of a tile has one of."""
        line = self.out.line
        if self.several:
            for statement in body:
                if isinstance(statement, Load) and not statement.ahead:
                    line(f"{C_TYPES[self.inputs[statement.buffer].dtype]} {statement.buffer}_number[tile_rows];")
                elif isinstance(statement, Compute):
                    line(f"{C_TYPES[self.by_name[statement.value].dtype]} {statement.value}[tile_rows];")
        with self._each_row():
            for statement in body:
                match statement:
                    case Load(ahead=True):
                        pass
                    case Load(buffer=name):
                        kind = "" if self.several else f"const {C_TYPES[self.inputs[name].dtype]} "
                        line(f"{kind}{self.number(name + '_number')} = {name}_next{'[r]' if self.several else ''};")
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
        for statement in body:
            if isinstance(statement, Load) and statement.ahead:
                self._load_ahead(self.inputs[statement.buffer], first=False)

    def _exists(self) -> list[str]:
        return [f"{self.row} < rows"] if self.several else []

    def _store_number(self, output: Output) -> None:
        once = self._once(output.buffer.dims, (*self.segments, *self.inside))
        text = f"*{output.buffer.name}_at({self.row}) = {self.operand(output.value)};"
        with self.guarded(["first == 0", "thread == 0", *self._exists(), *once]):
            self.out.line(text)

    def _once(self, dims: Iterable[str], over: Iterable[str]) -> list[str]:
        have = set(dims)
        missing = [d for d in over if d not in have and self.dims[d] != 1]
        return [f"{self.index_of(d, '(column + i)', self.row)} == 0" for d in missing]

    def _add_number(self, value: Value) -> None:
        once = self._once(self.types[value.args[0]][1], (*self.segments, *self.inside))
        with self.guarded([*self._exists(), *once]):
            combined = COMBINE[value.op].format(value.name, self.operand(value.args[0]))
            self.out.line(f"{value.name} = {combined};")

    # a loop over the columns of a row

    def loaded(self, buffer: Buffer) -> str:
        if not self.has_columns(buffer):
            return super().loaded(buffer)
        if self.has_rows(buffer):
            return f"{buffer.name}_tile[i]"
        return f"{buffer.name}_tile[k][i]" if self.schedule.weights == "registers" else f"{buffer.name}_vector[i]"

    @contextmanager
    def _vectors(self, *, unrolled: bool = True, each_row: bool = False) -> Generator[None]:
        line = self.out.line
        line("#pragma unroll" if unrolled else "#pragma unroll 2")
        with self.out.block("for (int k = 0; k < thread_vectors; ++k)"):
            line("const int vector = thread + k * threads;")
            if not each_row:
                line("const int column = (first + vector) * lanes - before;")
                with self.out.block("if (has_vector(vector, column))"):
                    yield
                return
            with self._each_row():
                line(f"const int column = (first + vector) * lanes - {self._before};")
                with self.guarded(["has_vector(vector, column)", *self._exists()]):
                    yield

    def _column_loop(self, body: Sequence[Statement]) -> None:
        line = self.out.line
        r = "[r]" if self.several else ""
        sums = [s for s in body if isinstance(s, Accumulate) and not s.lanes]
        unrolled = bool(sums) or (bool(self.weights()) and self.schedule.weights == "registers")
        with self._vectors(unrolled=unrolled, each_row=True):
            for statement in body:
                if isinstance(statement, Load):
                    name = statement.buffer
                    loaded = f"w::load_row<lanes, {name}_together, ragged>({name}_stage{r}, column, columns)"
                    line(f"const auto {name}_tile = {loaded};")
            if self.schedule.weights == "shared":
                used = {arg for s in body if isinstance(s, Compute) for arg in self.by_name[s.value].args}
                for name in (b.name for b in self.weights() if b.name in used):
                    line(f"const auto {name}_vector = {name}_tile[k * threads];")
            stores = [self.outputs[s.output] for s in body if isinstance(s, Store)]
            for output in stores:
                line(self._declared(output))
            line("#pragma unroll")
            with self.out.block("for (int i = 0; i < lanes; ++i)"):
                self.column = "(column + i)"
                for statement in body:
                    self._of_lane(statement)
                self.column = "column"
            for output in stores:
                name, late = output.buffer.name, output.value in self.late
                kind = C_TYPES[output.buffer.dtype]
                found = f"w::rounded<{kind}>({name}_lanes)" if late else f"{name}_tile"
                text = f"w::store_row<{name}_together, ragged>({name}_at({self.row}), {found}, column, columns);"
                with self.guarded(self._once(output.buffer.dims, (*self.segments, *self.inside))):
                    line(text)

    def _declared(self, output: Output) -> str:
        if output.value in self.late:
            return f"float {output.buffer.name}_lanes[lanes];"
        return f"w::Vector<{C_TYPES[output.buffer.dtype]}, lanes> {output.buffer.name}_tile;"

    def _of_lane(self, statement: Statement) -> None:
        line = self.out.line
        match statement:
            case Load():
                pass
            case Compute(value=name) if name in self.late:
                pass
            case Compute(value=name):
                self.define(name)
            case Store(output=name):
                output = self.outputs[name]
                if output.value in self.late:
                    line(f"{name}_lanes[i] = {self.operand(self.by_name[output.value].args[0])};")
                else:
                    line(f"{name}_tile[i] = {self.operand(output.value)};")
            case Accumulate(value=name, lanes=True):
                value = self.by_name[name]
                total = self.number(name)
                combined = COMBINE[value.op].format(total, self.operand(value.args[0]))
                line(f"if (!ragged || w::inside(column + i, columns)) {total} = {combined};")
            case Accumulate(value=name):
                value = self.by_name[name]
                once = self._once(self.types[value.args[0]][1], (*self.segments, *self.inside))
                with self.guarded(once):
                    combined = COMBINE[value.op].format(f"{name}[k][i]", self.operand(value.args[0]))
                    line(f"{name}[k][i] = {combined};")
            case _:
                raise AssertionError(f"nobody prints {statement}")

    # column sums

    def _keep(self, value: Value) -> None:
        name, kind = value.name, C_TYPES[value.dtype]
        if not self.sums_vectors(value):
            self.out.line(f"if (first == 0 && thread == 0) {name}_partial[part] = {name};")
            return
        with self._vectors():
            self.out.line(f"w::Vector<{kind}, lanes> kept;")
            self.out.line("#pragma unroll")
            self.out.line(f"for (int i = 0; i < lanes; ++i) kept[i] = {name}[k][i];")
            self.out.line(
                f"w::store_row<partials_together, ragged>({name}_partial + part * columns, kept, column, columns);"
            )
