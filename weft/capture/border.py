"""Chooses what crosses the borders between kernels: the fewest bytes, by minimum cuts.

A kernel is a group of nodes: a region, or pointwise work of Inductor's. A value that one computes and another needs is
stored and loaded, or computed again on the other side from what is in memory anyway. Reductions are computed once.
Where a value is stored, its store counts once and its loads once a reader; where something else forces the store (the
graph's outputs, an operator of no group), only further loads count.

What one kernel should load, all others as they are, is a minimum cut. Kernels are taken in turn until nothing gets
better; because a store is worth its bytes only if *some* kernel loads it, values and groups are also tried with no
store at all. A change is made only if the bytes of the whole graph, counted exactly, get fewer. Groups wait for each
other in the same order as before: a kernel only ever reads from groups that it depended on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from weft.capture.mincut import UNBOUNDED, Network

LEAST_SAVING_BYTES = 4096
"""A change that saves less than a page of memory is not worth a different kernel."""
MAX_PASSES = 4
MAX_HOPS = 2
"""A kernel computes again values of the groups it reads from and of those that these read from, none further away."""


@dataclass(frozen=True)
class Flow:
    """What the choice knows of a graph.

    groups: the nodes of each kernel. operands: what each of them reads, through views: nodes of a group, or anything
    else, which is in memory. storage_bytes: of each node and operand. pointwise: nodes that may be computed again.
    forced: nodes that must be in memory whoever reads them.
    """

    groups: Sequence[Sequence[fx.Node]]
    operands: Mapping[fx.Node, Sequence[fx.Node]]
    storage_bytes: Mapping[fx.Node, int]
    pointwise: Collection[fx.Node]
    forced: Collection[fx.Node]


@dataclass(frozen=True)
class Borders:
    """computed: the nodes each kernel computes, its own and those it computes again; stored: the nodes in memory, each
    written by the kernel whose group it is in; moved_bytes: of all loads and stores."""

    computed: tuple[frozenset[fx.Node], ...]
    stored: frozenset[fx.Node]
    moved_bytes: int


@dataclass(frozen=True)
class BorderChoice:
    """What the borders of a graph move, and what they would if everything that crosses one were stored and loaded.

    again: nodes that a kernel computes although another one does as well, with the bytes of their tensors.
    """

    again: tuple[tuple[str, int], ...]
    moved_bytes: int
    stored_bytes: int

    def to_dict(self) -> dict[str, Any]:
        again = [{"subject": name, "bytes": size} for name, size in self.again]
        return {"again": again, "moved_bytes": self.moved_bytes, "stored_bytes": self.stored_bytes}


def compared(flow: Flow, chosen: Borders) -> BorderChoice:
    """The choice, beside that of computing nothing again."""
    pairs = zip(flow.groups, chosen.computed, strict=True)
    again = [(n.name, flow.storage_bytes[n]) for group, computed in pairs for n in computed.difference(group)]
    plain = choose_borders(replace(flow, pointwise=()))
    return BorderChoice(tuple(sorted(again)), chosen.moved_bytes, plain.moved_bytes)


def choose_borders(flow: Flow, banned: Collection[tuple[int, fx.Node]] = ()) -> Borders:
    """banned: nodes that a kernel, given by its number, cannot compute again."""
    traffic = _Traffic(flow, banned)
    tried: dict[tuple[fx.Node | int, ...], int] = {}
    for _ in range(MAX_PASSES):
        before = traffic.moved_bytes
        for kernel in range(len(flow.groups)):
            if traffic.has_choice(kernel) and tried.get((kernel,)) != traffic.moved_bytes:
                traffic.attempt([kernel], ())
                tried[kernel,] = traffic.moved_bytes
        for values in traffic.unforced():
            if tried.get(values) != traffic.moved_bytes:
                readers = [k for k in range(len(flow.groups)) if not traffic.loaded[k].keys().isdisjoint(values)]
                traffic.attempt(readers, values)
                tried[values] = traffic.moved_bytes
        if traffic.moved_bytes == before:
            break
    return traffic.borders()


class _Traffic:
    """Loads and stores of all kernels, kept up to date while kernels change what they compute again."""

    def __init__(self, flow: Flow, banned: Collection[tuple[int, fx.Node]]) -> None:
        self.flow, self.banned = flow, banned
        self.home = {node: kernel for kernel, group in enumerate(flow.groups) for node in group}
        self.moved_bytes = 0
        # dictionaries in place of sets: their order is that of the graph, in every process
        self.again: list[dict[fx.Node, None]] = [{} for _ in flow.groups]
        self.loaded: list[dict[fx.Node, None]] = [{} for _ in flow.groups]
        self._needs: defaultdict[tuple[int, fx.Node], int] = defaultdict(int)
        self._readers: defaultdict[fx.Node, int] = defaultdict(int)
        for node in flow.forced:
            self.moved_bytes += flow.storage_bytes[node]
            self._need(self.home[node], node, 1)

    def borders(self) -> Borders:
        kernels = enumerate(zip(self.flow.groups, self.again, strict=True))
        computed = [frozenset(n for n in (*own, *again) if self._needs[kernel, n]) for kernel, (own, again) in kernels]
        stored = {*self.flow.forced, *(n for n, count in self._readers.items() if count)}
        return Borders(tuple(computed), frozenset(stored), self.moved_bytes)

    # what is stored and loaded

    def _need(self, kernel: int, node: fx.Node, change: int) -> None:
        """One more (1) or one fewer (-1) use of a value in a kernel, and what follows from the first and last one."""
        pending = [(kernel, node)]
        while pending:
            kernel, node = pending.pop()
            self._needs[kernel, node] += change
            if self._needs[kernel, node] == (change > 0):
                pending += self._supply(kernel, node, node in self.again[kernel], change)

    def _supply(self, kernel: int, node: fx.Node, again: bool, change: int) -> list[tuple[int, fx.Node]]:
        """How a kernel comes by a value: uses of its operands, or a load, and with the first load a store."""
        if again or self.home.get(node) == kernel:
            return [(kernel, operand) for operand in self.flow.operands[node]]
        size = self.flow.storage_bytes[node]
        self.moved_bytes += change * size
        if change > 0:
            self.loaded[kernel][node] = None
        else:
            del self.loaded[kernel][node]
        if node not in self.home:
            return []
        self._readers[node] += change
        if node in self.flow.forced or self._readers[node] != (change > 0):
            return []
        self.moved_bytes += change * size
        return [(self.home[node], node)]

    def _flip(self, kernel: int, node: fx.Node) -> None:
        """Compute a value again in a kernel instead of loading it, or the other way round."""
        again = node in self.again[kernel]
        if self._needs[kernel, node]:
            for change, way in ((1, not again), (-1, again)):
                for user, operand in self._supply(kernel, node, way, change):
                    self._need(user, operand, change)
        if again:
            del self.again[kernel][node]
        else:
            self.again[kernel][node] = None

    # changes

    def has_choice(self, kernel: int) -> bool:
        """Whether a kernel loads or computes again anything that it could come by the other way."""
        return bool(self.again[kernel]) or any(self._can_repeat(kernel, node) for node in self.loaded[kernel])

    def unforced(self) -> list[tuple[fx.Node, ...]]:
        """Values that are stored only because another kernel loads them: each alone, then those of one kernel."""
        by_home: defaultdict[int, list[fx.Node]] = defaultdict(list)
        for node, count in self._readers.items():
            if count and node in self.flow.pointwise and node not in self.flow.forced:
                by_home[self.home[node]].append(node)
        single = [(n,) for nodes in by_home.values() for n in nodes]
        return single + [tuple(nodes) for nodes in by_home.values() if len(nodes) > 1]

    def attempt(self, kernels: Sequence[int], without: Collection[fx.Node]) -> None:
        """Cut the borders of some kernels again, one by one, none of which may load ``without``; undo it all if that
        moves no fewer bytes."""
        before = self.moved_bytes
        flips: list[tuple[int, fx.Node]] = []
        for kernel in kernels:
            chosen = self._cut(kernel, without)
            for node in [n for n in {**self.again[kernel], **chosen} if (n in chosen) != (n in self.again[kernel])]:
                self._flip(kernel, node)
                flips.append((kernel, node))
        if self.moved_bytes > before - LEAST_SAVING_BYTES:
            for kernel, node in reversed(flips):
                self._flip(kernel, node)

    def _can_repeat(self, kernel: int, node: fx.Node) -> bool:
        foreign = self.home.get(node, kernel) != kernel
        return foreign and node in self.flow.pointwise and (kernel, node) not in self.banned

    def _price(self, kernel: int, node: fx.Node) -> int:
        """Bytes of a load, and of the store too if there is none without it."""
        size = self.flow.storage_bytes[node]
        others = self._readers[node] - (node in self.loaded[kernel])
        return size if node not in self.home or node in self.flow.forced or others else 2 * size

    def _cut(self, kernel: int, without: Collection[fx.Node]) -> dict[fx.Node, None]:
        """What the kernel should compute again, in the order found. A vertex before a value stands for its operands,
        one behind it for the value in the kernel; the edge between them is its load."""
        wanted = dict.fromkeys(
            operand
            for node in self.flow.groups[kernel]
            if self._needs[kernel, node]
            for operand in self.flow.operands[node]
            if self.home.get(operand) != kernel
        )
        network = Network()
        source, sink = network.vertex(), network.vertex()
        before: dict[fx.Node, int] = {}
        behind: dict[fx.Node, int] = {}
        queue = [(node, 1) for node in wanted]
        for node, hops in queue:
            if node in before:
                continue
            before[node], behind[node] = network.vertex(), network.vertex()
            repeat = self._can_repeat(kernel, node) and hops <= MAX_HOPS
            price = UNBOUNDED if repeat and node in without else self._price(kernel, node)
            network.edge(before[node], behind[node], price)
            # one byte for the work of computing a value again decides where bytes do not
            network.edge(source, before[node], 1 if repeat else UNBOUNDED)
            if repeat:
                home = self.home[node]
                queue += [(operand, hops + (self.home.get(operand) != home)) for operand in self.flow.operands[node]]
        for node in before:
            if node in wanted:
                network.edge(behind[node], sink, UNBOUNDED)
            for operand in self.flow.operands.get(node, ()):
                if operand in behind:
                    network.edge(behind[operand], before[node], UNBOUNDED)
        side = network.source_side(source, sink)
        chosen: dict[fx.Node, None] = {}
        stack = list(wanted)
        while stack:
            node = stack.pop()
            if node not in chosen and not side[before[node]]:
                chosen[node] = None
                stack += self.flow.operands[node]
        return chosen
