"""How the functions of a Triton kernel are called, read off their nests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weft.backends.abi import Abi, Launch, Partial, largest, product
from weft.backends.triton.division import (
    blocks_in_turn,
    chunks_of,
    column_blocks,
    elements,
    finish_tasks,
    partial_name,
    segment_count,
    sum_columns,
    tiles_of,
)
from weft.backends.triton.finish_tasks import FINISH_WARPS
from weft.backends.triton.schedule import TritonKernel
from weft.ir.ops import states_of
from weft.ir.program import Size
from weft.lowering.nest import Chunks, GridSync, Keep, Nest, Tasks, Tiles, Total

WARP_THREADS = 32
BARRIER = "barrier"
"""The argument that is the counter of a barrier."""


def abi_of(kernel: TritonKernel, nests: Sequence[Nest], entry: str) -> Abi:
    """kernel: as its nests are of it. entry: the name of its function."""
    first, *others = nests
    stays = any(isinstance(s, Chunks) or (isinstance(s, Tiles) and s.of == "program") for s in first.body)
    syncs = _syncs(first)
    threads = WARP_THREADS * kernel.schedule.warps
    launches = [Launch(entry, _grid(kernel, first, stays), threads, persistent=stays, cooperative=stays and syncs)]
    for nest in others:
        tasks = largest([finish_tasks(kernel, s.kept) for s in nest.body if isinstance(s, Tasks)])
        launches.append(Launch(f"{entry}_finish", (tasks, 1), WARP_THREADS * FINISH_WARPS, persistent=True))
    return Abi(
        tuple(b.name for b in kernel.program.buffers),
        tuple(_partials(kernel, first)),
        syncs,
        kernel.program.parameters,
        tuple(launches),
    )


def arguments(kernel: TritonKernel, nests: Sequence[Nest]) -> tuple[tuple[str, str], ...]:
    """Names and types of the arguments of every function, in order: a dtype of ``weft.ir.dtypes`` behind a ``*`` for a
    pointer, ``i64`` for a run-time parameter."""
    found = [(b.name, f"*{b.dtype}") for b in kernel.program.buffers]
    found += [(p.name, f"*{p.dtype}") for p in _partials(kernel, nests[0])]
    if _syncs(nests[0]):
        found.append((BARRIER, "*i64"))
    return (*found, *((p, "i64") for p in kernel.program.parameters))


def _syncs(nest: Nest) -> bool:
    return any(isinstance(statement, GridSync) for statement in nest.body)


def _grid(kernel: TritonKernel, nest: Nest, stays: bool) -> tuple[Size, Size]:
    """Programs of the first function. stays: whether they loop over chunks, or over tiles that they load ahead."""
    completes = any(isinstance(statement, Total) for statement in nest.body)
    each = chunks_of(kernel) if stays else 1 if completes else tiles_of(kernel)
    programs, blocks = product([each, segment_count(kernel)]), column_blocks(kernel)
    return (product([programs, blocks]), 1) if blocks_in_turn(kernel) else (programs, blocks)


def _partials(kernel: TritonKernel, nest: Nest) -> Iterator[Partial]:
    """Of what a nest keeps: a number for each segment, chunk and column, for each of a reduction's own numbers."""
    values = kernel.program.by_name()
    for name in dict.fromkeys(s.value for s in nest.statements() if isinstance(s, Keep)):
        value = values[name]
        each = product([segment_count(kernel), chunks_of(kernel), elements(kernel, sum_columns(kernel, value))])
        for state in range(states_of(value.op, pivoted=True)):
            yield Partial(partial_name(value, state), value.dtype, each)
