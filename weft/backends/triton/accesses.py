"""What accesses to memory cost beside their bytes: parts of sectors, and turns at the banks of shared memory."""

from __future__ import annotations

import math

from weft.backends.triton.demand import Share
from weft.backends.triton.schedule import TritonSchedule
from weft.backends.triton.work import Strided

BANKS = 32
"""Of shared memory. A tile that is copied element by element, of which threads have elements of several rows but of one
column, Triton 3.6 lays out by columns: a warp has all elements of a row in one bank, one access after the other. So do
parts of column sums meet in a bank (``bank_turns``)."""
SECTOR_BYTES = 32
"""Of memory that is read or written at once."""
SECTOR_COST = {False: 0.55, True: 1.65}
"""Of a byte of a sector that another program needs, in bytes that come from memory: where it reads the sector, which a
cache has mostly, and where it writes the rest. Norms of 1024 x 768 to 49000 x 512 of both float types, read and written
along a slow axis in tiles of 1 to 8 rows, took as long as 0.5 to 0.75 and 1.4 to 1.9 would have it in the
median (H200)."""
FILLED_BYTES = 64
"""For a part of a sector that is written, once caches do not have the rest of it: that is read, and written again. Such
norms of 49000 x 512 took as long as 44 to 85 bytes would have it."""


def sectors_bytes(strided: Strided, schedule: TritonSchedule, moved: float) -> float:
    """What the sectors that a tensor lies across cost beside its own bytes, in bytes that come from memory. moved: by
    the kernel, in what the second cache holds."""
    together = min(schedule.rows_per_tile, SECTOR_BYTES // strided.item_bytes) if strided.along_rows else 1
    rest_bytes = SECTOR_BYTES - together * strided.item_bytes
    filled_bytes = FILLED_BYTES * min(1.0, moved) * (strided.is_written and rest_bytes > 0)
    return strided.elements / together * (SECTOR_COST[strided.is_written] * rest_bytes + filled_bytes)


def bank_turns(part: Share, schedule: TritonSchedule, vector: int) -> int:
    """Accesses to shared memory, one after the other, by which a warp hands on its part of the column sums of a piece:
    none where no other warp has rows of it. Triton 3.6 puts the parts of a column beside each other, so that neighbours
    in a thread are as far apart as there are warps with other rows. vector: of these neighbours."""
    warps = min(schedule.rows_per_tile, schedule.warps // part.warps)
    if warps <= 1:
        return 0
    lanes = 32 // max(1, part.tall // warps)
    apart = warps * min(vector, part.columns)
    return part.columns * max(1, lanes * math.gcd(apart, BANKS) // BANKS)
