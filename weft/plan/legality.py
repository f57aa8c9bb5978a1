"""One function a rule: is it correct? No thresholds here."""

from __future__ import annotations

from typing import Literal

from weft.errors import Refusal
from weft.ir.ops import ONLINE, lookup
from weft.ir.program import Output, Program, Value
from weft.ir.structure import Cut, Structure, components

Kind = Literal["pointwise", "inner", "outer", "mixed-order"]


def check_whole_rows(value: Value, operand_dims: tuple[str, ...], columns: tuple[str, ...]) -> Refusal | None:
    """What is reduced varies over all columns or over none, and an inner reduction drops them all: a kernel holds the
    result of a row as one number, and a column sum for each column."""
    varies = [d for d in operand_dims if d in columns]
    dropped = [d for d in varies if d in value.attributes]
    if not varies or (len(varies) == len(columns) and len(dropped) in (0, len(columns))):
        return None
    what, some = ("over", dropped) if len(varies) == len(columns) else ("what varies over", varies)
    message = f"reduces {what} {', '.join(some)} only, where a row is all of the columns ({', '.join(columns)})"
    return Refusal("partial_row", value.name, message, have=len(some), limit=len(columns))


def check_online(
    value: Value, operand_dims: tuple[str, ...], rows: tuple[str, ...], columns: tuple[str, ...]
) -> Refusal | None:
    """A reduction with a moving centre is over rows, of something that varies over all rows and columns."""
    if value.op not in ONLINE:
        return None
    if not columns:
        message = f"{value.op} has a centre for each column, and this split has no columns"
        return Refusal("online_reduction", value.name, message, have=0, limit=1)
    if others := [str(d) for d in value.attributes if d not in rows]:
        message = f"{value.op} drops {', '.join(others)}, where its centre moves with the rows ({', '.join(rows)})"
        return Refusal("online_reduction", value.name, message, have=len(others), limit=0)
    if len(operand_dims) == len(rows) + len(columns):
        return None
    message = f"{value.op} of something over ({', '.join(operand_dims)}), not over all rows and columns"
    return Refusal("online_reduction", value.name, message, len(operand_dims), len(rows) + len(columns))


def check_outer_dependency(cut: Cut) -> Refusal | None:
    """A value in the same pass as an outer reduction it depends on does not vary over what that one dropped."""
    if cut.rule != "outer_dependency":
        return None
    dims = ", ".join(cut.dims)
    return Refusal(
        "outer_dependency",
        cut.value,
        f"varies over {dims}, but needs {cut.operand}, which is complete only after the whole pass over {dims}",
        have=len(cut.dims),
        limit=0,
    )


def check_epilogue_pointwise(cut: Cut) -> Refusal | None:
    """What follows an outer reduction in the same kernel is pointwise, and uses no value of a single row."""
    if cut.rule == "epilogue_reduction":
        message = f"reduces {cut.operand}, which is complete only after the pass, where a kernel reduces nothing"
        return Refusal("epilogue_reduction", cut.value, message, have=1, limit=0)
    if cut.rule == "epilogue_operand":
        message = f"needs {cut.operand} after the pass over {', '.join(cut.dims)}, where values of a row are gone"
        return Refusal("epilogue_operand", cut.value, message, have=1, limit=0)
    return None


def check_written_once(program: Program, output: Output, found: Structure, rows: tuple[str, ...]) -> Refusal | None:
    """A result without rows is written once, after them: it must be computable there, from inputs alone."""
    name = output.value
    dims = set(program.types()[name][1])
    if not rows or dims & set(rows) or set(output.buffer.dims) & set(rows):
        return None
    if found.is_epilogue(name) or found.pure.get(name, True):
        return None
    return Refusal(
        "row_invariant_reduction",
        name,
        f"is the same for every row, but would be computed again in each row over {', '.join(rows)}",
        have=len(rows),
        limit=0,
    )


def check_one_space(program: Program) -> Refusal | None:
    """The dimensions of a pass are loops around each other. Values of which no dimension is in one with those of
    others would be computed again for every index of dimensions they have nothing to do with."""
    reductions = (v for v in program.values if lookup(v.op).kind == "reduction")
    together = [dims for _, dims in program.types().values()] + [buffer.dims for buffer in program.buffers]
    apart = components([*together, *((*v.dims, *map(str, v.attributes)) for v in reductions)])
    if len(apart) < 2:
        return None
    groups = " and ".join(f"({', '.join(d.name for d in program.dims if d.name in dims)})" for dims in apart)
    message = f"its dimensions {groups} have only single numbers in common"
    return Refusal("separate_dimensions", program.name, message, have=len(apart), limit=1)


def kinds_of(program: Program, columns: tuple[str, ...]) -> tuple[bool, bool]:
    """Whether the program has inner reductions, and outer ones."""
    reductions = [v for v in program.values if lookup(v.op).kind == "reduction"]
    inner = any(set(v.attributes) <= set(columns) for v in reductions)
    outer = any(not set(v.attributes) <= set(columns) for v in reductions)
    return inner, outer


def kind_of(program: Program, columns: tuple[str, ...]) -> Kind:
    """Of a kernel, by the reductions that it has."""
    inner, outer = kinds_of(program, columns)
    if inner and outer:
        return "mixed-order"
    return "inner" if inner else "outer" if outer else "pointwise"
