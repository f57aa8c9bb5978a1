"""The rows of a Triton kernel: tiles of rows that programs take, or loop over where they add up columns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from weft.backends.triton.column_sums import ColumnSums
from weft.backends.triton.expressions import COMBINE, reduction
from weft.backends.triton.launches import completes_sums, is_persistent
from weft.ir.ops import ONLINE
from weft.ir.program import Buffer, Size, Value

MOST_TOGETHER = 4
"""Sums that ``w.sums`` takes."""


class Rows(ColumnSums):
    """Writes the first function of a kernel but for its head."""

    def write(self) -> None:
        self.defined: set[str] = set()
        self.persistent = is_persistent(self.kernel)
        self.looped = self.schedule.scheme == "LOOP"
        blocks = self.places.blocks()
        if isinstance(blocks, str):
            self.out.line(f"blocks = tl.cast({blocks}, tl.int32)")
            blocks = "blocks"
        if blocks != 1:
            self.out.line(f"block = tl.program_id(0) % {blocks}")
        if not self.looped and not self.places.early:
            self._columns()
        with ExitStack() as stack:
            if self.persistent:
                first, step = "tl.program_id(0)", "tl.num_programs(0)"
                if self.outer or self.places.early:
                    self._enter_chunks(stack)
                    first, step = "chunk", self.places.chunks()
                self._start_early(first)
                self._invariants()
                self._start_sums()
                with self.out.block(f"for {self._tiles(first, step)}"):
                    self._tile()
                self._store_sums()
            elif completes_sums(self.kernel):
                self._all_rows()
            else:
                if self.places.rows:
                    self.out.line("tile = tl.program_id(0)" + (f" // {blocks}" if blocks != 1 else ""))
                self._start_early(self.places.tile)
                self._tile()

    def _tiles(self, first: str, step: Size) -> str:
        """Row tiles of a program or a chunk, loaded ahead."""
        ahead = f", num_stages={self.schedule.stages}" if self.schedule.stages > 1 and not self.looped else ""
        return f"tile in tl.range({first}, {self.places.tiles()}, {step}{ahead})"

    def _enter_chunks(self, stack: ExitStack) -> None:
        """Loops over the chunks of all segments: one for each program, more if fewer programs could be started. What is
        added up, or where rows begin, is that of a chunk."""
        segments, chunks = self.places.count(self.places.segments), self.places.chunks()
        if not self.places.segments:
            head = f"for chunk in range(tl.program_id(0), {chunks}, tl.num_programs(0))"
            stack.enter_context(self.out.block(head))
            return
        head = f"for part in range(tl.program_id(0), {self.places.times(segments, chunks)}, tl.num_programs(0))"
        stack.enter_context(self.out.block(head))
        self._define_segment(f"part // {chunks}")
        self.out.line(f"chunk = part % {chunks}")

    def _all_rows(self) -> None:
        """All rows of a segment in one program, and what is done with their sums."""
        if self.places.segments:
            self._define_segment("tl.program_id(0)")
        self._invariants()
        self._start_sums()
        with ExitStack() as loop:
            if not self.places.has_one_tile:
                loop.enter_context(self.out.block(f"for {self._tiles('0', 1)}"))
            self._tile()
        for value in self.outer:
            self._total(value)
        stores = self.loops.epilogue_stores
        first = f"({self.places.block} == 0)" if self.places.splits_columns else ""
        self.epilogue(stores, self.needed_behind_sums(stores), first, self.defined)

    def _define_segment(self, text: str) -> None:
        self.out.line(f"{self.places.segment} = {f'tl.cast({text}, tl.int64)' if self.places.is_wide else text}")

    def _columns(self) -> None:
        """Columns of each piece, the same for all rows."""
        width = self.schedule.piece_columns
        for piece, start in enumerate(self.places.piece_starts()):
            block = self.places.block
            block = f"tl.cast({block}, tl.int64)" if self.places.has_wide_columns else block
            text = f"{block} * {width}" if self.places.splits_columns else str(start) if start else ""
            if self.schedule.columns:
                self.define_index(self.places.place_of(piece), width, text)
                self.define_column_mask(piece)

    def _start_early(self, row: str) -> None:
        """Columns from the sector on that the rows of a program begin in, if they do not all begin with one. row: the
        number of one of them, as far as where it begins in a sector depends on it."""
        early = self.places.early
        if early is None:
            return
        first = self.places.row_offset(self._row_buffers()[0], row=row)
        text = f"({first}) % {early.sector}" if " + " in first else f"{first} % {early.sector}"
        self.out.line(f"early = {f'tl.multiple_of({text}, {early.step})' if early.step > 1 else text}")
        self._columns()
        for weight in self._used_inputs():
            if self.places.has_columns(weight) and not self.places.has_rows(weight):
                self._point(weight)

    def _invariants(self) -> None:
        """Inputs that are the same for all rows of a segment, and stay in registers."""
        loaded_again = self.looped or self.schedule.keeps == "tiles"
        for buffer in self._used_inputs():
            if not self.places.has_rows(buffer) and not (loaded_again and self.places.has_columns(buffer)):
                self._load_pieces(buffer)

    def _used_inputs(self) -> list[Buffer]:
        """Inputs that are needed while passing over the rows."""
        names = {a for n in self.loops.scalars for a in self.by_name[n].args}.union(*self.loops.used)
        return [b for b in self.program.inputs if b.name in names]

    def _load_pieces(self, buffer: Buffer) -> None:
        for piece in self._pieces() if self.places.has_columns(buffer) else range(1):
            self.load(buffer, piece)
        self.defined.add(buffer.name)

    def _tile(self) -> None:
        outside, pointers = set(self.defined), dict(self.pointers)
        self._row_index()
        if self.looped and self.shifts(self._row_buffers()):
            self.shift(self._row_buffers())
        else:
            for buffer in self._row_buffers():
                self._point(buffer)
        for buffer in self._in_order(self._used_inputs()):
            rows, columns = self.places.has_rows(buffer), self.places.has_columns(buffer)
            wanted = not columns or (not self.looped and (rows or self.schedule.hoisted))
            if wanted and buffer.name not in self.defined:
                self._load_pieces(buffer)
        self._scalars()
        for stage in range(len(self.loops.values)):
            if self.looped:
                self.column_loop(stage)
            else:
                self._stage(stage)
            self._results(stage)
        self.defined = outside
        self.pointers = pointers

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

    def _row_index(self) -> None:
        if not self.places.rows:
            return
        each, phases = self.schedule.rows_per_tile, self.places.phases
        start = "" if self.places.has_one_tile else "tile" if each == 1 else f"{self.places.tile} * {each}"
        if phases > 1:
            start = f"{self.places.tile} // {phases} * {phases * each} + tile % {phases}"
        self.define_index(self.places.row, each, start, axis=0, step=phases)
        if self.places.splits_vectors:
            self.out.line(f"is_last = tile == {self.places.last_tile()}")
        if self.places.rows_masked:
            self.out.line(f"row_exists = {self.places.row} < {self.places.count(self.places.rows)}")
            self.out.line(f"{self.places.row} = tl.minimum({self.places.row}, {self.places.last_row()})")

    def _point(self, buffer: Buffer) -> None:
        """Where a row begins in a tensor that has columns."""
        name, offset = f"{buffer.name}_at", self.places.row_offset(buffer)
        if self.places.early and not self.places.has_rows(buffer):
            self.out.line(f"{name} = {buffer.name} + {offset} - early" if offset else f"{name} = {buffer.name} - early")
        elif self.places.early:
            sector, one = self.places.early.sector, self.schedule.rows_per_tile == 1
            offset = self.places.row_offset(buffer, row=self.places.tile) if one else offset
            multiple = f"tl.multiple_of({offset} - early, {sector if one else [sector] * 2})"
            self.out.line(f"{name} = {buffer.name} + {multiple}")
        else:
            self.out.line(f"{name} = {buffer.name} + {offset}")
        self.pointers[buffer.name] = name

    def _row_buffers(self) -> list[Buffer]:
        buffers = [*self._used_inputs(), *(o.buffer for stores in self.loops.stores for o in stores)]
        places = self.places
        return [b for b in buffers if places.has_rows(b) and places.has_columns(b) and places.row_offset(b)]

    def _scalars(self) -> None:
        """Values without columns for which everything is there."""
        for name in self.loops.scalars:
            args = self.by_name[name].args[self.by_name[name].op == "pick" :]  # of an input that is nowhere whole
            ready = all(a in self.defined or self._is_const(a) for a in args)
            if name not in self.defined and ready:
                self.define(name, 0)
                self.defined.add(name)

    def _is_const(self, name: str) -> bool:
        return name in self.by_name and self.by_name[name].op == "const"

    def _stage(self, stage: int) -> None:
        """What is computed from the results of the row reductions so far, piece by piece."""
        self._load_late(stage)
        self.again = self.schedule.keeps != "values" and any(self.loops.inner[:stage])
        new = [n for n in self.loops.values[stage] if self.again or n not in self.defined]
        for piece in self._pieces():
            for name in new:
                self.define(name, piece)
            for output in self.loops.stores[stage]:
                if self._along_columns(output):
                    self._store(output, piece)
            for value in self._sums(stage):
                if self._sums_vectors(value):
                    self._add(value, piece)
        self.defined |= set(new)

    def _load_late(self, stage: int) -> None:
        """Inputs without rows, which the caches have, where they are needed: until then they would hold registers."""
        for buffer in self.program.inputs:
            if buffer.name in self.loops.used[stage] and buffer.name not in self.defined:
                self._load_pieces(buffer)

    def _sums(self, stage: int) -> list[Value]:
        return [self.by_name[name] for name in self.loops.outer[stage]]

    def _results(self, stage: int) -> None:
        """After the columns of a stage: row reductions, numbers made from them, and what is done with numbers."""
        inner = [self.by_name[name] for name in self.loops.inner[stage]]
        for together in self._alike(inner):
            self._reduce(together)
        self.defined |= set(self.loops.inner[stage])
        self._scalars()
        for output in self.loops.stores[stage]:
            if not self._along_columns(output):
                self._store(output, 0)
        for value in self._sums(stage):
            if not self._sums_vectors(value):
                self._add(value, 0)

    def _alike(self, values: list[Value]) -> Iterator[list[Value]]:
        """Row reductions that can be done in one exchange: sums of one type and shape, four at a time."""
        groups: dict[tuple[object, ...], list[Value]] = {}
        for value in values:
            rows = self.extent(value.args[0])[0], self.is_spread(value.args[0])
            alone = value.name if value.op != "sum" else ""
            groups.setdefault((value.op, value.dtype, *rows, alone), []).append(value)
        for group in groups.values():
            yield from (group[i : i + MOST_TOGETHER] for i in range(0, len(group), MOST_TOGETHER))

    def _reduce(self, values: list[Value]) -> None:
        """Row reductions of one kind: all pieces laid on each other, all values in one exchange between the threads."""
        names, op = ", ".join(value.name for value in values), values[0].op
        if self.looped and op in ONLINE:
            for value in values:
                self.out.line(f"{value.name} = w.{op}_of_row({', '.join(self.states(value, None))})")
            return
        if self.looped:
            self.out.line(
                f"{names} = {reduction(op, [self.lanes.get(value.name, f'{value.name}_lanes') for value in values], 1)}"
            )
            return
        combined: list[str] = []
        for value in values:
            text, *others = (self._reduced(value, piece) for piece in self._pieces())
            for other in others:
                text = COMBINE[op].format(text, other)
            combined.append(text)
        self.out.line(f"{names} = {reduction(op, combined, 1)}")

    def _reduced(self, value: Value, piece: int) -> str:
        """What a row reduction reduces of a piece."""
        if not self.is_vector(value.args[0]):
            raise AssertionError(f"{value.name} reduces no columns")
        operand = self._guarded(value, piece, self.operand(value.args[0], piece))
        rows, columns = self.extent(value.args[0])
        if columns:
            return operand
        shape = f"[{self.schedule.rows_per_tile if rows else 1}, {self.schedule.piece_columns}]"
        return f"tl.broadcast_to({operand}, {shape})"
