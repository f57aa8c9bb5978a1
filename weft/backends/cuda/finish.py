"""Prints the finish of a CUDA C++ kernel: column sums of all chunks, in a fixed order, and the epilogue on them."""

from __future__ import annotations

from weft.backends.c_expressions import C_TYPES
from weft.backends.cuda.schedule import WARP_THREADS, CudaKernel
from weft.backends.cuda.statements import REDUCTIONS, Statements
from weft.backends.source import Writer
from weft.ir.program import Buffer, Value
from weft.lowering.nest import Compute, Gather, Load, Statement, Store, Tasks


class Finish(Statements):
    """A task has some columns next to each other; warps share the chunks."""

    def __init__(self, kernel: CudaKernel, writer: Writer, warps: int) -> None:
        """warps: of a block."""
        super().__init__(kernel, writer)
        self.warps = warps

    def write_tasks(self, loop: Tasks) -> None:
        line = self.out.line
        stored = [self.outputs[each.output].buffer for each in loop.body if isinstance(each, Store)]
        vector, width = any(map(self.has_columns, stored)), self.task_columns(stored, self.warps)
        blocks = f"(columns + {width - 1}) / {width}" if vector else "1"
        tasks = f"{self.product(loop.kept)} * blocks" if loop.kept else "blocks"
        with self.out.block(""):
            line(f"constexpr int wide = {width // WARP_THREADS};")
            line(f"const int blocks = {blocks};")
            with self.out.block(f"for (int64_t task = blockIdx.x; task < {tasks}; task += gridDim.x)"):
                if loop.kept:
                    line("const int64_t segment = task / blocks;")
                line(f"const int begin = static_cast<int>(task % blocks) * {width};")
                line(f"const int column = begin + thread % {width};")
                line(f"const bool exists = thread < {width} && column < {'columns' if vector else '1'};")
                for statement in loop.body:
                    self._one(statement, bool(loop.kept))

    def _one(self, statement: Statement, keeps: bool) -> None:
        line = self.out.line
        match statement:
            case Gather(values=names):
                for name in names:
                    self._gather(self.by_name[name], keeps)
            case Load(buffer=name):
                kind = C_TYPES[self.inputs[name].dtype]
                line(f"const {kind} {name}_number = exists ? {self.element(self.inputs[name])} : {kind}();")
            case Compute(value=name):
                self.define(name)
            case Store(output=name):
                output = self.outputs[name]
                alone = [] if self.has_columns(output.buffer) else ["column == 0"]
                once = self.once(output.buffer.dims, self.columns) if self.has_columns(output.buffer) else []
                with self.guarded(["exists", *alone, *once]):
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
        parts = "chunks" if own or not self.segments else "segments * chunks"
        vector = self.sums_vectors(value)
        step = "columns" if vector else "1"
        place = f"{value.name}_partial" + (f" + segment * chunks * {step}" if own else "")
        kind = C_TYPES[value.dtype]
        several, place_of = ("wide", "begin, columns") if vector else ("1", "begin, 1")
        call = f"w::gathered<{REDUCTIONS[value.op]}, warps, {several}>({place}, {parts}, {step}, {place_of})"
        self.out.line(f"const {kind} {value.name} = {call};")
