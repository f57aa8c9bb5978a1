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

from weft.capture.sources import origin
from weft.errors import Refusal
from weft.ir import dtypes
from weft.rules import Figure

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


def _scaled(op: str) -> Lower:
    """add and sub with their ``alpha``."""

    def lower(node: NodeLowering) -> str:
        right = node.arg(1)
        if (alpha := node.keyword("alpha", 2, 1)) != 1:
            right = node.op("mul", right, node.const(alpha))
        return node.op(op, node.arg(0), right)

    return lower


def _rsub(node: NodeLowering) -> str:
    left = node.arg(0)
    if (alpha := node.keyword("alpha", 2, 1)) != 1:
        left = node.op("mul", left, node.const(alpha))
    return node.op("sub", node.arg(1), left)


def _identity(node: NodeLowering) -> str:
    return node.arg(0)


def _divide(node: NodeLowering) -> str:
    """Division with its rounding mode; without one, integers are divided as floats."""
    match node.node.kwargs.get("rounding_mode"):
        case "floor":
            return node.op("floor_divide", node.arg(0), node.arg(1))
        case "trunc":
            return node.op("trunc", node.op("div", node.arg(0), node.arg(1)))
        case _:
            return node.op("div", node.arg(0), node.arg(1))


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


def _relu(node: NodeLowering) -> str:
    return node.op("maximum", node.arg(0), node.const(0))


def _where(node: NodeLowering) -> str:
    return node.op("where", node.arg(0, "bool"), node.arg(1), node.arg(2))


def _projection(node: NodeLowering) -> str:
    return node.results(0)[int(node.node.args[1])]  # type: ignore[arg-type]


def _sum(node: NodeLowering) -> str:
    return node.reduce("sum", node.arg(0))


def _mean(node: NodeLowering) -> str:
    total = node.reduce("sum", node.arg(0))
    return node.op("div", total, node.count())


def _any(node: NodeLowering) -> str:
    return _any_of(node, node.arg(0, "bool"))


def _any_of(node: NodeLowering, value: str) -> str:
    """Whether the largest is more than zero; there is none among no elements."""
    largest = node.reduce("max", node.group.builder.cast(value, "i32"))
    return node.op("gt", largest, node.group.builder.const(0, "i32"))


def _max(node: NodeLowering) -> str:
    return node.reduce("max", node.arg(0))


def _min(node: NodeLowering) -> str:
    return node.reduce("min", node.arg(0))


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

COMPARISONS: dict[object, Lower] = {
    overload: _compare(name)
    for name in ("eq", "ne", "lt", "le", "gt", "ge")
    for overload in (getattr(aten, name).Tensor, getattr(aten, name).Scalar)
}

POINTWISE: dict[object, Lower] = {
    aten.add.Tensor: _scaled("add"),
    aten.add.Scalar: _scaled("add"),
    aten.sub.Tensor: _scaled("sub"),
    aten.sub.Scalar: _scaled("sub"),
    aten.rsub.Scalar: _rsub,
    aten.rsub.Tensor: _rsub,
    aten.mul.Tensor: _binary("mul"),
    aten.mul.Scalar: _binary("mul"),
    aten.div.Tensor: _divide,
    aten.div.Scalar: _divide,
    aten.div.Tensor_mode: _divide,
    aten.div.Scalar_mode: _divide,
    aten.floor_divide.default: _binary("floor_divide"),
    aten.remainder.Tensor: _binary("remainder"),
    aten.remainder.Scalar: _binary("remainder"),
    aten.fmod.Tensor: _binary("fmod"),
    aten.fmod.Scalar: _binary("fmod"),
    aten.atan2.default: _binary("atan2"),
    aten.copysign.Tensor: _binary("copysign"),
    aten.copysign.Scalar: _binary("copysign"),
    aten.clamp_min.default: _binary("maximum"),
    aten.clamp_min.Tensor: _binary("maximum"),
    aten.clamp_max.default: _binary("minimum"),
    aten.clamp_max.Tensor: _binary("minimum"),
    aten.sign.default: _sign,
    aten.sgn.default: _sign,
    aten.isnan.default: _is_nan,
    aten.isinf.default: _is_inf,
    aten.pow.Tensor_Scalar: _power,
    aten.pow.Tensor_Tensor: _binary("pow"),
    aten.square.default: lambda node: node.op("mul", node.arg(0), node.arg(0)),
    aten.maximum.default: _binary("maximum"),
    aten.minimum.default: _binary("minimum"),
    aten.neg.default: _unary("neg"),
    aten.abs.default: _unary("abs"),
    aten.sqrt.default: _unary("sqrt"),
    aten.rsqrt.default: _unary("rsqrt"),
    aten.reciprocal.default: _unary("reciprocal"),
    aten.exp.default: _unary("exp"),
    aten.log.default: _unary("log"),
    aten.tanh.default: _unary("tanh"),
    aten.sigmoid.default: _unary("sigmoid"),
    **{getattr(aten, name).default: _unary(name) for name in _FUNCTIONS},
    aten.relu.default: _relu,
    aten.where.self: _where,
    aten.logical_and.default: _logical("logical_and"),
    aten.logical_or.default: _logical("logical_or"),
    aten.logical_not.default: _logical("logical_not"),
    aten.logical_xor.default: _logical("ne"),
    aten.bitwise_and.Tensor: _binary("bitwise_and"),
    aten.bitwise_and.Scalar: _binary("bitwise_and"),
    aten.bitwise_or.Tensor: _binary("bitwise_or"),
    aten.bitwise_or.Scalar: _binary("bitwise_or"),
    aten.bitwise_xor.Tensor: _binary("bitwise_xor"),
    aten.bitwise_xor.Scalar: _binary("bitwise_xor"),
    aten.bitwise_not.default: _unary("bitwise_not"),
    prims.convert_element_type.default: _identity,
    aten._to_copy.default: _identity,
    aten.clone.default: _identity,
}

