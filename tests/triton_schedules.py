"""Schedules of one Triton kernel that must all give right results, whether anybody would choose them or not."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from math import prod

from weft.backends.triton.candidates import can_keep_tiles
from weft.backends.triton.column_schedules import can_complete_sums, power_of_two
from weft.backends.triton.demand import Demand
from weft.backends.triton.division import finish_width, splits_columns, tiled_rows
from weft.backends.triton.schedule import Remat
from weft.ir.interpret import resolve
from weft.ir.structure import loops_of
from weft.plan.kernel import Kernel, Plan
from weft.plan.schedule import Schedule
from weft.plan.split import Split
from weft.target import Target

CHUNKS = (1, 3, 7, 1000)
MOST_STATEMENTS = 1000
"""Of one kernel: the interpreter takes up to a tenth of a millisecond for each."""
MOST_CHAIN = 64
"""Rows that are added up one by one: a variance over 90 had twice the error that rounding explains, in one column of
70, and a planner takes several rows at a time there."""
MOST_ELEMENTS = 2**17
"""Elements of a tile."""


def in_pieces(width: int, count: int) -> tuple[int, int]:
    """A row as at most so many equal powers of two: how many, and of how many columns each."""
    piece = power_of_two(-(-width // count))
    return -(-width // piece), piece


def alternatives(kernel: Kernel, sizes: Mapping[str, int]) -> list[Schedule]:
    """Of the scheme that the kernel has and, where its rows can be looped over, of that as well."""
    return list(dict.fromkeys(_alternatives(kernel, sizes)))


def _alternatives(kernel: Kernel, sizes: Mapping[str, int]) -> Iterator[Schedule]:
    schedule = kernel.schedule
    loops = loops_of(kernel.program, schedule.rows, schedule.columns)
    width, types = prod(sizes[d] for d in schedule.columns), kernel.program.types()
    outer = [kernel.program.by_name()[name] for names in loops.outer for name in names]
    static = all(isinstance(kernel.program.size_of(c), int) for c in schedule.columns)
    ways: list[tuple[str, tuple[int, int]]] = []
    if not schedule.columns:
        ways.append((schedule.scheme, (1, 1)))
    elif not any(loops.inner):
        ways += [(schedule.scheme, (1, w)) for w in (8, 64, 512)]
    else:
        scheme = "STREAM" if outer else "ONE_SHOT"
        if static:
            ways += [(scheme, in_pieces(width, count)) for count in (1, 2, 3, 5, 8)]
        if not any(set(types[v.args[0]][1]) & set(schedule.columns) for v in outer):
            ways += [("LOOP", pieces) for pieces in ((1, 16), (2, 32), (1, 1024), (4, 256))]
    tall = prod(sizes[d] for d in tiled_rows(kernel))
    finishes = list(product(("separate", "same"), CHUNKS)) if outer else []
    finishes += [("none", 1 if outer else 0)] if schedule.finish == "none" and not (outer and any(loops.inner)) else []
    alone = [("none", 1)] if can_complete_sums(Split.of_kernel(kernel, Target.named("h200"), {})) else []
    for scheme, (pieces, each) in ways:
        for rows in (1, 2, 8, 64, 512, 4096):
            if rows > 1 and (rows >= 2 * tall or rows * pieces * each > MOST_ELEMENTS):
                continue
            for finish, chunks in dict.fromkeys((*finishes, *(alone if (scheme, pieces) == ("STREAM", 1) else ()))):
                if rows == chunks == 1 < tall / MOST_CHAIN:
                    continue
                made = replace(schedule, scheme=scheme, pieces=pieces, piece_columns=each, rows_per_tile=rows)
                made = replace(made, chunks=chunks, finish=finish)
                tiles = can_keep_tiles(Demand.of(kernel.program, replace(made, remat="tiles")))
                kept: list[Remat] = ["none"]
                if tiles and scheme != "LOOP" and rows == 1 and finish != "separate":
                    kept = ["tiles", "inputs"] if scheme == "STREAM" else ["tiles"]
                for each_kept in kept:
                    made = replace(made, remat=each_kept)
                    if statements(replace(kernel, schedule=made), sizes) <= MOST_STATEMENTS:
                        yield made


def statements(kernel: Kernel, sizes: Mapping[str, int]) -> int:
    """About how many statements of one value the interpreter goes through for a kernel."""
    schedule = kernel.schedule
    tiles = prod(sizes[d] for d in schedule.segments) * -(
        -prod(sizes[d] for d in tiled_rows(kernel)) // schedule.rows_per_tile
    )
    width = prod(sizes[d] for d in schedule.columns)
    blocks = schedule.pieces
    if schedule.scheme == "LOOP" or splits_columns(kernel):
        blocks = -(-width // schedule.piece_columns)
    finishing = prod(sizes[d] for d in schedule.segments) * -(-width // finish_width(kernel, schedule.segments))
    return (tiles * max(1, blocks) + finishing) * (len(kernel.program.values) + len(kernel.program.inputs))


def drawn(plan: Plan, sizes: Mapping[str, int], draw: random.Random) -> Plan:
    """The plan with schedules drawn from all of these; as it is if it would take too long with any."""
    known = sizes_with(plan, sizes)
    kernels = (replace(k, schedule=draw.choice(alternatives(k, known) or [k.schedule])) for k in plan.kernels)
    return replace(plan, kernels=tuple(kernels))


def is_quick(plan: Plan, sizes: Mapping[str, int]) -> bool:
    known = sizes_with(plan, sizes)
    return all(statements(kernel, known) <= MOST_STATEMENTS for kernel in plan.kernels)


def sizes_with(plan: Plan, sizes: Mapping[str, int]) -> dict[str, int]:
    """Sizes and parameters, with those of the plan's own."""
    known = dict(sizes)
    for name, factors in plan.products.items():
        known[name] = prod(resolve(factor, known) for factor in factors)
    return known
