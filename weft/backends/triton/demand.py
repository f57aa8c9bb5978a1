"""What a program needs under a split, counted: what the model of registers in ``resources.py`` is a sum of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from weft.backends.triton.beginnings import Beginnings, beginnings, early_rows
from weft.backends.triton.finish_tasks import WRITTEN_STEPS, finish_chunks, finish_columns
from weft.backends.triton.least_alive import NOTHING, Amount
from weft.backends.triton.liveness import Liveness, liveness
from weft.backends.triton.schedule import VECTOR, VECTOR_BYTES, Remat, TritonSchedule
from weft.ir import dtypes
from weft.ir.program import Buffer, Program
from weft.ir.structure import KEPT
from weft.plan.schedule import Scheme

MOST_BLOCKS = 4
"""Blocks of a loop over columns that ptxas has in flight at most."""
ADDRESS_REGISTERS = 2
"""Of 64 bits."""
MOST_SPREAD = 4
"""Rows of a thread in a tile that is loaded once, with each of which it loads elements of the weights. Of 187 kernels
for compute capability 9.0 that have up to so many 0.95 of the instructions are left then, and with more as many as
before; 1.3 times as many where rows begin between vectors, since weights are loaded one by one there."""
MOST_MASKED = 16
"""Elements of a row in a thread whose masks ptxas keeps at most; of more it finds them anew."""


@dataclass(frozen=True, eq=False)
class Demand:
    """What a program needs under a split, as far as it does not depend on the rest of the schedule: found once for all
    candidates.

    width: columns, None if known at run time only. item_bytes: of the smallest element that is loaded or stored along
    the columns. begins: where rows begin, if that is not with a sector of memory.
    """

    live: Liveness
    width: int | None
    item_bytes: int
    begins: Beginnings | None

    @staticmethod
    def of(program: Program, schedule: TritonSchedule) -> Demand:
        """Of all schedules with this scheme and this split that keep the same of a row."""
        scheme = schedule.scheme if schedule.scheme in ("LOOP", "STREAM") else "ONE_SHOT"
        return _demand(program, schedule.rows, schedule.columns, schedule.segments, scheme, schedule.remat)


@lru_cache(maxsize=KEPT)
def _demand(
    program: Program,
    rows: tuple[str, ...],
    columns: tuple[str, ...],
    segments: tuple[str, ...],
    scheme: Scheme,
    remat: Remat,
) -> Demand:
    live = liveness(program, rows, columns, segments, scheme, remat)
    sizes = {d.name: d.size for d in program.dims}
    numbers = [n for n in (sizes[c] for c in columns) if isinstance(n, int)]
    width = prod(numbers) if len(numbers) == len(columns) else None
    item_bytes = min((dtypes.itemsize(b.dtype) for b in live.vectors), default=VECTOR_BYTES)
    return Demand(live, width, item_bytes, beginnings(program, rows, columns, segments))


def features(demand: Demand, schedule: TritonSchedule) -> dict[str, float]:
    """What the registers that a thread wants are a sum of, by name; ``backends/triton/resources.py`` has the weights.

    base: what every kernel has, as addresses of its tensors. elements, columns, rows: of a row tile that a thread has:
    of rows, the sums and numbers of each. several_rows: whether these are more than one. waiting: values that are kept
    while threads reduce a row: of one row only where a row is in one warp, whose rows are finished
    one after the other. hoisted: inputs without rows that are loaded with a row, and wait. alive: values that are there
    at the same time at most, of as many rows. sums, lone_sums, invariant: column sums, those of several rows in a
    single warp, which ptxas does not finish one after the other, and weights that stay for all rows. loaded, loads:
    what is loaded of a tile, in registers and in tensors. stores, adders, row_loads, reductions: tensors with columns
    that are stored, added up over rows; inputs of rows without columns; row reductions. converted: elements that change
    their layout to meet weights. pieces: those beyond one. lone_rows: whether a row is in one warp. finish: partial
    results that are on their way to a thread at once where column sums are completed in the same launch. segmented:
    whether column sums are of segments. staged, staged_elements:
    whether loads run ahead, and for how many elements. blocks, remainder: of a loop over columns: blocks in flight, and
    whether the last one is not whole. unaligned: elements of rows that are no whole number of vectors. narrow: elements
    that are stored in 8 bits, rounded in several steps. split: masks of elements of the first and the
    last piece, of rows that begin between two vectors and are loaded and stored by whole ones.
    """
    live, part = demand.live, share_of(demand, schedule)
    rows, columns = part.rows, part.columns * schedule.pieces
    each, lone = columns * rows, bool(live.inner) and part.warps == 1
    blocks = (demand.width or 0) / schedule.tile_columns
    looped, staged = schedule.scheme == "LOOP", schedule.stages > 1
    early = early_rows(demand.begins, demand.width, schedule)
    masks = rows * min(MOST_MASKED, part.columns * min(2, schedule.pieces))
    hoisted = schedule.scheme == "ONE_SHOT" and schedule.hoisted

    def registers(amount: Amount, of: int = rows) -> float:
        return each * of / rows * amount[0] + columns * amount[1] + of * amount[2] + amount[3]

    def most(amounts: Iterable[Amount]) -> float:
        return max((registers(amount, 1 if lone else rows) for amount in amounts), default=0)

    return {
        "base": 1,
        "elements": each,
        "columns": columns,
        "rows": rows,
        "several_rows": int(rows > 1),
        "waiting": most(live.across),
        "alive": most(live.alive),
        "hoisted": (each if spreads_once(schedule) else columns) * _registers(live.lasting) if hoisted else 0,
        "sums": registers(live.sums),
        "lone_sums": registers(live.sums) if schedule.warps == 1 and rows > 1 else 0,
        "invariant": registers(live.invariant),
        "loaded": each * max(map(_registers, live.loops), default=0),
        "loads": len(live.tiles),
        "stores": live.stores,
        "adders": live.outer,
        "row_loads": len(live.row_inputs),
        "reductions": live.inner,
        "converted": each * is_converted(demand, schedule),
        "pieces": schedule.pieces - 1,
        "lone_rows": int(lone),
        "finish": finish_loads(demand, schedule) if schedule.finish == "same" else 0,
        "segmented": int(bool(schedule.segments)),
        "staged": int(staged),
        "staged_elements": each * staged,
        "blocks": min(MOST_BLOCKS, blocks) if looped else 0,
        "remainder": int(looped and blocks % 1 != 0),
        "unaligned": each * ((demand.width or 0) * demand.item_bytes % VECTOR_BYTES != 0 and early is None),
        "narrow": each * (demand.item_bytes == 1),
        "split": masks / early.step if early and early.splits_vectors else 0,
    }


def crowded_registers(demand: Demand, schedule: TritonSchedule) -> float:
    """Registers that a thread holds at the least: an address of each tensor that is loaded and, while a vector of each
    is on its way at once, all that these are part of; or, while a row is reduced, what of it waits in float32, and what
    stays for all rows."""
    live, part = demand.live, share_of(demand, schedule)
    loads, most = (live.tiles, part.columns) if schedule.columns else (live.row_inputs, part.rows)
    vector = min(VECTOR_BYTES // demand.item_bytes, most)
    held = max(_registers_of(a, vector, schedule) for a in (*live.alive, NOTHING))
    if schedule.scheme in ("ONE_SHOT", "STREAM") and schedule.remat == "none":
        counts = features(demand, schedule)
        held = max(held, counts["waiting"] + counts["sums"] + counts["invariant"])
    return held + ADDRESS_REGISTERS * len(loads)


def _registers_of(amount: Amount, vector: int, schedule: TritonSchedule) -> float:
    """Of one vector of a row; without columns, of as many rows."""
    columns, rows = (vector, 1) if schedule.columns else (0, vector)
    return columns * (amount[0] + amount[1]) + rows * amount[2] + amount[3]


def finish_loads(demand: Demand, schedule: TritonSchedule) -> float:
    """Partial results of one sum that a thread of the finish loads before it needs the first."""
    width = finish_columns(schedule, demand.width)
    together = finish_chunks(schedule, width)
    steps = -(-max(1, schedule.chunks) // together)
    return together * width / (32 * schedule.warps) * (steps if steps <= WRITTEN_STEPS else 1)


def _registers(buffers: tuple[Buffer, ...]) -> float:
    """Of an element of each, as it is loaded."""
    return sum(dtypes.itemsize(b.dtype) / 4 for b in buffers)


@dataclass(frozen=True)
class Share:
    """Columns and rows of a piece of a row tile that a thread has, warps that share a row of it, and threads that share
    a column."""

    columns: int
    rows: int
    warps: int
    tall: int


def share_of(demand: Demand, schedule: TritonSchedule, loaded: int | None = None) -> Share:
    """As Triton lays a tile out: as many neighbours in a thread as it loads at once, the lanes of a warp side by side
    along the row, then its warps, then the next rows. loaded: elements at once, if rows begin between vectors."""
    threads, rows, piece = 32 * schedule.warps, schedule.rows_per_tile, schedule.piece_columns
    vector = max(1, min(loaded or VECTOR_BYTES // demand.item_bytes, rows * piece // threads, piece))
    lanes = min(32, piece // vector)
    warps = min(schedule.warps, max(1, piece // (vector * lanes)))
    rows_at_once = threads // (lanes * warps)
    tall = min(rows, rows_at_once)
    return Share(max(vector, piece // (lanes * warps)), max(1, -(-rows // rows_at_once)), warps, tall)


def spreads_once(schedule: TritonSchedule) -> bool:
    """Whether inputs of the columns alone are loaded for each row of a tile that is loaded once, if rows begin with
    vectors."""
    elements = schedule.rows_per_tile * schedule.piece_columns
    is_small = elements <= MOST_SPREAD * VECTOR * 32 * schedule.warps
    return schedule.scheme == "ONE_SHOT" and schedule.rows_per_tile > 1 and is_small


def is_converted(demand: Demand, schedule: TritonSchedule) -> bool:
    """Whether inputs of the columns alone are laid out otherwise than the row tile that they meet, having too few
    elements for all threads to load as many at once: Triton then moves them through shared memory."""
    if spreads_once(schedule) and not demand.begins:
        return False
    threads, vector, piece = 32 * schedule.warps, VECTOR_BYTES // demand.item_bytes, schedule.piece_columns
    vector = min(vector, schedule.rows_per_tile * piece // threads)
    lasting = bool(demand.live.lasting) and schedule.scheme != "LOOP"
    return lasting and schedule.rows_per_tile > 1 and piece // threads < vector
