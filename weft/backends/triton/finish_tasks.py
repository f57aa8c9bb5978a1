"""How the finish of a GPU kernel is shared out: how many columns a task has, and how many chunks it loads at a time."""

from __future__ import annotations

from weft.backends.triton.schedule import TritonSchedule

FINISH_COLUMNS = (8, 16, 32, 64, 128, 256, 512)
"""Columns whose sums a task may complete: 32 bytes of each chunk's partial sums, a sector of the cache, at the
least."""
UNKNOWN_COLUMNS = 32
"""Of a task where the number of columns is known at run time only."""
FINISH_ELEMENTS = 32
"""Partial sums of a value that a thread has on their way at the most."""
WRITTEN_STEPS = 8
"""Steps over the chunks that are written out at the most, so that their loads do not wait for each other."""
FINISH_WARPS, FINISH_PROGRAMS = 4, 128
"""Of a finish that is launched by itself: of a program, and how many programs there should be."""


def finish_columns(schedule: TritonSchedule, columns: int | None, added: int = 1) -> int:
    """Columns of a task: as few as give each program one task at the most, since a task takes as long as it waits for
    its loads, however many they are. columns: of a row, None if known at run time only. added: segments that are added
    up with each other."""
    if columns is None:
        return UNKNOWN_COLUMNS
    programs = max(1, schedule.chunks) * added if schedule.finish == "same" else FINISH_PROGRAMS
    return next((width for width in FINISH_COLUMNS if width * programs >= columns), FINISH_COLUMNS[-1])


def finish_chunks(schedule: TritonSchedule, width: int, added: int = 1) -> int:
    """Chunks whose partial sums a task has on their way. width: its columns. added: segments whose chunks these are."""
    warps = schedule.warps if schedule.finish == "same" else FINISH_WARPS
    return min(FINISH_ELEMENTS * 32 * warps // width, 1 << max(1, schedule.chunks * added).bit_length() - 1)


def finish_steps(schedule: TritonSchedule, columns: int, chunks: int, added: int) -> int:
    """How often a program waits for partial sums, one after the other: those of all reductions are loaded side by side.
    chunks: that there are, of a segment; their programs share the tasks, or each task has a program of its own. added:
    segments that are added up with each other."""
    width, parts = finish_columns(schedule, columns, added), max(1, chunks * added)
    tasks = -(-columns // width) if schedule.finish == "same" else 1
    return -(-parts // finish_chunks(schedule, width, added)) * -(-tasks // parts)
