"""The op table: one row an op, read by builder, verifier, simplifier, interpreter, cost model and printers.

A missing row is an error, never a default. Costs are weights in units of one float32 vector add on a CPU: rough
guesses, neither counted nor fitted. The constants of the CPU's cost model were fitted with these weights in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from weft.ir.dtypes import INTEGERS, TORCH_DTYPES

Kind = Literal["source", "pointwise", "reduction", "gather"]
# How the dtype of the result follows from the operands': "same" as all of them, "bool", "select" (bool, T, T -> T),
# that of the "first" one, or "stated" by the value itself.
DtypeRule = Literal["same", "bool", "select", "first", "stated"]


@dataclass(frozen=True)
class Op:
    """One operation. ``evaluate`` is its definition on torch tensors; for reductions it gets the axes to drop."""

    name: str
    arity: int
    kind: Kind
    dtype: DtypeRule
    cost: float
    evaluate: Callable[..., Tensor]
    floats_only: bool = False
    integers_only: bool = False
    halves: bool = False
    """Whether it is also defined on floats of 16 bits, of which the result is rounded once."""

    @property
    def names_dims(self) -> bool:
        """Whether the attributes of its values are dimensions."""
        return self.kind in ("reduction", "gather") or self.name in ("iota", "size")

    @property
    def drops_dims(self) -> bool:
        """Whether values do not vary over the dimensions that their attributes are."""
        return self.kind in ("reduction", "gather")


def _source(*_: Any) -> Tensor:
    raise AssertionError("sources are evaluated by the interpreter itself")


def _fma(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """x * y + z rounded once. In float64 the product is rounded too.

    A float32 product is exact in float64. The sum is rounded to odd there, so that the second rounding, to float32,
    gives what a single one would (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
    """
    product, addend = x.double() * y.double(), z.double()
    total = product + addend
    if x.dtype == torch.float64:
        return total
    part = total - product
    error = (product - (total - part)) + (addend - part)
    odd = torch.nextafter(total, torch.copysign(torch.full_like(total, float("inf")), error))
    even = (total.contiguous().view(torch.int64) & 1) == 0
    return torch.where((error != 0) & even & total.isfinite(), odd, total).to(x.dtype)


def _m2(x: Tensor, axes: list[int]) -> Tensor:
    """Sum of squared differences from the mean."""
    return (x - x.mean(axes, keepdim=True)).square().sum(axes, keepdim=True)


def _sumexp(x: Tensor, axes: list[int]) -> Tensor:
    """Sum of exponentials of the differences from the largest."""
    return (x - torch.amax(x, axes, keepdim=True)).exp().sum(axes, keepdim=True)


def _pick(x: Tensor, index: Tensor, axis: int) -> Tensor:
    """Along an axis the element with an index, zero where there is none."""
    shape = list(torch.broadcast_shapes(x.shape, index.shape))
    if shape[axis] == 0:
        return x.new_zeros([n if i != axis else 1 for i, n in enumerate(shape)])
    there = (index >= 0) & (index < shape[axis])
    at = torch.where(there, index, 0).long().expand([n if i != axis else 1 for i, n in enumerate(shape)])
    return torch.where(there, x.expand(shape).gather(axis, at), 0)


def _division(divide: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """The division, but that an integer divided by zero, which torch refuses on the CPU, gives zero."""

    def evaluate(x: Tensor, y: Tensor) -> Tensor:
        if x.dtype.is_floating_point:
            return divide(x, y)
        return torch.where(y == 0, 0, divide(x, torch.where(y == 0, 1, y)))

    return evaluate


_FUNCTIONS = {
    "sqrt": 6.0,
    "rsqrt": 10.0,
    "reciprocal": 4.0,
    "exp": 12.0,
    "log": 15.0,
    "tanh": 25.0,
    "sigmoid": 18.0,
    "erf": 25.0,
    "erfc": 30.0,
    "exp2": 12.0,
    "expm1": 20.0,
    "log1p": 20.0,
    "log2": 15.0,
    "log10": 15.0,
    "sin": 20.0,
    "cos": 20.0,
    "tan": 30.0,
    "asin": 25.0,
    "acos": 25.0,
    "atan": 25.0,
    "sinh": 30.0,
    "cosh": 30.0,
    **dict.fromkeys(("floor", "ceil", "trunc", "round"), 1.0),
}
"""Costs of functions of one float, which torch has under the same names."""


def _named(names: Iterable[str], arity: int, dtype: DtypeRule = "same", **flags: bool) -> Iterator[Op]:
    """Pointwise operations that cost 1 and that torch has under the same names."""
    return (Op(name, arity, "pointwise", dtype, 1.0, getattr(torch, name), **flags) for name in names)


def _reduction(name: str, evaluate: Callable[[Tensor, list[int]], Tensor]) -> Op:
    return Op(name, 1, "reduction", "same", 1.0, evaluate)


OPS: dict[str, Op] = {
    op.name: op
    for op in (
        # sources: attributes are (number,), (parameter,), (dim,) and (dim, ...)
        Op("const", 0, "source", "stated", 0.0, _source, halves=True),
        Op("parameter", 0, "source", "stated", 0.0, _source),
        Op("iota", 0, "source", "stated", 1.0, _source),
        Op("size", 0, "source", "stated", 0.0, _source),
        # a cast rounds to nearest even; float to integer truncates
        Op("cast", 1, "pointwise", "stated", 1.0, _source),
        *_named(("add", "sub", "mul"), 2, halves=True),
        Op("div", 2, "pointwise", "same", 4.0, torch.div, floats_only=True),
        Op("fma", 3, "pointwise", "same", 1.0, _fma, floats_only=True),
        Op("pow", 2, "pointwise", "same", 30.0, torch.pow, floats_only=True),
        *_named(("neg", "abs"), 1),
        *_named(("maximum", "minimum"), 2),
        *(Op(f, 1, "pointwise", "same", cost, getattr(torch, f), floats_only=True) for f, cost in _FUNCTIONS.items()),
        Op("atan2", 2, "pointwise", "same", 40.0, torch.atan2, floats_only=True),
        Op("copysign", 2, "pointwise", "same", 2.0, torch.copysign, floats_only=True),
        Op("fmod", 2, "pointwise", "same", 30.0, torch.fmod, floats_only=True),
        Op("floor_divide", 2, "pointwise", "same", 30.0, _division(torch.floor_divide)),
        Op("remainder", 2, "pointwise", "same", 30.0, _division(torch.remainder)),
        *_named(("bitwise_and", "bitwise_or", "bitwise_xor"), 2, integers_only=True),
        *_named(("bitwise_not",), 1, integers_only=True),
        *_named(("eq", "ne", "lt", "le", "gt", "ge"), 2, "bool"),
        *_named(("logical_and", "logical_or"), 2),
        *_named(("logical_not",), 1),
        Op("where", 3, "pointwise", "select", 1.0, torch.where),
        # reductions: attributes are the dropped dims
        _reduction("sum", lambda x, axes: torch.sum(x, axes, keepdim=True, dtype=x.dtype)),
        _reduction("max", lambda x, axes: torch.amax(x, axes, keepdim=True)),
        _reduction("min", lambda x, axes: torch.amin(x, axes, keepdim=True)),
        # of an input, what sum(where(iota == index, x, 0)) is: kernels that loop over columns take it by its address
        Op("pick", 2, "gather", "first", 1.0, _pick),
        # one pass with a moving centre: see weft/ir/online.py
        Op("m2", 1, "reduction", "same", 6.0, _m2, floats_only=True),
        Op("sumexp", 1, "reduction", "same", 30.0, _sumexp, floats_only=True),
    )
}

ONLINE = {"m2": 3, "sumexp": 2}
"""Numbers a partial result of an online reduction consists of."""
PIVOTED = ("m2",)
"""Those that have one more where a mean is relative to some element, so that it is not rounded as a large number is."""
LOGICAL = ("logical_and", "logical_or", "logical_not")
# ops worth keeping rather than computing again when their value is needed on both sides of a row reduction
EXPENSIVE_COST = 10.0


def lookup(name: str) -> Op:
    """The row of ``name``; KeyError with the known names if there is none."""
    if name not in OPS:
        raise KeyError(f"no op named {name!r}; weft/ir/ops.py knows {', '.join(OPS)}")
    return OPS[name]


def states_of(reduction: str, *, pivoted: bool = False) -> int:
    """Numbers a partial result consists of. pivoted: whether means are relative to an element, as on GPUs."""
    return ONLINE.get(reduction, 1) + (pivoted and reduction in PIVOTED)


def identity(reduction: str, dtype: str) -> float | int:
    """The element that leaves a reduction unchanged."""
    if reduction in ("sum", "m2"):
        return 0
    if reduction == "sumexp":
        return float("nan")
    if dtype in INTEGERS:
        limits = torch.iinfo(TORCH_DTYPES[dtype])
        return limits.min if reduction == "max" else limits.max
    return float("-inf") if reduction == "max" else float("inf")
