"""Programs under other names: those that a language leaves free, or plain ones, under which equal ones are equal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from weft.ir.ops import lookup
from weft.ir.program import Buffer, Dim, Output, Program, Size, Value


@dataclass(frozen=True)
class Names:
    """New names by old ones. values: of buffers as well."""

    parameters: Mapping[str, str]
    dims: Mapping[str, str]
    values: Mapping[str, str]

    @property
    def inverse(self) -> Names:
        """What leads back."""
        return Names(*({new: old for old, new in each.items()} for each in (self.parameters, self.dims, self.values)))


def edges_and_values(program: Program) -> tuple[str, ...]:
    """Names of inputs, values and outputs, each once, in the order of the program."""
    outputs = (o.buffer.name for o in program.outputs)
    return tuple(
        dict.fromkeys((*(b.name for b in program.inputs), *(v.name for v in program.values), *outputs)),
    )


def plain_names(program: Program) -> Names:
    """``p0``, ``d0`` and ``v0`` and so on, in the order of the program."""

    def numbered(letter: str, names: Iterable[str]) -> dict[str, str]:
        return {name: f"{letter}{i}" for i, name in enumerate(names)}

    dims = numbered("d", (d.name for d in program.dims))
    return Names(numbered("p", program.parameters), dims, numbered("v", edges_and_values(program)))


def renamed_program(program: Program, names: Names) -> Program:
    """The same program under new names; its own stays."""

    def size(given: Size) -> Size:
        return names.parameters[given] if isinstance(given, str) else given

    def buffer(b: Buffer) -> Buffer:
        dims, strides = renamed(b.dims, names.dims), tuple(map(size, b.strides))
        within = names.values.get(b.within, "")  # what is no buffer of the program has no name here
        place = b.place if within else 0
        return replace(b, name=names.values[b.name], dims=dims, strides=strides, within=within, place=place)

    def value(v: Value) -> Value:
        attributes = v.attributes
        if v.op == "parameter":
            attributes = (names.parameters[str(attributes[0])],)
        elif lookup(v.op).names_dims:
            attributes = renamed(map(str, attributes), names.dims)
        args, dims = renamed(v.args, names.values), renamed(v.dims, names.dims)
        return replace(v, name=names.values[v.name], args=args, attributes=attributes, dims=dims)

    return Program(
        program.name,
        renamed(program.parameters, names.parameters),
        tuple(Dim(names.dims[d.name], size(d.size)) for d in program.dims),
        tuple(map(buffer, program.inputs)),
        tuple(map(value, program.values)),
        tuple(Output(buffer(o.buffer), names.values[o.value]) for o in program.outputs),
    )


def renamed(given: Iterable[str], names: Mapping[str, str]) -> tuple[str, ...]:
    """Names, each of which has a new one."""
    return tuple(names[name] for name in given)
