"""A kernel as its nest and its text are made of it, in any language."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic

from weft.ir.program import Buffer, Output, Value
from weft.ir.structure import loops_of, reachable
from weft.plan.kernel import Kernel, S


class KernelView(Generic[S]):
    """A kernel whose own names are free, and what its loops compute."""

    def __init__(self, kernel: Kernel[S]) -> None:
        self.kernel, self.program, self.schedule = kernel, kernel.program, kernel.schedule
        self.rows, self.columns, self.segments = self.schedule.rows, self.schedule.columns, self.schedule.segments
        self.loops = loops_of(self.program, self.rows, self.columns, self.schedule.held)
        self.types = self.program.types()
        self.by_name = self.program.by_name()
        self.inputs = {b.name: b for b in self.program.inputs}
        self.outer = [self.by_name[name] for names in self.loops.outer for name in names]

    def is_vector(self, name: str) -> bool:
        """Whether there is an element for each column."""
        return bool(set(self.types[name][1]) & set(self.columns))

    def is_const(self, name: str) -> bool:
        """Whether a name is that of a constant, which is written where it is used."""
        return name in self.by_name and self.by_name[name].op == "const"

    def has_columns(self, buffer: Buffer) -> bool:
        """Whether a tensor has an element for each column."""
        return bool(set(buffer.dims) & set(self.columns))

    def along_columns(self, output: Output) -> bool:
        """Whether an output is written for each column, or once a row."""
        return self.has_columns(output.buffer)

    def sums_vectors(self, value: Value) -> bool:
        """Whether a reduction is of elements for each column."""
        return self.is_vector(value.args[0])

    def used_inputs(self) -> list[Buffer]:
        """Inputs that are needed while passing over the rows."""
        names = {a for n in self.loops.scalars for a in self.by_name[n].args}.union(*self.loops.used)
        return [b for b in self.program.inputs if b.name in names]

    def needed_behind_sums(self, outputs: Iterable[Output]) -> set[str]:
        """What these results are made from once column sums are complete: nothing behind an outer reduction."""

        def operands(name: str) -> tuple[str, ...]:
            value = self.by_name.get(name)
            return () if value is None or value in self.outer else value.args

        return {*reachable((o.value for o in outputs), operands)}
