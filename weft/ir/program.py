"""Programs: dimensions, buffers at the edge, and values in between.

A value varies over a *set* of dimensions. A pointwise op takes the union of its operands' dimensions, a reduction
drops some; there is no broadcast and no reshape. Strides live only on buffers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from weft.errors import VerificationError
from weft.hashing import hash_once
from weft.ir import dtypes
from weft.ir.ops import lookup

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

    @property
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
        from weft.ir.printer import print_program  # the printer needs these classes

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


@dataclass
class Builder:
    """Builds a program value by value; types are inferred, names are made unique, the result is verified."""

    name: str
    dims: tuple[Dim, ...]
    parameters: tuple[str, ...] = ()
    inputs: list[Buffer] = field(default_factory=list[Buffer])
    values: list[Value] = field(default_factory=list[Value])
    outputs: list[Output] = field(default_factory=list[Output])
    _types: dict[str, tuple[str, frozenset[str]]] = field(default_factory=dict[str, tuple[str, frozenset[str]]])
    _known: dict[object, str] = field(default_factory=dict[object, str])
    _by_name: dict[str, Value] = field(default_factory=dict[str, Value])
    _taken: set[str] = field(default_factory=set[str])
    _reserved: set[str] = field(default_factory=set[str])

    @staticmethod
    def like(program: Program, extra: Iterable[str] = ()) -> Builder:
        """An empty builder with the dimensions of ``program``; names of its buffers are kept for buffers."""
        builder = Builder(program.name, program.dims, program.parameters)
        builder._reserved = {b.name for b in program.buffers} | {*extra}
        return builder

    def unique(self, base: str) -> str:
        """``base``, or ``base_1``, ``base_2`` ... if that name is taken; taken from now on."""
        name, number = base, 0
        while name in self._taken or name in self._reserved:
            number += 1
            name = f"{base}_{number}"
        self._taken.add(name)
        return name

    def input(self, name: str, dtype: str, dims: Sequence[str], strides: Sequence[Size], offset: int = 0) -> str:
        return self.add_input(Buffer(name, dtype, tuple(dims), tuple(strides), offset))

    def add_input(self, buffer: Buffer) -> str:
        """The input, under a name that is free."""
        buffer = replace(buffer, name=self._buffer_name(buffer.name))
        self.inputs.append(buffer)
        self._types[buffer.name] = (buffer.dtype, frozenset(buffer.dims))
        return buffer.name

    def add_output(self, buffer: Buffer, value: str) -> str:
        """The output, under a name that is free."""
        buffer = replace(buffer, name=self._buffer_name(buffer.name))
        self.outputs.append(Output(buffer, value))
        return buffer.name

    def _buffer_name(self, name: str) -> str:
        if name not in self._reserved:
            return self.unique(name)
        self._reserved.discard(name)
        self._taken.add(name)
        return name

    def output(
        self, name: str, value: str, dtype: str, dims: Sequence[str], strides: Sequence[Size], offset: int = 0
    ) -> str:
        return self.add_output(Buffer(name, dtype, tuple(dims), tuple(strides), offset), value)

    def value(self, name: str) -> Value | None:
        """The value of that name; None for an input."""
        return self._by_name.get(name)

    def dtype(self, name: str) -> str:
        return self._types[name][0]

    def dims_of(self, name: str) -> frozenset[str]:
        return self._types[name][1]

    def op(
        self, op: str, *args: str, dtype: str | None = None, attributes: Sequence[Attribute] = (), name: str = ""
    ) -> str:
        """Append a value (or find the equal one that exists) and return its name."""
        row = lookup(op)
        found = [self._types[arg] for arg in args]
        dims: frozenset[str] = frozenset().union(*(d for _, d in found))
        if row.drops_dims:
            dims -= {str(a) for a in attributes}
        elif op == "iota":
            dims = frozenset({str(attributes[0])})
        if row.dtype == "bool":
            dtype = "bool"
        elif row.dtype in ("same", "select"):
            dtype = found[-1][0]
        elif row.dtype == "first":
            dtype = found[0][0]
        if dtype is None:
            raise VerificationError(f"{op} needs a dtype")
        key = (op, args, tuple((type(a), repr(a)) for a in attributes), dtype)
        if key in self._known:
            return self._known[key]
        ordered = tuple(d.name for d in self.dims if d.name in dims)
        value = Value(self.unique(name or op), op, args, tuple(attributes), dtype, ordered)
        self.values.append(value)
        self._types[value.name] = (dtype, dims)
        self._known[key] = value.name
        self._by_name[value.name] = value
        return value.name

    def const(self, number: float | int | bool, dtype: str) -> str:
        if dtypes.is_float(dtype):
            number = float(number)
        elif dtype == "bool":
            number = bool(number)
        else:
            number = int(number)
        return self.op("const", dtype=dtype, attributes=(number,))

    def cast(self, value: str, dtype: str) -> str:
        return value if self.dtype(value) == dtype else self.op("cast", value, dtype=dtype)

    def reduce(self, op: str, value: str, dims: Iterable[str]) -> str:
        """Reduce over ``dims``; over a dimension the operand lacks, a sum is a multiplication by its size."""
        wanted = set(dims)
        have = self.dims_of(value)
        present = [d.name for d in self.dims if d.name in wanted & have]
        if present:
            value = self.op(op, value, attributes=present)
        missing = [d.name for d in self.dims if d.name in wanted - have]
        if op == "sum" and missing:
            value = self.op("mul", value, self.count(missing, self.dtype(value)))
        return value

    def count(self, dims: Sequence[str], dtype: str) -> str:
        """Number of elements of some dimensions, as a value without dimensions."""
        sizes = {d.name: d.size for d in self.dims}
        number = 1
        for dim in dims:
            size = sizes[dim]
            if isinstance(size, str):
                return self.op("size", dtype=dtype, attributes=tuple(dims))
            number *= size
        return self.const(number, dtype)

    def finish(self) -> Program:
        """The program, verified."""
        from weft.ir.verify import verify  # the verifier needs these classes

        program = Program(
            self.name, self.parameters, self.dims, tuple(self.inputs), tuple(self.values), tuple(self.outputs)
        )
        verify(program)
        return program
