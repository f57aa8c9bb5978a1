"""The rules every program obeys. Run at the exit of every stage that makes one."""

from __future__ import annotations

import torch

from weft.errors import VerificationError
from weft.ir import dtypes
from weft.ir.ops import LOGICAL, Op, lookup
from weft.ir.program import Buffer, Program, Size, Value

Types = dict[str, tuple[str, tuple[str, ...]]]


def verify(program: Program) -> Program:
    """Return ``program``, or raise VerificationError that names the first value that breaks a rule."""
    names = [d.name for d in program.dims]
    _expect(len(set(names)) == len(names), program.name, "two dimensions have the same name")
    _expect(len(set(program.parameters)) == len(program.parameters), program.name, "two parameters have the same name")
    for dim in program.dims:
        _check_size(program, dim.name, dim.size)
        _expect(dim.size != 1, dim.name, "a dimension of size one is no dimension")
    types: Types = {}
    for buffer in program.inputs:
        _check_buffer(program, buffer)
        _expect(buffer.name not in types, buffer.name, "the name is taken")
        types[buffer.name] = (buffer.dtype, program.in_order(buffer.dims))
    for value in program.values:
        _expect(value.name not in types, value.name, "the name is taken")
        _expect(value.name.isidentifier(), value.name, "is no name")
        _check_value(program, value, types)
        types[value.name] = (value.dtype, value.dims)
    written: set[str] = set()
    for output in program.outputs:
        _check_buffer(program, output.buffer)
        _expect(output.buffer.name not in types.keys() | written, output.buffer.name, "the name is taken")
        written.add(output.buffer.name)
        _expect(output.value in types, output.buffer.name, f"is written with {output.value}, which does not exist")
        dtype, dims = types[output.value]
        _expect(dtype == output.buffer.dtype, output.buffer.name, f"is {output.buffer.dtype} but its value is {dtype}")
        extra = set(dims) - set(output.buffer.dims)
        _expect(not extra, output.buffer.name, f"lacks dimensions {sorted(extra)} that its value varies over")
    return program


def _expect(condition: bool, subject: str, message: str) -> None:
    if not condition:
        raise VerificationError(f"{subject}: {message}")


def _check_size(program: Program, subject: str, size: Size) -> None:
    if isinstance(size, str):
        _expect(size in program.parameters, subject, f"{size} is no parameter of the program")
    else:
        _expect(size >= 0, subject, f"{size} is negative")


def _check_buffer(program: Program, buffer: Buffer) -> None:
    known = {d.name for d in program.dims}
    _expect(buffer.dtype in dtypes.TORCH_DTYPES, buffer.name, f"unknown dtype {buffer.dtype}")
    _expect(len(buffer.dims) == len(buffer.strides), buffer.name, "one stride a dimension")
    _expect(len(set(buffer.dims)) == len(buffer.dims), buffer.name, "a dimension occurs twice (a diagonal)")
    _expect(set(buffer.dims) <= known, buffer.name, f"unknown dimension in {buffer.dims}")
    _expect(buffer.name.isidentifier(), buffer.name, "is no name")
    _expect(buffer.offset >= 0, buffer.name, f"its offset {buffer.offset} is negative")
    _expect(buffer.place >= 0, buffer.name, f"its place {buffer.place} is negative")
    _expect(buffer.within != buffer.name, buffer.name, "is within itself")
    for stride in buffer.strides:
        _check_size(program, buffer.name, stride)


