"""Programs with less in them than a given one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from weft.errors import VerificationError
from weft.ir.program import Buffer, Output, Program, Size, Value
from weft.ir.verify import verify


def smaller_programs(program: Program) -> Iterator[Program]:
    """Outputs, values and dimensions go, sizes shrink, layouts become plain."""
    for output in program.outputs:
        if len(program.outputs) > 1:
            yield _without_unused(replace(program, outputs=(output,)))
            yield _without_unused(replace(program, outputs=tuple(o for o in program.outputs if o != output)))
    by_name = program.by_name()
    for output in program.outputs:
        for arg in by_name[output.value].args if output.value in by_name else ():
            yield from _if_verified(_written_instead(program, output, arg))
    for value in reversed(program.values):
        for arg in value.args:
            yield from _if_verified(_renamed_value(program, value.name, arg))
        yield from _if_verified(_as_input(program, value.name))
    for dim in program.dims:
        yield from _if_verified(_without_dim(program, dim.name))
        if isinstance(dim.size, int):
            for size in (2, 3, dim.size // 2, dim.size - 1):
                if 1 < size < dim.size:
                    dims = tuple(replace(d, size=size) if d is dim else d for d in program.dims)
                    yield from _if_verified(replace(program, dims=dims))
    for buffer in (*program.inputs, *(o.buffer for o in program.outputs)):
        yield from _if_verified(_plain(program, buffer))


def _if_verified(program: Program | None) -> Iterator[Program]:
    if program is None:
        return
    try:
        yield _without_unused(verify(program))
    except VerificationError:
        return


def _without_unused(program: Program) -> Program:
    needed = {o.value for o in program.outputs}
    for value in reversed(program.values):
        if value.name in needed:
            needed.update(value.args)
    inputs = tuple(b for b in program.inputs if b.name in needed)
    values = tuple(v for v in program.values if v.name in needed)
    buffers = [*inputs, *(o.buffer for o in program.outputs)]
    dims = {d for b in buffers for d in b.dims} | {d for v in values for d in (*v.dims, *map(str, v.attributes))}
    kept = tuple(d for d in program.dims if d.name in dims)
    sizes = {d.size for d in kept} | {s for b in buffers for s in b.strides}
    sizes |= {str(a) for v in values if v.op == "parameter" for a in v.attributes}
    parameters = tuple(p for p in program.parameters if p in sizes)
    return replace(program, inputs=inputs, values=values, dims=kept, parameters=parameters)


def _renamed_value(program: Program, old: str, new: str) -> Program | None:
    """``new`` stands for the value ``old``, of the same type."""
    types = program.types()
    if types[old] != types[new]:
        return None
    values = tuple(
        replace(v, args=tuple(new if a == old else a for a in v.args)) for v in program.values if v.name != old
    )
    outputs = tuple(replace(o, value=new) if o.value == old else o for o in program.outputs)
    return replace(program, values=values, outputs=outputs)


def _as_input(program: Program, name: str) -> Program | None:
    """A value is read from memory instead of computed."""
    dtype, dims = program.types()[name]
    strides = _dense(program, dims)
    if strides is None:
        return None
    values = tuple(v for v in program.values if v.name != name)
    return replace(program, inputs=(*program.inputs, Buffer(name, dtype, dims, strides)), values=values)


def _written_instead(program: Program, output: Output, name: str) -> Program | None:
    """An output is written with an operand of its value."""
    dtype, dims = program.types()[name]
    strides = _dense(program, dims)
    if strides is None:
        return None
    fresh = Output(Buffer(output.buffer.name, dtype, dims, strides), name)
    return replace(program, outputs=tuple(fresh if o is output else o for o in program.outputs))


def _dense(program: Program, dims: Sequence[str]) -> tuple[Size, ...] | None:
    """Strides without padding, unless they depend on run-time sizes."""
    strides: list[Size] = []
    count = 1
    for dim in reversed(dims):
        strides.insert(0, count)
        size = program.size_of(dim)
        if isinstance(size, str) and dim != dims[0]:
            return None
        count *= 1 if isinstance(size, str) else size
    return tuple(strides)


def _without_dim(program: Program, dim: str) -> Program | None:
    """Nothing varies over a dimension any more; what was only reduced over it is gone."""
    if len(program.dims) == 1:
        return None

    def buffer(b: Buffer) -> Buffer:
        kept = [(d, s) for d, s in zip(b.dims, b.strides, strict=True) if d != dim]
        return replace(b, dims=tuple(d for d, _ in kept), strides=tuple(s for _, s in kept))

    values: list[Value] = []
    renamed: dict[str, str] = {}
    for v in program.values:
        attributes = tuple(a for a in v.attributes if a != dim)
        args = tuple(renamed.get(a, a) for a in v.args)
        if v.attributes and not attributes:
            if not args:
                return None
            renamed[v.name] = args[0]
            continue
        values.append(replace(v, args=args, attributes=attributes, dims=tuple(d for d in v.dims if d != dim)))
    outputs = tuple(replace(o, buffer=buffer(o.buffer), value=renamed.get(o.value, o.value)) for o in program.outputs)
    dims = tuple(d for d in program.dims if d.name != dim)
    inputs = tuple(buffer(b) for b in program.inputs)
    return replace(program, dims=dims, inputs=inputs, values=tuple(values), outputs=outputs)


def _plain(program: Program, buffer: Buffer) -> Program | None:
    """A buffer without padding or offset, its dimensions in order."""
    strides = _dense(program, buffer.dims)
    if strides is None:
        return None
    plain = replace(buffer, strides=strides, offset=0)
    if plain == buffer:
        return None
    inputs = tuple(plain if b == buffer else b for b in program.inputs)
    outputs = tuple(replace(o, buffer=plain) if o.buffer == buffer else o for o in program.outputs)
    return replace(program, inputs=inputs, outputs=outputs)
