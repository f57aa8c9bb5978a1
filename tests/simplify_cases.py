"""Programs of one expression, what the simplifier makes of them, and whether results are equal in every bit."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from weft.ir import Builder, Dim, Program, simplify
from weft.ir.printer import print_value

INF, NAN = math.inf, math.nan
Expression = Callable[[Builder, str], str]


def one_input(expression: Expression, dtype: str = "f32", size: int = 4) -> Program:
    """A program of one vector x[n] that writes ``expression`` of it, broadcast over n where it lacks that."""
    builder = Builder("p", (Dim("n", size),))
    value = expression(builder, builder.input("x", dtype, ["n"], [1]))
    builder.output("y", value, builder.dtype(value), ["n"], [1])
    return builder.finish()


def simplified(expression: Expression, dtype: str = "f32") -> list[str]:
    """Values of the simplified program, as they are printed, and what is written."""
    program = simplify(one_input(expression, dtype))
    return [*(print_value(value) for value in program.values), program.outputs[0].value]


def unchanged(expression: Expression, dtype: str = "f32") -> bool:
    program = one_input(expression, dtype)
    return simplify(program) == program


def binary(op: str, number: float, dtype: str = "f32", *, swapped: bool = False) -> Expression:
    def build(builder: Builder, x: str) -> str:
        args = [x, builder.const(number, dtype)]
        return builder.op(op, *(reversed(args) if swapped else args))

    return build


def same_bits(found: Tensor, expected: Tensor) -> bool:
    """Equal shape, dtype and bits; any not-a-number is like any other."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    if not found.dtype.is_floating_point:
        return torch.equal(found, expected)
    if found.itemsize == 1:  # torch neither compares 8-bit floats nor tells their signs
        found, expected = found.double(), expected.double()
    nan = expected.isnan()
    alike = (found == expected) & (found.signbit() == expected.signbit())
    return bool((found.isnan() == nan).all()) and bool((alike | nan).all())
