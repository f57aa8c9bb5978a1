"""What a forward keeps for its backward: values that lie in memory anyway, in place of what is computed from them.

PyTorch's partitioner keeps as few bytes as it can, but computes nothing again that is read far apart in the forward,
and does not count what a forward writes. The residual stream of a transformer lies in memory, since it is read on both
sides of a block. Beside it the partitioner keeps each norm's normalised rows, which a norm in one kernel has in
registers only. From the stream, and statistics that are kept, the backward computes them as it reads: a tensor less is
written in the forward, and where the backward reads the stream too, a tensor less is read and kept.

Each exchange is priced in bytes, and none keeps more than before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from weft.capture.lower import COMPARISONS, REDUCTIONS
from weft.capture.nodes import VIEWS, is_view, storage_bytes, viewed
from weft.capture.pointwise import is_fused

aten, prims = torch.ops.aten, torch.ops.prims

LEAST_BYTES = 2**20
"""Of what is exchanged."""
LEAST_GAIN = 0.25
"""Bytes that an exchange has to save, of those of what is kept no more."""
MOST_NODES = 32
"""That are computed again for one value."""
CHEAP = {
    aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar, aten.rsub.Tensor, aten.rsub.Scalar,
    aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar, aten.neg.default, aten.abs.default,
    aten.maximum.default, aten.minimum.default, aten.relu.default, aten.square.default, aten.sqrt.default,
    aten.rsqrt.default, aten.reciprocal.default, aten.where.self, aten.logical_and.default, aten.logical_or.default,
    aten.logical_not.default, prims.convert_element_type.default, aten._to_copy.default, *COMPARISONS, *VIEWS,
}  # fmt: skip
"""What may be computed twice: a few instructions an element."""
CHOSEN = ("recompute", "saved_tensor_with_no_vc_check")
"""What PyTorch notes on a node that a checkpoint, or an operator, has decided on."""


@dataclass(frozen=True)
class Exchange:
    """``value`` is kept no more; ``instead``, if not None, is kept in its place. saved_bytes: less to be moved."""

    value: fx.Node
    instead: fx.Node | None
    saved_bytes: int


class _Kernels:
    """Which kernel computes a fused node. Nodes are taken to share one if they are connected, or read the same matrix
    product, among all that as many products and the like in a row come before. inlined: what each kernel computes for
    itself."""

    def __init__(self, graph: fx.Graph, inlined: Collection[fx.Node]) -> None:
        import networkx as nx

        self._inlined = inlined
        level: dict[fx.Node, int] = {}
        together: nx.Graph[fx.Node] = nx.Graph()
        for node in graph.nodes:
            before = max((level[each] for each in node.all_input_nodes), default=0)
            level[node] = before + int(node.op == "call_function" and not is_fused(node) and not is_view(node))
            if node.op == "call_function" and not is_view(node) and node not in inlined:
                sources = {viewed(each) for each in node.all_input_nodes} if is_fused(node) else ()
                together.add_node(node)
                together.add_edges_from((s, node) for s in sources if s in together and level[s] == level[node])
        parts = enumerate(nx.connected_components(together))
        self._kernels = {node: at for at, part in parts for node in part if is_fused(node)}

    def of(self, node: fx.Node) -> fx.Node | int:
        """The kernel of a node; itself, if it is not fused."""
        return self._kernels.get(node, node)

    def readers(self, node: fx.Node) -> set[fx.Node | int]:
        """Kernels that read a node or a view of it."""
        found: set[fx.Node | int] = set()
        pending = list(node.users)
        while pending:
            user = pending.pop()
            if is_view(user) or user in self._inlined:
                pending += user.users
            else:
                found.add(self.of(user))
        return found


class Kept:
    """What is kept, while it is exchanged; all nodes are the forward's. nodes: in its order. results: of its caller.
    saved: what is kept. known: what of it the backward has by its name."""

    def __init__(self, forward: fx.Graph, backward: fx.Graph, results: int) -> None:
        named = {node.name: node for node in forward.nodes}
        placeholders = backward.find_nodes(op="placeholder")
        outputs = forward.output_node().args[0]
        assert isinstance(outputs, list | tuple)
        self.nodes, self._output = list(forward.nodes), forward.output_node()
        self.results = {each for each in outputs[:results] if isinstance(each, fx.Node)}
        self.saved = {each for each in outputs[results:] if isinstance(each, fx.Node)}
        self.known = {named[each.name] for each in placeholders if named.get(each.name) in self.saved}
        self._forward = _Kernels(forward, ())
        reading = _Kernels(backward, _from_kept(backward, self.known))
        self._readers: dict[fx.Node, set[Any]] = defaultdict(set)
        for each in placeholders:
            if named.get(each.name) in self.known:
                self._readers[named[each.name]] = reading.readers(each)

    def kept_bytes(self) -> int:
        return sum(storage_bytes(node) for node in self.saved if node.op == "call_function")

    def candidates(self) -> list[fx.Node]:
        """What is kept and may not have to be, in the order of the forward."""
        return [node for node in self.nodes if node in self.saved and node in self.known and self._is_free(node)]

    def exchange(self, value: fx.Node) -> Exchange | None:
        """The best exchange of a value, which is made; None if none saves enough."""
        if any(isinstance(kernel, fx.Node) for kernel in self._readers[value]):
            return None  # it has to lie in memory
        whole = self.leaves(value, None, any_leaf=True)
        inside = () if whole is None else whole[1]
        instead = [each for each in inside if self._may_be_kept(each) and storage_bytes(each) <= storage_bytes(value)]
        found = [each for other in (None, *instead) if (each := self._priced(value, other)) is not None]
        best = max(found, key=lambda each: each.saved_bytes, default=None)
        if best is None or best.saved_bytes < LEAST_GAIN * storage_bytes(value):
            return None
        self._make(best)
        return best

    def leaves(
        self, value: fx.Node, other: fx.Node | None, any_leaf: bool = False
    ) -> tuple[set[fx.Node], list[fx.Node]] | None:
        """What is kept that a value is computed from, and the nodes that compute it; None if that takes anything else,
        or too much. other: kept as well. any_leaf: what is not cheap is a leaf too, and one of the nodes."""
        found, inside = set[fx.Node](), dict[fx.Node, None]()
        pending = [value]
        while pending:
            node = pending.pop()
            if node is not value and (node in self.known or node is other):
                found.add(node)
            elif node not in inside:
                inside[node] = None
                if len(inside) > MOST_NODES:
                    return None
                if _is_cheap(node):
                    pending += node.all_input_nodes
                elif any_leaf:
                    found.add(node)
                else:
                    return None
        return found, list(inside)

    def _priced(self, value: fx.Node, other: fx.Node | None) -> Exchange | None:
        """What it saves to keep another value instead of one; None if that is not enough to compute it from."""
        if (known := self.leaves(value, other)) is None or (other is not None and other not in known[0]):
            return None
        saved = self._to_store(value, value)
        if other is not None:
            saved -= self._to_store(other, value)
        for kernel in self._readers[value]:
            more = (leaf for leaf in known[0] if kernel not in self._readers[leaf])
            saved += storage_bytes(value) - sum(map(storage_bytes, more))
        return Exchange(value, other, saved)

    def _make(self, chosen: Exchange) -> None:
        known = self.leaves(chosen.value, chosen.instead)
        assert known is not None
        readers = self._readers.pop(chosen.value)
        self.known.discard(chosen.value)
        self.saved.discard(chosen.value)
        if chosen.instead is not None:
            self.known.add(chosen.instead)
            self.saved.add(chosen.instead)
        for leaf in known[0]:
            self._readers[leaf] |= readers

    def _to_store(self, node: fx.Node, no_more: fx.Node) -> int:
        """Bytes that the forward moves more if a node that need not lie in memory does: it is written, and read in
        place of what it is computed from. no_more: not kept, as the node is not."""
        own = self._forward.of(node)
        elsewhere = self._forward.readers(node) - {own, self._output}
        stored = not is_fused(node) or node in self.results or (node in self.saved and node is not no_more)
        stored |= any(isinstance(kernel, fx.Node) for kernel in elsewhere)
        if stored or (elsewhere and node.target in REDUCTIONS):
            return 0
        computed = sum(map(storage_bytes, self._sources(node, no_more)))
        return max(0, storage_bytes(node) + len(elsewhere) * (storage_bytes(node) - computed))

    def _sources(self, node: fx.Node, no_more: fx.Node) -> set[fx.Node]:
        """What lies in memory that a fused node is computed from."""
        found, seen = set[fx.Node](), set[fx.Node]()
        pending = list(node.all_input_nodes)
        while pending:
            each = viewed(pending.pop())
            if each in seen:
                continue
            seen.add(each)
            in_memory = not is_fused(each) or each.target in REDUCTIONS or each in self.results
            if in_memory or (each in self.saved and each is not no_more) or len(seen) > MOST_NODES:
                found.add(each)
            else:
                pending += each.all_input_nodes
        return found

    def _is_free(self, node: fx.Node) -> bool:
        """Whether a node is a tensor that the graph computes for itself, and nobody but the partitioner has a say in
        whether it is kept: no checkpoint of the user's, and no caller."""
        own = node.op == "call_function" and isinstance(node.meta.get("val"), torch.Tensor) and node not in self.results
        return own and storage_bytes(node) >= LEAST_BYTES and not any(node.meta.get(name) for name in CHOSEN)

    def _may_be_kept(self, node: fx.Node) -> bool:
        return not is_view(node) and node not in self.known and self._is_free(node)


def _is_cheap(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target in CHEAP and node.kwargs.get("device") is None


def _from_kept(backward: fx.Graph, kept: Collection[fx.Node]) -> set[fx.Node]:
    """Pointwise nodes and views of a backward that need no gradient: computed again from what is kept."""
    names, found = {node.name for node in kept}, set[fx.Node]()
    for node in backward.nodes:
        again = node.op == "call_function" and (is_fused(node) or is_view(node)) and node.target not in REDUCTIONS
        if (again and set(node.all_input_nodes) <= found) or (node.op == "placeholder" and node.name in names):
            found.add(node)
    return found
