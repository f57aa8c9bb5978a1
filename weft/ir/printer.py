"""The printed form of a program. ``parse(print_program(p)) == p``; the text is the program's identity."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.ir.program import Attribute, Buffer, Program, Value


def print_program(program: Program) -> str:
    """One line a dimension, buffer and value; see docs/tour.md for an example."""
    lines = [f"program {program.name}({', '.join(program.parameters)})"]
    lines += [f"  dim {dim.name} = {dim.size}" for dim in program.dims]
    lines += [f"  input {print_buffer(buffer)}" for buffer in program.inputs]
    lines += [f"  {print_value(value)}" for value in program.values]
    lines += [f"  output {print_buffer(output.buffer)} = {output.value}" for output in program.outputs]
    return "\n".join([*lines, "end", ""])


def print_buffer(buffer: Buffer) -> str:
    """``x: bf16 [m:4096, n:1]``: dimension and stride in elements; an offset follows if there is one, and the tensor
    that has all elements, with the place of the first: ``x_1: bf16 [m:4096, n:1] within x at 64``."""
    axes = ", ".join(f"{dim}:{stride}" for dim, stride in zip(buffer.dims, buffer.strides, strict=True))
    offset = f" + {buffer.offset}" if buffer.offset else ""
    within = f" within {buffer.within} at {buffer.place}" if buffer.within else ""
    return f"{buffer.name}: {buffer.dtype} [{axes}]{offset}{within}"


def print_value(value: Value) -> str:
    """``sum_1: f32{m} = sum[n](mul_2)``."""
    attributes = f"[{', '.join(map(print_attribute, value.attributes))}]" if value.attributes else ""
    return f"{value.name}: {value.dtype}{{{', '.join(value.dims)}}} = {value.op}{attributes}({', '.join(value.args)})"


def print_attribute(attribute: Attribute) -> str:
    return attribute if isinstance(attribute, str) else repr(attribute)
