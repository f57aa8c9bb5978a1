"""Where rows begin in memory, for kernels that reduce them whole.

What a GPU copies ahead goes past its first-level cache: a sector of memory that two warps share is read twice, and a
row that begins between two vectors is not copied at all but loaded element by element. So programs take rows that begin
at the same place of a sector, every second, fourth, eighth or sixteenth of them, and have their columns from the start
of that sector on: up to a sector early, as early for all their rows, so that columns still lie on each other; from the
start of a vector on where a tile has no place for more. What is not copied ahead passes through the first-level cache,
and rows that begin with a vector are left as they are there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd

from weft.backends.triton.schedule import VECTOR_BYTES, TritonKernel, TritonSchedule
from weft.ir.dtypes import itemsize
from weft.ir.program import Program
from weft.ir.structure import KEPT, loops_of

SECTOR_BYTES = 32
"""What a GPU's second-level cache moves at least."""


@dataclass(frozen=True)
class Beginnings:
    """Rows begin at multiples of ``step`` columns behind the start of a sector, which has ``sector`` columns; a thread
    loads ``vector`` at once. A tile has columns from there on. rows: of a segment, None if known at run time only."""

    sector: int
    vector: int
    step: int
    rows: int | None

    @property
    def phases(self) -> int:
        """How many neighbouring rows begin at different places."""
        return self.sector // self.step

    @property
    def most_early(self) -> int:
        """Columns of a sector before a row."""
        return self.sector - self.step

    @property
    def splits_vectors(self) -> bool:
        """Whether rows begin between two vectors."""
        return self.step < self.vector

    @property
    def with_vectors(self) -> Beginnings:
        """Columns from the start of a vector on, for tiles with no place for those of a sector."""
        return replace(self, sector=self.vector)


@lru_cache(maxsize=KEPT)
def beginnings(
    program: Program, rows: tuple[str, ...], columns: tuple[str, ...], segments: tuple[str, ...]
) -> Beginnings | None:
    """None where all rows begin with a sector, or different tensors' at different places of one, or where that is known
    at run time only; and where nothing is reduced along them."""
    inside = [r for r in rows if r not in segments]
    if len(inside) != 1 or len(columns) != 1 or not isinstance(program.size_of(columns[0]), int):
        return None
    if not any(loops_of(program, rows, columns).inner):
        return None
    strides = {b: b.stride_of for b in program.buffers if b.stride_of.get(columns[0], 0) != 0}
    if any(own[columns[0]] != 1 for own in strides.values()) or any(v.op in ("iota", "pick") for v in program.values):
        return None
    of_rows = [b for b, own in strides.items() if own.get(inside[0], 0) != 0]
    sizes = {itemsize(b.dtype) for b in of_rows}
    sector, vector = SECTOR_BYTES // min(sizes, default=1), VECTOR_BYTES // min(sizes, default=1)
    steps = {(b.offset, *(strides[b].get(r, 0) for r in rows)) for b in of_rows}
    places = {tuple(step % sector for step in own if isinstance(step, int)) for own in steps}
    if len(places) != 1 or any(isinstance(step, str) for own in steps for step in own):
        return None
    step = gcd(sector, *places.pop())
    if step == sector or (step < vector and len(sizes) > 1):
        return None
    if step < vector and any(strides[b][inside[0]] != program.size_of(columns[0]) for b in of_rows):
        return None  # what lies between rows is no element of theirs, and whole vectors would be loaded of it
    rows_inside = program.size_of(inside[0])
    return Beginnings(sector, vector, step, rows_inside if isinstance(rows_inside, int) else None)


def early_rows(begins: Beginnings | None, width: int | None, schedule: TritonSchedule) -> Beginnings | None:
    """``begins``, if the programs of a kernel have columns from the start of a sector on. width: of its rows, None if
    known at run time only. Programs that copy ahead and load weights with each row do not: the weights would be what
    begins between sectors."""
    if begins is None or width is None:
        return None
    match schedule.scheme:
        case "STREAM":
            helps = schedule.stages > 1 and schedule.remat != "tiles" and schedule.chunks % begins.phases == 0
        case "ONE_SHOT":
            helps = begins.splits_vectors
        case _:
            helps = False
    if not helps:
        return None
    if schedule.rows_per_tile > 1 and (begins.rows is None or begins.rows < begins.phases):
        return None  # tiles without any row
    before_last = schedule.tile_columns - schedule.piece_columns
    for each in (begins, begins.with_vectors) if begins.splits_vectors else (begins,):
        if before_last <= width <= schedule.tile_columns - each.most_early:
            return each
    return None


def early_rows_of(kernel: TritonKernel) -> Beginnings | None:
    """The same of a kernel."""
    program, schedule = kernel.program, kernel.schedule
    width = program.size_of(schedule.columns[0]) if len(schedule.columns) == 1 else None
    begins = beginnings(program, schedule.rows, schedule.columns, schedule.segments)
    return early_rows(begins, width if isinstance(width, int) else None, schedule)


def alternating_tiles(kernel: TritonKernel) -> int:
    """How many neighbouring tiles of several rows share these in turn."""
    found = early_rows_of(kernel)
    return found.phases if found is not None and kernel.schedule.rows_per_tile > 1 else 1
