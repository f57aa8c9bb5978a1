"""Roundings before exponentials, in what is left to TorchInductor.

A graph in 16 bits rounds the result of each operation. TorchInductor leaves that out between operations of one kernel,
in a forward and in its backward alike; weft's kernels round as the graph says. A softmax whose statistics come from the
one and whose probabilities are computed again by the other is off by what is rounded: a logit of 25 in bfloat16 by up
to 0.06, and so is, by as many percent, a probability near one. So what an exponential is of is rounded by
TorchInductor's kernels as well, whoever has the other half.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import fx

from weft.capture.nodes import VIEWS

aten = torch.ops.aten
_EXPONENTIALS = ("aten.exp.default", "prims.prepare_softmax_online.default")
"""The second one is TorchInductor's, of a row's largest element and the sum of exponentials."""
_HALVES = (torch.bfloat16, torch.float16)


def keep_roundings(graph: fx.Graph) -> int:
    """Have TorchInductor round what pointwise operations make in 16 bits on the way to an exponential: each result is
    looked at as an integer, and as the float that it is again. How many there are."""
    found = {node: None for root in graph.nodes if str(root.target) in _EXPONENTIALS for node in _rounded(root)}
    for node in found:
        value = node.meta["val"]
        with graph.inserting_after(node):
            bits = graph.call_function(aten.view.dtype, (node, torch.int16))
        with graph.inserting_after(bits):
            again = graph.call_function(aten.view.dtype, (bits, value.dtype))
        bits.meta["val"], again.meta["val"] = value.view(torch.int16), value
        node.replace_all_uses_with(again, delete_user_cb=lambda user, own=bits: user is not own)
    return len(found)


def _rounded(root: fx.Node) -> Iterator[fx.Node]:
    """Results in 16 bits of the pointwise operations that what goes into a node is made of."""
    seen, left = {root}, list(root.all_input_nodes)
    while left:
        node = left.pop()
        if node in seen or node.op != "call_function":
            continue
        seen.add(node)
        is_pointwise = _is_pointwise(node)
        if is_pointwise and getattr(node.meta.get("val"), "dtype", None) in _HALVES:
            yield node
        if is_pointwise or node.target in VIEWS:
            left += node.all_input_nodes


def _is_pointwise(node: fx.Node) -> bool:
    casts = node.target is torch.ops.prims.convert_element_type.default
    return casts or (isinstance(node.target, torch._ops.OpOverload) and torch.Tag.pointwise in node.target.tags)
