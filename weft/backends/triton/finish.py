"""The finish of a Triton kernel: column sums of all chunks, in a fixed order, and the epilogue on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.backends.source import Writer
from weft.backends.triton.division import added_segments, finish_width, partial_name, sum_columns
from weft.backends.triton.expressions import COMBINE, literal, reduction, states_of
from weft.backends.triton.finish_tasks import WRITTEN_STEPS, finish_chunks
from weft.backends.triton.places import Places
from weft.backends.triton.printer import Printer
from weft.backends.triton.schedule import TritonKernel
from weft.ir.ops import ONLINE
from weft.ir.program import Value
from weft.lowering.nest import Nest, Store, Tasks


def write_finish(kernel: TritonKernel, nest: Nest, writer: Writer) -> None:
    """Everything that happens once the rows are done."""
    for tasks in nest.body:
        assert isinstance(tasks, Tasks)
        Finish(kernel, writer, tasks.kept).write_tasks(tasks)


class Finish(Printer):
    """Prints what is done with the sums that keep some segments. Its one piece are the columns of a task."""

    def __init__(self, kernel: TritonKernel, writer: Writer, kept: tuple[str, ...]) -> None:
        self.kept, self.width = kept, finish_width(kernel, kept)
        self.chunks = Places(kernel).chunks()
        schedule = replace(kernel.schedule, piece_columns=self.width, pieces=1)
        super().__init__(replace(kernel, schedule=schedule), writer)
        self.shared = self.places.splits_columns and schedule.finish == "same"
        """Whether programs side by side share the tasks with all others."""
        self.places.spreads, self.places.early = False, None
        self.places.splits_columns = True  # a task has a block of columns, as programs have that share a row
        self.first = ""
        """What holds for one of the tasks that have a result without columns."""

    def write_tasks(self, loop: Tasks) -> None:
        kept, stored = self.kept, [self.outputs[each.output] for each in loop.body if isinstance(each, Store)]
        vector = any(self.places.has_columns(o.buffer) for o in stored)
        count = self.places.count(self.schedule.columns) if vector else 1
        blocks = -(-count // self.width) if isinstance(count, int) else f"tl.cdiv({count}, {self.width})"
        tasks = self.places.times(self.places.count(kept), blocks)
        first, step = "tl.program_id(0)", "tl.num_programs(0)"
        if self.shared:
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
                self.define_column_mask(0)
            self.first = f"({block} == 0)" if vector and blocks != 1 else ""
            self.print(loop.body)

    def first_block(self) -> str:
        return self.first

    def _own(self, value: Value) -> tuple[str, ...]:
        """Segments that a value keeps."""
        return tuple(s for s in self.schedule.segments if s in value.dims)

    def gather(self, values: Sequence[Value]) -> None:
        """Partial results of all chunks of the segments that values do not keep, several at a time. values: alike."""
        own, columns = self._own(values[0]), sum_columns(self.kernel, values[0])
        others = self.places.count(s for s in self.schedule.segments if s not in own)
        parts = self.places.times(others, self.chunks)
        together = finish_chunks(self.schedule, self.width, added_segments(self.kernel, own))
        steps = -(-parts // together) if isinstance(parts, int) else WRITTEN_STEPS + 1
        row = f"({self.places.segment} * {parts} + part)" if own else "part"
        count = self.places.count(columns)
        place = (row if count == 1 else f"{row} * {count}") + (f" + {self.places.column}" if columns else "")
        exact = isinstance(parts, int) and parts % together == 0
        found = [] if exact else [f"(part < {parts})"]
        masks = " & ".join(filter(None, [*found, self.masks(0, rows=False, columns=bool(columns))]))
        if steps == 1:
            self.out.line(f"part = tl.arange(0, {together})[:, None]")
            for value in values:
                self._take(value, place, masks)
        else:
            for value in values:
                self.start_states(value, together, 0, alike=False)
            unrolled = "tl.static_range" if steps <= WRITTEN_STEPS else "range"
            with self.out.block(f"for start in {unrolled}(0, {parts}, {together})"):
                self.out.line(f"part = start + tl.arange(0, {together})[:, None]")
                for value in values:
                    self._add_parts(value, place, masks)
        for value in values:
            self._total_of(value)

    def _take(self, value: Value, place: str, masks: str) -> None:
        """All parts of a value."""
        for name, text in zip(self.states(value, 0), self._loads(value, place, masks), strict=True):
            self.out.line(f"{name} = {text}")

    def _add_parts(self, value: Value, place: str, masks: str) -> None:
        """Some parts of a value."""
        loads, states = self._loads(value, place, masks), self.states(value, 0)
        if value.op not in ONLINE:
            self.out.line(f"{states[0]} = {COMBINE[value.op].format(states[0], loads[0])}")
            return
        more = [f"{name}_more" for name in states]
        for name, text in zip(more, loads, strict=True):
            self.out.line(f"{name} = {text}")
        self.out.line(f"{', '.join(states)} = w.{value.op}_merge({', '.join([*states, *more])})")

    def _loads(self, value: Value, place: str, masks: str) -> list[str]:
        """Of the numbers that each part of a value is, with what changes nothing where there is no part."""
        texts: list[str] = []
        for number, (_, other) in enumerate(states_of(value)):
            masked = f"mask={masks}, other={literal(other, value.dtype)}, " if masks else ""
            texts.append(f'tl.load({partial_name(value, number)} + {place}, {masked}cache_modifier=".cg")')
        return texts

    def _total_of(self, value: Value) -> None:
        """A value from all of its parts."""
        states = self.states(value, 0)
        text = f"w.{value.op}_total({', '.join(states)})" if value.op in ONLINE else reduction(value.op, states, 0)
        self.out.line(f"{value.name} = {text}")