def _check_value(program: Program, value: Value, types: Types) -> None:
    try:
        op = lookup(value.op)
    except KeyError as error:
        raise VerificationError(f"{value.name}: {error.args[0]}") from None
    _expect(len(value.args) == op.arity, value.name, f"{op.name} takes {op.arity} operands, not {len(value.args)}")
    for arg in value.args:
        _expect(arg in types, value.name, f"operand {arg} is not defined before it")
    _expect(value.dtype in dtypes.TORCH_DTYPES, value.name, f"unknown dtype {value.dtype}")
    _check_attributes(program, value, op)
    operands = [types[arg] for arg in value.args]
    dims = {dim for _, found in operands for dim in found}
    if op.drops_dims:
        dropped = {str(a) for a in value.attributes}
        _expect(dropped <= dims, value.name, f"drops {sorted(dropped - dims)}, which its operand does not vary over")
        dims -= dropped
    elif op.name == "iota":
        dims = {str(value.attributes[0])}
    _expect(value.dims == program.in_order(dims), value.name, f"varies over {dims}, not {value.dims}")
    _check_dtypes(value, op, [dtype for dtype, _ in operands])


def _check_attributes(program: Program, value: Value, op: Op) -> None:
    """A constant has one number of its dtype, an iota one dimension, sizes and reductions some, the others nothing."""
    attributes = value.attributes
    if op.name == "const":
        _expect(len(attributes) == 1, value.name, "a constant has one number")
        number = attributes[0]
        if dtypes.is_float(value.dtype):
            _expect(type(number) is float, value.name, f"{number!r} is no floating-point number")
        elif value.dtype == "bool":
            _expect(type(number) is bool, value.name, f"{number!r} is neither True nor False")
        else:
            limits = torch.iinfo(dtypes.TORCH_DTYPES[value.dtype])
            fits = type(number) is int and limits.min <= number <= limits.max
            _expect(fits, value.name, f"{number!r} is no {value.dtype}")
    elif op.name == "parameter":
        known = len(attributes) == 1 and attributes[0] in program.parameters
        _expect(known, value.name, f"{attributes} is no parameter of the program")
    elif op.names_dims:
        known = {d.name for d in program.dims}
        kind = "a reduction drops" if op.kind == "reduction" else f"{op.name} is over"
        _expect(bool(attributes), value.name, f"{kind} at least one dimension")
        one = op.name not in ("iota", "pick") or len(attributes) == 1
        _expect(one, value.name, f"{op.name} is over one dimension")
        _expect(len(set(attributes)) == len(attributes), value.name, f"names a dimension twice: {attributes}")
        _expect(set(attributes) <= known, value.name, f"names an unknown dimension: {attributes}")
    else:
        _expect(not attributes, value.name, f"{op.name} has no attributes, got {attributes}")


def _check_dtypes(value: Value, op: Op, operands: list[str]) -> None:
    if op.name == "cast":
        return
    if op.name == "pick":
        _expect(operands[1] in dtypes.INTEGERS, value.name, f"its index is {operands[1]}, no integer")
        _expect(value.dtype == operands[0], value.name, f"is {value.dtype}, expected {operands[0]}")
        return
    narrow = [d for d in (*operands, value.dtype) if dtypes.is_narrow(d) and not (op.halves and d in dtypes.HALVES)]
    _expect(not narrow, value.name, f"{narrow and narrow[0]} is only loaded, cast and stored: cast it first")
    if op.dtype == "select":
        _expect(operands[0] == "bool", value.name, "the first operand of where is bool")
        operands = operands[1:]
    if op.dtype != "stated":
        _expect(len(set(operands)) <= 1, value.name, f"operands have different dtypes {operands}")
        expected = "bool" if op.dtype == "bool" else operands[0]
        _expect(value.dtype == expected, value.name, f"is {value.dtype}, expected {expected}")
    if op.floats_only:
        _expect(dtypes.is_float(value.dtype), value.name, f"{op.name} is defined on floats, not {value.dtype}")
    if op.integers_only:
        _expect(value.dtype in dtypes.INTEGERS, value.name, f"{op.name} is defined on integers, not {value.dtype}")
    if op.name in LOGICAL:
        _expect(operands[0] == "bool", value.name, f"{op.name} is defined on bool, not {operands[0]}")
    elif op.kind != "source" and op.dtype == "same":
        _expect(operands[0] != "bool", value.name, f"{op.name} is not defined on bool")
