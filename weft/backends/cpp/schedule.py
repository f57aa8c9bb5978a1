"""Schedules of C++ kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from weft.hashing import hash_once
from weft.plan.kernel import Kernel
from weft.plan.schedule import Schedule


@hash_once
@dataclass(frozen=True)
class CppSchedule(Schedule):
    """How a C++ kernel runs on threads of a CPU.

    rows_per_chunk: rows whose column sums are taken together, in order, before chunks are combined in order; fixed
    here, so that results do not depend on how many threads run.
    """

    backend: ClassVar[str] = "cpp"

    rows_per_chunk: int = 64

    @property
    def starts(self) -> int:
        """A finish is a parallel loop of its own."""
        return 1 + (self.finish != "none")

    def part_count(self, rows: int, segments: int) -> int:
        return segments * -(-rows // self.rows_per_chunk)

    def __str__(self) -> str:
        held = f"held=({', '.join(self.held)}) finish={self.finish}"
        return f"{self.split_text} rows_per_chunk={self.rows_per_chunk} {held}"


CppKernel = Kernel[CppSchedule]
