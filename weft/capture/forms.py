"""Which operands and results a node may have whose operation is in the tables of ``lower.py``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from weft.capture.lower import COMPARISONS, POINTWISE
from weft.capture.sources import origin
from weft.errors import Refusal
from weft.ir import dtypes
from weft.rules import Figure

aten = torch.ops.aten
prims = torch.ops.prims


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
