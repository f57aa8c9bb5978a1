"""What the functions of a CUDA C++ kernel do: blocks that stay, copies that run ahead, and the finish."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weft.backends.cuda.schedule import CudaSchedule
from weft.backends.cuda.view import View
from weft.ir.program import Value
from weft.lowering.behind import overlapped
from weft.lowering.lower import Lowering
from weft.lowering.nest import (
    Accumulate,
    Chunks,
    ColumnLoop,
    Columns,
    Compute,
    EachRow,
    Exponentials,
    Hold,
    Keep,
    Load,
    Reduce,
    Restore,
    Start,
    Statement,
    Store,
    Tiles,
)
from weft.lowering.roles import specialised


class CudaLowering(Lowering[CudaSchedule], View):
    """Every loop over the columns loads the row again from shared memory, or takes it from registers."""

    def body(self) -> Iterator[Statement]:
        yield Columns()
        body = [load for buffer in self.weights() for load in self.load(buffer)]
        body += self.start_sums()
        body += [load for buffer in self.numbers()[0] for load in self.load(buffer)]
        body.append(Tiles((self.tile(),), "queue" if self.is_queued else "chunk"))
        body += [Keep(value.name) for value in self.outer]
        whole = body if self.is_queued else [Chunks(tuple(body))]
        producer, consumers = specialised(whole, [b.name for b in self.copied()])
        yield from (producer, overlapped(consumers) if self.schedule.lag else consumers)

    def of_tile(self) -> Iterator[Statement]:
        loads = [load for buffer in self.numbers()[1] for load in self.load(buffer)]
        if numbers := (*loads, *self.scalars()):
            yield EachRow(numbers)
        if self.schedule.tile == "registers":
            held = (statement for b in self.streamed() for statement in (Load(b.name), Hold(b.name)))
            yield ColumnLoop((EachRow(tuple(held)),))
        yield from self.stages()

    def recomputes(self, stage: int) -> bool:
        return stage > 0

    def columns_of(self, stage: int) -> Iterator[Statement]:
        """A loop over the columns of a row, and what it has of the row's reductions."""
        inner = [name for name in self.loops.inner[stage] if name not in self.centres]
        sums = [v.name for v in self.sums(stage) if self.sums_vectors(v)]
        stores = [output.buffer.name for output in self.stores(stage)]
        if not (inner or sums or stores):
            return
        yield from (Start(name, lanes=True) for name in inner)
        streamed = {buffer.name for buffer in self.streamed()}
        load = Restore if self.schedule.tile == "registers" else Load
        body: list[Statement] = [load(b) for b in self.inputs if b in streamed and b in self.loops.used[stage]]
        held = self.held_terms
        body += [Restore(n, held[n]) for n in self.by_name if n in held and n in self.loops.used[stage]]
        body += [Compute(n, again=stage > 0) for n in self.loops.values[stage] if not self.is_const(n)]
        body += [Accumulate(name, lanes=True) for name in inner]
        kept = tuple(name for name in inner if name in held.values())
        body += [Hold(name, lanes=True) for name in kept]
        body += [*map(Store, stores), *map(Accumulate, sums)]
        yield ColumnLoop((EachRow(tuple(body)),))
        if kept:
            yield Exponentials(kept)

    def results(self, stage: int) -> Iterator[Statement]:
        found = [*super().results(stage)]
        yield from (each for each in found if isinstance(each, Reduce))
        if numbers := tuple(each for each in found if not isinstance(each, Reduce)):
            yield EachRow(numbers)

    def block_reductions(self, values: Sequence[Value]) -> Iterator[Sequence[Value]]:
        """Those of one kind and type: they are exchanged together. What is the centre of another comes with it."""
        groups: dict[tuple[str, str], list[Value]] = {}
        for value in values:
            op = self.by_name[self.centres.get(value.name, value.name)].op
            groups.setdefault((op, value.dtype), []).append(value)
        yield from groups.values()
