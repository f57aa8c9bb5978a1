"""Merges dimensions that always occur together and are contiguous in every buffer, and gives them names.

``[B, T, N]`` that is only ever read as ``[B * T, N]`` becomes two dimensions: ``m`` (rows, slow) and ``n`` (the one
that is contiguous in memory). With more of them the slow ones are ``m0, m1, ...``, slowest first.
"""

from __future__ import annotations

from dataclasses import replace

from weft.capture.refine import Extent, guess, parameter
from weft.ir.ops import lookup
from weft.ir.program import Attribute, Buffer, Dim, Output, Program, Size, Value
from weft.ir.verify import verify

Expressions = dict[str, Extent]


def merge_dimensions(program: Program, expressions: Expressions) -> tuple[Program, Expressions]:
    """The same program over as few dimensions as its buffers allow, and the expressions behind its parameters."""
    expressions = dict(expressions)
    while (pair := _mergeable_pair(program, expressions)) is not None:
        program = _merge(program, expressions, *pair)
    program = _rename_dims(_order_dims(program, expressions))
    return _drop_parameters(program, expressions)


def _mergeable_pair(program: Program, expressions: Expressions) -> tuple[str, str] | None:
    names = [dim.name for dim in program.dims]
    for major in names:
        for minor in names:
            if major != minor and _can_merge(program, expressions, major, minor):
                return major, minor
    return None


def _can_merge(program: Program, expressions: Expressions, major: str, minor: str) -> bool:
    together = [set(v.dims) for v in program.values]
    named = [v for v in program.values if v.op == "size" or lookup(v.op).kind == "reduction"]
    together += [{str(a) for a in v.attributes} for v in named]
    if any((major in dims) != (minor in dims) for dims in together):
        return False
    if any(v.op == "iota" and v.attributes[0] in (major, minor) for v in program.values):
        return False
    for buffer in program.buffers:
        if (major in buffer.dims) != (minor in buffer.dims):
            return False
        if major in buffer.dims:
            strides = buffer.stride_of
            contiguous = _value(strides[minor], expressions) * _value(program.size_of(minor), expressions)
            if contiguous != _value(strides[major], expressions):
                return False
    return True


def _value(size: Size, expressions: Expressions) -> Extent:
    return expressions[size] if isinstance(size, str) else size


def _merge(program: Program, expressions: Expressions, major: str, minor: str) -> Program:
    product = _value(program.size_of(major), expressions) * _value(program.size_of(minor), expressions)
    merged = Dim(minor, parameter(product, expressions))
    dims = tuple(merged if d.name == minor else d for d in program.dims if d.name != major)
    values = tuple(_without(v, major) for v in program.values)
    program = replace(program, parameters=tuple(expressions), dims=dims, values=values)
    return _map_buffers(program, lambda b: _drop_axis(b, major))


def _without(value: Value, dim: str) -> Value:
    attributes = tuple(a for a in value.attributes if a != dim or not lookup(value.op).names_dims)
    return replace(value, dims=tuple(d for d in value.dims if d != dim), attributes=attributes)


def _drop_axis(buffer: Buffer, dim: str) -> Buffer:
    kept = [(d, s) for d, s in zip(buffer.dims, buffer.strides, strict=True) if d != dim]
    return replace(buffer, dims=tuple(d for d, _ in kept), strides=tuple(s for _, s in kept))


def _map_buffers(program: Program, function) -> Program:  # type: ignore[no-untyped-def]
    inputs = tuple(function(b) for b in program.inputs)
    outputs = tuple(Output(function(o.buffer), o.value) for o in program.outputs)
    return replace(program, inputs=inputs, outputs=outputs)


def _order_dims(program: Program, expressions: Expressions) -> Program:
    """Slowest dimension of the largest buffer first; run-time strides are compared as if their symbols were large."""
    buffers = sorted(program.buffers, key=lambda b: (-len(b.dims), b.name))
    rank: dict[str, tuple[int, int]] = {}
    for position, buffer in enumerate(buffers):
        for dim, stride in zip(buffer.dims, buffer.strides, strict=True):
            rank.setdefault(dim, (position, -guess(_value(stride, expressions))))
    dims = tuple(sorted(program.dims, key=lambda d: rank.get(d.name, (len(buffers), 0))))
    position_of = {d.name: i for i, d in enumerate(dims)}
    values = tuple(replace(v, dims=tuple(sorted(v.dims, key=position_of.__getitem__))) for v in program.values)
    return replace(program, dims=dims, values=values)


def _rename_dims(program: Program) -> Program:
    names = [dim.name for dim in program.dims]
    fast = next((b.dims[b.strides.index(1)] for b in program.inputs if 1 in b.strides and len(b.dims) > 1), None)
    fast = fast or (names[-1] if names else None)
    slow = [name for name in names if name != fast]
    mapping = {name: "m" if len(slow) == 1 else f"m{i}" for i, name in enumerate(slow)}
    if fast is not None:
        mapping[fast] = "n"

    def renamed(value: Value) -> tuple[Attribute, ...]:
        return tuple(mapping[str(a)] for a in value.attributes) if lookup(value.op).names_dims else value.attributes

    dims = tuple(Dim(mapping[d.name], d.size) for d in program.dims)
    values = tuple(replace(v, dims=tuple(mapping[d] for d in v.dims), attributes=renamed(v)) for v in program.values)
    program = replace(program, dims=dims, values=values)
    return _map_buffers(program, lambda b: replace(b, dims=tuple(mapping[d] for d in b.dims)))


def _drop_parameters(program: Program, expressions: Expressions) -> tuple[Program, Expressions]:
    """Keep the parameters that are still used, numbered in order."""
    used = [d.size for d in program.dims]
    used += [s for b in program.buffers for s in b.strides]
    used += [str(v.attributes[0]) for v in program.values if v.op == "parameter"]
    mapping = {old: f"s{i}" for i, old in enumerate(dict.fromkeys(s for s in used if isinstance(s, str)))}

    def size(value: Size) -> Size:
        return mapping[value] if isinstance(value, str) else value

    dims = tuple(Dim(d.name, size(d.size)) for d in program.dims)
    values = tuple(
        replace(v, attributes=(size(str(v.attributes[0])),)) if v.op == "parameter" else v for v in program.values
    )
    program = replace(program, dims=dims, values=values, parameters=tuple(mapping.values()))
    program = _map_buffers(program, lambda b: replace(b, strides=tuple(map(size, b.strides))))
    return verify(program), {new: expressions[old] for old, new in mapping.items()}
