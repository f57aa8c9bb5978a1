"""Canonical form of a program. Every rule keeps every bit of every result, except where it says so."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from weft.ir import dtypes
from weft.ir.builder import Builder
from weft.ir.ops import lookup
from weft.ir.program import Attribute, Program, Value

Rule = Callable[[Builder, Value, tuple[str, ...]], str | None]
Made = Callable[[Builder, Value, Mapping[str, str]], str | None]


def simplify(program: Program) -> Program:
    """Rewrite value by value, share equal ones (in the builder), then drop what no output needs; to a fixed point."""
    while True:
        after = drop_unused(_rewrite(program))
        if after == program:
            return program
        program = after


def rebuilt(program: Program, made: Made) -> Program:
    """The program with what ``made`` gives for a value in its place, and else with the value itself. made: adds to the
    builder, given the new names of what there is already; None for a value that stays."""
    builder = Builder.like(program)
    renamed = {b.name: builder.add_input(b) for b in program.inputs}
    for value in program.values:
        new = made(builder, value, renamed)
        if new is None:
            args = [renamed[arg] for arg in value.args]
            new = builder.op(value.op, *args, dtype=value.dtype, attributes=value.attributes)
        renamed[value.name] = new
    for o in program.outputs:
        builder.add_output(o.buffer, renamed[o.value])
    return builder.finish()


def _rewrite(program: Program) -> Program:
    def made(builder: Builder, value: Value, renamed: Mapping[str, str]) -> str | None:
        args = tuple(renamed[arg] for arg in value.args)
        return next((found for rule in RULES if (found := rule(builder, value, args)) is not None), None)

    return rebuilt(program, made)


def drop_unused(program: Program) -> Program:
    """Without the values and inputs that no output needs, and without dimensions of known sizes that nothing has."""
    needed = {output.value for output in program.outputs}
    for value in reversed(program.values):
        if value.name in needed:
            needed.update(value.args)
    kept = [*(b for b in program.inputs if b.name in needed), *(o.buffer for o in program.outputs)]
    used: set[Attribute] = {dim for buffer in kept for dim in buffer.dims}
    used.update(each for value in program.values if value.name in needed for each in value.attributes)
    dims = tuple(dim for dim in program.dims if dim.name in used or not isinstance(dim.size, int))
    inputs = tuple(b for b in program.inputs if b.name in needed)
    values = tuple(v for v in program.values if v.name in needed)
    return rebuilt(replace(program, dims=dims, inputs=inputs, values=values), lambda *_: None)


def _const(builder: Builder, name: str) -> float | int | None:
    value = builder.value(name)
    if value is None or value.op != "const" or isinstance(value.attributes[0], bool | str):
        return None
    return value.attributes[0]


def fold_constants(builder: Builder, value: Value, args: tuple[str, ...]) -> str | None:
    """A pointwise op on constants is a constant, computed in the op's own dtype."""
    if not args or lookup(value.op).kind != "pointwise" or dtypes.is_narrow(value.dtype):
        return None
    operands = [builder.value(arg) for arg in args]
    tensors: list[torch.Tensor] = []
    for operand in operands:
        if operand is None or operand.op != "const":
            return None
        tensors.append(torch.tensor(operand.attributes[0], dtype=dtypes.TORCH_DTYPES[operand.dtype]))
    target = dtypes.TORCH_DTYPES[value.dtype]
    result = tensors[0].to(target) if value.op == "cast" else lookup(value.op).evaluate(*tensors)
    number = result.item()
    if isinstance(number, float) and not math.isfinite(number):
        return None
    return builder.const(number, value.dtype)


def merge_casts(builder: Builder, value: Value, args: tuple[str, ...]) -> str | None:
    """A cast to the same dtype is nothing; a cast to a wider type and back, or on to a third, is one cast or none."""
    if value.op != "cast":
        return None
    if builder.dtype(args[0]) == value.dtype:
        return args[0]
    inner = builder.value(args[0])
    if inner is not None and inner.op == "cast":
        source = builder.dtype(inner.args[0])
        if dtypes.preserves_value(source, inner.dtype):
            return builder.cast(inner.args[0], value.dtype)
    return None


