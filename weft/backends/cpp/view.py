"""A C++ kernel as its text is made of it."""

from __future__ import annotations

from weft.backends.cpp.schedule import CppKernel, CppSchedule
from weft.lowering.view import KernelView


class View(KernelView[CppSchedule]):
    """A tile is a few rows along the fastest row dimension inside a segment."""

    def __init__(self, kernel: CppKernel) -> None:
        super().__init__(kernel)
        self.in_segment = tuple(r for r in self.rows if r not in self.segments)
        self.fast_row = self.in_segment[-1] if self.in_segment else None

    def is_per_row(self, name: str) -> bool:
        """Whether a value differs from row to row of a tile."""
        return self.fast_row is not None and self.fast_row in self.types[name][1]
