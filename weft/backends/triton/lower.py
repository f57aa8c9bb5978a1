"""What the first function of a Triton kernel does: tiles of rows that programs take, or loop over where they add up
columns, and of rows that are too wide for registers loops over blocks of columns."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from weft.backends.triton.division import completes_sums, finish_blocks, has_finish, is_persistent, sum_columns
from weft.backends.triton.schedule import TritonKernel
from weft.backends.triton.view import View
from weft.ir.ops import ONLINE
from weft.ir.program import Buffer, Output, Value
from weft.lowering.nest import (
    Accumulate,
    Block,
    Blocks,
    Chunks,
    Columns,
    Compute,
    Early,
    Gather,
    GridSync,
    Keep,
    Load,
    Nest,
    Point,
    Reduce,
    Rest,
    Rows,
    Segment,
    Start,
    Statement,
    Store,
    Tasks,
    Tile,
    Tiles,
    Total,
    verify_nest,
)

MOST_TOGETHER = 4
"""Sums that are exchanged at once."""


def lower(kernel: TritonKernel) -> tuple[Nest, ...]:
    """The nests of the functions of a kernel whose own names are free: one for all, or one for the finish, where that
    is launched by itself."""
    body = tuple(Lowering(kernel).body())
    if not has_finish(kernel):
        bodies = [body]
    elif kernel.schedule.finish == "same":
        bodies = [(*body, GridSync(), *_finish(kernel))]
    else:
        bodies = [body, tuple(_finish(kernel))]
    return tuple(verify_nest(Nest(kernel.program, one)) for one in bodies)


def _finish(kernel: TritonKernel) -> Iterator[Statement]:
    """What is done once all programs have passed over their rows."""
    view = View(kernel)
    for kept, outputs in finish_blocks(kernel).items():
        needed, groups = view.needed_behind_sums(outputs), dict[object, list[str]]()
        for value in (v for v in view.outer if v.name in needed):
            own = tuple(s for s in view.segments if s in value.dims)
            groups.setdefault((own, sum_columns(kernel, value)), []).append(value.name)
        gathered = [Gather(tuple(names)) for names in groups.values()]
        yield Tasks((*gathered, *behind_sums(view, outputs, needed)), kept)


def behind_sums(
    view: View, outputs: Iterable[Output], needed: Collection[str], loaded: Collection[str] = ()
) -> Iterator[Statement]:
    """What is done with complete column sums. needed: what these results are made from. loaded: inputs that are
    there."""
    for buffer in view.program.inputs:
        if buffer.name in needed and buffer.name not in loaded:
            yield Load(buffer.name)
    for name in (*view.loops.epilogue_scalars, *view.loops.epilogue_values):
        if name in needed and not view.is_const(name):
            yield Compute(name)
    yield from (Store(output.buffer.name, complete=True) for output in outputs)


class Lowering(View):
    """Statements in order. Loads come first, since nothing waits for them then."""

    def __init__(self, kernel: TritonKernel) -> None:
        super().__init__(kernel)
        self.defined: set[str] = set()
        self.looped = self.schedule.scheme == "LOOP"

    def body(self) -> Iterator[Statement]:
        if not self.looped and not self.places.early:
            yield Columns()
        if is_persistent(self.kernel):
            yield from self._persistent()
        elif completes_sums(self.kernel):
            yield from self._all_rows()
        else:
            if self.places.rows:
                yield Rows(of_program=True)
            yield from self._early("tile")
            yield self._tile()

    # programs

    def _persistent(self) -> Iterator[Statement]:
        """Programs that stay, each with chunks of rows where something is added up or rows begin between sectors."""
        in_chunks = bool(self.outer) or self.places.early is not None
        of = "chunk" if in_chunks else "program"
        body = [*self._early(of), *self._invariants(), *self._start_sums()]
        body.append(Tiles((self._tile(),), of, self._runs_ahead()))
        body += [Keep(v.name, piece) for v in self.outer for piece in self._pieces_of(v)]
        if in_chunks:
            yield Chunks(tuple(body))
        else:
            yield from body

    def _all_rows(self) -> Iterator[Statement]:
        """All rows of a segment in one program, and what is done with their sums."""
        if self.places.segments:
            yield Segment()
        yield from self._invariants()
        yield from self._start_sums()
        yield self._tile() if self.places.has_one_tile else Tiles((self._tile(),), "segment", self._runs_ahead())
        yield from (Total(value.name) for value in self.outer)
        stores = self.loops.epilogue_stores
        yield from behind_sums(self, stores, self.needed_behind_sums(stores), self.defined)

    def _runs_ahead(self) -> bool:
        return self.schedule.stages > 1 and not self.looped

    def _early(self, of: str) -> Iterator[Statement]:
        """Columns from the sector on that the rows of a program begin in, if they do not all begin with one."""
        if self.places.early is not None:
            weights = (b for b in self.used_inputs() if self.places.has_columns(b) and not self.places.has_rows(b))
            yield Early(of, tuple(b.name for b in weights))

    def _invariants(self) -> Iterator[Statement]:
        """Inputs that are the same for all rows of a segment, and stay in registers."""
        loaded_again = self.looped or self.schedule.keeps == "tiles"
        for buffer in self.used_inputs():
            if not self.places.has_rows(buffer) and not (loaded_again and self.places.has_columns(buffer)):
                yield from self._load(buffer)

    def _start_sums(self) -> Iterator[Statement]:
        yield from (Start(value.name, piece) for value in self.outer for piece in self._pieces_of(value))

    def _pieces_of(self, value: Value) -> range:
        """Of what an outer reduction adds up."""
        return self.pieces() if self.sums_vectors(value) else range(1)

    def _load(self, buffer: Buffer) -> Iterator[Statement]:
        self.defined.add(buffer.name)
        yield from (Load(buffer.name, p) for p in (self.pieces() if self.places.has_columns(buffer) else range(1)))

    # a tile

    def _tile(self) -> Tile:
        outside = set(self.defined)
        body = tuple(self._of_tile())
        self.defined = outside
        return Tile(body)

    def _of_tile(self) -> Iterator[Statement]:
        if self.places.rows:
            yield Rows()
        buffers = tuple(b.name for b in self.row_buffers())
        if self.looped and self._shifts():
            self.places.shifted = True
            yield Point(buffers, shifted=True)
        elif buffers:
            yield Point(buffers)
        for buffer in self._in_order(self.used_inputs()):
            rows, columns = self.places.has_rows(buffer), self.places.has_columns(buffer)
            wanted = not columns or (not self.looped and (rows or self.schedule.hoisted))
            if wanted and buffer.name not in self.defined:
                yield from self._load(buffer)
        yield from self._scalars()
        for stage in range(len(self.loops.values)):
            lanes = dict[str, str]()
            if self.looped:
                yield from self._column_loop(stage, lanes)
            else:
                yield from self._stage(stage)
            yield from self._results(stage, lanes)

    def _in_order(self, inputs: list[Buffer]) -> list[Buffer]:
        """What a tile loads first: what all of its rows have in common, and tiles then. Triton moves what is loaded
        first to meet what is loaded last: a statistic of as many rows as there are threads is loaded before tiles, too,
        which would be laid out a row to a thread otherwise. A single row is loaded before weights, for which nobody
        waits as long."""
        several, tall = self.schedule.rows_per_tile > 1, self.schedule.rows_per_tile >= 32 * self.schedule.warps

        def place(buffer: Buffer) -> int:
            if several:
                is_tile = self.places.has_columns(buffer) or not tall
                return int(is_tile and self.places.has_rows(buffer) and not self.places.is_uniform(buffer))
            return int(not self.places.has_rows(buffer) and self.places.has_columns(buffer))

        return sorted(inputs, key=place)

    def _scalars(self) -> Iterator[Statement]:
        """Values without columns for which everything is there."""
        for name in self.loops.scalars:
            args = self.by_name[name].args[self.by_name[name].op == "pick" :]  # of an input that is nowhere whole
            ready = all(a in self.defined or self.is_const(a) for a in args)
            if name not in self.defined and ready:
                self.defined.add(name)
                if not self.is_const(name):
                    yield Compute(name)

    def _stage(self, stage: int) -> Iterator[Statement]:
        """What is computed from the results of the row reductions so far, piece by piece. Inputs without rows, which
        caches have, are loaded where they are needed: until then they would hold registers."""
        for buffer in self.program.inputs:
            if buffer.name in self.loops.used[stage] and buffer.name not in self.defined:
                yield from self._load(buffer)
        again = self.schedule.keeps != "values" and any(self.loops.inner[:stage])
        new = [n for n in self.loops.values[stage] if again or n not in self.defined]
        for piece in self.pieces():
            yield from (Compute(name, piece, again) for name in new if not self.is_const(name))
            yield from (Store(o.buffer.name, piece) for o in self.loops.stores[stage] if self.along_columns(o))
            yield from (Accumulate(v.name, (piece,)) for v in self._sums(stage) if self.sums_vectors(v))
        self.defined |= set(new)

    def _sums(self, stage: int) -> list[Value]:
        return [self.by_name[name] for name in self.loops.outer[stage]]

    def _results(self, stage: int, lanes: dict[str, str]) -> Iterator[Statement]:
        """After the columns of a stage: row reductions, numbers made from them, and what is done with numbers. lanes:
        what row reductions have of the blocks of columns."""
        for together in self._alike([self.by_name[name] for name in self.loops.inner[stage]]):
            names = tuple(value.name for value in together)
            yield Reduce(names, tuple(lanes.get(name, name) for name in names) if self.looped else ())
        self.defined |= set(self.loops.inner[stage])
        yield from self._scalars()
        yield from (Store(o.buffer.name) for o in self.loops.stores[stage] if not self.along_columns(o))
        yield from (Accumulate(v.name) for v in self._sums(stage) if not self.sums_vectors(v))

    def _alike(self, values: list[Value]) -> Iterator[list[Value]]:
        """Row reductions that can be done in one exchange: sums of one type and shape, four at a time."""
        groups: dict[tuple[object, ...], list[Value]] = {}
        for value in values:
            rows = self.extent(value.args[0])[0], self.is_spread(value.args[0])
            alone = value.name if value.op != "sum" else ""
            groups.setdefault((value.op, value.dtype, *rows, alone), []).append(value)
        for group in groups.values():
            if self.looped and group[0].op in ONLINE:
                yield from ([value] for value in group)
            else:
                yield from (group[i : i + MOST_TOGETHER] for i in range(0, len(group), MOST_TOGETHER))

    # loops over columns

    def _shifts(self) -> bool:
        """Whether rows start between vectors, in the same place in all buffers that have rows and columns."""
        rows, columns, buffers = self.places.rows, self.places.columns, self.row_buffers()
        if self.schedule.rows_per_tile != 1 or len(rows) != 1 or len(columns) != 1 or self.places.segments:
            return False
        layouts = {(b.offset, *(b.stride_of[d] for d in (*rows, *columns))) for b in buffers}
        if len(layouts) != 1:
            return False
        _, row, column = layouts.pop()
        return column == 1 and (isinstance(row, str) or row % self.aligned(buffers) != 0)

    def _column_loop(self, stage: int, lanes: dict[str, str]) -> Iterator[Statement]:
        """One loop over the columns of a row, without masks in the main. lanes: is told of row reductions that are a
        part of another one."""
        inner = [self.by_name[name] for name in self.loops.inner[stage]]
        if not (self.loops.values[stage] or inner or any(map(self.along_columns, self.loops.stores[stage]))):
            return
        centres = {v.args[0]: v.name for v in inner if v.op == "sumexp"}
        lanes |= {v.name: centres[v.args[0]] for v in inner if v.op == "max" and v.args[0] in centres}
        inner = [v.name for v in inner if v.name not in lanes]
        yield from (Start(name, lanes=True) for name in inner)
        width, every = self.schedule.tile_columns, self.schedule.pieces
        count, shifted = self.places.count(self.schedule.columns), self.places.shifted
        long = isinstance(count, int) and count >= width
        if shifted:
            whole = tuple(range(1, every)) if long else ()
            body = self._block(stage, inner, list(range(every)))
            yield Block(body, "head", every, masked=True, whole=whole)
        if not isinstance(count, int) or shifted or long:
            body = self._block(stage, inner, list(range(every)))
            yield Blocks((Block(body, "start", every),), width if shifted else 0)
        if isinstance(count, int) and not shifted:
            if count % width:
                rest = -(-(count % width) // self.schedule.piece_columns)
                start = str(count // width * width) if long else ""
                yield Block(self._block(stage, inner, list(range(rest))), start, rest, masked=True)
            return
        body = self._block(stage, inner, list(range(every)))
        yield Rest((Block(body, "rest", every, masked=True),), width if shifted else 0)

    def _block(self, stage: int, inner: list[str], pieces: list[int]) -> tuple[Statement, ...]:
        """What is done with one block of columns."""
        found = list[Statement]()
        for buffer in self.program.inputs:
            if buffer.name in self.loops.used[stage] and self.places.has_columns(buffer):
                found += [Load(buffer.name, piece) for piece in pieces]
        stores = [o.buffer.name for o in self.loops.stores[stage] if self.along_columns(o)]
        for piece in pieces:
            found += [Compute(name, piece) for name in self.loops.values[stage] if not self.is_const(name)]
            found += [Store(name, piece) for name in stores]
        found += [Accumulate(name, tuple(pieces), lanes=True) for name in inner]
        return tuple(found)
