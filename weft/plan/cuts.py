"""Cuts a pass in two at one of its values: the first kernel stores it, the second one reads it, and what the first one
loads for that value alone is nothing that the second one has to hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from weft.ir import dtypes
from weft.ir.program import Program, Size
from weft.ir.structure import Structure, analyse, reachable
from weft.plan.legality import check_one_space
from weft.plan.partition import Passes, cut, needs, recomputed


def cuts(
    program: Program,
    rows: tuple[str, ...],
    hints: Mapping[str, int],
    products: Mapping[str, tuple[Size, ...]],
) -> list[Passes]:
    """Ways to cut a one-pass program in two so that either part loads less than the whole, those first with which
    fewest bytes an element are moved; of those with which the larger part loads no less, the first one. It is cut where
    a value varies over rows and follows no sum over rows: such a sum is complete only after the pass. products:
    run-time strides of intermediates that there are already; each way has them and those of what it stores."""
    found = analyse(program, rows)
    again = recomputed(program, found, hints)
    whole = bytes_of(program, (b.name for b in program.inputs))
    ways: list[tuple[tuple[int, int], Structure]] = []
    for value in program.values:
        if set(value.dims) & set(rows) and not found.is_epilogue(value.name):
            way = at_value(program, found, value.name)
            loads = moved(program, way, again)
            if loads and min(loads) > 0 and max(loads) < whole:
                ways.append(((sum(loads), max(loads)), way))
    best: list[tuple[tuple[int, int], Structure]] = []
    for cost, way in sorted(ways, key=lambda each: each[0]):
        if not best or cost[1] < best[-1][0][1]:
            best.append((cost, way))
    made = [cut(program, way, hints, products, "_") for _, way in best]
    return [each for each in made if not any(map(check_one_space, each.programs))]


def at_value(program: Program, found: Structure, value: str) -> Structure:
    """The structure with two passes instead of one: a value and what it is made from are in the first one, with outputs
    that are made from the same inputs."""
    by_name = program.by_name()

    def behind(root: str) -> set[str]:
        return set(reachable([root], lambda name: by_name[name].args if name in by_name else ()))

    first = behind(value)
    inputs = first - by_name.keys()
    for output in program.outputs:
        if (own := behind(output.value)) - by_name.keys() <= inputs:
            first |= own
    return replace(found, passes={name: int(name in by_name and name not in first) for name in found.passes})


def moved(program: Program, way: Structure, again: set[str]) -> list[int]:
    """Bytes of an element that each pass loads; nothing where all is one pass. What is stored in between is loaded by
    the second one, so that the least bytes are moved where the least are loaded."""
    if not any(way.passes[o.value] for o in program.outputs):
        return []
    by_name, (needed, _) = program.by_name(), needs(program, way, again)
    found: list[int] = []
    for at, names in needed.items():
        used = {arg for name in names for arg in by_name[name].args} - names
        used |= {o.value for o in program.outputs if way.passes[o.value] == at} - names
        found.append(bytes_of(program, used))
    return found


def bytes_of(program: Program, names: Iterable[str]) -> int:
    """Of an element, of what varies over all dimensions."""
    types = program.types()
    return sum(dtypes.itemsize(types[n][0]) for n in names if len(types[n][1]) == len(program.dims))
