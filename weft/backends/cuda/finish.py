"""Prints the finish of a CUDA C++ kernel: column sums of all chunks, in a fixed order, and the epilogue on them."""

from __future__ import annotations

from itertools import groupby

from weft.backends.abi import ceil_div, product
from weft.backends.c_expressions import C_TYPES
from weft.backends.cuda.schedule import WARP_THREADS, CudaKernel
from weft.backends.cuda.statements import REDUCTIONS, Statements
from weft.backends.cuda.view import View
from weft.backends.source import Writer
from weft.ir.dtypes import itemsize
from weft.ir.program import Buffer, Size, Value
from weft.lowering.nest import Compute, Gather, Load, Nest, Statement, Store, Tasks

LANE_COLUMNS = (1, 2, 4)
"""Neighbouring columns that a lane can have; of float32 a load takes 16 bytes at most."""
ONE_ROUND = 128
"""Tasks for which a GPU has a block each, about."""


def lane_columns(view: View, loop: Tasks, warps: int) -> int:
    """The fewest columns of a lane with which all tasks are one round, if any are enough; a row of partial results that
    begins with a vector consists of whole lanes. As many warps as a lane has columns do the epilogue. warps: of a
    block."""
    known, early = view.count(view.columns), view.begins_with_vectors(view.reference) is None
    columns = view.most_columns(divisible=True) if known is None else known

    def is_whole(wide: int) -> bool:
        return early or wide <= view.lanes or (known is not None and known % wide == 0)

    possible = [wide for wide in LANE_COLUMNS if is_whole(wide) and wide <= warps]
    segments = view.count(loop.kept) or 1
    enough = (wide for wide in possible if segments * -(-columns // (WARP_THREADS * wide)) <= ONE_ROUND)
    return next(enough, possible[-1])


def task_count(view: View, loop: Tasks, warps: int) -> Size:
    """As the text counts them."""
    segments = product([view.program.size_of(d) for d in loop.kept])
    if not _has_columns(view, loop):
        return segments
    columns = product([view.program.size_of(d) for d in view.columns])
    return product([segments, ceil_div(columns, WARP_THREADS * lane_columns(view, loop, warps))])


def gather_bytes(view: View, nest: Nest, warps: int) -> int:
    """Of shared memory, where the warps of a block put what they have of columns."""
    wide = max((lane_columns(view, s, warps) for s in nest.body if isinstance(s, Tasks)), default=0)
    return WARP_THREADS * warps * wide * max((itemsize(v.dtype) for v in view.outer), default=0)


def _has_columns(view: View, loop: Tasks) -> bool:
    """Whether anything in it has columns."""
    gathered = {name for each in loop.body if isinstance(each, Gather) for name in each.values}
    stored = {each.output for each in loop.body if isinstance(each, Store)}
    return any(v.name in gathered and view.sums_vectors(v) for v in view.outer) or any(
        o.buffer.name in stored and view.has_columns(o.buffer) for o in view.program.outputs
    )


class Finish(Statements):
    """The warps of a block share the chunks of a task, whose columns are neighbours."""

    def __init__(self, kernel: CudaKernel, writer: Writer, warps: int) -> None:
        """warps: of a block."""
        super().__init__(kernel, writer)
        self.warps = warps

    def write_tasks(self, loop: Tasks) -> None:
        line, has_columns = self.out.line, _has_columns(self, loop)
        tasks = [str(self.product(loop.kept))] if loop.kept else []
        with self.out.block(""):
            if has_columns:
                wide = lane_columns(self, loop, self.warps)
                line(f"constexpr int wide = {wide}, task_columns = {WARP_THREADS} * wide;")
                line("const int blocks = (columns + task_columns - 1) / task_columns;")
                tasks.append("blocks")
            total = " * ".join(tasks) or "1"
            with self.out.block(f"for (int64_t task = blockIdx.x; task < {total}; task += gridDim.x)"):
                if loop.kept:
                    line(f"const int64_t segment = {'task / blocks' if has_columns else 'task'};")
                    following = "(segment + 1)" if self.apart > 1 else "segment + 1"
                    behind, first = (
                        f"parts.begin({at}{' * apart' * (self.apart > 1)})" for at in (following, "segment")
                    )
                    line(f"const int64_t first_part = {first}, own_parts = {behind} - first_part;")
                if has_columns:
                    block = "task % blocks" if loop.kept else "task"
                    line(f"const int begin = static_cast<int>({block}) * task_columns, column = begin + thread;")
                    line("const bool exists = thread < task_columns && column < columns;")
                else:
                    line("const int column = thread;")
                for conditions, some in groupby(loop.body, self._conditions):
                    with self.guarded(conditions):
                        for statement in some:
                            self._one(statement, bool(loop.kept))

    def _conditions(self, statement: Statement) -> list[str]:
        """Of the threads that do it."""
        if not isinstance(statement, Store):
            return []
        buffer = self.outputs[statement.output].buffer
        return ["exists", *self.once(buffer.dims, self.columns)] if self.has_columns(buffer) else ["column == 0"]

    def _one(self, statement: Statement, keeps: bool) -> None:
        line = self.out.line
        match statement:
            case Gather(values=names):
                for name in names:
                    self._gather(self.by_name[name], keeps)
            case Load(buffer=name):
                buffer = self.inputs[name]
                kind, element = C_TYPES[buffer.dtype], self.element(buffer)
                found = f"exists ? {element} : {kind}()" if self.has_columns(buffer) else element
                line(f"const {kind} {name}_number = {found};")
            case Compute(value=name):
                self.define(name)
            case Store(output=name):
                output = self.outputs[name]
                line(f"{self.element(output.buffer)} = {self.operand(output.value)};")
            case _:
                raise AssertionError(f"nobody prints {statement}")

    def operand(self, name: str) -> str:
        value = self.by_name.get(name)
        return name if value is not None and value.op != "const" else super().operand(name)

    def loaded(self, buffer: Buffer) -> str:
        return f"{buffer.name}_number"

    def _gather(self, value: Value, keeps: bool) -> None:
        own = keeps and any(s in value.dims for s in self.segments)
        parts, begins = (
            ("own_parts", "[&](int part) { return begins(first_part + part); }") if own else (self.parts, "begins")
        )
        kind, op, place = C_TYPES[value.dtype], REDUCTIONS[value.op], f"{value.name}_partial"
        if self.sums_vectors(value):
            rows = f"{place}{' + first_part * padded' * own}, {parts}, padded, {begins}"
            call = f"w::gathered_columns<{op}, warps, wide, !early>(memory, {rows}, begin, columns)"
        else:
            call = f"w::gathered_number<{op}, warps>(memory, {place}{' + first_part' * own}, {parts})"
        self.out.line(f"const {kind} {value.name} = {call};")
