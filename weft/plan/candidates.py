"""Schedules that a kernel can have, the likeliest first: tuning measures them, and a stored schedule must be one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from math import log2

from weft.plan import gpu_candidates, gpu_schedules
from weft.plan.cost import estimate
from weft.plan.kernel import Kernel, Schedule
from weft.plan.schedules import held_values, longest_chain, stored_values
from weft.plan.split import Split
from weft.target import Target

SLACK = 1.5
"""Of GPU kernels whose registers are predicted to be up to so many times what there is are measured as well: the model
expects more of some kernels than the compiler finds."""
TILES = (1, 2, 4, 8)
CHUNKS = (8, 16, 32, 64, 128, 256)


def candidates(kernel: Kernel, target: Target, hints: Mapping[str, int]) -> tuple[Schedule, ...]:
    """All schedules with the split of the kernel; its own is the first, the others follow by predicted time."""
    ranked = _on_gpu(kernel, target, hints) if target.kind == "gpu" else _on_cpu(kernel, target, hints)
    return tuple(dict.fromkeys((kernel.schedule, *ranked)))


def _on_gpu(kernel: Kernel, target: Target, hints: Mapping[str, int]) -> Iterator[Schedule]:
    """What the planner considers, then what it takes to spill registers."""
    split = Split.of_kernel(kernel, target, hints)
    for slack in (1.0, SLACK):
        yield from gpu_schedules.ranked(split, gpu_candidates.candidates(split, slack))


def _on_cpu(kernel: Kernel, target: Target, hints: Mapping[str, int]) -> tuple[Schedule, ...]:
    """Rows of a tile and of a chunk, and what is held; what is predicted to take the same time by how near it is to the
    kernel's own."""

    def order(schedule: Schedule) -> tuple[float, ...]:
        predicted = estimate(replace(kernel, schedule=schedule), target, hints).predicted_us
        far = sum(
            abs(log2(mine / own))
            for mine, own in (
                (schedule.rows_per_tile, kernel.schedule.rows_per_tile),
                (schedule.rows_per_chunk, kernel.schedule.rows_per_chunk),
            )
        )
        return (predicted, far + (schedule.held != kernel.schedule.held))

    return tuple(sorted(_tilings(kernel, target, hints), key=order))


def _tilings(kernel: Kernel, target: Target, hints: Mapping[str, int]) -> Iterator[Schedule]:
    program, own, split = kernel.program, kernel.schedule, Split.of_kernel(kernel, target, hints)
    rows = max(1, split.sizes.elements(split.inside))
    expensive = held_values(program, own.rows, own.columns)
    held = dict.fromkeys(
        (own.held, (), expensive, (*expensive, *stored_values(program, own.rows, own.columns, expensive)))
    )
    longest = longest_chain(program, split.inside) if own.finish != "none" else max(CHUNKS)
    for tile, chunk, kept in product(TILES, CHUNKS, held):
        if tile <= chunk <= longest * tile and (chunk < 2 * rows or chunk == min(CHUNKS)):
            yield replace(own, rows_per_tile=tile, rows_per_chunk=chunk, held=kept)
