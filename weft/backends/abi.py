"""How the functions of a GPU kernel are called: all that whoever loads and starts binaries knows of a kernel.

All functions of a kernel take the same arguments, each a word of 64 bits: addresses of the inputs and the outputs, of
the partial results in the workspace, of the counter if there is one, and the run-time parameters. Behind them a
compiler may have put words of its own, which are null.

A count is a number, or the Python text of one made of run-time parameters: ``min(264, -(-s0 // 4))``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from types import CodeType
from typing import Any

from weft.errors import BuildError
from weft.ir import dtypes
from weft.ir.program import Size

SLICE_BYTES = 128
"""Partial results start at a multiple of it: a line of the cache holds no two of them."""
FUNCTIONS = {"min": min, "max": max}
"""Of counts, whose names no parameter has."""
_GLOBALS: dict[str, Any] = {"__builtins__": {}, **FUNCTIONS}


@dataclass(frozen=True)
class Partial:
    """A slice of the workspace for partial results of an outer reduction: ``elements`` numbers of ``dtype``."""

    name: str
    dtype: str
    elements: Size


@dataclass(frozen=True)
class Launch:
    """One start of a function. grid: programs along two axes. threads: of a program. persistent: programs loop over
    what there is to do, so that fewer along the first axis do it as well. cooperative: they wait for each other, so
    that all of them have to be resident. cluster: programs next to each other along the first axis that share a row,
    and are resident together; the first axis counts programs, and is a multiple of it."""

    entry: str
    grid: tuple[Size, Size]
    threads: int
    persistent: bool = False
    cooperative: bool = False
    cluster: int = 1

    def __str__(self) -> str:
        words = [f"launch {self.entry} grid=({self.grid[0]}, {self.grid[1]}) threads={self.threads}"]
        words += [f"cluster={self.cluster}"] * (self.cluster != 1)
        return " ".join([*words, *(kind for kind in ("persistent", "cooperative") if getattr(self, kind))])

    def resident(self, clusters: int, units: int, sm_margin: int) -> int:
        """Programs that a GPU holds at a time. clusters: that all its SMs hold, each a single program if the launch has
        no larger ones; units: SMs; sm_margin: SMs to leave free, of which one at least is taken.

        A cluster lies in one group of SMs, and the driver does not say in which: SMs that are left free take their
        share of all clusters with them. What remains is rounded down to whole clusters, one at the least.
        """
        return max(1, clusters * max(1, units - sm_margin) // units) * self.cluster


@dataclass(frozen=True)
class Abi:
    """Everything that calls of a kernel need besides its binaries. tensors: inputs and outputs, in order. counter:
    whether programs of a launch count together: those that wait for each other, or take row tiles from a queue."""

    tensors: tuple[str, ...]
    partials: tuple[Partial, ...]
    counter: bool
    parameters: tuple[str, ...]
    launches: tuple[Launch, ...]

    def __str__(self) -> str:
        words = [*self.tensors, *(p.name for p in self.partials), *["counter"] * self.counter, *self.parameters]
        lines = [f"words {', '.join(words)}"]
        lines += [f"partial {p.name}: {p.dtype} [{p.elements}]" for p in self.partials]
        return "\n".join([*lines, *map(str, self.launches), ""])

    def workspace(self, sizes: Mapping[str, int]) -> tuple[int, tuple[int, ...]]:
        """Its bytes, and where in it the partial results are. sizes: of the parameters, by name."""
        offsets, end = list[int](), 0
        for partial in self.partials:
            offsets.append(end)
            elements = count(partial.elements, sizes)
            end += -(-elements * dtypes.itemsize(partial.dtype) // SLICE_BYTES) * SLICE_BYTES
        return end, tuple(offsets)

    def grid(self, launch: Launch, sizes: Mapping[str, int], resident: int) -> tuple[int, int]:
        """Programs to start along two axes. resident: programs that the GPU holds at a time, see ``Launch.resident``.

        Programs of a persistent launch share out what there is to do: as many are started as are resident, in whole
        clusters. What they add up together is fixed by the schedule, so that results do not depend on it. Raises
        BuildError if programs that wait for each other are more than can be resident, or are no whole clusters.
        """
        first, second = (count(extent, sizes) for extent in launch.grid)
        cluster = launch.cluster
        if first % cluster != 0:
            raise BuildError(f"{launch.entry}: {first} programs are no clusters of {cluster}")
        if not launch.persistent or first * second == 0:
            return first, second
        least = cluster * second
        if launch.cooperative and resident < least:
            raise BuildError(
                f"{launch.entry}: {least} programs wait for each other, the GPU holds {resident} at a time"
            )
        return min(first, max(1, resident // least) * cluster), second


def count(size: Size, sizes: Mapping[str, int]) -> int:
    """The number that a count is. sizes: of the parameters, by name."""
    return size if isinstance(size, int) else eval(_code(size), _GLOBALS, dict(sizes))


@cache
def _code(text: str) -> CodeType:
    return compile(text, "<count>", "eval")


def product(sizes: Sequence[Size]) -> Size:
    """Of counts."""
    number = prod(size for size in sizes if isinstance(size, int))
    texts = [size for size in sizes if isinstance(size, str)]
    if number == 0 or not texts:
        return number
    factors = [*texts, *([str(number)] if number != 1 else [])]
    return " * ".join(map(_factor, factors)) if len(factors) > 1 else factors[0]


def _factor(text: str) -> str:
    return text if text.isalnum() or text.isidentifier() else f"({text})"


def plus(*counts: Size) -> Size:
    """The sum of counts, of which numbers may be negative."""
    number = sum(each for each in counts if isinstance(each, int))
    texts = [each for each in counts if isinstance(each, str)]
    if not texts:
        return number
    sign = "-" if number < 0 else "+"
    return f"({' + '.join(texts)} {sign} {abs(number)})"


def ceil_div(size: Size, by: int) -> Size:
    """A count over a number, rounded up."""
    if isinstance(size, int):
        return -(-size // by)
    return size if by == 1 else f"-(-{_factor(size)} // {by})"


def at_most(size: Size, most: int) -> Size:
    """The lesser of a count and a number, one at the least."""
    return max(1, min(size, most)) if isinstance(size, int) else f"max(1, min({size}, {most}))"


def largest(sizes: Sequence[Size]) -> Size:
    """Of counts."""
    if all(isinstance(size, int) for size in sizes):
        return max(size for size in sizes if isinstance(size, int))
    distinct = list(dict.fromkeys(map(str, sizes)))
    return distinct[0] if len(distinct) == 1 else f"max({', '.join(distinct)})"
