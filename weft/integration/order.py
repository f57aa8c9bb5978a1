"""The order of a rewritten graph: what frees more memory than it takes comes as early as it can.

TorchInductor has orders of its own, and takes one of them if it holds less at a time. The memory that launches write is
made by nodes that wait for nothing, which all of those put first: beside launches the order that is given wins.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import torch
from torch import fx

from weft.capture.lower import POINTWISE, REDUCTIONS
from weft.capture.nodes import is_view, mutates, storage_bytes, viewed

KEPT = ("primals_", "arg", "tangents", "fwd_rng_state", "bwd_rng_state")
"""How inputs are called whose memory is not given back while a graph runs; TorchInductor goes by the same names
(``is_nonfreeable_buffers``)."""


def sort(graph: fx.Graph) -> None:
    """Topological order, stable but for matrix products and the like that free memory, and views. A node that mutates
    an input keeps its place after everything that stood before it. Raises RuntimeError if there is none."""
    nodes = list(graph.nodes)
    place = {node: i for i, node in enumerate(nodes)}
    waits, followers = _dependencies(nodes)
    memory = _Memory(nodes)
    ready = [place[node] for node in nodes if waits[node] == 0]  # ascending: a heap already
    early = [node for node in nodes if waits[node] == 0 and memory.may_come_early(node)]
    result: dict[fx.Node, None] = {}
    while ready:
        node = next((each for each in early if is_view(each) or memory.taken_bytes(each) < 0), None)
        if node is None:
            node = nodes[heapq.heappop(ready)]
            if node in result:
                continue
        if node in early:
            early.remove(node)
        result[node] = None
        memory.run(node)
        for follower in followers[node]:
            waits[follower] -= 1
            if waits[follower] == 0:
                heapq.heappush(ready, place[follower])
                early += [follower] if memory.may_come_early(follower) else []
    if len(result) != len(nodes):
        raise RuntimeError("the rewritten graph has a cycle")
    previous: fx.Node | None = None
    for node in result:
        if previous is not None:
            previous.append(node)
        previous = node


def _dependencies(nodes: list[fx.Node]) -> tuple[dict[fx.Node, int], dict[fx.Node, list[fx.Node]]]:
    """How many others a node waits for, and who waits for it."""
    waits: dict[fx.Node, int] = {}
    followers: dict[fx.Node, list[fx.Node]] = {node: [] for node in nodes}
    barrier: fx.Node | None = None
    before: list[fx.Node] = []
    for node in nodes:
        needed = set(node.all_input_nodes)
        if barrier is not None:
            needed.add(barrier)
        if mutates(node) or node.op == "output":
            needed.update(before)
            barrier, before = node, []
        else:
            before.append(node)
        waits[node] = len(needed)
        for dependency in needed:
            followers[dependency].append(node)
    return waits, followers


class _Memory:
    """Which tensors are still to be read, while a graph is put in order."""

    def __init__(self, nodes: list[fx.Node]) -> None:
        self._readers: dict[fx.Node, set[fx.Node]] = {}
        for node in nodes:
            if not is_view(node):
                for root in _roots(node):
                    self._readers.setdefault(root, set()).add(node)

    def may_come_early(self, node: fx.Node) -> bool:
        """Whether a node is a view or a computation of ATen's that TorchInductor has a library for; what it fuses comes
        where it is needed anyway."""
        target = node.target
        if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
            return False
        plain = target.namespace == "aten" and torch.Tag.nondeterministic_seeded not in target.tags
        fused = target in POINTWISE or target in REDUCTIONS or torch.Tag.pointwise in target.tags
        return is_view(node) or (plain and not fused and not mutates(node) and storage_bytes(node) > 0)

    def taken_bytes(self, node: fx.Node) -> int:
        """By a node that runs next, less what nobody reads any more then."""
        freed = (root for root in _roots(node) if self._readers[root] == {node} and _is_freed(root))
        return storage_bytes(node) - sum(map(storage_bytes, freed))

    def run(self, node: fx.Node) -> None:
        if not is_view(node):
            for root in _roots(node):
                self._readers[root].discard(node)


def _roots(node: fx.Node) -> Iterable[fx.Node]:
    """What holds the memory that a node reads, each once."""
    return dict.fromkeys(map(viewed, node.all_input_nodes))


def _is_freed(root: fx.Node) -> bool:
    return root.op != "placeholder" or not root.name.startswith(KEPT)