def expand_powers(builder: Builder, value: Value, args: tuple[str, ...]) -> str | None:
    """x^1 is x; x^2 and x^3 are products; x^-1, x^0.5, x^-0.5 are functions of their own. These are the bits of ATen's
    power with a constant exponent, where its power with a tensor exponent may differ in the last one."""
    exponent = _const(builder, args[1]) if value.op == "pow" else None
    x = args[0] if args else ""
    match exponent:
        case 1:
            return x
        case 2:
            return builder.op("mul", x, x)
        case 3:
            return builder.op("mul", builder.op("mul", x, x), x)
        case -1:
            return builder.op("reciprocal", x)
        case 0.5:
            return builder.op("sqrt", x)
        case -0.5:
            return builder.op("rsqrt", x)
        case _:
            return None


def drop_neutral(builder: Builder, value: Value, args: tuple[str, ...]) -> str | None:
    """x * 1 and x / 1 are x (x + 0 is not: it turns -0 into +0)."""
    if value.op in ("mul", "div") and _const(builder, args[1]) == 1:
        return args[0]
    if value.op == "mul" and _const(builder, args[0]) == 1:
        return args[1]
    return None


def multiply_by_power_of_two(builder: Builder, value: Value, args: tuple[str, ...]) -> str | None:
    """x / 2^k is x * 2^-k, bit for bit, while 2^-k is a normal number."""
    divisor = _const(builder, args[1]) if value.op == "div" else None
    if not divisor or not math.isfinite(divisor):
        return None
    mantissa, exponent = math.frexp(divisor)
    if abs(mantissa) != 0.5 or abs(exponent) > 100:
        return None
    return builder.op("mul", args[0], builder.const(1.0 / divisor, value.dtype))


def widen_halves(builder: Builder, value: Value, args: tuple[str, ...]) -> str | None:
    """Arithmetic in 16 bits is rounded float32 arithmetic, and a number of 16 bits a rounded one of float32: what a
    machine without such instructions does. ``halves.in_halves`` is the other way."""
    if value.dtype not in dtypes.HALVES or not lookup(value.op).halves:
        return None
    wide = [builder.cast(arg, dtypes.compute_dtype(value.dtype)) for arg in args]
    result = builder.op(value.op, *wide, dtype=dtypes.compute_dtype(value.dtype), attributes=value.attributes)
    return builder.cast(result, value.dtype)


def narrow_positions(builder: Builder, value: Value, args: tuple[str, ...]) -> str | None:
    """A 64-bit position compared with a number that does not vary along it fits 32 bits, as wide as a float32 lane;
    numbers that do not fit become -1, which is no position."""
    if value.op not in ("eq", "ne"):
        return None
    for position, other in (args, args[::-1]):
        iota = builder.value(position)
        if iota is None or iota.op != "iota" or iota.dtype != "i64":
            continue
        dim = str(iota.attributes[0])
        size = next(d.size for d in builder.dims if d.name == dim)
        if not isinstance(size, int) or size >= 2**31 or dim in builder.dims_of(other):
            continue
        inside = _is_position(builder, other, size)
        index = builder.cast(builder.op("where", inside, other, builder.const(-1, "i64")), "i32")
        return builder.op(value.op, builder.op("iota", dtype="i32", attributes=(dim,)), index)
    return None


def _is_position(builder: Builder, index: str, size: int) -> str:
    """Whether an integer is one of that many positions."""
    dtype = builder.dtype(index)
    above = builder.op("ge", index, builder.const(0, dtype))
    return builder.op("logical_and", above, builder.op("lt", index, builder.const(size, dtype)))


def where_same(builder: Builder, value: Value, args: tuple[str, ...]) -> str | None:
    """where(c, x, x) is x, if that varies over as much as the condition does."""
    same = value.op == "where" and args[1] == args[2]
    return args[1] if same and builder.dims_of(args[0]) <= builder.dims_of(args[1]) else None


def where_known(builder: Builder, value: Value, args: tuple[str, ...]) -> str | None:
    """where(True, x, y) is x, where(False, x, y) is y."""
    condition = builder.value(args[0]) if value.op == "where" else None
    if condition is None or condition.op != "const":
        return None
    return args[1] if condition.attributes[0] else args[2]


