"""Prints what a CUDA C++ kernel does with the columns of a row: loops over them, what row reductions are told of them,
column sums."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack

from weft.backends.c_expressions import C_TYPES, literal
from weft.backends.cuda.lanes import Lanes
from weft.backends.cuda.schedule import CudaKernel
from weft.backends.cuda.statements import NOTHING, REDUCTIONS, STATES
from weft.backends.source import Writer
from weft.ir.ops import identity
from weft.ir.program import Value
from weft.lowering.nest import Accumulate, Compute, Hold, Load, Restore, Statement, Store

WHOLE = "const bool whole = !at_edge(k) || w::whole<lanes>(column, columns);"
"""Whether all elements of a vector are of the row."""


class ColumnLoops(Lanes):
    """Row by row of a tile, and vector by vector of a thread."""

    def __init__(self, kernel: CudaKernel, writer: Writer) -> None:
        super().__init__(kernel, writer)
        self.clears_edges = self.apart > 1 and self.count(self.columns) is not None and self.sums_vanish
        """Whether row reductions can add up zeros in place of what was copied before and behind a row."""

    def find_edges(self) -> None:
        """Which elements are of a row, of the vectors of a thread that lie at its edges."""
        self.out.line("w::Inside<lanes> row_lanes[thread_vectors];")
        with self.vectors():
            self.out.line("if (at_edge(k)) row_lanes[k] = {column, columns};")

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
            is_told = any(isinstance(s, Accumulate) and s.lanes for s in body)
            clears = self.clears_edges and is_told
            if any(isinstance(s, Load | Store) for s in body) or (is_told and not clears):
                line(WHOLE)
            for statement in body:
                match statement:
                    case Load(buffer=name):
                        loaded = f"w::load_copied<lanes, {name}_together>({name}_stage{r}, column, columns, whole)"
                        self._define_tile(name, loaded, clears)
                    case Hold(value=name, lanes=False):
                        line(f"{name}_row{r}[k] = {name}_tile;")
                    case Restore(value=name) if not statement.of:
                        self._define_tile(name, f"w::kept({name}_row{r}[k])", clears)
                    case _:
                        pass
            used = {arg for s in body if isinstance(s, Compute) for arg in self.by_name[s.value].args}
            names = (self.kept_with.get(b.name, (b,))[0].name for b in self.weights() if b.name in used)
            for name in dict.fromkeys(names):
                line(f"const auto {name}_vector = {self.weight_vector(name)};")
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
            self.lanes_of(body)
            self._add_blocks(reduced, held)
            for output in stores:
                name, value = output.buffer.name, output.value
                found = f"{value if value in self.rounded else name}_tile"
                ahead = f"(vector - {self.thread})" if self.rotates_vectors else f"k * {self.threads}"
                to = f"{name}_row + {ahead} * lanes"
                with self.guarded(self.once(output.buffer.dims, (*self.segments, *self.inside))):
                    line(f"w::store_row<{name}_together>({to}, {found}, column, columns, whole);")

    def _define_tile(self, name: str, found: str, clears: bool) -> None:
        """The vector of a row. clears: whether zeros take the place of elements that are not of the row."""
        self.out.line(f"const auto {name}_tile = {f'row_lanes[k].of({found}, at_edge(k))' if clears else found};")

    def state_type(self, value: Value) -> str:
        """Of what a thread has of a row reduction."""
        kind = C_TYPES[value.dtype]
        return f"{STATES[value.op]}<{kind}>" if value.op in STATES else f"w::Parts<{REDUCTIONS[value.op]}, {kind}>"

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
