"""Lowering: one short function an ATen op, from an FX node to values of a program.

Arithmetic on 16-bit floats is done in float32 and rounded where eager rounds, at the end of each ATen op, so that
fusing never changes a value; casts that cancel are removed by ``simplify``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._inductor import inductor_prims

from weft.ir import dtypes

if TYPE_CHECKING:
    from weft.capture.lowering import NodeLowering

aten = torch.ops.aten
prims = torch.ops.prims
Lower = Callable[["NodeLowering"], str]


def _binary(op: str) -> Lower:
    def lower(node: NodeLowering) -> str:
        return node.op(op, node.arg(0), node.arg(1))

    return lower


def _unary(op: str) -> Lower:
    def lower(node: NodeLowering) -> str:
        return node.op(op, node.arg(0))

    return lower


def _compare(op: str) -> Lower:
    def lower(node: NodeLowering) -> str:
        dtype = node.promoted(0, 1)
        return node.op(op, node.arg(0, dtype), node.arg(1, dtype))

    return lower


def _logical(op: str) -> Lower:
    def lower(node: NodeLowering) -> str:
        return node.op(op, *(node.arg(i, "bool") for i in range(len(node.node.args))))

    return lower


def _scaled(op: str, place: int = 1) -> Lower:
    """add and sub with their ``alpha``, by which the operand at that place is multiplied; the other one is the left."""

    def lower(node: NodeLowering) -> str:
        right = node.arg(place)
        if (alpha := node.keyword("alpha", 2, 1)) != 1:
            right = node.op("mul", right, node.const(alpha))
        return node.op(op, node.arg(1 - place), right)

    return lower


def _reduce(op: str) -> Lower:
    def lower(node: NodeLowering) -> str:
        return node.reduce(op, node.arg(0))

    return lower


def _identity(node: NodeLowering) -> str:
    return node.arg(0)


def _divide(node: NodeLowering) -> str:
    """Division with its rounding mode; without one, integers are divided as floats."""
    mode = node.node.kwargs.get("rounding_mode")
    quotient = node.op("floor_divide" if mode == "floor" else "div", node.arg(0), node.arg(1))
    return node.op("trunc", quotient) if mode == "trunc" else quotient


def _power(node: NodeLowering) -> str:
    """A power of floats, or a square or cube of integers."""
    if node.compute not in dtypes.INTEGERS:
        return node.op("pow", node.arg(0), node.arg(1))
    x = result = node.arg(0)
    for _ in range(int(node.node.args[1]) - 1):  # type: ignore[arg-type]
        result = node.op("mul", result, x)
    return result


def _sign(node: NodeLowering) -> str:
    """-1, 0 or 1; 0 for NaN."""
    x, zero = node.arg(0), node.const(0)
    below = node.op("where", node.op("lt", x, zero), node.const(-1), zero)
    return node.op("where", node.op("gt", x, zero), node.const(1), below)


def _is_nan(node: NodeLowering) -> str:
    x = node.arg(0, node.promoted(0, 0))
    return node.op("ne", x, x)


def _is_inf(node: NodeLowering) -> str:
    dtype = node.promoted(0, 0)
    return node.op("eq", node.op("abs", node.arg(0, dtype)), node.group.builder.const(float("inf"), dtype))


def project(node: NodeLowering) -> str:
    """``getitem`` on a node with several results."""
    return node.results()[int(node.node.args[1])]  # type: ignore[arg-type]


def _mean(node: NodeLowering) -> str:
    return node.op("div", node.reduce("sum", node.arg(0)), node.count())


def _any(node: NodeLowering) -> str:
    return _any_of(node, node.arg(0, "bool"))


def _any_of(node: NodeLowering, value: str) -> str:
    """Whether the largest is more than zero; there is none among no elements."""
    largest = node.reduce("max", node.group.builder.cast(value, "i32"))
    return node.op("gt", largest, node.group.builder.const(0, "i32"))


def _var_mean(node: NodeLowering) -> tuple[str, str]:
    """Mean first, then the mean square of the differences: the two-pass form loses no digits."""
    x = node.arg(0)
    mean = node.op("div", node.reduce("sum", x), node.count())
    centred = node.op("sub", x, mean)
    squares = node.reduce("sum", node.op("mul", centred, centred))
    correction = node.keyword("correction", 2, None)
    correction = 1 if correction is None else correction
    count = node.count()
    if correction != 0:
        count = node.op("sub", count, node.const(correction))
        count = node.op("maximum", count, node.const(0))
    return node.op("div", squares, count), mean


def _prepare_softmax(node: NodeLowering) -> tuple[str, str]:
    """The largest element, and the sum of the exponentials of the differences from it: what TorchInductor makes of a
    softmax on a GPU before it looks for kernels."""
    x = node.arg(0)
    largest = node.reduce("max", x)
    return largest, node.reduce("sum", node.op("exp", node.op("sub", x, largest)))


def _gather(node: NodeLowering) -> str:
    """gather(x, d, index) is the sum over d of x where the position along d equals the index; of booleans, whether
    there is one."""
    position = node.positions()
    chosen = node.op("eq", position, node.arg(2, "i64"))
    if node.compute == "bool":
        return _any_of(node, node.op("logical_and", chosen, node.arg(0)))
    return node.reduce("sum", node.op("where", chosen, node.arg(0), node.const(0)))


_FUNCTIONS = (
    *("erf", "erfc", "exp2", "expm1", "log1p", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan"),
    *("sinh", "cosh", "floor", "ceil", "trunc", "round"),
)

_OF_ONE = ("default",)


def _table(
    lower: Callable[[str], Lower], names: Sequence[str], overloads: Sequence[str] = ("Tensor", "Scalar")
) -> dict[object, Lower]:
    """The lowering of some operations, which programs have under the same names, by overload."""
    return {getattr(getattr(aten, name), overload): lower(name) for name in names for overload in overloads}


COMPARISONS = _table(_compare, ("eq", "ne", "lt", "le", "gt", "ge"))

POINTWISE: dict[object, Lower] = {
    **COMPARISONS,
    **_table(_scaled, ("add", "sub")),
    **dict.fromkeys((aten.rsub.Scalar, aten.rsub.Tensor), _scaled("sub", 0)),
    **_table(_binary, ("mul", "remainder", "fmod", "copysign", "bitwise_and", "bitwise_or", "bitwise_xor")),
    **_table(_binary, ("floor_divide", "atan2", "maximum", "minimum"), _OF_ONE),
    **dict.fromkeys((aten.div.Tensor, aten.div.Scalar, aten.div.Tensor_mode, aten.div.Scalar_mode), _divide),
    **dict.fromkeys((aten.clamp_min.default, aten.clamp_min.Tensor), _binary("maximum")),
    **dict.fromkeys((aten.clamp_max.default, aten.clamp_max.Tensor), _binary("minimum")),
    **dict.fromkeys((aten.sign.default, aten.sgn.default), _sign),
    aten.isnan.default: _is_nan,
    aten.isinf.default: _is_inf,
    aten.pow.Tensor_Scalar: _power,
    aten.pow.Tensor_Tensor: _binary("pow"),
    aten.square.default: lambda node: node.op("mul", node.arg(0), node.arg(0)),
    **_table(_unary, ("neg", "abs", "sqrt", "rsqrt", "reciprocal", "exp", "log", "tanh", "sigmoid"), _OF_ONE),
    **_table(_unary, ("bitwise_not", *_FUNCTIONS), _OF_ONE),
    aten.relu.default: lambda node: node.op("maximum", node.arg(0), node.const(0)),
    aten.where.self: lambda node: node.op("where", node.arg(0, "bool"), node.arg(1), node.arg(2)),
    **_table(_logical, ("logical_and", "logical_or", "logical_not"), _OF_ONE),
    aten.logical_xor.default: _logical("ne"),
    **dict.fromkeys((prims.convert_element_type.default, aten._to_copy.default, aten.clone.default), _identity),
}
if hasattr(prims, "fma"):  # not in every supported torch
    POINTWISE[prims.fma.default] = lambda node: node.op("fma", node.arg(0), node.arg(1), node.arg(2))

REDUCTIONS: dict[object, Callable[[Any], str | tuple[str, str]]] = {
    **dict.fromkeys((aten.sum.default, aten.sum.dim_IntList), _reduce("sum")),
    **dict.fromkeys((aten.mean.default, aten.mean.dim), _mean),
    aten.amax.default: _reduce("max"),
    aten.amin.default: _reduce("min"),
    **dict.fromkeys((aten.any.default, aten.any.dim, aten.any.dims), _any),
    aten.var_mean.correction: _var_mean,
    inductor_prims.prepare_softmax_online: _prepare_softmax,
    aten.gather.default: _gather,
}

_DEAR = (
    *(getattr(aten, name).default for name in _FUNCTIONS if name not in ("floor", "ceil", "trunc", "round")),
    *(aten.pow.Tensor_Tensor, aten.tanh.default, aten.log.default, aten.atan2.default),
)


def is_dear(node: fx.Node) -> bool:
    """Whether a pointwise operation takes tens of instructions an element, where most take one."""
    return node.target in _DEAR


def reduced_axes(node: fx.Node, rank: int) -> tuple[int, ...]:
    """The axes a reduction node drops."""
    if rank == 0:
        return ()
    dims: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    if node.target is aten.gather.default:
        dims = [dims]
    dims = [dims] if isinstance(dims, int) else dims
    return tuple(sorted(int(d) % rank for d in dims or range(rank)))
