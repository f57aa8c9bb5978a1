"""Prints the pass of a CUDA C++ kernel over its rows: the warp that copies, and those that compute."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from weft.backends.c_expressions import C_TYPES, COMBINE
from weft.backends.cuda.schedule import CudaKernel
from weft.backends.cuda.statements import REDUCTIONS, STATES
from weft.backends.cuda.vectors import Vectors
from weft.backends.source import Writer
from weft.ir.program import Buffer, Output, Value
from weft.lowering.nest import (
    Accumulate,
    Arrive,
    Behind,
    Chunks,
    ColumnLoop,
    Compute,
    Copy,
    EachRow,
    Keep,
    Load,
    Receive,
    Reduce,
    Release,
    Send,
    Start,
    Statement,
    Store,
    Tile,
    Tiles,
    flat,
)


class Printer(Vectors):
    """Prints the statements of roles."""

    def __init__(self, kernel: CudaKernel, writer: Writer) -> None:
        super().__init__(kernel, writer)
        self.per_row = {b.name + "_number" for b in self.numbers()[1]}
        self.per_row |= {v.name for v in self.program.values if self._varies_in_tile(v)}
        self.offsets, at = dict[str, int](), 0
        for buffer in self.streamed():
            self.offsets[buffer.name], at = at, at + self.slot_bytes(buffer) * self.schedule.rows_per_tile

    def _varies_in_tile(self, value: Value) -> bool:
        return not self.is_vector(value.name) and value.op != "const" and value not in self.outer

    # the warp that copies

    def producer(self, loop: Chunks) -> None:
        with self.out.block("if (threadIdx.x == threads)"), self._chunks(self.streamed()):
            for statement in loop.body:
                assert isinstance(statement, Tiles)
                with self._tiles():
                    if self.is_queued:
                        self.out.line(f"next_row = queue.next(){' * tile_rows' * self.several};")
                    self.out.line("ring.wait_until_free();")
                    if self.is_queued:
                        self.out.line("ring.set_next_row(next_row);")
                    for copy in statement.body:
                        assert isinstance(copy, Copy)
                        self._copy([self.inputs[name] for name in copy.buffers])
                    self.out.line("ring.copied();")

    def _copy(self, buffers: Sequence[Buffer]) -> None:
        with self.each_row(), self.guarded(self.exists()):
            self.out.line(f"const int before = beginning({self.reference.name}_at({self.row}));")
            self.out.line("const int begin = max(first * lanes - before, 0);")
            self.out.line("const int end = min((first + own) * lanes - before, columns);")
            for buffer in buffers:
                row, slot = f"{buffer.name}_at({self.row})", self._slot(buffer)
                self.out.line(f"ring.copy({slot}, {row} + begin, {row} + end, {buffer.name} + {self.end(buffer)});")

    def _slot(self, buffer: Buffer) -> str:
        offset = self.offsets[buffer.name]
        return f"{offset} + r * {self.slot_bytes(buffer)}" if self.several else str(offset)

    # loops over rows

    @contextmanager
    def _chunks(self, addressed: Iterable[Buffer]) -> Generator[None]:
        """addressed: buffers whose rows are looked for."""
        line, index, total = self.out.line, "chunk", "chunks"
        if self.segments:
            index, total = "next", "segments * chunks"
        head = f"for (int64_t {index} = blockIdx.x / cluster; {index} < {total}; {index} += gridDim.x / cluster)"
        with ExitStack() as parts:
            if not self.is_queued:
                parts.enter_context(self.out.block(head))
            if self.segments:
                line("const int64_t segment = next / chunks, chunk = next % chunks;")
            if self.apart > 1:
                line("const int64_t last = w::last_part<apart>(chunk, chunks);")
                head = "for (int64_t part = w::first_part<apart>(chunk, chunks); part <= last; ++part)"
                parts.enter_context(self.out.block(head))
                line("const auto own_rows = w::rows_of<apart>(part, chunk, rows, chunks);")
                line("const int64_t first_row = own_rows.first, end_row = own_rows.end;")
            elif self.is_queued:
                line(f"const int64_t first_row = queue.first(){' * tile_rows' * self.several}, end_row = rows;")
            else:
                line("const int64_t first_row = rows * chunk / chunks, end_row = rows * (chunk + 1) / chunks;")
            for buffer in dict.fromkeys(addressed):
                offset = self.offset(buffer)
                at = f"{buffer.name} + {offset}" if offset else buffer.name
                line(f"const auto {buffer.name}_at = [&](int64_t row) {{ return {at}; }};")
            yield

    @contextmanager
    def _tiles(self) -> Generator[None]:
        if self.is_queued:
            head = "for (int64_t row = first_row, next_row; row < end_row; row = next_row)"
        else:
            head = f"for (int64_t row = first_row; row < end_row; {self._next('row')})"
        with self.out.block(head):
            yield

    @property
    def step(self) -> str:
        """From the first row of a tile to that of the next one."""
        steps = ["tile_rows"] * self.several + ["apart"] * (self.apart > 1)
        return " * ".join(steps) or "1"

    def _next(self, row: str) -> str:
        return f"++{row}" if self.step == "1" else f"{row} += {self.step}"

    # the warps that compute

    def consumers(self, loop: Chunks) -> None:
        addressed = [*self.streamed(), *self.weights(), *(b for some in self.numbers() for b in some), *self.picked()]
        addressed += [o.buffer for stores in self.loops.stores for o in stores]
        with self._chunks(addressed):
            if self.keeps_columns:
                self.out.line(f"const int before = beginning({self.reference.name}_at(first_row));")
            for statement in loop.body:
                self._of_chunk(statement)

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
            case EachRow(body=body):
                for each in body:
                    assert isinstance(each, Load)
                    if self.several:
                        line(f"{C_TYPES[self.inputs[each.buffer].dtype]} {each.buffer}_next[tile_rows];")
                    self._load_ahead(self.inputs[each.buffer], "first_row", define=not self.several)
            case Tiles(body=(Tile(body=(*body, Behind(body=behind))),)):
                self._overlapping(body, behind)
            case Tiles(body=(Tile(body=body),)):
                with self._tiles():
                    self._next_of_queue()
                    for each in body:
                        self._of_tile(each)
            case Keep(value=name):
                self.keep(self.by_name[name])
            case _:
                raise AssertionError(f"nobody prints {statement}")

    def _next_of_queue(self) -> None:
        """The row tile behind this one, which comes with the copies of this one."""
        if self.is_queued:
            self.out.line("ring.wait_until_filled();")
            self.out.line("next_row = ring.next_row();")

    def _load_ahead(self, buffer: Buffer, first: str, *, define: bool = False) -> None:
        """What the rows of a tile have of an input, before they are needed. first: of these rows."""
        name, kind = buffer.name, C_TYPES[buffer.dtype]
        with self.each_row(first):
            to = f"{name}_next[r]" if self.several else f"{name}_next"
            head = f"{kind} " if define else ""
            self.out.line(f"{head}{to} = {self.row} < end_row ? *{name}_at({self.row}) : {kind}();")

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
        head = f"for (int64_t ahead = first_row; ; {self._next('ahead')})"
        if self.is_queued:
            head = "for (int64_t ahead = first_row, next_row = first_row; ; ahead = next_row)"
        with self.out.block(head):
            with self.out.block("if (ahead < end_row)"):
                line("const int64_t row = ahead;")
                self._next_of_queue()
                for each in body:
                    self._of_tile(each)
                each_row = "for (int r = 0; r < tile_rows; ++r) " if self.several else ""
                line("fresh.sent = sent, fresh.row = row;")
                if held:
                    line(f"{each_row}{', '.join(f'fresh.{name}{self._r} = {name}{self._r}' for name in held)};")
            with self.out.block("if (ahead != first_row)"):
                for name in ("sent", "row", *held):
                    line(f"const auto& {name} = held.{name};")
                for each in behind:
                    self._of_tile(each)
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
                case Load(buffer=name, ahead=False) if name in used and not self.has_columns(self.inputs[name]):
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

    # a tile

    def _of_tile(self, statement: Statement) -> None:
        line = self.out.line
        match statement:
            case EachRow(body=body):
                self._numbers(body)
            case Arrive():
                self._arrive()
            case Release():
                line("ring.release();")
            case Start(value=name):
                line(f"{self.state_type(self.by_name[name])} {name}_state{'[tile_rows]' if self.several else ''};")
            case Reduce(values=names) | Send(values=names) | Receive(values=names):
                self._reduce(statement, [self.by_name[name] for name in names])
            case ColumnLoop(body=(EachRow(body=body),)):
                self.column_loop(body)
            case _:
                raise AssertionError(f"nobody prints {statement}")

    def _reduce(self, statement: Reduce | Send | Receive, values: Sequence[Value]) -> None:
        line, own = self.out.line, [value for value in values if value.name not in self.centres]
        kind = C_TYPES[own[0].dtype]
        plain = {value.name: f"{value.name}_state" for value in own if value.op not in STATES}
        reduced = ", ".join(value.name if value.name in plain else f"{value.name}_state" for value in own)
        op = REDUCTIONS[own[0].op]
        if isinstance(statement, Receive):
            for value in own:
                declared = kind if value.name in plain else self.state_type(value)
                name = value.name if value.name in plain else f"{value.name}_state"
                line(f"{declared} {name}{'[tile_rows]' if self.several else ''};")
            line(f"exchange.template receive<{op}>(sent, {reduced});")
        else:
            self._define_numbers(kind, {name: f"{state}{self._r}.total()" for name, state in plain.items()})
            line(
                f"exchange.template reduce<{op}>({reduced});"
                if isinstance(statement, Reduce)
                else f"const unsigned sent = exchange.template send<{op}>({reduced});"
            )
        if isinstance(statement, Send):
            return
        found = {v.name: f"{self.centres[v.name]}_state{self._r}.centre" for v in values if v.name in self.centres}
        found |= {v.name: f"{v.name}_state{self._r}.total()" for v in own if v.op in STATES}
        self._define_numbers(kind if self.several else f"const {kind}", found)

    @property
    def _r(self) -> str:
        return "[r]" if self.several else ""

    def _define_numbers(self, kind: str, texts: Mapping[str, str]) -> None:
        """What each row of a tile has one of, by its name. texts: of one row."""
        defined = ", ".join(f"{name}{self._r} = {text}" for name, text in texts.items())
        if texts and self.several:
            self.out.line(f"{kind} {', '.join(f'{name}[tile_rows]' for name in texts)};")
            self.out.line(f"for (int r = 0; r < tile_rows; ++r) {defined};")
        elif texts:
            self.out.line(f"{kind} {defined};")

    def _arrive(self) -> None:
        """Where the vectors of each row are in shared memory."""
        line = self.out.line
        if not self.is_queued:
            line("ring.wait_until_filled();")
        if self.several:
            if not self.keeps_columns:
                line("int before[tile_rows];")
            for buffer in self.streamed():
                line(f"const {C_TYPES[buffer.dtype]}* {buffer.name}_stage[tile_rows];")
        with self.each_row():
            if not self.keeps_columns:
                head = "" if self.several else "const int "
                line(f"{head}{self.before} = beginning({self.reference.name}_at({self.row}));")
            line(f"const int begin = max(first * lanes - {self.before}, 0);")
            for buffer in self.streamed():
                stage = f"{buffer.name}_stage[r]" if self.several else f"const auto* const {buffer.name}_stage"
                line(f"{stage} = ring.row({self._slot(buffer)}, {buffer.name}_at({self.row}), begin);")
        line("ring.next();")

    def _numbers(self, body: Sequence[Statement]) -> None:
        """What each row of a tile has one of."""
        line = self.out.line
        if self.several:
            for statement in body:
                if isinstance(statement, Load) and not statement.ahead:
                    line(f"{C_TYPES[self.inputs[statement.buffer].dtype]} {statement.buffer}_number[tile_rows];")
                elif isinstance(statement, Compute):
                    line(f"{C_TYPES[self.by_name[statement.value].dtype]} {statement.value}[tile_rows];")
        with self.each_row():
            for statement in body:
                match statement:
                    case Load(ahead=True):
                        pass
                    case Load(buffer=name):
                        kind = "" if self.several else f"const {C_TYPES[self.inputs[name].dtype]} "
                        line(f"{kind}{self.number(name + '_number')} = {name}_next{'[r]' if self.several else ''};")
                    case Compute(value=name) if self.several:
                        line(f"{self.number(name)} = {self.expression(self.by_name[name])};")
                    case Compute(value=name):
                        self.define(name)
                    case Store(output=name):
                        self._store_number(self.outputs[name])
                    case Accumulate(value=name):
                        self._add_number(self.by_name[name])
                    case _:
                        raise AssertionError(f"nobody prints {statement}")
        for statement in body:
            if isinstance(statement, Load) and statement.ahead:
                self._load_ahead(self.inputs[statement.buffer], "next_row" if self.is_queued else f"row + {self.step}")

    def _store_number(self, output: Output) -> None:
        once = self.once(output.buffer.dims, (*self.segments, *self.inside))
        text = f"*{output.buffer.name}_at({self.row}) = {self.operand(output.value)};"
        with self.guarded(["first == 0", "thread == 0", *self.exists(), *once]):
            self.out.line(text)

    def _add_number(self, value: Value) -> None:
        once = self.once(self.types[value.args[0]][1], (*self.segments, *self.inside))
        with self.guarded([*self.exists(), *once]):
            combined = COMBINE[value.op].format(value.name, self.operand(value.args[0]))
            self.out.line(f"{value.name} = {combined};")
