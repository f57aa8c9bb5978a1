"""Schedules of Triton kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from weft.hashing import hash_once
from weft.plan.kernel import Kernel
from weft.plan.schedule import Schedule

Inputs = Literal["normal", "evict_last"]
Remat = Literal["none", "tiles", "inputs"]
VECTOR_BYTES = 16
"""What a thread loads or stores at once."""
VECTOR = 8
"""Neighbouring columns of a thread: 16 bytes of 16 bits each."""


@hash_once
@dataclass(frozen=True)
class TritonSchedule(Schedule):
    """How a Triton kernel runs.

    piece_columns, pieces: of what a program has of a row at a time, or of a block of a loop over it: so many equal
    pieces of so many columns, a power of two; columns behind the last of the row are masked. warps, stages: of a
    program. chunks: of the rows of a segment, whose column sums are taken together, in order, before chunks are
    combined in order; fixed here, so that results do not depend on how many programs are resident. inputs: whether what
    is loaded of rows goes from a GPU's caches as all else does, or last. remat: what values are rematerialised
    from, that are used on both sides of a row reduction: nothing, a thread keeps them in float32, and weights for all
    rows; or the tiles of a row as they were loaded, while weights are loaded with each row; or all inputs as they were
    loaded, weights for all rows. hoisted: whether what has no rows, as weights, is loaded before row reductions are
    done, not where it is needed, until when it holds no registers. register_cap: registers that the compiler is
    told a thread may have, unless they spill: those that leave room for as many programs as a multiprocessor is to
    hold; 0 if it is told nothing.
    """

    backend: ClassVar[str] = "triton"
    has_pivots: ClassVar[bool] = True

    piece_columns: int = 1
    pieces: int = 1
    warps: int = 0
    stages: int = 0
    chunks: int = 0
    inputs: Inputs = "normal"
    remat: Remat = "none"
    hoisted: bool = False
    register_cap: int = 0

    @property
    def tile_columns(self) -> int:
        """Columns of all pieces, those that are masked included."""
        return self.piece_columns * self.pieces

    @property
    def elements(self) -> float:
        """Of a row tile in a thread."""
        return self.rows_per_tile * self.tile_columns / (32 * self.warps)

    def part_count(self, rows: int, segments: int) -> int:
        return segments * min(self.chunks, -(-rows // self.rows_per_tile))

    def holds(self, columns: int) -> bool:
        return self.tile_columns >= columns

    def __str__(self) -> str:
        rest = "" if self.inputs == "normal" else f" inputs={self.inputs}"
        rest += "" if self.remat == "none" else f" remat={self.remat}"
        rest += " hoisted" if self.hoisted else ""
        rest += f" register_cap={self.register_cap}" if self.register_cap else ""
        return (
            f"{self.split_text} finish={self.finish} backend={self.backend} pieces={self.pieces}x{self.piece_columns} "
            f"warps={self.warps} stages={self.stages} chunks={self.chunks}{rest}"
        )

    @classmethod
    def _fields(cls, text: str) -> Mapping[str, Any]:
        found = dict(super()._fields(text))
        pieces = str(found.pop("pieces", "")).split("x")
        if len(pieces) == 2 and all(map(str.isdecimal, pieces)):
            found["pieces"], found["piece_columns"] = map(int, pieces)
        return found | {"hoisted": " hoisted" in text}


TritonKernel = Kernel[TritonSchedule]
