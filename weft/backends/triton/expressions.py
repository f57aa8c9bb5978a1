"""Expressions in Triton: one template an op. The functions ``w`` are those of ``weft_triton``.

Python's numbers take the type of the tensor they meet in ``+``, ``<``, ``tl.where`` and the like, exactly. Elsewhere
Triton makes float32 or int32 of them first, and where no tensor is met as well: there a number that this would change
is written as ``tl.full([], number, dtype)``. So is every number that a function of ``w`` takes which looks at types.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch

from weft.ir.dtypes import HALVES, INTEGERS, is_float, is_narrow
from weft.ir.ops import OPS, identity
from weft.ir.program import Attribute, Value

_TYPES = {
    "f64": ("float64", "fp64"),
    "f32": ("float32", "fp32"),
    "bf16": ("bfloat16", "bf16"),
    "f16": ("float16", "fp16"),
    "f8e4m3": ("float8e4nv", "fp8e4nv"),
    "f8e5m2": ("float8e5", "fp8e5"),
    "i64": ("int64", "i64"),
    "i32": ("int32", "i32"),
    "i8": ("int8", "i8"),
    "u8": ("uint8", "u8"),
    "bool": ("int1", "i1"),
}
TRITON_TYPES = {dtype: f"tl.{name}" for dtype, (name, _) in _TYPES.items()}
SIGNATURE_TYPES = {dtype: name for dtype, (_, name) in _TYPES.items()}
"""As the signature of a kernel names them, behind a ``*`` for a pointer."""

_COMPARISONS = {
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
}
_OPERATORS = _COMPARISONS | {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "neg": "-{0}",
    "bitwise_and": "{0} & {1}",
    "bitwise_or": "{0} | {1}",
    "bitwise_xor": "{0} ^ {1}",
    "bitwise_not": "~{0}",
    "logical_and": "{0} & {1}",
    "logical_or": "{0} | {1}",
    "logical_not": "~{0}",
    "where": "tl.where({0}, {1}, {2})",
}
_FROM_TRITON = ("abs", "rsqrt", "log", "log2", "exp2", "sin", "cos", "erf", "floor", "ceil", "fma")


def _call(function: str, arity: int) -> str:
    return f"{function}({', '.join(f'{{{i}}}' for i in range(arity))})"


TEMPLATES = {
    op.name: _OPERATORS.get(op.name) or _call(f"{'tl' if op.name in _FROM_TRITON else 'w'}.{op.name}", op.arity)
    for op in OPS.values()
    if op.kind == "pointwise" and op.name != "cast"
}
_BY_TYPE = {
    # -x is 0 - x in Triton, which makes no negative zero
    ("neg", "f32"): "-1.0 * {0}",
    ("neg", "f64"): "-1.0 * {0}",
    # of float32, / and tl.sqrt are not rounded to nearest
    ("div", "f32"): "tl.div_rn({0}, {1})",
    ("div", "f64"): "{0} / {1}",
    ("reciprocal", "f32"): "tl.div_rn(1.0, {0})",
    ("reciprocal", "f64"): "1.0 / {0}",
    ("sqrt", "f32"): "tl.sqrt_rn({0})",
    ("sqrt", "f64"): "tl.sqrt({0})",
    ("floor_divide", "i64"): "w.floor_divide_integers({0}, {1})",
    ("floor_divide", "i32"): "w.floor_divide_integers({0}, {1})",
    ("remainder", "i64"): "w.remainder_integers({0}, {1})",
    ("remainder", "i32"): "w.remainder_integers({0}, {1})",
    **{
        (op.name, half): f"w.{op.name}_halves({{0}}, {{1}})"
        for op in OPS.values()
        if op.halves and op.arity
        for half in HALVES
    },
}
LARGEST = float(np.finfo(np.float32).max)
"""Of float32."""
_ROUNDED_AGAIN = {
    "exp": "tl.exp({0})",
    "div": "{0} / {1}",
    "reciprocal": "1.0 / {0}",
    "tanh": "w.tanh_rounded({0})",
}
"""``ROUGH`` in float32: faster, and off by a few units in the last place."""
_TAKES_NUMBERS = ("maximum", "minimum", "fma", "div")
"""Functions that take numbers beside tensors, and take them for float32 or int32."""

COMBINE = {"sum": "{0} + {1}", "max": "w.maximum({0}, {1})", "min": "w.minimum({0}, {1})"}
"""How a reduction combines two partial results."""
STATES = {
    "m2": (("count", 0.0), ("pivot", 0.0), ("mean", 0.0), ("squares", 0.0)),
    "sumexp": (("centre", -math.inf), ("sum", 0.0)),
}
"""The numbers of a partial result of an online reduction, in the order in which the functions of ``weft_triton`` take
them, and what they are of no elements."""
_REDUCTIONS = {"sum": "tl.sum({0}, {1}, keep_dims=True)", "max": "w.max({0}, {1})", "min": "w.min({0}, {1})"}


def expression(op: str, operands: list[str], dtype: str, source: str = "f32", *, rounded_again: bool = False) -> str:
    """Text of a pointwise op with a result of that type; KeyError if there is no template.

    operands: names, literals, or parenthesised. The result is not, where it is one of Python's operators.
    source: the type of what is cast. rounded_again: whether all that is made of the result has 16 bits or fewer.
    """
    if op == "cast":
        return _cast(operands[0], source, dtype)
    template = _BY_TYPE.get((op, dtype), TEMPLATES[op])
    if rounded_again and dtype == "f32":
        template = _ROUNDED_AGAIN.get(op, template)
    return template.format(*_with_types(op, template, operands, dtype))


def states_of(value: Value) -> tuple[tuple[str, float], ...]:
    """The numbers of a partial result of any reduction, and what they are of no elements."""
    return STATES.get(value.op) or (("sum", identity(value.op, value.dtype)),)


def reduction(op: str, operands: Sequence[str], axis: int) -> str:
    """Text of ``sum``, ``max`` or ``min`` of tensors along an axis, which stays with size one; KeyError else. Several
    tensors of one shape are reduced together, which is a tuple."""
    if len(operands) == 1:
        return _REDUCTIONS[op].format(operands[0], axis)
    return f"w.{op}s(({', '.join(operands)}), {axis})"


def literal(number: Attribute, dtype: str) -> str:
    """A number as it stands in an expression with a tensor of that type."""
    if isinstance(number, str):
        raise TypeError(f"{number!r} is no number")
    if dtype == "bool":
        return str(bool(number))
    if dtype in INTEGERS:
        return str(int(number))
    if not math.isfinite(number):
        return f'float("{float(number)}")'
    if number == 0 and math.copysign(1, number) < 0:
        return f"(-1.0 * {_full('0.0', dtype)})"  # Triton takes Python's -0.0 for 0.0
    if dtype == "f64":
        return repr(float(number))
    single = np.float32(number)
    text, exact = str(single), float(single)
    # Triton reads a float64 and rounds that: of a few numbers, another float32 comes out; the largest one's text is of
    # one that is larger, and makes a float64 of all that meets it
    return text if np.float32(float(text)) == single and abs(float(text)) <= LARGEST else repr(exact)


def constant(number: Attribute, dtype: str) -> str:
    """A number as a tensor without dimensions, where it stands alone."""
    if is_float(dtype) and is_narrow(dtype):
        return _cast(constant(number, "f32"), "f32", dtype)
    text = literal(number, dtype)
    return _full(text, dtype) if _is_number(text) else text


def _cast(operand: str, source: str, dtype: str) -> str:
    """As torch casts: to floats of 8 and 16 bits from float32, to integers of 8 bits from int32."""
    text = _full(operand, source) if _is_number(operand) else operand
    if source == dtype:
        return text
    if dtype == "f8e4m3":
        return f"w.{_to_f8e4m3()}({text})"
    if dtype == "f8e5m2":
        return f"w.to_f8e5m2({text})"
    if source in ("f8e4m3", "f8e5m2") or (dtype in ("bf16", "f16") and source in ("f64", "i64", "i32")):
        text += ".to(tl.float32)" if dtype != "f32" else ""
    if is_float(source) and dtype in ("i8", "u8"):
        text += ".to(tl.int32)"
    return f"{text}.to({TRITON_TYPES[dtype]})"


@cache
def _to_f8e4m3() -> str:
    """What is too large is the largest number to torch since 2.13, and NaN before."""
    beyond = torch.tensor(1e9).to(torch.float8_e4m3fn).float()
    return "to_f8e4m3" if beyond.isnan() else "to_f8e4m3_saturated"


def _with_types(op: str, template: str, operands: list[str], dtype: str) -> list[str]:
    """The operands, numbers with a type where they need one."""
    values = operands[1:] if op == "where" else operands
    lonely = all(map(_is_number, values))
    is_operator = "(" not in template or op == "where"
    if op in _COMPARISONS or (is_operator and not lonely):
        return operands
    takes_numbers = op == "where" or (op in _TAKES_NUMBERS and not lonely)
    if takes_numbers and all(_is_plain(v, dtype) for v in values):
        return operands
    typed = [_full(v, dtype) if _is_number(v) else v for v in values]
    return [*operands[: len(operands) - len(values)], *typed]


def _is_plain(text: str, dtype: str) -> bool:
    """Whether Triton gives that type and that value to the text by itself."""
    if not _is_number(text) or dtype in ("i32", "bool"):
        return True
    if dtype != "f32":
        return False
    return text.startswith("float") or float(text) == 0 or 2.0**-126 <= abs(float(text)) <= LARGEST


def _is_number(text: str) -> bool:
    return re.fullmatch(r'-?\d[\d.e+-]*|float\("(-?inf|nan)"\)|True|False', text) is not None


def _full(text: str, dtype: str) -> str:
    if dtype in HALVES:  # which Triton's interpreter has no numbers of
        return f"{_full(text, 'f32')}.to({TRITON_TYPES[dtype]})"
    return f"tl.full([], {text}, {TRITON_TYPES[dtype]})"
