"""C++ with OpenMP and ATen's CPU vectors.

A row is visited once for every stage while it is in cache; column sums of a few rows are added up first, then those of
a chunk, then chunks in order, in double precision. Chunks are fixed by the schedule, so bits do not depend on threads.
"""

from __future__ import annotations

from weft.backends.c_expressions import C_TYPES
from weft.backends.cpp.finish import Finish
from weft.backends.cpp.lower import CppLowering
from weft.backends.cpp.names import DERIVED, TAKEN, Names
from weft.backends.cpp.rows import Rows
from weft.backends.cpp.schedule import CppKernel
from weft.backends.free_names import with_free_names
from weft.backends.source import Source, Writer, entry_of
from weft.errors import Refusal
from weft.lowering.nest import Tasks


def supports(kernel: CppKernel) -> Refusal | None:
    """The C++ backend takes every program whose types it has vectors for."""
    names = [b.dtype for b in kernel.program.buffers]
    unknown = sorted({name for name in names if name not in C_TYPES})
    if unknown:
        return Refusal("cpp_dtype", kernel.name, f"no CPU vectors for {', '.join(unknown)}", len(unknown), 0)
    return None


def render(kernel: CppKernel) -> Source:
    """``void weft_NAME(void* const* buffers, const int64_t* parameters, int threads)``; inputs, then outputs."""
    writer = Writer()
    for line in str(kernel).splitlines():
        writer.line(f"// {line}")
    writer.line('#include "weft_cpu.h"')
    writer.line()
    signature = f'extern "C" void {entry_of(kernel.name)}(void* const* buffers, const int64_t* parameters, int threads)'
    kernel = with_free_names(kernel, TAKEN, DERIVED)
    with writer.block(signature):
        _declare(kernel, writer)
        body = CppLowering(kernel).nest().body
        Rows(kernel, writer).write([each for each in body if not isinstance(each, Tasks)])
        Finish(kernel, writer).write([each for each in body if isinstance(each, Tasks)])
    return Source("cpp", kernel.name, writer.text())


def _declare(kernel: CppKernel, writer: Writer) -> None:
    """Run-time parameters, sizes of dimensions and pointers of buffers."""
    program, names = kernel.program, Names(kernel)
    for i, parameter in enumerate(program.parameters):
        writer.line(f"const int64_t {parameter} = parameters[{i}];")
    for dim in program.dims:
        kind = "const" if isinstance(dim.size, str) else "constexpr"
        writer.line(f"{kind} int64_t {names.size(dim.name)} = {dim.size};")
    for i, buffer in enumerate(program.inputs):
        kind = C_TYPES[buffer.dtype]
        writer.line(f"const {kind}* {names.data(buffer.name)} = static_cast<const {kind}*>(buffers[{i}]);")
    for i, output in enumerate(program.outputs, len(program.inputs)):
        kind = C_TYPES[output.buffer.dtype]
        writer.line(f"{kind}* {names.data(output.buffer.name)} = static_cast<{kind}*>(buffers[{i}]);")
