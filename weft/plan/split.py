"""What a schedule is chosen for: a program under a split of its dimensions into rows and columns, on a target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from weft.hashing import hash_once
from weft.ir.program import Program
from weft.ir.structure import is_outer
from weft.plan.kernel import Kernel
from weft.plan.legality import kinds_of
from weft.plan.sizes import Sizes
from weft.target import Target


@hash_once
@dataclass(frozen=True)
class Split:
    """A program that is one pass, its rows and columns, and the target.

    rows: segments first, then the others, slowest first. segments: row dimensions that an outer reduction keeps. hints:
    likely values of run-time parameters, sorted by name.
    """

    program: Program
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    segments: tuple[str, ...]
    target: Target
    hints: tuple[tuple[str, int], ...]

    @staticmethod
    def of(
        program: Program, rows: tuple[str, ...], columns: tuple[str, ...], target: Target, hints: Mapping[str, int]
    ) -> Split:
        """With the segments that the program's outer reductions ask for."""
        segments = segments_of(program, rows)
        ordered = (*segments, *(r for r in rows if r not in segments))
        return Split(program, ordered, columns, segments, target, tuple(sorted(hints.items())))

    @staticmethod
    def of_kernel(kernel: Kernel, target: Target, hints: Mapping[str, int]) -> Split:
        """That of its schedule."""
        own = kernel.schedule
        return Split(kernel.program, own.rows, own.columns, own.segments, target, tuple(sorted(hints.items())))

    def part(self, program: Program) -> Split:
        """That of a part of the program, under as much of this one as it has dimensions for."""
        rows, columns = program.only(self.rows), program.only(self.columns)
        return Split.of(program, rows, columns, self.target, dict(self.hints))

    @property
    def dims(self) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """Rows, columns and segments, as a schedule has them."""
        return self.rows, self.columns, self.segments

    @property
    def inside(self) -> tuple[str, ...]:
        """Rows inside a segment."""
        return tuple(r for r in self.rows if r not in self.segments)

    @cached_property
    def sizes(self) -> Sizes:
        return Sizes(self.program, dict(self.hints))

    @property
    def width(self) -> int:
        """Elements of a row."""
        return self.sizes.elements(self.columns)

    @property
    def segment_count(self) -> int:
        """One at least."""
        return max(1, self.sizes.elements(self.segments))

    @cached_property
    def _kinds(self) -> tuple[bool, bool]:
        return kinds_of(self.program, self.columns)

    @property
    def has_inner(self) -> bool:
        """Whether the program has inner reductions."""
        return self._kinds[0]

    @property
    def has_outer(self) -> bool:
        """Whether the program has outer reductions."""
        return self._kinds[1]

    @property
    def is_dynamic(self) -> bool:
        """Whether the number of rows is known at run time only."""
        return any(isinstance(self.program.size_of(row), str) for row in self.rows)


def segments_of(program: Program, rows: tuple[str, ...]) -> tuple[str, ...]:
    """Row dimensions that some outer reduction keeps."""
    kept = {dim for value in program.values if is_outer(value, rows) for dim in value.dims}
    return tuple(r for r in rows if r in kept)
