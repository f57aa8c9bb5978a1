"""Values that are zero where inputs are."""

from __future__ import annotations

from collections.abc import Collection

from weft.ir.program import Program

_POLYNOMIAL = ("cast", "neg", "add", "sub", "mul", "fma")
"""Operations whose result is finite if operands are, but for overflows."""


def zero_where(program: Program, inputs: Collection[str], numbers: Collection[str]) -> set[str]:
    """Values that are zero wherever these inputs are, as are products of one and sums of several. What else they are
    made of is finite: inputs, constants and these numbers, which are that, and polynomials of them."""
    zero, finite = set(inputs), {*(buffer.name for buffer in program.inputs), *numbers}
    for value in program.values:
        args = value.args
        if value.op == "const" or (value.op in _POLYNOMIAL and finite.issuperset(args)):
            finite.add(value.name)
        if value.name not in finite or not args:
            continue
        is_zero = [arg in zero for arg in args]
        match value.op:
            case "mul":
                found = any(is_zero)
            case "fma":
                found = any(is_zero[:2]) and is_zero[2]
            case op:
                found = op in _POLYNOMIAL and all(is_zero)
        if found:
            zero.add(value.name)
    return zero.difference(inputs)
