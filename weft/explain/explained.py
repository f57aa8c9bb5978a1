"""What an explanation is made of: graphs, regions that are equal, and what is said of borders."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from weft.capture.border import BorderChoice
from weft.compiler import Compilation, CompiledRegion
from weft.explain.drawing import size_text
from weft.explain.graphs import Kind
from weft.integration.partitioner import Exchanges
from weft.integration.report import Report, ReportedRegion, lines_of, purpose

PLAN_ONLY = "a plan only: without Triton weft writes no code for GPUs, and leaves what runs on one to TorchInductor"


@dataclass(frozen=True)
class ExplainedGraph:
    """One graph of the function, and what becomes of it."""

    kind: Kind
    compilation: Compilation
    exchanges: Exchanges | None = None

    @cached_property
    def report(self) -> Report:
        return Report.of(self.compilation)


@dataclass(frozen=True)
class EqualRegions:
    """Regions of one graph with the same kernels: the blocks of a model. places: among all regions of the graph."""

    graph: ExplainedGraph
    places: tuple[int, ...]

    @property
    def first(self) -> CompiledRegion:
        return self.graph.compilation.regions[self.places[0]]

    @property
    def regions(self) -> list[ReportedRegion]:
        return [self.graph.report.regions[at] for at in self.places]

    @property
    def lines(self) -> tuple[str, ...]:
        """The user's lines of all of them."""
        return lines_of(self.regions)

    @property
    def purposes(self) -> list[str]:
        """What each kernel is for."""
        return [purpose(self.regions, at) for at in range(len(self.first.plan.kernels))]


def border_lines(borders: BorderChoice | None) -> list[str]:
    """What is computed again on the other side of a border, and the bytes that saves."""
    if borders is None or not borders.again:
        return []
    moved, stored = size_text(borders.moved_bytes), size_text(borders.stored_bytes)
    values = count_text(len(borders.again), "value")
    return [f"borders: {values} computed again rather than stored and loaded: {moved} moved in all, not {stored}"]


def exchange_lines(exchanges: Exchanges | None) -> list[str]:
    """What is not kept for a backward, but computed again of what is, and the bytes that saves."""
    if exchanges is None or not exchanges.values:
        return []
    values = count_text(exchanges.values, "value")
    less = f"{size_text(exchanges.moved_bytes)} less moved, {size_text(exchanges.kept_bytes)} less kept"
    return [f"kept for the backward: {values} computed again from others rather than kept: {less}"]


def count_text(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