def sum_one_element(builder: Builder, value: Value, args: tuple[str, ...]) -> str | None:
    """A sum along a dimension of what is not zero at one position only is what stands there, if that is a position.

    So is the backward of a gather, whose sum along the row a loss over a vocabulary takes; LLVM needs minutes for some
    of these sums. A zero may have the other sign, and infinite factors lose the NaN that they make of zeros.
    """
    if value.op != "sum" or len(value.attributes) != 1:
        return None
    dim = str(value.attributes[0])
    found = _one_element(builder, args[0], dim)
    size = next(d.size for d in builder.dims if d.name == dim)
    if found is None or not isinstance(size, int):
        return None
    index, element = found
    inside = _is_position(builder, index, size)
    return builder.op("where", inside, builder.cast(element, value.dtype), builder.const(0, value.dtype))


def sum_picked(builder: Builder, value: Value, args: tuple[str, ...]) -> str | None:
    """A sum along a dimension that picks one element of something pointwise is that of the element that is picked of
    what it is made from: ``sum(where(iota == i, f(x), 0))`` is ``f(sum(where(iota == i, x, 0)))`` if i is a position,
    and zero if not. So a loss over a vocabulary needs no loop over the row behind its statistics. Zeros may have the
    other sign."""
    picked = builder.value(args[0]) if value.op == "sum" and len(value.attributes) == 1 else None
    if picked is None or picked.op != "where" or _const(builder, picked.args[2]) != 0:
        return None
    dim = str(value.attributes[0])
    index, size = _position(builder, picked.args[0], dim), next(d.size for d in builder.dims if d.name == dim)
    chain = _chain(builder, picked.args[1], dim)
    if index is None or not isinstance(size, int) or len(chain) < 2:
        return None
    *functions, start = chain
    zero = builder.const(0, builder.dtype(start))
    result = builder.reduce("sum", builder.op("where", picked.args[0], start, zero), (dim,))
    for before, function in reversed(list(zip([*functions[1:], start], functions, strict=True))):
        step = builder.value(function)
        assert step is not None
        operands = [result if arg == before else arg for arg in step.args]
        result = builder.op(step.op, *operands, dtype=step.dtype, attributes=step.attributes)
    inside = _is_position(builder, index, size)
    return builder.op("where", inside, builder.cast(result, value.dtype), builder.const(0, value.dtype))


def _chain(builder: Builder, name: str, dim: str) -> list[str]:
    """A value, what it is made from, and so on, as long as that is pointwise, of floats, and of one operand that varies
    along ``dim``: the last is what is left, which is no value that is only cast."""
    found = [name]
    while (value := builder.value(found[-1])) is not None and lookup(value.op).kind == "pointwise":
        operands = [arg for arg in dict.fromkeys(value.args) if dim in builder.dims_of(arg)]
        if len(operands) != 1 or not all(map(dtypes.is_float, (value.dtype, builder.dtype(operands[0])))):
            break
        found.append(operands[0])
    while len(found) > 1 and (value := builder.value(found[-2])) is not None and value.op == "cast":
        found.pop()
    return found


def _one_element(builder: Builder, name: str, dim: str) -> tuple[str, str] | None:
    """Where along ``dim`` a value is not zero, and what it is there; neither varies along it."""
    value = builder.value(name)
    if value is None:
        return None
    if value.op == "where" and _const(builder, value.args[2]) == 0 and dim not in builder.dims_of(value.args[1]):
        index = _position(builder, value.args[0], dim)
        return None if index is None else (index, value.args[1])
    if value.op == "mul":
        for factor, other in (value.args, value.args[::-1]):
            found = None if dim in builder.dims_of(other) else _one_element(builder, factor, dim)
            if found is not None:
                return found[0], builder.op("mul", found[1], other)
    return None


def _position(builder: Builder, name: str, dim: str) -> str | None:
    """What a value compares with the positions along ``dim``, if that is what it does."""
    value = builder.value(name)
    if value is None or value.op != "eq":
        return None
    for position, other in (value.args, value.args[::-1]):
        iota = builder.value(position)
        if iota is not None and iota.op == "iota" and iota.attributes == (dim,) and dim not in builder.dims_of(other):
            return other
    return None


RULES: tuple[Rule, ...] = (
    fold_constants,
    merge_casts,
    expand_powers,
    drop_neutral,
    multiply_by_power_of_two,
    widen_halves,
    narrow_positions,
    where_same,
    where_known,
    sum_one_element,
    sum_picked,
)
