"""Builds programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from weft.errors import VerificationError
from weft.ir import dtypes
from weft.ir.ops import lookup
from weft.ir.program import Attribute, Buffer, Dim, Output, Program, Size, Value
from weft.ir.verify import verify


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
        program = Program(
            self.name, self.parameters, self.dims, tuple(self.inputs), tuple(self.values), tuple(self.outputs)
        )
        verify(program)
        return program
