"""Kernels under other names: those that a language leaves free, or plain ones, under which equal kernels are equal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from weft.ir.ops import lookup
from weft.ir.program import Buffer, Dim, Output, Program, Size, Value
from weft.plan.kernel import Kernel, Schedule

PLAIN_NAME = "kernel"
"""Of every program with plain names."""


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


def renamed_kernel(kernel: Kernel, names: Names) -> Kernel:
    """The same kernel under new names; its program's own stays."""
    return Kernel(renamed_program(kernel.program, names), renamed_schedule(kernel.schedule, names))


def renamed_schedule(schedule: Schedule, names: Names) -> Schedule:
    """Raises KeyError for a dimension or a value that has no new name."""
    return replace(
        schedule,
        rows=_renamed(schedule.rows, names.dims),
        columns=_renamed(schedule.columns, names.dims),
        segments=_renamed(schedule.segments, names.dims),
        held=_renamed(schedule.held, names.values),
    )


def renamed_program(program: Program, names: Names) -> Program:
    """The same program under new names; its own stays."""

    def size(given: Size) -> Size:
        return names.parameters[given] if isinstance(given, str) else given

    def buffer(b: Buffer) -> Buffer:
        dims, strides = _renamed(b.dims, names.dims), tuple(map(size, b.strides))
        return replace(b, name=names.values[b.name], dims=dims, strides=strides)

    def value(v: Value) -> Value:
        attributes = v.attributes
        if v.op == "parameter":
            attributes = (names.parameters[str(attributes[0])],)
        elif lookup(v.op).names_dims:
            attributes = _renamed(map(str, attributes), names.dims)
        args, dims = _renamed(v.args, names.values), _renamed(v.dims, names.dims)
        return replace(v, name=names.values[v.name], args=args, attributes=attributes, dims=dims)

    return Program(
        program.name,
        _renamed(program.parameters, names.parameters),
        tuple(Dim(names.dims[d.name], size(d.size)) for d in program.dims),
        tuple(map(buffer, program.inputs)),
        tuple(map(value, program.values)),
        tuple(Output(buffer(o.buffer), names.values[o.value]) for o in program.outputs),
    )


def _renamed(given: Iterable[str], names: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(names[name] for name in given)
