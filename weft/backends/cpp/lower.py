"""What a C++ kernel does: a pass over chunks of rows, tile by tile, and the finish of their column sums.

A loop over the columns takes the rows of a tile together: what is the same for all of them (a weight) is loaded once,
and their column sums meet in registers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from weft.backends.cpp.schedule import CppKernel
from weft.backends.cpp.view import View
from weft.ir.program import Output, Value
from weft.ir.structure import analyse, place_in_output
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
    Nest,
    Reduce,
    Restore,
    Start,
    Statement,
    Store,
    Tasks,
    Tile,
    Tiles,
    Total,
    verify_nest,
)


def lower(kernel: CppKernel) -> Nest:
    """The nest of a kernel whose own names are free."""
    found = Lowering(kernel)
    return verify_nest(Nest(kernel.program, (*found.passes(), *found.finish())))


class Lowering(View):
    """Statements in order."""

    def __init__(self, kernel: CppKernel) -> None:
        super().__init__(kernel)
        self.stages = analyse(self.program, self.rows).stages

    # the pass over rows

    def passes(self) -> Iterator[Statement]:
        if not self.outer and not any(self.loops.stores):
            return
        tile = Tile(tuple(self._of_tile()))
        if self.fast_row is None and not self.outer:
            yield tile
        else:
            yield Chunks((*(Start(value.name) for value in self.outer), Tiles((tile,), "chunk")))

    def _of_tile(self) -> Iterator[Statement]:
        """Numbers of each row, then a loop over the columns, stage by stage."""
        used = {a for n in self.loops.scalars for a in self.by_name[n].args}.union(*self.loops.used)
        loads = (b.name for b in self.program.inputs if b.name in used and not self.is_vector(b.name))
        yield from self._numbers((*map(Load, loads), *self._scalars(0)))
        for stage in range(len(self.loops.values)):
            yield from self._stage(stage)
            stores = (o for o in self.loops.stores[stage] if not self.along_columns(o))
            sums = (self.by_name[name] for name in self.loops.outer[stage])
            body: list[Statement] = [Reduce((name,)) for name in self.loops.inner[stage]]
            body += [Store(output.buffer.name) for output in stores]
            body += [Accumulate(value.name) for value in sums if not self.sums_vectors(value)]
            yield from self._numbers((*body, *self._scalars(stage + 1)))

    @staticmethod
    def _numbers(body: tuple[Statement, ...]) -> Iterator[Statement]:
        """What each row of a tile has one of."""
        if body:
            yield EachRow(body)

    def _scalars(self, stage: int) -> Iterator[Statement]:
        """Numbers that are known before the loop of a stage."""
        for name in self.loops.scalars:
            if self.stages[name] == stage and self.by_name[name].op != "const":
                yield Compute(name)

    def _stage(self, stage: int) -> Iterator[Statement]:
        """The loop over the columns: what the rows share, then each row, then the column sums of the tile."""
        loops, inner = self.loops, self.loops.inner[stage]
        outer = [self.by_name[name] for name in loops.outer[stage]]
        sums = [value.name for value in outer if self.sums_vectors(value)]
        stores = [o.buffer.name for o in loops.stores[stage] if self.along_columns(o)]
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

    def finish(self) -> Iterator[Statement]:
        """A loop for every set of row dimensions that results keep."""
        for kept, outputs in self.loops.epilogue_blocks(self.rows).items():
            yield Tasks(tuple(self._of_tasks(outputs)), kept)

    def _of_tasks(self, outputs: list[Output]) -> Iterator[Statement]:
        """Totals of the column sums of all chunks, in order, and the epilogue on them."""
        needed = self.needed_behind_sums(outputs)
        sums = [value for value in self.outer if value.name in needed]
        yield from (Load(name) for name in self.inputs if name in needed and not self.is_vector(name))
        yield from (Gather((value.name,)) for value in sums if not self.is_vector(value.name))
        for name in self.loops.epilogue_scalars:
            if name in needed and self.by_name[name].op != "const":
                yield Compute(name)
        vector = [output for output in outputs if set(output.buffer.dims) & set(self.columns)]
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
