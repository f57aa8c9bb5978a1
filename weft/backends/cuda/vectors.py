"""Prints loops over the rows of a tile, and over the vectors that a thread has of a row, in CUDA C++."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from weft.backends.cuda.schedule import CudaKernel
from weft.backends.cuda.statements import Statements
from weft.backends.source import Writer
from weft.ir.program import Output


class Vectors(Statements):
    """A thread has every so many vectors of a block's part of a row."""

    def __init__(self, kernel: CudaKernel, writer: Writer) -> None:
        super().__init__(kernel, writer)
        self.rotates_vectors = self.apart > 1
        """Whether the first vector of a block comes last, so that one that is partly before a row comes with those that
        may be partly behind it: others are of a row."""

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
            found = f"vector_of({self.thread}, k)" if self.rotates_vectors else f"{self.thread} + k * {self.threads}"
            line(f"const int vector = {found};")
            line(f"const int column = (first + vector) * lanes - {self.before};")
            with self.out.block("if (has_vector(k, vector, column))"):
                yield
