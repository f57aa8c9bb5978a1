"""Prints the finish of a CUDA C++ kernel: column sums of all chunks, in a fixed order, and the epilogue on them."""

from __future__ import annotations

from weft.backends.c_expressions import C_TYPES
from weft.backends.cuda.schedule import WARP_THREADS
from weft.backends.cuda.statements import REDUCTIONS, Statements
from weft.ir.program import Buffer, Value
from weft.lowering.nest import Compute, Gather, Load, Statement, Store, Tasks


class Finish(Statements):
    """A task has as many columns as a warp has threads; warps share the chunks."""

    def write_tasks(self, loop: Tasks) -> None:
        line = self.out.line
        stored = [self.outputs[each.output] for each in loop.body if isinstance(each, Store)]
        vector = any(self.has_columns(o.buffer) for o in stored)
        blocks = f"(columns + {WARP_THREADS - 1}) / {WARP_THREADS}" if vector else "1"
        tasks = f"{self.product(loop.kept)} * blocks" if loop.kept else "blocks"
        with self.out.block(""):
            line(f"const int blocks = {blocks};")
            with self.out.block(f"for (int64_t task = blockIdx.x; task < {tasks}; task += gridDim.x)"):
                if loop.kept:
                    line("const int64_t segment = task / blocks;")
                line(f"const int column = static_cast<int>(task % blocks) * {WARP_THREADS} + thread % {WARP_THREADS};")
                line(f"const bool exists = column < {'columns' if vector else '1'};")
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
                with self.guarded([f"thread < {WARP_THREADS}", "exists", *alone, *once]):
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
        place = (
            f"{value.name}_partial" + (f" + segment * chunks * {step}" if own else "") + (" + column" if vector else "")
        )
        exists = "exists" if vector else "column == 0"
        kind = C_TYPES[value.dtype]
        call = f"w::gathered<{REDUCTIONS[value.op]}, warps>({place}, {parts}, {step}, {exists})"
        self.out.line(f"const {kind} {value.name} = {call};")
