"""Prints what a CUDA C++ kernel does with the vectors of a thread: loops over the columns of a row, column sums."""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from contextlib import ExitStack, contextmanager

from weft.backends.c_expressions import C_TYPES, COMBINE, literal
from weft.backends.cuda.schedule import CudaKernel
from weft.backends.cuda.statements import NOTHING, REDUCTIONS, STATES, Statements
from weft.backends.cuda.view import GRANULE_BYTES
from weft.backends.source import Writer
from weft.ir.dtypes import HALVES
from weft.ir.ops import identity
from weft.ir.program import Buffer, Output, Value
from weft.ir.zeros import zero_where
from weft.lowering.nest import Accumulate, Compute, Hold, Load, Restore, Statement, Store

WHOLE = "const bool whole = !at_edge(k) || w::whole<lanes>(column, columns);"
"""Whether all elements of a vector are of the row."""


class Vectors(Statements):
    """A thread has every so many vectors of a block's part of a row."""

    def __init__(self, kernel: CudaKernel, writer: Writer) -> None:
        super().__init__(kernel, writer)
        self.rotates_vectors = self.apart > 1
        """Whether the first vector of a block comes last, so that one that is partly before a row comes with those that
        may be partly behind it: others are of a row."""
        self.rounded = {n for n, v in self.by_name.items() if self._is_rounded(v)}
        """What is cast to 16 bits, two elements at a time: floats of a loop become a vector, which later loops have."""
        self.crossing = set[str]()
        """What later loops over the elements of a vector have of earlier ones."""
        self.clears_edges = self.apart > 1 and self.count(self.columns) is not None and self._sums_vanish()
        """Whether row reductions can add up zeros in place of what was copied before and behind a row."""
        kept = self.kept(shifted=self.shifts_weights) * (self.schedule.weights == "shared")
        self.kept_with = {b.name: weights for weights in kept for b in weights}
        """Weights in shared memory that a weight has words in common with, by its name, itself among them."""

    def _is_rounded(self, value: Value) -> bool:
        is_cast = value.op == "cast" and value.dtype in HALVES and self.types[value.args[0]][0] == "f32"
        return is_cast and self.is_vector(value.name) and value.args[0] not in self.inputs

    def _sums_vanish(self) -> bool:
        """Whether each row reduction is a sum of what is zero where all rows that are copied are. Numbers of a row that
        are not finite make it NaN."""
        numbers = [value.name for value in self.program.values if not self.is_vector(value.name)]
        zero = zero_where(self.program, [b.name for b in self.streamed()], numbers)
        reduced = [self.by_name[name] for names in self.loops.inner for name in names]
        return all(value.op == "sum" and value.args[0] in zero for value in reduced)

    @property
    def of_row(self) -> str:
        """The index of a row of a tile; empty if that has one."""
        return "[r]" if self.several else ""

    @property
    def part(self) -> str:
        """The place of its partial results among those of all."""
        return "part" if self.has_parts else "chunk"

    @contextmanager
    def each_row(self, first: str = "row") -> Generator[None]:
        """The rows of a tile. first: of them."""
        before = self.row
        if self.several:
            self.row = f"{first} + r{self.between_rows}"
            self.out.line("#pragma unroll")
            with self.out.block("for (int r = 0; r < tile_rows; ++r)"):
                yield
        else:
            self.row = first
            yield
        self.row = before

    @property
    def before(self) -> str:
        return "before[r]" if self.several and not self.keeps_columns else "before"

    def exists(self) -> list[str]:
        return [f"{self.row} < end_row"] if self.schedule.rows_per_tile > 1 else []

    @contextmanager
    def vectors(self, stores: Sequence[Output] = ()) -> Generator[None]:
        """Those of a thread, one after the other: how far each of them is from the first is known when the text is
        compiled. stores: what they are stored to."""
        line = self.out.line
        for name in (output.buffer.name for output in stores):
            own = f"(first + {self.thread}) * lanes - {self.before}"
            line(f"auto* const {name}_row = w::once({name}_at({self.row}) + {own});")
        line("#pragma unroll")
        with self.out.block("for (int k = 0; k < thread_vectors; ++k)"):
            if self.rotates_vectors:
                wraps = f"(k + 1) * {self.threads} >= own && next == own"
                line(f"const int next = {self.thread} + k * {self.threads} + 1, vector = {wraps} ? 0 : next;")
            else:
                line(f"const int vector = {self.thread} + k * {self.threads};")
            line(f"const int column = (first + vector) * lanes - {self.before};")
            with self.out.block("if (has_vector(k, vector, column))"):
                yield

    def loaded(self, buffer: Buffer) -> str:
        if not self.has_columns(buffer):
            return super().loaded(buffer)
        if self.has_rows(buffer):
            return f"{buffer.name}_tile[i]"
        first, *others = self.kept_with.get(buffer.name, (buffer,))
        element = f"{first.name}_vector[i]"
        return f"{element}.{'first' if first == buffer else 'second'}()" if others else element

    def column_loop(self, body: Sequence[Statement]) -> None:
        line = self.out.line
        r = self.of_row
        rows = "[tile_rows]" if self.several else ""
        for name, lanes in ((s.value, s.lanes) for s in body if isinstance(s, Hold)):
            kind = C_TYPES[self.types[name][0]]
            held = f"{kind} {name}_row{rows}[thread_vectors][lanes];"
            line(held if lanes else f"w::Vector<{kind}, lanes> {name}_row{rows}[thread_vectors];")
        stores = [self.outputs[s.output] for s in body if isinstance(s, Store)]
        with ExitStack() as loops:
            loops.enter_context(self.each_row())
            loops.enter_context(self.guarded(self.exists()))
            for restored in (s for s in body if isinstance(s, Restore) and s.of):
                self._define_factor(self.by_name[restored.value], restored.of)
            loops.enter_context(self.vectors(stores))
            line(WHOLE)
            clears = self.clears_edges and any(
                isinstance(s, Hold) or (isinstance(s, Accumulate) and s.lanes) for s in body
            )
            for statement in body:
                if isinstance(statement, Load):
                    name = statement.buffer
                    loaded = f"w::load_copied<lanes, {name}_together>({name}_stage{r}, column, columns, whole)"
                    line(f"{'' if clears else 'const '}auto {name}_tile = {loaded};")
                    if clears:
                        line(f"if (at_edge(k)) {name}_tile = row_lanes[k].of({name}_tile);")
                elif isinstance(statement, Hold) and not statement.lanes:
                    line(f"{statement.value}_row{r}[k] = {statement.value}_tile;")
                elif isinstance(statement, Restore) and not statement.of:
                    line(f"const auto {statement.value}_tile = w::kept({statement.value}_row{r}[k]);")
            used = {arg for s in body if isinstance(s, Compute) for arg in self.by_name[s.value].args}
            names = (self.kept_with.get(b.name, (b,))[0].name for b in self.weights() if b.name in used)
            for name in dict.fromkeys(names):
                line(f"const auto {name}_vector = {self._weight(name)};")
            reduced = [self.by_name[s.value] for s in body if isinstance(s, Accumulate) and s.lanes]
            held = [s.value for s in body if isinstance(s, Hold) and s.lanes]
            for value in reduced:
                is_held = value.name in held
                line(
                    f"auto& {value.name}_block = {value.name}_row{r}[k];"
                    if is_held
                    else f"{C_TYPES[value.dtype]} {value.name}_block[lanes];"
                )
            for name in (o.buffer.name for o in stores if o.value not in self.rounded):
                line(f"w::Vector<{C_TYPES[self.outputs[name].buffer.dtype]}, lanes> {name}_tile;")
            for statements in self._loops_of_lanes(body):
                self._lanes(statements)
            self._add_blocks(reduced, held)
            for output in stores:
                name, value = output.buffer.name, output.value
                found = f"{value if value in self.rounded else name}_tile"
                ahead = f"(vector - {self.thread})" if self.rotates_vectors else f"k * {self.threads}"
                to = f"{name}_row + {ahead} * lanes"
                with self.guarded(self.once(output.buffer.dims, (*self.segments, *self.inside))):
                    line(f"w::store_row<{name}_together>({to}, {found}, column, columns, whole);")

    def _loops_of_lanes(self, body: Sequence[Statement]) -> list[list[Statement]]:
        """What loops over the elements of a vector do, one after the other: what has something that is rounded comes in
        a later one than that."""
        level, loops, used_in = dict[str, int](), dict[int, list[Statement]](), dict[str, int]()
        for statement in body:
            match statement:
                case Compute(value=name) | Accumulate(value=name):
                    args = self.by_name[name].args
                case Store(output=name):
                    args = (self.outputs[name].value,) * (self.outputs[name].value not in self.rounded)
                case Restore(value=name, of=total) if total:
                    args = ()
                case _:
                    continue
            own = max((level.get(arg, 0) + (arg in self.rounded) for arg in args), default=0)
            used_in |= {arg: max(own, used_in.get(arg, 0)) for arg in args}
            if isinstance(statement, Compute | Restore):
                level[name] = own
            if args or not isinstance(statement, Store):
                loops.setdefault(own, []).append(statement)
        self.crossing = {name for name, own in level.items() if name not in self.rounded and used_in.get(name, 0) > own}
        return [loops[own] for own in sorted(loops)]

    def _lanes(self, statements: Sequence[Statement]) -> None:
        """A loop over the elements of a vector."""
        line, computed = self.out.line, [s.value for s in statements if isinstance(s, Compute | Restore)]
        for name in (name for name in computed if name in self.rounded | self.crossing):
            line(f"{'float' if name in self.rounded else C_TYPES[self.by_name[name].dtype]} {name}_lanes[lanes];")
        line("#pragma unroll")
        with self.out.block("for (int i = 0; i < lanes; ++i)"):
            self.column = "(column + i)"
            for statement in statements:
                self._of_lane(statement)
            self.column = "column"
        for name in (name for name in computed if name in self.rounded):
            line(f"const auto {name}_tile = w::rounded<{C_TYPES[self.by_name[name].dtype]}>({name}_lanes);")

    def state_type(self, value: Value) -> str:
        """Of what a thread has of a row reduction."""
        kind = C_TYPES[value.dtype]
        return f"{STATES[value.op]}<{kind}>" if value.op in STATES else f"w::Parts<{REDUCTIONS[value.op]}, {kind}>"

    def _of_lane(self, statement: Statement) -> None:
        line = self.out.line
        match statement:
            case Restore(value=name, of=total):
                line(f"{self._lane_of(name)} = {total}_row{self.of_row}[k][i] * {name}_factor;")
            case Compute(value=name) if name in self.rounded:
                line(f"{name}_lanes[i] = {self.operand(self.by_name[name].args[0])};")
            case Compute(value=name):
                line(f"{self._lane_of(name)} = {self.expression(self.by_name[name])};")
            case Store(output=name):
                line(f"{name}_tile[i] = {self.operand(self.outputs[name].value)};")
            case Accumulate(value=name, lanes=True):
                line(f"{name}_block[i] = {self.operand(self.by_name[name].args[0])};")
            case Accumulate(value=name):
                value = self.by_name[name]
                once = self.once(self.types[value.args[0]][1], (*self.segments, *self.inside))
                with self.guarded(once):
                    combined = COMBINE[value.op].format(f"{name}[k][i]", self.operand(value.args[0]))
                    line(f"{name}[k][i] = {combined};")
            case _:
                raise AssertionError(f"nobody prints {statement}")

    def _lane_of(self, name: str) -> str:
        """What an element of a value is assigned to."""
        return f"{name}_lanes[i]" if name in self.crossing else f"const {C_TYPES[self.by_name[name].dtype]} {name}"

    def operand(self, name: str) -> str:
        if name in self.rounded:
            return f"{name}_tile[i]"
        return f"{name}_lanes[i]" if name in self.crossing else super().operand(name)

    def _add_blocks(self, values: Sequence[Value], held: Collection[str]) -> None:
        """What row reductions are told of a vector. held: those whose elements wait, and of which only the largest is
        looked for."""
        if not values:
            return
        r = self.of_row
        if not self.clears_edges:
            self._keep_inside(values)
        for value in values:
            vector = ", k" if value.op == "m2" else ""
            state = "largest" if value.name in held else "state"
            self.out.line(f"{value.name}_{state}{r}.add({value.name}_block{vector});")

    def _keep_inside(self, values: Sequence[Value]) -> None:
        """What row reductions are told of a vector that is partly of a row is what they are told of nothing."""
        with self.out.block("if (!whole)"):
            for name, op in ((value.name, value.op) for value in values):
                kept = f"{name}_state{self.of_row}.keep_inside" if op == "m2" else f"w::keep_inside<{NOTHING[op]}>"
                first = ", k == 0" if op == "m2" else ""
                self.out.line(f"{kept}({name}_block{first}, column, columns);")

    def find_edges(self) -> None:
        """Which elements are of a row, of the vectors of a thread that lie at its edges."""
        self.out.line("w::Inside<lanes> row_lanes[thread_vectors];")
        with self.vectors():
            self.out.line("if (at_edge(k)) row_lanes[k] = {column, columns};")

    def exponentials(self, total: Value) -> None:
        """Elements of a sum of exponentials that wait become its terms."""
        line, name, kind = self.out.line, total.name, C_TYPES[total.dtype]
        r, rows = self.of_row, "[tile_rows]" * self.several
        terms, largest, is_one = f"w::Exponentials<{kind}>", f"{name}_largest{r}.total()", not self.exists()
        if not is_one:
            line(f"{terms} {name}_terms{rows};")
            line(f"w::Sumexp<{kind}> {name}_state{rows};")
        with self.each_row(), self.guarded(self.exists()):
            line(f"{terms} {name}_terms({largest});" if is_one else f"{name}_terms{r} = {terms}({largest});")
            with self.vectors():
                line(f"{name}_terms{r}.add({name}_row{r}[k]);")
            line(f"{f'w::Sumexp<{kind}> ' * is_one}{name}_state{r} = {name}_terms{r}.state();")

    def _define_factor(self, value: Value, total: str) -> None:
        """Of terms of a sum of exponentials, or their quotients by it."""
        exponential = self.by_name[value.args[0]] if value.op == "div" else value
        largest = self.by_name[exponential.args[0]].args[1]
        factor = f"{total}_terms{self.of_row}.about({self.operand(largest)})"
        if value.op == "div":
            factor = f"w::div_rounded({factor}, {self.operand(total)})"
        self.out.line(f"const {C_TYPES[value.dtype]} {value.name}_factor = {factor};")

    def _weight(self, name: str) -> str:
        """The vector of a weight that belongs to one of a row."""
        if self.shifts_weights:
            return f"{name}_tile.before(vector + 1, {self.before})"
        return f"{name}_tile.at(vector)" if self.schedule.weights == "shared" else f"w::kept({name}_tile[k])"

    def kept_type(self, weights: tuple[Buffer, ...]) -> str:
        """Of what a column has of weights in shared memory."""
        first, *others = weights
        kind = C_TYPES[first.dtype]
        return f"w::Pair<{kind}>" if others else "float" if first in self.cast_weights() else kind

    def load_weight(self, buffer: Buffer) -> None:
        """The vectors of a thread, which no other reads, or all of a block, with one before and one behind them."""
        line, name, weights = self.out.line, buffer.name, self.kept_with.get(buffer.name, ())
        if weights[:1] == (buffer,):
            vectors, most = ("own + 2", 1) if self.shifts_weights else ("own", GRANULE_BYTES // self.kept_size(weights))
            planes = f"w::Planes<{self.kept_type(weights)}, lanes, {min(self.lanes, most)}>"
            line(f"const {planes} {name}_tile{{{name}_memory, {vectors}}};")
        elif not weights:
            line(f"w::Vector<{C_TYPES[buffer.dtype]}, lanes> {name}_tile[thread_vectors];")
        if self.shifts_weights:
            if weights[0] == buffer:
                together = " && ".join(f"{b.name}_together" for b in weights)
                rows = ", ".join(f"{b.name}_at(first_row)" for b in weights)
                line(f"w::keep_weights<threads, {together}>({name}_tile, thread, first - 1, columns, {{{rows}}});")
            if buffer == self.weights()[-1]:
                line("w::wait_for_threads<threads>();")
            return
        loaded = f"w::load_row<lanes, {name}_together>({name}_at(first_row), column, columns, inner)"
        with self.guarded(["first_row < end_row"] * self.has_parts), self.vectors():
            line("const bool inner = !at_edge(k) || w::whole<2 * lanes>(column, columns);")
            line(f"{name}_tile.set(vector, {loaded});" if weights else f"{name}_tile[k] = {loaded};")

    def start(self, value: Value) -> None:
        kind, nothing = C_TYPES[value.dtype], literal(identity(value.op, value.dtype), value.dtype)
        if not self.sums_vectors(value):
            self.out.line(f"{kind} {value.name} = {nothing};")
            return
        self.out.line(f"{kind} {value.name}[thread_vectors][lanes];")
        self.out.line(f"w::fill({value.name}, {nothing});")

    def keep_of_groups(self, values: Sequence[Value]) -> None:
        """The column sums of all groups, one group after the other, in shared memory, and from there the chunk's."""
        line = self.out.line
        line("#pragma unroll 1")
        with self.out.block("for (int one = 0; one < groups; ++one)"):
            with self.out.block("if (one == group)"), self.vectors():
                for value in values:
                    add = f"{value.name}_columns.template add<{REDUCTIONS[value.op]}>"
                    line(f"{add}({value.name}[k], column, columns, one == 0);")
            line("w::wait_for_threads<threads>();")
        with self.out.block("for (int vector = thread; vector * lanes < columns; vector += threads)"):
            for value in values:
                to = f"{value.name}_partial + {self.part} * padded + vector * lanes"
                line(f"w::store({to}, {value.name}_columns.at(vector));")
        line("w::wait_for_threads<threads>();")

    def keep(self, value: Value) -> None:
        name = value.name
        if not self.sums_vectors(value):
            self.out.line(f"if (first == 0 && thread == 0) {name}_partial[{self.part}] = {name};")
            return
        with self.vectors():
            self.out.line(f"w::store({name}_partial + {self.part} * padded + before + column, w::vector({name}[k]));")
