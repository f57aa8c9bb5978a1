"""Programs without the short dimensions that something is chosen by, or that are added up.

Where the halves of a row are turned around, each value is one of the first half and one of the second: no element is
chosen from two, and none is loaded for both. The gradient of a key is a sum over the few queries that share it: each is
loaded and added. A buffer with such a dimension becomes as many, within one tensor.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from itertools import count

from weft.ir.builder import Builder
from weft.ir.ops import lookup
from weft.ir.program import Buffer, Program, Value
from weft.ir.simplify import simplify

MOST_UNROLLED = 4
"""Of a dimension: each of its values is computed so many times over."""
MOST_SUMMED = 8
"""Of a dimension that is dropped: what has it is loaded so many times."""
_COMBINED = {"sum": "add", "max": "maximum", "min": "minimum"}
"""What makes one result of those of parts, by reduction."""


def unrolled(program: Program) -> Program:
    """The program without its short dimensions that something is chosen by, or that are dropped before anything is
    written; the same one where there are none."""
    for dim in program.dims:
        if isinstance(dim.size, int) and _can_unroll(program, dim.name, dim.size):
            return unrolled(simplify(_unroll(program, dim.name, dim.size)))
    return program


def _can_unroll(program: Program, dim: str, size: int) -> bool:
    """Whether indices of the dimension are compared, or nothing that is written has it and what has it is reduced along
    nothing else; and parts lie in known places, in which neighbours stay neighbours, and each reduction can be
    combined."""
    using, types = [v for v in program.values if dim in v.attributes], program.types()
    reductions = [v for v in program.values if lookup(v.op).kind == "reduction" and dim in types[v.args[0]][1]]
    if any(v.op == "iota" for v in using):
        most = MOST_UNROLLED
    elif all(v.attributes == (dim,) for v in reductions) and all(dim not in o.buffer.dims for o in program.outputs):
        most = MOST_SUMMED
    else:
        return False
    places = [b.stride_of[dim] for b in program.buffers if dim in b.dims]
    known = all(isinstance(place, int) and place > 1 for place in places)
    return size <= most and known and all(v.op in (*_COMBINED, "iota", "size") for v in using)


def _unroll(program: Program, dim: str, size: int) -> Program:
    """Each value with the dimension as ``size`` values without it."""
    dims = tuple(d for d in program.dims if d.name != dim)
    builder = Builder.like(replace(program, dims=dims))
    parts: dict[str, list[str]] = {}
    known: dict[Buffer, str] = {}
    for buffer in sorted(program.inputs, key=lambda b: dim in b.dims):
        names: list[str] = []
        for part in _parts(program, buffer, dim, size):
            same = _in_one_order(part)
            if same not in known or not part.within:
                known[same] = builder.add_input(part)
            names.append(known[same])
        parts[buffer.name] = names
    for value in program.values:
        parts[value.name] = _values(builder, value, parts, dim, size)
    for output in program.outputs:
        for number, part in enumerate(_parts(program, output.buffer, dim, size)):
            builder.add_output(part, parts[output.value][number % len(parts[output.value])])
    return builder.finish()


def _parts(program: Program, buffer: Buffer, dim: str, size: int) -> list[Buffer]:
    """What a buffer is without the dimension: itself, or as many within it, whose names no buffer has."""
    if dim not in buffer.dims:
        return [buffer]
    step = buffer.stride_of[dim]
    assert isinstance(step, int)
    kept = [(d, s) for d, s in zip(buffer.dims, buffer.strides, strict=True) if d != dim]
    part = replace(buffer, dims=tuple(d for d, _ in kept), strides=tuple(s for _, s in kept))
    taken = {b.name for b in program.buffers} | {b.within for b in program.buffers}
    base = next(b for n in count() if (b := buffer.name + "_" * n) and not {f"{b}_{i}" for i in range(size)} & taken)
    within = buffer.within or buffer.name
    return [
        replace(part, name=f"{base}_{number}", within=within, place=buffer.place + number * step)
        for number in range(size)
    ]


def _in_one_order(buffer: Buffer) -> Buffer:
    """What two parts have in common that are the same elements, whatever they are called and their axes' order."""
    pairs = sorted(zip(buffer.dims, buffer.strides, strict=True))
    return replace(buffer, name="", dims=tuple(d for d, _ in pairs), strides=tuple(s for _, s in pairs))


def _values(builder: Builder, value: Value, parts: dict[str, list[str]], dim: str, size: int) -> list[str]:
    """The values of one, one for each index if it has the dimension."""
    if value.op == "iota" and dim in value.attributes:
        return [builder.const(number, value.dtype) for number in range(size)]
    copies = max((len(parts[arg]) for arg in value.args), default=1)
    attributes = tuple(a for a in value.attributes if a != dim or not lookup(value.op).names_dims)
    found: list[str] = []
    for number in range(copies):
        args = [parts[arg][number % len(parts[arg])] for arg in value.args]
        if lookup(value.op).kind == "reduction" and not attributes:
            found.append(args[0])  # only this dimension is dropped
        else:
            found.append(builder.op(value.op, *args, dtype=value.dtype, attributes=attributes))
    if lookup(value.op).kind == "reduction" and dim in value.attributes:
        return [reduce(lambda a, b: builder.op(_COMBINED[value.op], a, b), found)]
    if value.op == "size" and dim in value.attributes:
        return [builder.op("mul", found[0], builder.const(size, value.dtype))]
    return found
