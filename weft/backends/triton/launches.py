"""What a Triton kernel is started with: its functions, their arguments and programs, and memory for partial results.

A kernel with column sums is one function whose programs stay and loop over chunks of rows, and the finish: a second
function, or the end of the first one where all programs wait for each other; of few rows a program has all, and nothing
is left for a finish. All functions of a kernel take the same arguments: inputs, outputs, partial results, the counter
of the barrier if there is one, run-time parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod

from weft.backends.source import entry_of
from weft.backends.triton.beginnings import alternating_tiles
from weft.backends.triton.finish_tasks import FINISH_WARPS, finish_columns
from weft.backends.triton.resources import MOST_REGISTERS
from weft.backends.triton.schedule import TritonKernel
from weft.ir.halves import in_halves
from weft.ir.online import online_along_rows
from weft.ir.ops import states_of
from weft.ir.program import Output, Value
from weft.ir.structure import Loops, loops_of


@dataclass(frozen=True)
class Partial:
    """Memory for the partial results of an outer reduction: ``elements`` numbers of ``dtype``."""

    name: str
    dtype: str
    elements: int


@dataclass(frozen=True)
class Launch:
    """One start of a function. grid: programs along two axes. persistent: programs loop over what there is to do, so
    that fewer along the first axis do it as well. cooperative: they wait for each other, so that all of them have to
    be resident. register_cap: registers that the compiler is told a thread may have, 0 for none."""

    entry: str
    grid: tuple[int, int]
    warps: int
    stages: int
    persistent: bool
    cooperative: bool
    register_cap: int = 0


def arguments(kernel: TritonKernel) -> tuple[tuple[str, str], ...]:
    """Names and types of the arguments of every function, in order: a dtype of ``weft.ir.dtypes`` behind a ``*`` for a
    pointer, ``i64`` for a run-time parameter."""
    program = kernel.program
    found = [(b.name, f"*{b.dtype}") for b in program.buffers]
    found += [
        (partial_name(v, i), f"*{v.dtype}")
        for v in partial_values(kernel)
        for i in range(states_of(v.op, pivoted=True))
    ]
    if kernel.schedule.finish == "same":
        found.append(("arrived", "*i64"))
    return (*found, *((p, "i64") for p in program.parameters))


def partials(kernel: TritonKernel, sizes: Mapping[str, int]) -> tuple[Partial, ...]:
    """sizes: of dimensions and run-time parameters, by name."""
    rows = segment_count(kernel, sizes) * chunks_of(kernel, sizes)
    return tuple(
        Partial(partial_name(v, i), v.dtype, rows * prod(sizes[d] for d in sum_columns(kernel, v)))
        for v in partial_values(kernel)
        for i in range(states_of(v.op, pivoted=True))
    )


def launches(kernel: TritonKernel, sizes: Mapping[str, int]) -> tuple[Launch, ...]:
    """In order. sizes: of dimensions and run-time parameters, by name."""
    schedule, entry = kernel.schedule, entry_of(kernel.name)
    persistent = is_persistent(kernel)
    programs = chunks_of(kernel, sizes) if persistent else 1 if completes_sums(kernel) else tiles_of(kernel, sizes)
    programs *= segment_count(kernel, sizes)
    blocks = column_blocks(kernel, sizes)
    grid = (programs * blocks, 1) if blocks_in_turn(kernel) else (programs, blocks)
    cooperative = persistent and schedule.finish == "same"
    first = Launch(entry, grid, schedule.warps, schedule.stages, persistent, cooperative, schedule.register_cap)
    if not has_finish(kernel) or schedule.finish == "same":
        return (first,)
    tasks = max(finish_tasks(kernel, kept, sizes) for kept in finish_blocks(kernel))
    # of the finish a multiprocessor seldom has more than one program, whose threads may have all registers
    return first, Launch(f"{entry}_finish", (tasks, 1), FINISH_WARPS, 1, True, False, MOST_REGISTERS)


def is_persistent(kernel: TritonKernel) -> bool:
    """Whether programs stay and share chunks of rows, or row tiles that they load ahead."""
    streams = kernel.schedule.scheme == "STREAM" and not completes_sums(kernel)
    return streams or bool(partial_values(kernel))


def completes_sums(kernel: TritonKernel) -> bool:
    """Whether a program passes over all rows of its columns, and does what there is to do with their sums."""
    return kernel.schedule.finish == "none" and bool(outer_values(kernel))


def has_finish(kernel: TritonKernel) -> bool:
    """Whether something is left to do once all programs have passed over their rows."""
    return bool(_loops(kernel).epilogue_stores) and not completes_sums(kernel)


def finish_blocks(kernel: TritonKernel) -> dict[tuple[str, ...], list[Output]]:
    """What the finish stores, by the row dimensions that it keeps."""
    return _loops(kernel).epilogue_blocks(kernel.schedule.rows)


def finish_width(kernel: TritonKernel, kept: tuple[str, ...]) -> int:
    """Columns of a task of the finish, where these segments are kept."""
    sizes = [kernel.program.size_of(d) for d in kernel.schedule.columns]
    known = [size for size in sizes if isinstance(size, int)]
    columns = prod(known) if len(known) == len(sizes) else None
    return finish_columns(kernel.schedule, columns, added_segments(kernel, kept))


def added_segments(kernel: TritonKernel, kept: Iterable[str]) -> int:
    """Segments that are added up where some dimensions are kept; one if that is known at run time only."""
    sizes = [kernel.program.size_of(d) for d in kernel.schedule.segments if d not in kept]
    return prod(size if isinstance(size, int) else 1 for size in sizes)


def finish_tasks(kernel: TritonKernel, kept: tuple[str, ...], sizes: Mapping[str, int]) -> int:
    """Pieces of work of the finish that programs share: blocks of columns for every segment."""
    columns = kernel.schedule.columns
    keeps_columns = any(set(o.buffer.dims) & set(columns) for o in finish_blocks(kernel)[kept])
    width = prod(sizes[d] for d in columns) if keeps_columns else 1
    return prod(sizes[d] for d in kept) * -(-width // finish_width(kernel, kept))


def outer_values(kernel: TritonKernel) -> list[Value]:
    """Outer reductions, in the order of the program."""
    names = {name for names in _loops(kernel).outer for name in names}
    return [v for v in kernel.program.values if v.name in names]


def partial_values(kernel: TritonKernel) -> list[Value]:
    """Outer reductions whose results of some rows are put into memory."""
    return [] if completes_sums(kernel) else outer_values(kernel)


def partial_name(value: Value, state: int) -> str:
    """Of the memory for one number of an outer reduction's partial results."""
    several = states_of(value.op, pivoted=True) > 1
    return f"{value.name}_partial_{state}" if several else f"{value.name}_partial"


