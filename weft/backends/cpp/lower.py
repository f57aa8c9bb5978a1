"""What a C++ kernel does: a pass over chunks of rows, tile by tile, and the finish of their column sums.

A loop over the columns takes the rows of a tile together: what is the same for all of them (a weight) is loaded once,
and their column sums meet in registers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from weft.backends.cpp.schedule import CppSchedule
from weft.backends.cpp.view import View
from weft.ir.program import Output, Value
from weft.ir.structure import place_in_output
from weft.lowering.lower import Lowering
from weft.lowering.nest import (
    Accumulate,
    Chunks,
    ColumnLoop,
    Compute,
    EachRow,
    Gather,
    Hold,
    Keep,
    Load,
    Restore,
    Start,
    Statement,
    Store,
    Tiles,
    Total,
)


class CppLowering(Lowering[CppSchedule], View):
    """Statements in order."""

    # the pass over rows

    def body(self) -> Iterator[Statement]:
        if self.outer or any(self.loops.stores):
            tile = self.tile()
            if self.fast_row is None and not self.outer:
                yield tile
            else:
                yield Chunks((*self.start_sums(), Tiles((tile,), "chunk")))
        yield from self.finish()

    def of_tile(self) -> Iterator[Statement]:
        """Numbers of each row, then a loop over the columns, stage by stage."""
        loads = [load for b in self.used_inputs() if not self.is_vector(b.name) for load in self.load(b)]
        yield from self._numbers((*loads, *self.scalars()))
        yield from self.stages()

    def results(self, stage: int) -> Iterator[Statement]:
        yield from self._numbers(tuple(super().results(stage)))

    @staticmethod
    def _numbers(body: tuple[Statement, ...]) -> Iterator[Statement]:
        """What each row of a tile has one of."""
        if body:
            yield EachRow(body)

    def columns_of(self, stage: int) -> Iterator[Statement]:
        """The loop over the columns: what the rows share, then each row, then the column sums of the tile."""
        loops, inner = self.loops, self.loops.inner[stage]
        sums = [value.name for value in self.sums(stage) if self.sums_vectors(value)]
        stores = [output.buffer.name for output in self.stores(stage)]
        if not (loops.values[stage] or inner or sums or stores):
            return
        yield from (Start(name, lanes=True) for name in inner)
        body = [*self._vectors(stage, per_row=False)]
        body += [Accumulate(name, lanes=True) for name in inner if not self.is_per_row(name)]
        body += map(Start, sums)
        if sums or stores or any(map(self.is_per_row, (*loops.values[stage], *inner))):
            each = [*self._vectors(stage, per_row=True)]
            each += [Accumulate(name, lanes=True) for name in inner if self.is_per_row(name)]
            each += [*map(Store, stores), *map(Accumulate, sums)]
            body.append(EachRow(tuple(each)))
        yield ColumnLoop((*body, *map(Keep, sums)))

    def _vectors(self, stage: int, per_row: bool) -> Iterator[Statement]:
        """Loads and values of one loop, those of each row or those that rows share; a held value is kept by the first
        loop that has it."""
        used, values = self.loops.used[stage], self.loops.values[stage]
        for name in self.inputs:
            if name in used and self.is_vector(name) and self.is_per_row(name) == per_row:
                yield Load(name)
        for name in self.schedule.held:
            if name in used and name not in values and self.is_per_row(name) == per_row:
                yield Restore(name)
        for name in (name for name in values if self.is_per_row(name) == per_row):
            yield Compute(name)
            if name in self.schedule.held and place_in_output(self.program, name) is None:
                yield Hold(name)

    # the finish

    def of_tasks(self, outputs: Sequence[Output]) -> Iterator[Statement]:
        """Totals of the column sums of all chunks, in order, and the epilogue on them."""
        needed = self.needed_behind_sums(outputs)
        sums = [value for value in self.outer if value.name in needed]
        yield from (Load(name) for name in self.inputs if name in needed and not self.is_vector(name))
        yield from (Gather((value.name,)) for value in sums if not self.is_vector(value.name))
        for name in self.loops.epilogue_scalars:
            if name in needed and not self.is_const(name):
                yield Compute(name)
        vector = [output for output in outputs if self.along_columns(output)]
        if vector:
            vectors = [value for value in sums if self.is_vector(value.name)]
            yield from (Gather((value.name,)) for value in vectors)
            yield ColumnLoop(tuple(self._finished(needed, vectors, vector)))
        yield from (Store(output.buffer.name, complete=True) for output in outputs if output not in vector)

    def _finished(self, needed: Collection[str], sums: list[Value], outputs: list[Output]) -> Iterator[Statement]:
        yield from (Load(name) for name in self.inputs if name in needed and self.is_vector(name))
        yield from (Total(value.name) for value in sums)
        yield from (Compute(name) for name in self.loops.epilogue_values if name in needed)
        yield from (Store(output.buffer.name, complete=True) for output in outputs)
