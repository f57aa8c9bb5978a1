"""Arithmetic of two floats of 16 bits at a time, which GPUs have instructions for.

A sum, difference or product of two numbers of 16 bits that is computed in float32 and rounded to 16 bits has the bits
that one rounding gives: a product is exact in float32, and 24 digits are twice 11 and two more, so that rounding a sum
twice does no harm (Figueroa, "When is double rounding innocuous?", 1995).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import torch

from weft.ir import dtypes
from weft.ir.builder import Builder
from weft.ir.ops import lookup
from weft.ir.program import Attribute, Program, Value
from weft.ir.simplify import drop_unused, rebuilt
from weft.ir.structure import KEPT


@lru_cache(maxsize=KEPT)
def in_halves(program: Program) -> Program:
    """The program with sums, differences and products of 16 bits in place of those in float32 that are only rounded to
    as many, of numbers that have no more; the same one where there are none."""
    by_name, types = program.by_name(), program.types()
    becomes: dict[str, set[str]] = {output.value: {"itself"} for output in program.outputs}
    for value in program.values:
        for arg in value.args:
            becomes.setdefault(arg, set()).add(value.dtype if _rounds(value) else "something else")

    def is_half(name: str, dtype: str) -> bool:
        """Whether a float32 was cast from a number of 16 bits, or is one."""
        value = by_name.get(name)
        if value is None or value.op not in ("const", "cast"):
            return False
        return _has(dtype, value.attributes[0]) if value.op == "const" else types[value.args[0]][0] == dtype

    def is_found(value: Value) -> bool:
        """Whether a value is such a result, rounded."""
        wide = by_name.get(value.args[0]) if _rounds(value) else None
        if wide is None or wide.dtype != "f32" or not wide.args or not lookup(wide.op).halves:
            return False
        return becomes[wide.name] == {value.dtype} and all(is_half(arg, value.dtype) for arg in wide.args)

    found = {value.name for value in program.values if is_found(value)}
    if not found:
        return program

    def made(builder: Builder, value: Value, renamed: Mapping[str, str]) -> str | None:
        if value.name not in found:
            return None
        wide = by_name[value.args[0]]
        sources = [by_name[arg] for arg in wide.args]
        return builder.op(
            wide.op,
            *(
                renamed[source.args[0]] if source.args else builder.const(float(source.attributes[0]), value.dtype)
                for source in sources
            ),
        )

    return drop_unused(rebuilt(program, made))


def _rounds(value: Value) -> bool:
    return value.op == "cast" and value.dtype in dtypes.HALVES


def _has(dtype: str, number: Attribute) -> bool:
    """Whether a number is one of that type."""
    return float(torch.tensor(number, dtype=dtypes.TORCH_DTYPES[dtype])) == number