def sum_columns(kernel: TritonKernel, value: Value) -> tuple[str, ...]:
    """Columns that an outer reduction has a result for each of."""
    return tuple(d for d in kernel.schedule.columns if d in value.dims)


def segment_count(kernel: TritonKernel, sizes: Mapping[str, int]) -> int:
    """Segments: all combinations of the row dimensions that some outer reduction keeps."""
    return prod(sizes[d] for d in kernel.schedule.segments)


def tiles_of(kernel: TritonKernel, sizes: Mapping[str, int]) -> int:
    """Row tiles of a segment."""
    together = alternating_tiles(kernel)
    return -(-prod(sizes[d] for d in tiled_rows(kernel)) // (together * kernel.schedule.rows_per_tile)) * together


def chunks_of(kernel: TritonKernel, sizes: Mapping[str, int]) -> int:
    """Parts of a segment that column sums are taken in: no more than there are row tiles."""
    return max(1, min(kernel.schedule.chunks, tiles_of(kernel, sizes)))


def column_blocks(kernel: TritonKernel, sizes: Mapping[str, int]) -> int:
    """Programs side by side along the columns of a row."""
    if not splits_columns(kernel):
        return 1
    return -(-prod(sizes[d] for d in kernel.schedule.columns) // kernel.schedule.piece_columns)


def splits_columns(kernel: TritonKernel) -> bool:
    """Whether a row is worked on by several programs: nothing is reduced along it."""
    loops = _loops(kernel)
    return kernel.schedule.scheme != "LOOP" and bool(kernel.schedule.columns) and not any(loops.inner)


def blocks_in_turn(kernel: TritonKernel) -> bool:
    """Whether programs with neighbouring numbers have neighbouring columns of the same rows, and not rows one below the
    other of the same columns: memory is read in the order in which it lies, and the last axis of a grid is short."""
    return splits_columns(kernel) and kernel.schedule.scheme == "ONE_SHOT"


def tiled_rows(kernel: TritonKernel) -> tuple[str, ...]:
    """Row dimensions inside a segment."""
    return tuple(r for r in kernel.schedule.rows if r not in kernel.schedule.segments)


def lowered(kernel: TritonKernel) -> TritonKernel:
    """The kernel with what it computes otherwise than its program says: floats of 16 bits in pairs, and, of rows that
    are looped over, statistics in one loop."""
    is_looped = kernel.schedule.scheme == "LOOP"
    program = online_along_rows(kernel.program, kernel.schedule.columns) if is_looped else kernel.program
    return replace(kernel, program=in_halves(program))


def _loops(kernel: TritonKernel) -> Loops:
    return loops_of(kernel.program, kernel.schedule.rows, kernel.schedule.columns)
