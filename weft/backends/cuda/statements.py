"""What the parts of a CUDA C++ kernel share: names and expressions."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager

from weft.backends.c_expressions import C_TYPES, expression, literal
from weft.backends.cuda.places import Places
from weft.backends.cuda.schedule import CudaKernel
from weft.backends.source import Writer
from weft.ir.program import Buffer, Value
from weft.ir.rounding import ROUGH

REDUCTIONS = {"sum": "w::Sum", "max": "w::Max", "min": "w::Min", "sumexp": "w::Merge"}
NOTHING = REDUCTIONS | {"sumexp": "w::Max"}
"""The reductions to which an element makes no difference that takes the place of what lies beside a row."""
STATES = {"sumexp": "w::Sumexp", "m2": "w::Moments"}
"""What reductions with a moving centre are added up in."""


class Statements(Places):
    """Expressions, by the names that values have."""

    def __init__(self, kernel: CudaKernel, writer: Writer) -> None:
        super().__init__(kernel)
        self.out = writer
        self.outputs = {o.buffer.name: o for o in self.program.outputs}
        self.several = self.schedule.group_rows > 1
        """Whether a thread has several rows of a tile."""
        self.thread, self.threads = ("group_thread", "group_threads") if self.is_grouped else ("thread", "threads")
        """Of those that share a row in a block, by their number, and how many."""
        self.column = "column"
        self.row = "row"
        self.per_row = set[str]()
        """Numbers that each row of a tile has one of."""

    @property
    def row_index(self) -> str:
        """The row at hand as an operand."""
        return f"({self.row})" if " " in self.row else self.row

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
                return f"{kind}({self.index_of(str(value.attributes[0]), self.column, self.row_index)})"
            case "pick":
                buffer, index = self.inputs[value.args[0]], self.operand(value.args[1])
                stride = buffer.stride_of[str(value.attributes[0])]
                more = f", {stride}" if stride != 1 else ""
                picked = f"w::pick({buffer.name}_at({self.row}), {index}, columns{more})"
                return f"{self.row} < end_row ? {picked} : {kind}()" if self.schedule.rows_per_tile > 1 else picked
            case _:
                operands = [self.operand(arg) for arg in value.args]
                if value.name in self.rough and value.dtype == "f32" and value.op in ROUGH:
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

    def once(self, dims: Iterable[str], over: Iterable[str]) -> list[str]:
        """Conditions that hold once for all values of the dimensions among ``over`` that are not among ``dims``."""
        have = set(dims)
        missing = [d for d in over if d not in have and self.dims[d] != 1]
        return [f"{self.index_of(d, self.column, self.row_index)} == 0" for d in missing]
