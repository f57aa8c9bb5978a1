"""A program for calls in which some of its run-time parameters are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weft.ir.builder import Builder
from weft.ir.program import Buffer, Program, Size, Value
from weft.ir.simplify import rebuilt


def specialised(program: Program, known: Mapping[str, int]) -> Program:
    """The program with these numbers in place of parameters, as sizes, strides and values. It is called as before: its
    buffers and parameters stay, those that nothing has any more among them."""

    def number(size: Size) -> Size:
        return known.get(size, size) if isinstance(size, str) else size

    def placed(buffer: Buffer) -> Buffer:
        return replace(buffer, strides=tuple(map(number, buffer.strides)))

    def made(builder: Builder, value: Value, _: Mapping[str, str]) -> str | None:
        if value.op == "size":
            return builder.count([str(dim) for dim in value.attributes], value.dtype)
        if value.op == "parameter" and value.attributes[0] in known:
            return builder.const(known[str(value.attributes[0])], value.dtype)
        return None

    dims = tuple(replace(dim, size=number(dim.size)) for dim in program.dims)
    outputs = tuple(replace(output, buffer=placed(output.buffer)) for output in program.outputs)
    return rebuilt(replace(program, dims=dims, inputs=tuple(map(placed, program.inputs)), outputs=outputs), made)
