"""Prints loops over the elements of a vector in CUDA C++."""

from __future__ import annotations

from collections.abc import Sequence

from weft.backends.c_expressions import C_TYPES, COMBINE
from weft.backends.cuda.schedule import CudaKernel
from weft.backends.cuda.weights import Weights
from weft.backends.source import Writer
from weft.ir.dtypes import HALVES
from weft.ir.program import Value
from weft.lowering.nest import Accumulate, Compute, Restore, Statement, Store


class Lanes(Weights):
    """What is done with each element."""

    def __init__(self, kernel: CudaKernel, writer: Writer) -> None:
        super().__init__(kernel, writer)
        self.rounded = {n for n, v in self.by_name.items() if self._is_rounded(v)}
        """What is cast to 16 bits, two elements at a time: floats of a loop become a vector, which later loops have."""
        self.crossing = set[str]()
        """What later loops over the elements of a vector have of earlier ones."""

    def lanes_of(self, body: Sequence[Statement]) -> None:
        """The loops over the elements of a vector that some statements need."""
        for statements in self._loops(body):
            self._loop(statements)

    def _is_rounded(self, value: Value) -> bool:
        is_cast = value.op == "cast" and value.dtype in HALVES and self.types[value.args[0]][0] == "f32"
        return is_cast and self.is_vector(value.name) and value.args[0] not in self.inputs

    def _loops(self, body: Sequence[Statement]) -> list[list[Statement]]:
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

    def _loop(self, statements: Sequence[Statement]) -> None:
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
