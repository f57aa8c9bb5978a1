"""How the work of a Triton kernel is divided: among programs, chunks of rows and tasks of the finish.

A kernel with column sums has programs that stay and loop over chunks of rows, and a finish: a second function, or the
end of the first one where all programs wait for each other; of few rows a program has all, and nothing is left for a
finish.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from weft.backends.abi import at_most, ceil_div, product
from weft.backends.triton.beginnings import alternating_tiles
from weft.backends.triton.finish_tasks import finish_columns
from weft.backends.triton.schedule import TritonKernel
from weft.ir.ops import states_of
from weft.ir.program import Output, Size, Value
from weft.ir.structure import Loops, loops_of


def is_persistent(kernel: TritonKernel) -> bool:
    """Whether programs stay and share chunks of rows, or row tiles that they load ahead."""
    streams = kernel.schedule.scheme == "STREAM" and not completes_sums(kernel)
    return streams or (bool(outer_values(kernel)) and not completes_sums(kernel))


def completes_sums(kernel: TritonKernel) -> bool:
    """Whether a program passes over all rows of its columns, and does what there is to do with their sums."""
    return kernel.schedule.finish == "none" and bool(outer_values(kernel))


def finish_blocks(kernel: TritonKernel) -> dict[tuple[str, ...], list[Output]]:
    """What the finish stores, by the row dimensions that it keeps."""
    return _loops(kernel).epilogue_blocks(kernel.schedule.rows)


def finish_width(kernel: TritonKernel, kept: tuple[str, ...]) -> int:
    """Columns of a task of the finish, where these segments are kept."""
    columns = elements(kernel, kernel.schedule.columns)
    known = columns if isinstance(columns, int) else None
    return finish_columns(kernel.schedule, known, added_segments(kernel, kept))


def added_segments(kernel: TritonKernel, kept: Iterable[str]) -> int:
    """Segments that are added up where some dimensions are kept; one if that is known at run time only."""
    sizes = [kernel.program.size_of(d) for d in kernel.schedule.segments if d not in kept]
    return prod(size if isinstance(size, int) else 1 for size in sizes)


def finish_tasks(kernel: TritonKernel, kept: tuple[str, ...]) -> Size:
    """Pieces of work of the finish that programs share: blocks of columns for every segment."""
    columns = kernel.schedule.columns
    keeps_columns = any(set(o.buffer.dims) & set(columns) for o in finish_blocks(kernel)[kept])
    width = elements(kernel, columns) if keeps_columns else 1
    return product([elements(kernel, kept), ceil_div(width, finish_width(kernel, kept))])


def outer_values(kernel: TritonKernel) -> list[Value]:
    """Outer reductions, in the order of the program."""
    names = {name for names in _loops(kernel).outer for name in names}
    return [v for v in kernel.program.values if v.name in names]


def partial_name(value: Value, state: int) -> str:
    """Of the memory for one number of an outer reduction's partial results."""
    several = states_of(value.op, pivoted=True) > 1
    return f"{value.name}_partial_{state}" if several else f"{value.name}_partial"


def sum_columns(kernel: TritonKernel, value: Value) -> tuple[str, ...]:
    """Columns that an outer reduction has a result for each of."""
    return tuple(d for d in kernel.schedule.columns if d in value.dims)


def elements(kernel: TritonKernel, dims: Iterable[str]) -> Size:
    """Elements along some dimensions."""
    return product([kernel.program.size_of(d) for d in dims])


def segment_count(kernel: TritonKernel) -> Size:
    """Segments: all combinations of the row dimensions that some outer reduction keeps."""
    return elements(kernel, kernel.schedule.segments)


def tiles_of(kernel: TritonKernel) -> Size:
    """Row tiles of a segment."""
    together = alternating_tiles(kernel)
    return product([ceil_div(elements(kernel, tiled_rows(kernel)), together * kernel.schedule.rows_per_tile), together])


def chunks_of(kernel: TritonKernel) -> Size:
    """Parts of a segment that column sums are taken in: no more than there are row tiles."""
    return at_most(tiles_of(kernel), kernel.schedule.chunks)


def column_blocks(kernel: TritonKernel) -> Size:
    """Programs side by side along the columns of a row."""
    if not splits_columns(kernel):
        return 1
    return ceil_div(elements(kernel, kernel.schedule.columns), kernel.schedule.piece_columns)


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


def _loops(kernel: TritonKernel) -> Loops:
    return loops_of(kernel.program, kernel.schedule.rows, kernel.schedule.columns)
