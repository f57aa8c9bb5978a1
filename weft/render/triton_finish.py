"""The finish of a Triton kernel: column sums of all chunks, in a fixed order, and the epilogue on them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from weft.ir.ops import ONLINE, identity
from weft.ir.program import Output, Value
from weft.ir.structure import Loops
from weft.plan.finish import WRITTEN_STEPS, finish_chunks
from weft.plan.kernel import Kernel
from weft.render.source import Writer
from weft.render.triton_epilogue import epilogue, values_for
from weft.render.triton_expressions import COMBINE, STATES, TRITON_TYPES, literal, reduction
from weft.render.triton_launch import finish_blocks, finish_width, partial_name, sum_columns
from weft.render.triton_places import Places
from weft.render.triton_statements import Statements


class Finish(Statements):
    """Writes everything that happens once the rows are done. Its one piece are the columns of a task."""

    def __init__(self, kernel: Kernel, loops: Loops, writer: Writer) -> None:
        self.width = finish_width(kernel)
        self.together = finish_chunks(kernel.schedule, self.width)
        self.chunks = Places(kernel).chunks()
        super().__init__(
            replace(kernel, schedule=replace(kernel.schedule, piece_columns=self.width, pieces=1)), loops, writer
        )
        self.places.spreads, self.places.early = False, None

    def write(self) -> None:
        for kept, outputs in finish_blocks(self.kernel).items():
            self._block(kept, outputs)

    def is_masked(self) -> bool:
        count = self.places.count(self.schedule.columns)
        return isinstance(count, str) or count % self.width != 0

    def masks(self, piece: int, *, rows: bool, columns: bool, others: object = ()) -> str:
        found = ["column_exists"] if columns and self.is_masked() else []
        return " & ".join([*found, *others])  # type: ignore[misc]

    def _block(self, kept: tuple[str, ...], outputs: list[Output]) -> None:
        needed = values_for(self, outputs)
        vector = any(self.places.has_columns(o.buffer) for o in outputs)
        count = self.places.count(self.schedule.columns) if vector else 1
        blocks = -(-count // self.width) if isinstance(count, int) else f"tl.cdiv({count}, {self.width})"
        segments = self.places.count(kept)
        tasks = self.places.times(segments, blocks)
        first, step = "tl.program_id(0)", "tl.num_programs(0)"
        if self.places.splits_columns and self.schedule.finish == "same":  # all programs of the rows share the tasks
            first = f"{first} * tl.num_programs(1) + tl.program_id(1)"
            step = f"{step} * tl.num_programs(1)"
        with self.out.block(f"for task in range({first}, {tasks}, {step})"):
            if kept:
                flat = self.places.segment if kept == self.schedule.segments else "kept"
                task = "tl.cast(task, tl.int64)" if self.places.is_wide else "task"
                self.out.line(f"{flat} = {task} // {blocks}" if blocks != 1 else f"{flat} = {task}")
            block = "task" if not kept else f"(task % {blocks})"
            if vector:
                start = f"{block} * {self.width}" if blocks != 1 else ""
                self.define_index(self.places.column, self.width, start)
                if self.is_masked():
                    self.out.line(f"column_exists = {self.places.column} < {count}")
            for alike in self._alike([v for v in self.outer if v.name in needed]):
                self._totals(alike)
            epilogue(self, outputs, needed, f"({block} == 0)" if vector and blocks != 1 else "")

    def _alike(self, values: Iterable[Value]) -> list[list[Value]]:
        """Values whose partial results lie in the same parts of segments and columns: they are loaded side by side, so
        that none waits for another one."""
        groups: dict[object, list[Value]] = {}
        for value in values:
            groups.setdefault((self._own(value), sum_columns(self.kernel, value)), []).append(value)
        return list(groups.values())

    def _own(self, value: Value) -> tuple[str, ...]:
        """Segments that a value keeps."""
        return tuple(s for s in self.schedule.segments if s in value.dims)

    def _totals(self, values: Sequence[Value]) -> None:
        """Partial results of all chunks of the segments that values do not keep, several at a time. values: alike."""
        own, columns = self._own(values[0]), sum_columns(self.kernel, values[0])
        others = self.places.count(s for s in self.schedule.segments if s not in own)
        parts = self.places.times(others, self.chunks)
        steps = -(-parts // self.together) if isinstance(parts, int) else WRITTEN_STEPS + 1
        row = f"({self.places.segment} * {parts} + part)" if own else "part"
        count = self.places.count(columns)
        place = (row if count == 1 else f"{row} * {count}") + (f" + {self.places.column}" if columns else "")
        exact = isinstance(parts, int) and parts % self.together == 0
        found = [] if exact else [f"(part < {parts})"]
        masks = " & ".join([*found, *(["column_exists"] if columns and self.is_masked() else [])])
        if steps == 1:
            self.out.line(f"part = tl.arange(0, {self.together})[:, None]")
            for value in values:
                self._take(value, place, masks)
        else:
            for value in values:
                self._start(value, self.width if columns else 1)
            unrolled = "tl.static_range" if steps <= WRITTEN_STEPS else "range"
            with self.out.block(f"for start in {unrolled}(0, {parts}, {self.together})"):
                self.out.line(f"part = start + tl.arange(0, {self.together})[:, None]")
                for value in values:
                    self._add(value, place, masks)
        for value in values:
            self._end(value)

    def _start(self, value: Value, width: int) -> None:
        """What the parts of a value are added to."""
        if value.op in ONLINE:
            self.start_states(value, self.together, 0, alike=False)
            return
        nothing, kind = self._nothing(value), TRITON_TYPES[value.dtype]
        self.out.line(f"{value.name}_sum = tl.full([{self.together}, {width}], {nothing}, {kind})")

    def _take(self, value: Value, place: str, masks: str) -> None:
        """All parts of a value."""
        names = self.states(value, 0) if value.op in ONLINE else [f"{value.name}_sum"]
        for name, text in zip(names, self._loads(value, place, masks), strict=True):
            self.out.line(f"{name} = {text}")

    def _add(self, value: Value, place: str, masks: str) -> None:
        """Some parts of a value."""
        loads = self._loads(value, place, masks)
        if value.op in ONLINE:
            self._merge(value, loads)
            return
        total = f"{value.name}_sum"
        self.out.line(f"{total} = {COMBINE[value.op].format(total, loads[0])}")

    def _loads(self, value: Value, place: str, masks: str) -> list[str]:
        """Of the numbers that each part of a value is, with what changes nothing where there is no part."""
        others = [other for _, other in STATES[value.op]] if value.op in ONLINE else [identity(value.op, value.dtype)]
        texts: list[str] = []
        for number, other in enumerate(others):
            masked = f"mask={masks}, other={literal(other, value.dtype)}, " if masks else ""
            texts.append(f'tl.load({partial_name(value, number)} + {place}, {masked}cache_modifier=".cg")')
        return texts

    def _end(self, value: Value) -> None:
        """A value from all of its parts."""
        if value.op in ONLINE:
            self.out.line(f"{value.name} = w.{value.op}_total({', '.join(self.states(value, 0))})")
        else:
            self.out.line(f"{value.name} = {reduction(value.op, [f'{value.name}_sum'], 0)}")

    def _nothing(self, value: Value) -> str:
        return literal(identity(value.op, value.dtype), value.dtype)

    def _merge(self, value: Value, loads: list[str]) -> None:
        """One more block of partial results of an online reduction."""
        states = self.states(value, 0)
        more = [f"{name}_more" for name in states]
        for name, text in zip(more, loads, strict=True):
            self.out.line(f"{name} = {text}")
        self.out.line(f"{', '.join(states)} = w.{value.op}_merge({', '.join([*states, *more])})")
