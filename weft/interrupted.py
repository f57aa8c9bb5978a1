"""Whether regions are worth taking that an operation without a lowering has cut out of a larger one.

TorchInductor fuses that operation with its neighbours on both sides. Beside weft's kernels it is left with what is
around them, and what crosses from one to the other is stored and loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import fx

from weft.capture.nodes import users_behind_views
from weft.capture.regions import Interrupted, Region, as_if_lowered
from weft.errors import Refusal

Price = Callable[[Region], float | None]
"""Predicted time of a region in ordinary kernels, in microseconds; None if it cannot be told."""


@dataclass(frozen=True)
class Piece:
    """A region that would be taken for itself, and the predicted time of its kernels."""

    region: Region
    predicted_us: float


def check_interrupted(
    graph: fx.Graph, groups: Sequence[Interrupted], pieces: Sequence[Piece], price: Price
) -> dict[int, Refusal]:
    """The pieces to leave out, by their places, with the reason."""
    found: dict[int, Refusal] = {}
    for group in groups:
        own = {
            at: piece
            for at, piece in enumerate(pieces)
            if at not in found and not group.nodes.isdisjoint(piece.region.members)
        }
        refusal = _check_together(graph, group, [*own.values()], price) if own else None
        if refusal is not None:
            found |= {at: replace(refusal, subject=piece.region.program.name) for at, piece in own.items()}
    return found


def _check_together(graph: fx.Graph, group: Interrupted, pieces: Sequence[Piece], price: Price) -> Refusal | None:
    """The kernels of all pieces of a group, with ordinary ones for the rest of it, must be predicted to be faster than
    ordinary kernels for the whole; nothing is refused where that cannot be told."""
    nodes = group.nodes.union(*(piece.region.members for piece in pieces))
    whole_us = _ordinary_us(graph, group, nodes, price)
    rest_us = _ordinary_us(graph, group, _rest(graph, nodes, pieces), price)
    if whole_us is None or rest_us is None:
        return None
    taken_us = sum(piece.predicted_us for piece in pieces) + rest_us
    if taken_us < whole_us:
        return None
    names = " and ".join(dict.fromkeys(str(node.target) for node in group.opaque))
    message = f"cut off by {names}: with what is left around it predicted to be no faster than without fusion"
    return Refusal("interrupted", group.opaque[0].name, message, round(taken_us, 1), round(whole_us, 1))


def _ordinary_us(graph: fx.Graph, group: Interrupted, nodes: frozenset[fx.Node], price: Price) -> float | None:
    """Predicted time of some nodes of a group in ordinary kernels."""
    total = 0.0
    regions = as_if_lowered(graph, group.opaque, nodes)
    for region in regions or ():
        if (time := price(region)) is None:
            return None
        total += time
    return None if regions is None else total


def _rest(graph: fx.Graph, nodes: frozenset[fx.Node], pieces: Sequence[Piece]) -> frozenset[fx.Node]:
    """What is computed outside the pieces, with what they compute as well but do not store."""
    stored = {node for piece in pieces for node in piece.region.outputs}
    rest = set(nodes.difference(*(piece.region.members for piece in pieces)))
    for node in reversed(graph.nodes):
        if node in nodes and node not in stored and not rest.isdisjoint(users_behind_views(node)):
            rest.add(node)
    return frozenset(rest)
