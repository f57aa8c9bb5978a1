"""What a program looks like under a split of its dimensions into rows and columns.

An *inner* reduction drops column dimensions, an *outer* one drops row dimensions. One pass over the rows can compute a
value if and only if it does not vary over a row dimension dropped by an outer reduction it depends on. Values that
depend on an outer reduction but not over what it dropped are the *epilogue*, computed once after the rows, pointwise.
Whatever breaks that rule belongs to the next pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.ir.ops import lookup
from weft.ir.program import Builder, Program, Value


@dataclass(frozen=True)
class Cut:
    """Why a value is in a later pass than one of its operands. rule: ``outer_dependency`` or ``epilogue_reduction``
    or ``epilogue_operand``; dims: the row dimensions at issue."""

    value: str
    operand: str
    rule: str
    dims: tuple[str, ...]


@dataclass
class Structure:
    """passes: the pass each value belongs to. dropped: row dimensions dropped by the outer reductions a value depends
    on inside its pass (empty: computed while passing over rows; else: epilogue). stages: in how many row reductions a
    value sits above the inputs: stage k is computed in the k-th loop over the columns of a row."""

    passes: dict[str, int] = field(default_factory=dict[str, int])
    dropped: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    stages: dict[str, int] = field(default_factory=dict[str, int])
    pure: dict[str, bool] = field(default_factory=dict[str, bool])
    cuts: list[Cut] = field(default_factory=list[Cut])

    def is_epilogue(self, name: str) -> bool:
        return bool(self.dropped[name])

    @property
    def pass_count(self) -> int:
        return 1 + max(self.passes.values(), default=0)


def is_inner(value: Value, columns: tuple[str, ...]) -> bool:
    return lookup(value.op).kind == "reduction" and set(value.attributes) <= set(columns)


def is_outer(value: Value, rows: tuple[str, ...]) -> bool:
    return lookup(value.op).kind == "reduction" and set(value.attributes) <= set(rows)


def split_straddling(program: Program, rows: tuple[str, ...], columns: tuple[str, ...]) -> Program:
    """Turn every reduction over rows and columns into an inner one followed by an outer one."""
    builder = Builder(program.name, program.dims, program.parameters)
    renamed: dict[str, str] = {}
    for b in program.inputs:
        renamed[b.name] = builder.input(b.name, b.dtype, b.dims, b.strides, b.offset)
    for v in program.values:
        args = [renamed[a] for a in v.args]
        dims = {str(a) for a in v.attributes}
        if lookup(v.op).kind == "reduction" and dims & set(rows) and dims & set(columns):
            inner = builder.reduce(v.op, args[0], dims & set(columns))
            renamed[v.name] = builder.reduce(v.op, inner, dims & set(rows))
        else:
            renamed[v.name] = builder.op(v.op, *args, dtype=v.dtype, attributes=v.attributes)
    for o in program.outputs:
        b = o.buffer
        builder.output(b.name, renamed[o.value], b.dtype, b.dims, b.strides, b.offset)
    return builder.finish()


def analyse(program: Program, rows: tuple[str, ...]) -> Structure:
    """Assign every value to a pass, to rows or epilogue, and to a stage. No reduction may straddle the split."""
    found = Structure()
    for buffer in program.inputs:
        _set(found, buffer.name, 0, frozenset(), 0, True)
    for value in program.values:
        _place(found, value, rows)
    return found


def _set(found: Structure, name: str, at: int, dropped: frozenset[str], stage: int, pure: bool) -> None:
    found.passes[name], found.dropped[name], found.stages[name], found.pure[name] = at, dropped, stage, pure


def _place(found: Structure, value: Value, rows: tuple[str, ...]) -> None:
    at = max((found.passes[a] for a in value.args), default=0)
    live = [a for a in value.args if found.passes[a] == at]
    after_outer = [a for a in live if found.dropped[a]]
    reduction = lookup(value.op).kind == "reduction"
    cut = _find_cut(found, value, rows, live, after_outer, reduction)
    if cut is not None:
        found.cuts.append(cut)
        at, live, after_outer = at + 1, [], []
    stage = max((found.stages[a] for a in live), default=0)
    pure = not reduction and all(found.pure[a] for a in live) and cut is None
    if reduction and is_outer(value, rows):
        _set(found, value.name, at, frozenset(str(a) for a in value.attributes), stage, False)
    elif reduction:
        _set(found, value.name, at, frozenset(), stage + 1, False)
    else:
        dropped: frozenset[str] = frozenset().union(*(found.dropped[a] for a in after_outer))
        _set(found, value.name, at, dropped, stage, pure)


def _find_cut(
    found: Structure, value: Value, rows: tuple[str, ...], live: list[str], after_outer: list[str], reduction: bool
) -> Cut | None:
    if not after_outer:
        return None
    if reduction:
        dims = tuple(str(a) for a in value.attributes)
        return Cut(value.name, after_outer[0], "epilogue_reduction", dims)
    for arg in after_outer:
        over = found.dropped[arg] & set(value.dims)
        if over:
            return Cut(value.name, arg, "outer_dependency", tuple(sorted(over)))
    for arg in live:
        if not found.dropped[arg] and not found.pure[arg]:
            # computed while passing over the rows and gone when the epilogue runs
            return Cut(value.name, arg, "epilogue_operand", tuple(rows))
    return None
