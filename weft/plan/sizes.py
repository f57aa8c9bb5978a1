"""Sizes of the dimensions of a program, also where they are known at run time only."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from weft.ir import dtypes
from weft.ir.program import Buffer, Program, Size

TYPICAL_SIZE = 4096
"""Stands for a size that is known at run time only, where nothing better is known. That there is none says little."""


class Sizes:
    """Sizes of dimensions, with hints (or a typical number) for those known at run time."""

    def __init__(self, program: Program, hints: Mapping[str, int]) -> None:
        self._hints = hints
        self._of = {d.name: self.number(d.size) for d in program.dims}

    def number(self, size: Size) -> int:
        """The likely one of what is known at run time."""
        return (self._hints.get(size) or TYPICAL_SIZE) if isinstance(size, str) else size

    def elements(self, dims: tuple[str, ...]) -> int:
        return prod(self._of[dim] for dim in dims)

    def bytes(self, buffer: Buffer) -> int:
        return self.elements(buffer.dims) * dtypes.itemsize(buffer.dtype)
