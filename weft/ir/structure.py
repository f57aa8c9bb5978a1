"""What a program looks like under a split of its dimensions into rows and columns.

An *inner* reduction drops column dimensions, an *outer* one drops row dimensions. One pass over the rows can compute a
value if and only if it does not vary over a row dimension dropped by an outer reduction it depends on. Values that
depend on an outer reduction but not over what it dropped are the *epilogue*, computed once after the rows, pointwise.
Whatever breaks that rule belongs to the next pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar

from weft.ir.builder import Builder
from weft.ir.ops import lookup
from weft.ir.program import Output, Program, Value
from weft.ir.simplify import rebuilt

T = TypeVar("T")
KEPT = 1024
"""Results of analyses that are kept: a planner asks for the same ones again and again, under each split."""


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

    def made(builder: Builder, value: Value, renamed: Mapping[str, str]) -> str | None:
        dims = {str(a) for a in value.attributes}
        if lookup(value.op).kind != "reduction" or dims.isdisjoint(rows) or dims.isdisjoint(columns):
            return None
        inner = builder.reduce(value.op, renamed[value.args[0]], dims & set(columns))
        return builder.reduce(value.op, inner, dims & set(rows))

    return rebuilt(program, made)


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


@dataclass(frozen=True)
class Loops:
    """What the loops over the columns of a row compute, in order, and the same for the epilogue.

    A value whose dimensions include a column is computed inside the loops, in every loop that needs it unless it is
    held; the others once a row. stores, inner, outer: what is written, reduced along and across rows in each loop.
    used: what all of these take.
    """

    values: tuple[tuple[str, ...], ...]
    stores: tuple[tuple[Output, ...], ...]
    inner: tuple[tuple[str, ...], ...]
    outer: tuple[tuple[str, ...], ...]
    used: tuple[frozenset[str], ...]
    scalars: tuple[str, ...]
    epilogue_scalars: tuple[str, ...]
    epilogue_values: tuple[str, ...]
    epilogue_stores: tuple[Output, ...]

    def epilogue_blocks(self, rows: tuple[str, ...]) -> dict[tuple[str, ...], list[Output]]:
        """Stores of the epilogue by the row dimensions that they keep: what keeps the same is done together."""
        blocks: dict[tuple[str, ...], list[Output]] = {}
        for output in self.epilogue_stores:
            blocks.setdefault(tuple(r for r in rows if r in output.buffer.dims), []).append(output)
        return blocks


@lru_cache(maxsize=KEPT)
def loops_of(program: Program, rows: tuple[str, ...], columns: tuple[str, ...], held: tuple[str, ...] = ()) -> Loops:
    """Loop structure of a program that is one pass under the split."""
    found = analyse(program, rows)
    assert found.pass_count == 1, f"{program.name} is {found.pass_count} passes"
    by_name, types = program.by_name(), program.types()
    column_set = set(columns)

    def is_vector(name: str) -> bool:
        return bool(set(types[name][1]) & column_set)

    late = [o for o in program.outputs if _is_late(o, found, types, rows)]
    early = [o for o in program.outputs if o not in late]
    inner = [v for v in program.values if is_inner(v, columns)]
    outer = [v for v in program.values if is_outer(v, rows)]
    count = 1 + max(
        [found.stages[v.args[0]] for v in (*inner, *outer)] + [found.stages[o.value] for o in early], default=0
    )
    stores = tuple(tuple(o for o in early if found.stages[o.value] == k) for k in range(count))
    inner_at = tuple(tuple(v.name for v in inner if found.stages[v.args[0]] == k) for k in range(count))
    sums = terms_of(program) if held else {}
    outer_at = tuple(tuple(v.name for v in outer if found.stages[v.args[0]] == k) for k in range(count))
    values: list[tuple[str, ...]] = []
    used: list[frozenset[str]] = []
    done: set[str] = set()

    def is_fresh_vector(name: str) -> bool:
        return is_vector(name) and name not in done

    for k in range(count):
        roots = [o.value for o in stores[k]] + [by_name[name].args[0] for name in (*inner_at[k], *outer_at[k])]
        needed = _closure(roots, by_name, is_fresh_vector)
        values.append(tuple(v.name for v in program.values if v.name in needed))
        used.append(frozenset(roots).union(*(by_name[name].args for name in values[k])))
        done |= {name for name in held if name in needed or sums.get(name) in inner_at[k]}
    roots = [o.value for o in early] + [v.args[0] for v in (*inner, *outer)]
    during = _closure(roots, by_name, lambda name: True)
    after = _closure([o.value for o in late], by_name, lambda name: True, stop={v.name for v in outer})
    return Loops(
        tuple(values),
        stores,
        inner_at,
        outer_at,
        tuple(used),
        tuple(v.name for v in program.values if v.name in during and not is_vector(v.name)),
        tuple(v.name for v in program.values if v.name in after and not is_vector(v.name)),
        tuple(v.name for v in program.values if v.name in after and is_vector(v.name)),
        tuple(late),
    )


def terms_of(program: Program) -> dict[str, str]:
    """Exponentials of differences from a largest element that are terms of a sum of exponentials, and, where nothing
    else is made of them, their quotients by it; by their names that sum's. Whoever adds it up has them, but for a
    factor that all terms of a row have in common."""
    by_name, stored = program.by_name(), {output.value for output in program.outputs}
    sums = {(v.args[0], frozenset(v.attributes)): v.name for v in program.values if v.op == "sumexp"}
    found: dict[str, str] = {}
    for value in program.values if sums else ():
        difference = by_name.get(value.args[0]) if value.op == "exp" else None
        largest = by_name.get(difference.args[1]) if difference is not None and difference.op == "sub" else None
        if difference is None or largest is None or (largest.op, largest.args[0]) != ("max", difference.args[0]):
            continue
        if (total := sums.get((difference.args[0], frozenset(largest.attributes)))) is not None:
            uses = [other for other in program.values if value.name in other.args]
            are_quotients = value.name not in stored and all(u.args == (value.name, total) for u in uses)
            found |= dict.fromkeys([u.name for u in uses] if are_quotients else [value.name], total)
    return found


def place_in_output(program: Program, name: str) -> Output | None:
    """The output that holds a value as it is: one element for each of its own."""
    dims = set(program.types()[name][1])
    return next((o for o in program.outputs if o.value == name and set(o.buffer.dims) == dims), None)


def _is_late(
    output: Output, found: Structure, types: dict[str, tuple[str, tuple[str, ...]]], rows: tuple[str, ...]
) -> bool:
    """Whether an output is written after the pass: it follows an outer reduction, or is the same for every row."""
    if found.is_epilogue(output.value):
        return True
    invariant = not set(types[output.value][1]) & set(rows) and not set(output.buffer.dims) & set(rows)
    return bool(rows) and invariant and found.pure.get(output.value, True)


def _closure(
    roots: list[str],
    by_name: dict[str, Value],
    follow: Callable[[str], bool],
    stop: Iterable[str] = (),
) -> set[str]:
    """Everything the roots need, not looking behind reductions, inputs and what ``follow`` rejects."""
    stopped = set(stop)

    def is_taken(name: str) -> bool:
        is_pointwise = name in by_name and lookup(by_name[name].op).kind != "reduction"
        return is_pointwise and name not in stopped and follow(name)

    return set(reachable(filter(is_taken, roots), lambda name: filter(is_taken, by_name[name].args)))


def reachable(roots: Iterable[T], following: Callable[[T], Iterable[T]]) -> dict[T, None]:
    """The roots and all that is reached from them by what ``following`` says of each, in the order of the search."""
    found: dict[T, None] = {}
    pending = list(roots)
    while pending:
        each = pending.pop()
        if each not in found:
            found[each] = None
            pending.extend(following(each))
    return found


def components(groups: Iterable[Iterable[T]]) -> list[frozenset[T]]:
    """The connected components of elements of which those of one group are connected."""
    found: list[frozenset[T]] = []
    for group in map(frozenset, groups):
        near = [others for others in found if not group.isdisjoint(others)]
        found = [others for others in found if others not in near] + [group.union(*near)] * bool(group)
    return found
