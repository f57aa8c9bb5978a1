"""Expressions in C-like languages: one template an op. The functions in namespace ``w`` come with each backend."""

from __future__ import annotations

import math

import numpy as np

from weft.ir.dtypes import INTEGERS
from weft.ir.ops import OPS
from weft.ir.program import Attribute

C_TYPES = {
    "f64": "double",
    "f32": "float",
    "bf16": "w::bf16",
    "f16": "w::f16",
    "f8e4m3": "w::f8e4m3",
    "f8e5m2": "w::f8e5m2",
    "i64": "int64_t",
    "i32": "int32_t",
    "i8": "int8_t",
    "u8": "uint8_t",
    "bool": "bool",
}

_WORDS = (
    "alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t char8_t class "
    "co_await co_return co_yield compl concept const const_cast consteval constexpr constinit continue decltype "
    "default delete do double dynamic_cast else enum explicit export extern false float for friend goto if inline int "
    "long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public register "
    "reinterpret_cast requires return short signed sizeof static static_assert static_cast struct switch template this "
    "thread_local throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t while xor "
    "xor_eq std int8_t int32_t int64_t uint8_t errno stdin stdout stderr int_vector sched_priority math_errhandling"
)
C_WORDS = frozenset(_WORDS.split())
"""Names that C++ and its headers leave to nobody."""

_WRITTEN_OUT: dict[str, str] = {
    "cast": "w::cast<{type}>({0})",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "neg": "-{0}",
    "where": "w::where({0}, {1}, {2})",
    "bitwise_and": "{0} & {1}",
    "bitwise_or": "{0} | {1}",
    "bitwise_xor": "{0} ^ {1}",
    "bitwise_not": "~{0}",
}
TEMPLATES = _WRITTEN_OUT | {
    name: f"w::{name}({', '.join(f'{{{i}}}' for i in range(op.arity))})"
    for name, op in OPS.items()
    if op.kind == "pointwise" and name not in _WRITTEN_OUT
}

# how a reduction combines two partial results
COMBINE = {"sum": "{0} + {1}", "max": "w::maximum({0}, {1})", "min": "w::minimum({0}, {1})"}


def expression(op: str, operands: list[str], dtype: str) -> str:
    """Text of a pointwise op; KeyError if there is no template."""
    return TEMPLATES[op].format(*operands, type=C_TYPES[dtype])


def literal(number: Attribute, dtype: str) -> str:
    """A number as a literal of that type."""
    if isinstance(number, str):
        raise TypeError(f"{number!r} is no number")
    kind = C_TYPES[dtype]
    if isinstance(number, float) and not math.isfinite(number):
        if math.isnan(number):
            return f"std::numeric_limits<{kind}>::quiet_NaN()"
        return ("-" if number < 0 else "") + f"std::numeric_limits<{kind}>::infinity()"
    if dtype == "bool":
        return "true" if number else "false"
    if dtype in INTEGERS:
        if number == -(2**63):
            return f"std::numeric_limits<{kind}>::min()"
        return f"{kind}({int(number)})"
    return f"{np.float32(number)!s}f" if dtype == "f32" else repr(float(number))
