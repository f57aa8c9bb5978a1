"""Programs: dimensions, buffers at the edge, and values in between.

A value varies over a *set* of dimensions. A pointwise op takes the union of its operands' dimensions, a reduction
drops some; there is no broadcast and no reshape. Strides live only on buffers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from weft.hashing import hash_once
from weft.ir.printer import print_program

Size = int | str
"""A number, or the name of a run-time parameter of the program."""
Attribute = str | int | float | bool


@dataclass(frozen=True)
class Dim:
    """A named dimension and its size in elements."""

    name: str
    size: Size


@hash_once
@dataclass(frozen=True)
class Buffer:
    """A strided tensor at the edge of a program. Strides and offset are in elements, one stride a dimension.

    An input buffer may leave out dimensions: its value does not vary over them. The offset counts from the first
    element of the tensor that is bound to the buffer. within: the tensor that has all elements of this one, in the same
    memory, if there is one, and place: which of its elements is the first here. An input within another one is loaded
    and moves no further bytes; what is within a tensor that is no buffer of the program is a part of a region's.
    """

    name: str
    dtype: str
    dims: tuple[str, ...]
    strides: tuple[Size, ...]
    offset: int = 0
    within: str = ""
    place: int = 0

    @cached_property
    def stride_of(self) -> dict[str, Size]:
        """Strides by dimension."""
        return dict(zip(self.dims, self.strides, strict=True))


@hash_once
@dataclass(frozen=True)
class Value:
    """One operation and its type. ``args`` are names of values or inputs; ``dims`` are in program order."""

    name: str
    op: str
    args: tuple[str, ...]
    attributes: tuple[Attribute, ...]
    dtype: str
    dims: tuple[str, ...]


@dataclass(frozen=True)
class Output:
    """A buffer that is written with a value; dimensions that the value lacks are broadcast at the store."""

    buffer: Buffer
    value: str


@hash_once
@dataclass(frozen=True)
class Program:
    """A region of a model: what is read, what is computed in order, what is written."""

    name: str
    parameters: tuple[str, ...]
    dims: tuple[Dim, ...]
    inputs: tuple[Buffer, ...]
    values: tuple[Value, ...]
    outputs: tuple[Output, ...]

    def __str__(self) -> str:
        return print_program(self)

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """Inputs, then outputs."""
        return (*self.inputs, *(o.buffer for o in self.outputs))

    @property
    def moved_inputs(self) -> tuple[Buffer, ...]:
        """Inputs but for those whose elements another one has as well."""
        names = {buffer.name for buffer in self.inputs}
        return tuple(buffer for buffer in self.inputs if buffer.within not in names)

    def size_of(self, dim: str) -> Size:
        return next(d.size for d in self.dims if d.name == dim)

    def in_order(self, dims: Iterable[str]) -> tuple[str, ...]:
        """The given dimensions in the order of the program."""
        wanted = set(dims)
        return tuple(d.name for d in self.dims if d.name in wanted)

    def only(self, dims: Iterable[str]) -> tuple[str, ...]:
        """Those of the given dimensions that the program has, in their order."""
        own = {d.name for d in self.dims}
        return tuple(d for d in dims if d in own)

    def types(self) -> dict[str, tuple[str, tuple[str, ...]]]:
        """dtype and dimensions of every name, inputs included."""
        found = {b.name: (b.dtype, self.in_order(b.dims)) for b in self.inputs}
        return found | {v.name: (v.dtype, v.dims) for v in self.values}

    def by_name(self) -> dict[str, Value]:
        return {v.name: v for v in self.values}
