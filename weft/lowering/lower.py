"""From a kernel to the nest of its function, for every backend.

What is the same for all of them is here: what a stage computes, what follows from its row reductions, and what is done
with complete column sums. Backends have methods of their own for where a program's rows come from, what is loaded when
and how columns are taken. As it stands, one program does everything, with all rows and columns at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from weft.ir.program import Buffer, Output, Value
from weft.lowering.nest import (
    Accumulate,
    Compute,
    Gather,
    GridSync,
    Load,
    Nest,
    Reduce,
    Start,
    Statement,
    Store,
    Tasks,
    Tile,
    Total,
)
from weft.lowering.verify import verify_nest
from weft.lowering.view import KernelView
from weft.plan.kernel import Kernel, S


class Lowering(KernelView[S]):
    """Statements in order."""

    def __init__(self, kernel: Kernel[S]) -> None:
        super().__init__(kernel)
        self.defined: set[str] = set()
        """Inputs and values that are there."""

    def nest(self) -> Nest:
        """Of the kernel's one function. Raises VerificationError."""
        return verify_nest(Nest(self.program, tuple(self.body())))

    def functions(self, *, completes_sums: bool = False) -> tuple[Nest, ...]:
        """Of the kernel's functions: one for all, or one for the finish, where that is launched by itself.
        completes_sums: whether a program passes over all rows of its columns, so that nothing is left for a finish.
        Raises VerificationError."""
        body = tuple(self.body())
        if completes_sums or not self.loops.epilogue_stores:
            bodies = [body]
        elif self.schedule.finish == "same":
            bodies = [(*body, GridSync(), *self.finish())]
        else:
            bodies = [body, tuple(self.finish())]
        return tuple(verify_nest(Nest(self.program, one)) for one in bodies)

    def body(self) -> Iterator[Statement]:
        """Of one program that has all rows, and does what there is to do with their sums."""
        yield from self.start_sums()
        yield self.tile()
        yield from self.totals()

    # rows

    def start_sums(self) -> Iterator[Statement]:
        yield from (Start(value.name, piece) for value in self.outer for piece in self.pieces_of(value))

    def pieces(self) -> range:
        """Of a row."""
        return range(1)

    def pieces_of(self, value: Value) -> range:
        """Of what an outer reduction adds up."""
        return self.pieces() if self.sums_vectors(value) else range(1)

    def tile(self) -> Tile:
        outside = set(self.defined)
        body = tuple(self.of_tile())
        self.defined = outside
        return Tile(body)

    def of_tile(self) -> Iterator[Statement]:
        for buffer in self.used_inputs():
            yield from self.load(buffer)
        yield from self.scalars()
        yield from self.stages()

    def stages(self) -> Iterator[Statement]:
        """The columns of each stage, and what follows from its row reductions."""
        for stage in range(len(self.loops.values)):
            yield from self.columns_of(stage)
            yield from self.results(stage)

    def load(self, buffer: Buffer) -> Iterator[Statement]:
        self.defined.add(buffer.name)
        yield from (Load(buffer.name, p) for p in (self.pieces() if self.has_columns(buffer) else range(1)))

    def scalars(self) -> Iterator[Statement]:
        """Values without columns for which everything is there."""
        for name in self.loops.scalars:
            args = self.by_name[name].args[self.by_name[name].op == "pick" :]  # of an input that is nowhere whole
            ready = all(a in self.defined or self.is_const(a) for a in args)
            if name not in self.defined and ready:
                self.defined.add(name)
                if not self.is_const(name):
                    yield Compute(name)

    # a stage

    def columns_of(self, stage: int) -> Iterator[Statement]:
        """What is computed from the results of the row reductions so far, piece by piece. Inputs that were not loaded
        yet are loaded where they are needed: until then they would hold registers."""
        for buffer in self.program.inputs:
            if buffer.name in self.loops.used[stage] and buffer.name not in self.defined:
                yield from self.load(buffer)
        again = self.recomputes(stage)
        new = [n for n in self.loops.values[stage] if again or n not in self.defined]
        for piece in self.pieces():
            yield from (Compute(name, piece, again) for name in new if not self.is_const(name))
            yield from (Store(output.buffer.name, piece) for output in self.stores(stage))
            yield from (Accumulate(v.name, (piece,)) for v in self.sums(stage) if self.sums_vectors(v))
        self.defined |= set(new)

    def recomputes(self, stage: int) -> bool:
        """Whether a stage computes values again that stages before it had."""
        return False

    def stores(self, stage: int, along: bool = True) -> list[Output]:
        """What a stage writes along columns, or once a row."""
        return [output for output in self.loops.stores[stage] if self.along_columns(output) == along]

    def sums(self, stage: int) -> list[Value]:
        """Outer reductions of what a stage computes."""
        return [self.by_name[name] for name in self.loops.outer[stage]]

    def results(self, stage: int) -> Iterator[Statement]:
        """After the columns of a stage: row reductions, numbers made from them, and what is done with numbers."""
        inner = [self.by_name[name] for name in self.loops.inner[stage]]
        for together in self.block_reductions(inner):
            yield self.reduce(tuple(value.name for value in together))
        self.defined |= set(self.loops.inner[stage])
        yield from self.scalars()
        yield from (Store(output.buffer.name) for output in self.stores(stage, along=False))
        yield from (Accumulate(v.name) for v in self.sums(stage) if not self.sums_vectors(v))

    def block_reductions(self, values: Sequence[Value]) -> Iterator[Sequence[Value]]:
        """Row reductions by those that are done together."""
        yield from ([value] for value in values)

    def reduce(self, names: tuple[str, ...]) -> Reduce:
        return Reduce(names)

    # complete column sums

    def totals(self) -> Iterator[Statement]:
        """Of a program that has passed over all rows."""
        yield from (Total(value.name) for value in self.outer)
        stores = self.loops.epilogue_stores
        yield from self.behind_sums(stores, self.needed_behind_sums(stores), self.defined)

    def finish(self) -> Iterator[Statement]:
        """What is done once all programs have passed over their rows, by the row dimensions that results keep."""
        for kept, outputs in self.loops.epilogue_blocks(self.rows).items():
            yield Tasks(tuple(self.of_tasks(outputs)), kept)

    def of_tasks(self, outputs: Sequence[Output]) -> Iterator[Statement]:
        """Outer reductions of all chunks, those of one shape side by side, and the epilogue on them."""
        needed, groups = self.needed_behind_sums(outputs), dict[object, list[str]]()
        for value in (v for v in self.outer if v.name in needed):
            dims = tuple(d for d in (*self.segments, *self.columns) if d in value.dims)
            groups.setdefault(dims, []).append(value.name)
        yield from (Gather(tuple(names)) for names in groups.values())
        yield from self.behind_sums(outputs, needed)

    def behind_sums(
        self, outputs: Iterable[Output], needed: Collection[str], loaded: Collection[str] = ()
    ) -> Iterator[Statement]:
        """What is done with complete column sums. needed: what these results are made from. loaded: inputs that are
        there."""
        for buffer in self.program.inputs:
            if buffer.name in needed and buffer.name not in loaded:
                yield Load(buffer.name)
        for name in (*self.loops.epilogue_scalars, *self.loops.epilogue_values):
            if name in needed and not self.is_const(name):
                yield Compute(name)
        yield from (Store(output.buffer.name, complete=True) for output in outputs)
