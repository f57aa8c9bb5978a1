"""What a Triton kernel does with complete column sums, in the finish or where a program has all rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from weft.ir.program import Output
from weft.ir.structure import reachable
from weft.render.triton_statements import Statements


def values_for(statements: Statements, outputs: Iterable[Output]) -> set[str]:
    """What is computed for these results from complete sums on: nothing behind an outer reduction."""
    return {*reachable((o.value for o in outputs), lambda name: _arguments(statements, name))}


def epilogue(
    statements: Statements,
    outputs: Sequence[Output],
    needed: Collection[str],
    first: str,
    loaded: Collection[str] = (),
) -> None:
    """Write the statements behind the sums. needed: what ``values_for`` says. first: what holds for one of the programs
    that have a result without columns. loaded: inputs that are there."""
    arguments = {a for name in needed for a in _arguments(statements, name)} | {*needed}
    for buffer in statements.program.inputs:
        if buffer.name in arguments and buffer.name not in loaded:
            statements.load(buffer, 0)
    for name in (*statements.loops.epilogue_scalars, *statements.loops.epilogue_values):
        if name in needed:
            statements.define(name, 0)
    for output in outputs:
        along = statements.is_vector(output.value) or statements.places.has_columns(output.buffer)
        once = statements.once(output.buffer.dims, 0, statements.schedule.columns)
        statements.store(output, 0, once if along else [first] if first else [])


def _arguments(statements: Statements, name: str) -> tuple[str, ...]:
    """Of a value that is computed behind the sums."""
    value = statements.by_name.get(name)
    return () if value is None or value in statements.outer else value.args
