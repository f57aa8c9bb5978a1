"""Prints what a CUDA C++ kernel does with weights: rows with columns that all rows have in common."""

from __future__ import annotations

from weft.backends.c_expressions import C_TYPES
from weft.backends.cuda.inputs import GRANULE_BYTES
from weft.backends.cuda.schedule import CudaKernel
from weft.backends.cuda.vectors import Vectors
from weft.backends.source import Writer
from weft.ir.program import Buffer


class Weights(Vectors):
    """They are loaded once for each part of a chunk, to registers or to shared memory."""

    def __init__(self, kernel: CudaKernel, writer: Writer) -> None:
        super().__init__(kernel, writer)
        kept = self.kept(shifted=self.shifts_weights) * (self.schedule.weights == "shared")
        self.kept_with = {b.name: weights for weights in kept for b in weights}
        """Weights in shared memory that a weight has words in common with, by its name, itself among them."""

    def loaded(self, buffer: Buffer) -> str:
        if not self.has_columns(buffer):
            return super().loaded(buffer)
        if self.has_rows(buffer):
            return f"{buffer.name}_tile[i]"
        first, *others = self.kept_with.get(buffer.name, (buffer,))
        element = f"{first.name}_vector[i]"
        return f"{element}.{'first' if first == buffer else 'second'}()" if others else element

    def weight_vector(self, name: str) -> str:
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