POINTWISE.update(COMPARISONS)
if hasattr(prims, "fma"):  # not in every supported torch
    POINTWISE[prims.fma.default] = lambda node: node.op("fma", node.arg(0), node.arg(1), node.arg(2))

REDUCTIONS: dict[object, Callable[[Any], str | tuple[str, str]]] = {
    aten.sum.default: _sum,
    aten.sum.dim_IntList: _sum,
    aten.mean.default: _mean,
    aten.mean.dim: _mean,
    aten.amax.default: _max,
    aten.amin.default: _min,
    aten.any.default: _any,
    aten.any.dim: _any,
    aten.any.dims: _any,
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


CONSTANTS = (
    aten.full.default,
    aten.scalar_tensor.default,
    prims.iota.default,
)


def projection() -> Lower:
    """The lowering of ``getitem`` on a node with several results."""
    return _projection


def reduced_axes(node: fx.Node, rank: int) -> tuple[int, ...]:
    """The axes a reduction node drops."""
    if rank == 0:
        return ()
    dims: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    if node.target is aten.gather.default:
        dims = [dims]
    dims = [dims] if isinstance(dims, int) else dims
    return tuple(sorted(int(d) % rank for d in dims or range(rank)))


def check_form(node: fx.Node) -> Refusal | None:
    """A node whose op is in the tables has operands and results it can be lowered with."""
    if (refusal := check_tensors(node)) is not None:
        return refusal
    if node.target is aten.gather.default:
        return _check_gather(node)
    reason = _arithmetic_supported(node)
    return None if reason is None else _refused(node, reason)


def check_tensors(node: fx.Node) -> Refusal | None:
    """Programs have tensors like a node's operands and results."""
    tensors: list[Any] = [a.meta.get("val") for a in node.all_input_nodes]
    value = node.meta.get("val")
    tensors += list(value) if isinstance(value, list | tuple) else [value]
    for tensor in tensors:
        if isinstance(tensor, list | tuple):
            continue  # the results of a node with several
        if isinstance(tensor, torch.SymInt) and node.target in POINTWISE:
            continue  # a size as a number
        if (refusal := _check_tensor(node, tensor)) is not None:
            return refusal
    return None


def _check_tensor(node: fx.Node, tensor: Any) -> Refusal | None:
    if not isinstance(tensor, torch.Tensor):
        return _refused(node, "has a run-time number as an operand")
    if tensor.dtype not in dtypes.NAMES:
        return _refused(node, f"dtype {str(tensor.dtype).removeprefix('torch.')} is not supported")
    if tensor.layout != torch.strided:
        return _refused(node, f"layout {tensor.layout} is not supported")
    if any(isinstance(size, int) and size == 0 for size in tensor.shape):  # pyright: ignore[reportUnnecessaryIsInstance]
        return _refused(node, "has a tensor without elements", have=0, limit=1)
    return None


def _check_gather(node: fx.Node) -> Refusal | None:
    x, dim, index = node.args[0].meta["val"], int(node.args[1]), node.args[2].meta["val"]  # type: ignore[union-attr,arg-type]
    expected: Sequence[Any] = [1 if i == dim % x.ndim else size for i, size in enumerate(x.shape)]
    if index.ndim == x.ndim and all(a == b for a, b in zip(index.shape, expected, strict=True)):
        return None
    along = index.shape[dim] if index.ndim else 1
    if along == 1:
        return _refused(node, "gathers from a part of its operand")
    have = along if isinstance(along, int) else str(along)
    return _refused(node, "gathers more than one element along its dimension", have, limit=1)


def _refused(node: fx.Node, message: str, have: Figure | None = None, limit: Figure | None = None) -> Refusal:
    return Refusal("unsupported_form", node.name, message, have, limit, origin(node))


def _arithmetic_supported(node: fx.Node) -> str | None:
    """What the table of ops says of the dtype the node computes in: booleans are compared, selected, combined and
    reduced by ``any``; functions and powers are of floats."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dtype.is_floating_point:
        return None
    if value.dtype == torch.bool:
        fine = node.target in COMPARISONS or node.target in _ON_BOOLEANS
        return None if fine else "arithmetic on booleans is not supported"
    if node.target is aten.pow.Tensor_Scalar and node.args[1] in (2, 3):
        return None
    if node.kwargs.get("rounding_mode") == "trunc" or node.target in _ON_FLOATS:
        return "is not supported on integers"
    return None


_ON_BOOLEANS = (
    *(aten.where.self, aten.clone.default, aten._to_copy.default, prims.convert_element_type.default),
    *(aten.logical_and.default, aten.logical_or.default, aten.logical_not.default, aten.logical_xor.default),
    *(aten.bitwise_and.Tensor, aten.bitwise_or.Tensor, aten.bitwise_xor.Tensor, aten.bitwise_not.default),
    *(aten.bitwise_and.Scalar, aten.bitwise_or.Scalar, aten.bitwise_xor.Scalar),
    *(aten.add.Tensor, aten.add.Scalar, aten.mul.Tensor, aten.mul.Scalar, aten.maximum.default, aten.minimum.default),
    *(aten.clamp_min.Tensor, aten.clamp_max.Tensor),
    *(aten.any.default, aten.any.dim, aten.any.dims, aten.isnan.default, aten.isinf.default),
)
_ON_FLOATS = (
    *(aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.floor.default, aten.ceil.default, aten.trunc.default),
    *(aten.round.default, aten.fmod.Tensor, aten.fmod.Scalar, aten.reciprocal.default, aten.copysign.Tensor),
)
