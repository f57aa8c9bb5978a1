"""PyTorch's partitioner of a training step, and what is exchanged in what it keeps for the backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from torch import fx
from torch._inductor.custom_graph_pass import CustomPartitionerFn

from weft.errors import warn_once
from weft.integration.kept import Exchange, Kept
from weft.runtime.package import package_digest

MOST_PASSES = 8
"""Over what is kept: prices change with each exchange, and what went may come back."""


@dataclass(frozen=True)
class Exchanges:
    """What became of a partition. values: how many are kept no more, but computed again. moved_bytes: how many less the
    forward and the backward write and read, as predicted; kept_bytes: how many less are kept."""

    values: int
    moved_bytes: int
    kept_bytes: int


class Partitioner(CustomPartitionerFn):
    """PyTorch's partitioner, and exchanges in what it found. told: is called with each forward's.

    TorchInductor's cache has the pickled partitioner in its keys, where nothing is to be told.
    """

    def __init__(self, told: Callable[[Exchanges], object] | None = None) -> None:
        self._told = told

    def __call__(
        self, gm: fx.GraphModule, joint_inputs: Sequence[object], **named: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        from torch._functorch.partitioners import min_cut_rematerialization_partition

        forward, backward = min_cut_rematerialization_partition(gm, joint_inputs, **named)
        try:
            found = exchange(forward, backward, named["num_fwd_outputs"])
        except Exception as error:
            warn_once(f"weft: what is kept for a backward stays as it is: {type(error).__name__}: {error}")
            return min_cut_rematerialization_partition(gm, joint_inputs, **named)
        if self._told is not None:
            self._told(found)
        return forward, backward

    def uuid(self) -> Any:
        return package_digest()


def exchange(forward: fx.GraphModule, backward: fx.GraphModule, results: int) -> Exchanges:
    """Change both graphs of a partition, where that moves fewer bytes.

    results: outputs of the forward that are its caller's. The others are kept for the backward, whose placeholders are
    called as they are.
    """
    kept = Kept(forward.graph, backward.graph, results)
    before = kept.kept_bytes()
    made: list[Exchange] = []
    for _ in range(MOST_PASSES):
        found = [each for node in kept.candidates() if (each := kept.exchange(node)) is not None]
        made += found
        if not found:
            break
    if made:
        _rewrite(forward, backward, results, kept)
    return Exchanges(len(made), sum(each.saved_bytes for each in made), before - kept.kept_bytes())


def _rewrite(forward: fx.GraphModule, backward: fx.GraphModule, results: int, kept: Kept) -> None:
    """Give the forward its other outputs, and compute in the backward what is kept no more, before it is read first."""
    output, graph = forward.graph.output_node(), backward.graph
    given: list[Any] = list(output.args[0])  # pyright: ignore[reportArgumentType]
    places = {node: at for at, node in enumerate(given) if at >= results and isinstance(node, fx.Node)}
    gone = [node for node in places if node not in kept.saved]
    new = [node for node in kept.nodes if node in kept.saved and node not in places]
    instead = dict(zip_longest(gone, new))
    left = [at for at, node in enumerate(given) if at < results or instead.get(node, node) is not None]
    described = output.meta.get("desc")
    output.args = ([given[at] if at < results else instead.get(given[at], given[at]) for at in left],)
    if isinstance(described, list | tuple) and len(described) == len(given):
        output.meta["desc"] = [described[at] for at in left]
    placeholders = {node.name: node for node in graph.find_nodes(op="placeholder")}
    for old, other in instead.items():
        if other is not None:
            with graph.inserting_before(placeholders[old.name]):
                placeholders[other.name] = graph.placeholder(other.name)
            placeholders[other.name].meta = dict(other.meta)
    lost = [placeholders.pop(node.name) for node in gone]
    again = _Again(graph, {node: placeholders[node.name] for node in kept.known if node.name in placeholders})
    named = {node.name: node for node in kept.nodes}
    for node in sorted(lost, key=again.first):
        node.replace_all_uses_with(again.computed(named[node.name], min(node.users, key=again.place)))
        graph.erase_node(node)
    for module in (forward, backward):
        module.graph.eliminate_dead_code()
        module.graph.lint()
        module.recompile()


class _Again:
    """Nodes of a forward that a backward computes again. known: placeholders by the forward's nodes."""

    def __init__(self, graph: fx.Graph, known: dict[fx.Node, fx.Node]) -> None:
        self._graph, self._known = graph, known
        self._places = {node: float(at) for at, node in enumerate(graph.nodes)}

    def place(self, node: fx.Node) -> float:
        return self._places[node]

    def first(self, node: fx.Node) -> float:
        """Where it is read first."""
        return min(map(self.place, node.users), default=0.0)

    def computed(self, node: fx.Node, before: fx.Node) -> fx.Node:
        """A node of the forward, computed before a node of the backward unless it is there. Nodes are asked for in the
        order of where they are read first."""
        if node not in self._known:
            operands = {each: self.computed(each, before) for each in node.all_input_nodes}
            with self._graph.inserting_before(before):
                made = self._graph.node_copy(node, operands.__getitem__)
            made.meta = dict(node.meta) | {"autograd_backward": True}
            self._known[node] = made
            self._places[made] = self.place(before) - 0.5
        return self._known[node]
