"""Pointwise operations that TorchInductor fuses with their neighbours and weft has no lowering for.

Regions end at them. What that costs is told from programs in which something else, as wide and in the same place,
stands for them; nothing is ever made of these programs but a price.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import fx

from weft.capture.forms import check_tensors
from weft.capture.nodes import tensor_args
from weft.ir import dtypes

if TYPE_CHECKING:
    from weft.capture.lowering import NodeLowering


PADDING = (torch.ops.aten.slice_scatter.default, torch.ops.aten.constant_pad_nd.default)
"""Operations that TorchInductor fuses as well, being a choice between a tensor and a number for each element."""


def is_opaque(node: fx.Node) -> bool:
    """Whether a node that was refused is such an operation, on tensors that a program can have."""
    from torch._inductor.lowering import fallbacks  # not needed by graphs without a refused pointwise node

    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or not (torch.Tag.pointwise in target.tags or target in PADDING):
        return False
    operands = [a for a in node.all_input_nodes if isinstance(a.meta.get("val"), torch.Tensor)]
    return (
        target not in fallbacks
        and bool(operands)
        and set(operands) == set(tensor_args(node))
        and isinstance(node.meta.get("val"), torch.Tensor)
        and check_tensors(node) is None
    )


def lower_opaque(node: NodeLowering) -> str:
    """Arithmetic on all operands, and zeros around them along axes that none of them has. It counts as cheap: what the
    operation itself takes is not known, and is the same in every kernel."""
    value, *others = (node.arg(i) for i, arg in enumerate(node.node.args) if isinstance(arg, fx.Node))
    for other in others:
        value = node.op("maximum", value, other)
    builder = node.group.builder
    for axis in node.axes_of_no_operand():
        first = builder.op("eq", node.group.positions(axis, "i64"), builder.const(0, "i64"))
        value = builder.op("where", first, value, node.const(0))
    return node.op("neg", value) if dtypes.is_float(node.compute) else value
