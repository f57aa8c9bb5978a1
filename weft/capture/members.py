"""Which nodes of a graph can be members of a program, each with its index space, and why the others cannot."""

from __future__ import annotations

import operator
from collections.abc import Collection
from dataclasses import replace

import torch
from torch import fx
from torch._inductor import inductor_prims

from weft.capture.axes import Space, pointwise_space, projection_space, reduction_space
from weft.capture.forms import check_form
from weft.capture.lower import POINTWISE, REDUCTIONS, reduced_axes
from weft.capture.nodes import VIEWS, is_constant, shape_of, storage_bytes
from weft.capture.parts import joined, joined_space
from weft.capture.refine import MisalignedError, Refinement
from weft.capture.sources import origin
from weft.errors import Refusal
from weft.rules import Figure

RANDOM = (inductor_prims.random, inductor_prims.randint)


class Members:
    """Members by node with their spaces, and a refusal for each node of an operation that cannot be one.

    opaque: nodes that become members although nothing can lower them. among: the only nodes that can be members; the
    others count as in memory.
    """

    def __init__(
        self, graph: fx.Graph, opaque: Collection[fx.Node] = (), among: Collection[fx.Node] | None = None
    ) -> None:
        self.refine = Refinement()
        self.refusals: dict[fx.Node, Refusal] = {}
        self.spaces: dict[fx.Node, Space] = {}
        self.drawn: set[fx.Node] = set()
        """Random numbers, and what Inductor makes of them as it draws them."""
        for node in graph.nodes:
            if among is None or node in among:
                self._admit(node, node in opaque)

    def _admit(self, node: fx.Node, opaque: bool) -> None:
        """Give a node its index space if it can be part of a program; otherwise say why not."""
        target = node.target
        if node.op != "call_function" or target in VIEWS or is_constant(node):
            return
        if target is operator.getitem:
            if node.args[0] in self.spaces:
                self.spaces[node] = projection_space(node, self.refine)
            return
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor | list | tuple):
            return  # sizes and other numbers
        parts = None if opaque else joined(node)
        if not opaque and parts is None and target not in POINTWISE and target not in REDUCTIONS:
            if target in RANDOM:
                self.drawn.add(node)
            if not _is_alias(node):
                self.refuse(node, "unsupported_op", f"{target} is no operation weft fuses")
            return
        refusal = None if opaque else check_form(node) or self._check_drawn(node)
        if refusal is not None:
            self.refusals[node] = refusal
            return
        try:
            with self.refine.transaction():
                if target in REDUCTIONS:
                    dims = reduced_axes(node, len(shape_of(node.all_input_nodes[0])))
                    space = reduction_space(node, self.refine, dims)
                elif parts is not None:
                    space = joined_space(node, parts, self.refine)
                else:
                    space = replace(pointwise_space(node, self.refine), opaque=opaque)
                self.refine.check_distinct(space.axes)
        except MisalignedError as error:
            self.refuse(node, "misaligned", str(error), error.have, error.limit)
            return
        devices = {_device_of(o.base) for o in space.operands if not is_constant(o.base)} | {_device_of(node)}
        if len(devices) > 1:  # a number on the CPU and a tensor on a GPU: Inductor reads the number
            message = f"has tensors on {' and '.join(sorted(devices))}"
            self.refuse(node, "unsupported_form", message, len(devices), 1)
            return
        self.spaces[node] = space

    def _check_drawn(self, node: fx.Node) -> Refusal | None:
        """A node that is all that is made of random numbers takes as many bytes as they do; a dropout's mask does not.
        Random numbers need not be in memory, Inductor's kernel draws them where they are used."""
        (drawn, *others) = node.all_input_nodes or [None]
        if drawn not in self.drawn or others or len(drawn.users) > 1:
            return None
        have, limit = storage_bytes(node), storage_bytes(drawn)
        if not 0 < have < limit:
            return None
        self.drawn.add(node)
        message = "is smaller than the random numbers it is made of, which need not be in memory"
        return Refusal("narrows_random", node.name, message, have, limit, origin(node))

    def refuse(
        self, node: fx.Node, rule: str, message: str, have: Figure | None = None, limit: Figure | None = None
    ) -> None:
        self.refusals[node] = Refusal(rule, node.name, message, have, limit, origin(node))


def _is_alias(node: fx.Node) -> bool:
    """Whether an operation only makes an alias of its operand: it costs nothing and stays where it is."""
    schema = getattr(node.target, "_schema", None)
    returns = [] if schema is None else schema.returns
    return bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def _device_of(node: fx.Node) -> str:
    value = node.meta["val"]
    return str((value[0] if isinstance(value, list | tuple) else value).device)
