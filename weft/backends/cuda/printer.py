"""Prints the pass of a CUDA C++ kernel over its rows: the warp that copies, and those that compute."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager

from weft.backends.c_expressions import C_TYPES
from weft.backends.cuda.tiles import RowTiles
from weft.ir.program import Buffer
from weft.lowering.nest import (
    Accumulate,
    Behind,
    Chunks,
    ColumnLoop,
    Compute,
    Copy,
    Keep,
    Load,
    Reduce,
    Role,
    Start,
    Statement,
    Store,
    Tile,
    Tiles,
    flat,
)


class Printer(RowTiles):
    """Prints the statements of roles."""

    # the warp that copies

    def producer(self, role: Role) -> None:
        if self.copies_by_lanes:
            self.out.line("const int lane = threadIdx.x % w::WARP;")
        one = [] if self.copies_by_lanes else ["threadIdx.x == threads"]
        with self._of_those_that_copy(), self.guarded(one), self._chunks(self.copied()):
            for statement in _of_chunks(role):
                assert isinstance(statement, Tiles)
                with self._tiles():
                    if self.is_queued:
                        by_lanes = "w::from_lane(lane == 0 ? queue.next() : 0, 0)"
                        found = by_lanes if self.copies_by_lanes else "queue.next()"
                        self.out.line(f"next_row = {found}{self.times_rows};")
                    elif self.has_next_rows:
                        self.out.line("next_row = tiles.next();")
                    self.out.line("ring.wait_until_free();")
                    if self.has_next_rows:
                        self.out.line(f"{'if (lane == 0) ' * self.copies_by_lanes}ring.set_next_row(next_row);")
                    for copy in statement.body:
                        assert isinstance(copy, Copy)
                        self._copy([self.inputs[name] for name in copy.buffers])
                    if self.copies_numbers:
                        self.out.line("ring.numbers_copied();")
                    self.out.line("ring.copied();")

    @contextmanager
    def _of_those_that_copy(self) -> Generator[None]:
        """One thread copies all rows of a tile, or each lane of the warp one."""
        before, self.copies = self.several, True
        self.several = self.several and not self.is_grouped
        yield
        self.several, self.copies = before, False

    def _copy(self, buffers: Sequence[Buffer]) -> None:
        line = self.out.line
        if self.copies_tiles:
            line(f"const int64_t count = min(end_row - {self.tile}, static_cast<int64_t>({self.stage_rows}));")
            for buffer in buffers:
                first, each = f"{buffer.name}_at({self.tile})", " * columns" * self.has_columns(buffer)
                end = f"{buffer.name} + {self.end(buffer)}"
                line(f"ring.copy({self.slot(buffer)}, {first}, {first} + count{each}, {end});")
            return
        own = ["lane < stage_rows"] if self.copies_by_lanes else []
        with self.each_row(), self.guarded([*own, *self.exists()]):
            self.out.line(f"const int before = beginning({self.reference.name}_at({self.row}));")
            self.out.line("const int begin = max(first * lanes - before, 0);")
            self.out.line("const int end = min((first + own) * lanes - before, columns);")
            for buffer in buffers:
                row, slot = f"{buffer.name}_at({self.row})", self.slot(buffer)
                if self.has_columns(buffer):
                    self.out.line(f"ring.copy({slot}, {row} + begin, {row} + end, {buffer.name} + {self.end(buffer)});")
                else:
                    self.out.line(f"ring.copy_number({slot}, {row});")

    # loops over rows

    @contextmanager
    def _chunks(self, addressed: Iterable[Buffer]) -> Generator[None]:
        """addressed: buffers whose rows are looked for."""
        line = self.out.line
        head = "for (int chunk = blockIdx.x / cluster; chunk < chunks; chunk += gridDim.x / cluster)"
        with ExitStack() as parts:
            if not self.is_queued:
                parts.enter_context(self.out.block(head))
            if self.has_parts:
                head = f"for ({self.part_type} part = parts.first(chunk); part <= parts.last(chunk); ++part)"
                parts.enter_context(self.out.block(head))
                if self.segments:
                    line(f"const int64_t segment = {self.segment_of('part')};")
                template = f"{'apart' if self.apart > 1 else 1}, {self.stage_rows or 1}, turn"
                # sizes of run time: what all parts have in common would be computed before the loop, and kept
                rows = "rows" if self.count(self.rows) is not None else "w::once(rows)"
                line(f"auto tiles = w::tiles_of<{template}>(parts, part, chunk, {rows});")
                line("const int64_t first_row = tiles.next(), end_row = rows;")
            elif self.is_queued:
                line(f"const int64_t first_row = queue.first(){self.times_rows}, end_row = rows;")
            else:
                rows = self.times_rows
                line(f"const int64_t first_row = chunk{rows}, end_row = rows, stride = chunks{rows};")
            for buffer in dict.fromkeys(addressed):
                offset = self.offset(buffer)
                at = f"{buffer.name} + {offset}" if offset else buffer.name
                line(f"const auto {buffer.name}_at = [&](int64_t row) {{ return {at}; }};")
            yield

    @contextmanager
    def _tiles(self) -> Generator[None]:
        first = self.tile
        if self.has_next_rows:
            head = f"for (int64_t {first} = first_row, next_row; {first} < end_row; {first} = next_row)"
        else:
            head = f"for (int64_t {first} = first_row; {first} < end_row; {first} += stride)"
        with self.out.block(head):
            if self.is_grouped and not (self.copies and self.copies_tiles):
                self.out.line(f"const int64_t row = tile + {'lane' if self.copies else 'group'};")
            yield

    # the warps that compute

    def consumers(self, role: Role) -> None:
        copied = self.copied() if self.copies_tiles else self.streamed()
        addressed = [*copied, *self.weights(), *self.numbers()[0], *self.picked()]
        addressed += [o.buffer for stores in self.loops.stores for o in stores]
        with self._chunks(addressed):
            if self.keeps_columns:
                first = "first_row + group" if self.is_grouped else "first_row"
                self.out.line(f"const int before = early ? w::once(beginning({self.reference.name}_at({first}))) : 0;")
            if self.clears_edges:
                self.find_edges()
            statements = _of_chunks(role)
            for statement in statements:
                if not (self.is_grouped and isinstance(statement, Keep)):
                    self._of_chunk(statement)
            if kept := [self.by_name[s.value] for s in statements if isinstance(s, Keep)] * self.is_grouped:
                self.keep_of_groups(kept)

    def _of_chunk(self, statement: Statement) -> None:
        line = self.out.line
        match statement:
            case Load(buffer=name) if self.has_columns(self.inputs[name]):
                self.load_weight(self.inputs[name])
            case Load(buffer=name):
                buffer = self.inputs[name]
                line(f"const {C_TYPES[buffer.dtype]} {name}_number = *{name}_at(first_row);")
            case Start(value=name):
                self.start(self.by_name[name])
            case Tiles(body=(Tile(body=(*body, Behind(body=behind))),)):
                self._overlapping(body, behind)
            case Tiles(body=(Tile(body=body),)):
                with self._tiles():
                    self._next_row()
                    for each in body:
                        self.of_tile(each)
            case Keep(value=name):
                self.keep(self.by_name[name])
            case _:
                raise AssertionError(f"nobody prints {statement}")

    def _next_row(self) -> None:
        """The row tile behind this one, where that comes with the copies of this one."""
        if self.has_next_rows:
            self.out.line("ring.wait_until_filled();")
            self.out.line("next_row = ring.next_row();")

    def _overlapping(self, body: Sequence[Statement], behind: Sequence[Statement]) -> None:
        """Tiles of which the second part is done when the first one is done with the next tile."""
        line, held = self.out.line, self._held(body, behind)
        rows = "[tile_rows]" if self.several else ""
        with self.out.block("struct Tile", "} held, fresh;"):
            line("unsigned sent;")
            line("int64_t row;")
            for name, kind in held.items():
                line(f"{kind} {name}{rows};")
        line("#pragma unroll 1")
        self.tile = "ahead"
        head = "for (int64_t ahead = first_row; ; ahead += stride)"
        if self.has_next_rows:
            head = "for (int64_t ahead = first_row, next_row = first_row; ; ahead = next_row)"
        with self.out.block(head):
            with self.out.block("if (ahead < end_row)"):
                line(f"const int64_t row = ahead{' + group' * self.is_grouped};")
                self._next_row()
                for each in body:
                    self.of_tile(each)
                each_row = "for (int r = 0; r < tile_rows; ++r) " if self.several else ""
                line("fresh.sent = sent, fresh.row = row;")
                if held:
                    line(f"{each_row}{', '.join(f'fresh.{name}{self.of_row} = {name}{self.of_row}' for name in held)};")
            with self.out.block("if (ahead != first_row)"):
                for name in ("sent", "row", *held):
                    line(f"const auto& {name} = held.{name};")
                for each in behind:
                    self.of_tile(each)
            line("if (ahead >= end_row) break;")
            line("held = fresh;")

    def _held(self, body: Sequence[Statement], behind: Sequence[Statement]) -> dict[str, str]:
        """What the second part of a tile has of each row from the first, and the types."""
        used = {self.outputs[s.output].value for s in flat(behind) if isinstance(s, Store)}
        for statement in flat(behind):
            if isinstance(statement, Compute | Accumulate):
                used |= {*self.by_name[statement.value].args}
        passes = any(isinstance(s, ColumnLoop) for s in behind)
        held = {"before": "int"} if passes and not self.keeps_columns else {}
        for statement in flat(body):
            match statement:
                case Load(buffer=name) if name in used and not self.has_columns(self.inputs[name]):
                    held[f"{name}_number"] = C_TYPES[self.inputs[name].dtype]
                case Compute(value=name) if name in used and not self.is_vector(name):
                    held[name] = C_TYPES[self.by_name[name].dtype]
                case Reduce(values=names):
                    held |= {name: C_TYPES[self.by_name[name].dtype] for name in names if name in used}
                case _:
                    pass
        loaded = {s.buffer for s in flat(behind) if isinstance(s, Load)}
        stages = {f"{b.name}_stage": f"const {C_TYPES[b.dtype]}*" for b in self.streamed() if b.name in loaded}
        return held | stages


def _of_chunks(role: Role) -> tuple[Statement, ...]:
    """What it does for each chunk; where tiles are of a queue, what it does."""
    first = role.body[0]
    return first.body if isinstance(first, Chunks) else role.body
