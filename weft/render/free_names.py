"""Names that the language of a kernel's text leaves free."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from weft.ir.ops import lookup
from weft.ir.program import Buffer, Dim, Output, Program, Size, Value
from weft.plan.kernel import Kernel


def with_free_names(kernel: Kernel, taken: frozenset[str], endings: Sequence[str]) -> Kernel:
    """The same kernel, with underscores behind names that are ``taken``. endings: what a renderer puts behind the name
    of a dimension, a value or a buffer to make another."""
    program, schedule = kernel.program, kernel.schedule
    outputs = (o.buffer.name for o in program.outputs)
    edges_and_values = dict.fromkeys((*(b.name for b in program.inputs), *(v.name for v in program.values), *outputs))
    stems = {name.rstrip("_") for name in (*(d.name for d in program.dims), *edges_and_values)}
    used: set[str] = set()

    def is_taken(name: str) -> bool:
        derived = (name.removesuffix(end) for end in endings if name.endswith(end))
        return name in taken or name in used or any(stem.rstrip("_") in stems for stem in derived)

    def free(names: Iterable[str]) -> dict[str, str]:
        chosen: dict[str, str] = {}
        for name in names:
            new = name
            while is_taken(new):
                new += "_"
            chosen[name] = new
            used.add(new)
        return chosen

    parameters = free(program.parameters)
    dims = free(d.name for d in program.dims)
    values = free(edges_and_values)

    def size(given: Size) -> Size:
        return parameters[given] if isinstance(given, str) else given

    def renamed(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(dims[name] for name in names)

    def buffer(b: Buffer) -> Buffer:
        return replace(b, name=values[b.name], dims=renamed(b.dims), strides=tuple(map(size, b.strides)))

    def value(v: Value) -> Value:
        attributes = v.attributes
        if v.op == "parameter":
            attributes = (parameters[str(attributes[0])],)
        elif lookup(v.op).names_dims:
            attributes = renamed(map(str, attributes))
        args = tuple(values[arg] for arg in v.args)
        return replace(v, name=values[v.name], args=args, attributes=attributes, dims=renamed(v.dims))

    return Kernel(
        Program(
            program.name,
            tuple(parameters.values()),
            tuple(Dim(dims[d.name], size(d.size)) for d in program.dims),
            tuple(map(buffer, program.inputs)),
            tuple(map(value, program.values)),
            tuple(Output(buffer(o.buffer), values[o.value]) for o in program.outputs),
        ),
        replace(
            schedule,
            rows=renamed(schedule.rows),
            columns=renamed(schedule.columns),
            segments=renamed(schedule.segments),
            held=tuple(values[name] for name in schedule.held),
        ),
    )
