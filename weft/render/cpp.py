"""C++ with OpenMP and ATen's CPU vectors.

A row is visited once for every stage while it is in cache; column sums of a few rows are added up first, then those of
a chunk, then chunks in order, in double precision. Chunks are fixed by the schedule, so bits do not depend on threads.
"""

from __future__ import annotations

from weft.errors import Refusal
from weft.ir.dtypes import TORCH_DTYPES
from weft.plan.kernel import Kernel
from weft.render.cpp_body import Body
from weft.render.source import Source, Writer


def supports(kernel: Kernel) -> Refusal | None:
    """The C++ backend takes every program whose types it has vectors for."""
    names = [b.dtype for b in (*kernel.program.inputs, *(o.buffer for o in kernel.program.outputs))]
    unknown = sorted({name for name in names if name not in TORCH_DTYPES})
    if unknown:
        return Refusal("cpp_dtype", kernel.name, f"no CPU vectors for {', '.join(unknown)}")
    return None


def render(kernel: Kernel) -> Source:
    """``void NAME(void* const* buffers, const int64_t* parameters, int threads)``; buffers are inputs, then outputs."""
    writer = Writer()
    for line in str(kernel).splitlines():
        writer.line(f"// {line}")
    writer.line('#include "weft_cpu.h"')
    writer.line()
    signature = f'extern "C" void {kernel.name}(void* const* buffers, const int64_t* parameters, int threads)'
    with writer.block(signature):
        Body(kernel, writer).write()
    return Source("cpp", kernel.name, writer.text())
