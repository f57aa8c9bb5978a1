"""What a thread and an SM must hold for a kernel on a GPU, predicted before any code exists.

Registers are a sum of what ``plan/liveness.py`` counts, with weights that ``python -m weft.bench.ptxas_fit`` finds for
each scheme; ``plan/register_weights.py`` has them, and says how well they fit. Shared memory follows from how Triton
allocates it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from math import prod

from weft.ir import dtypes
from weft.ir.program import Buffer, Program
from weft.ir.structure import KEPT
from weft.plan.finish import WRITTEN_STEPS, finish_chunks, finish_columns
from weft.plan.kernel import Keeps, Kernel, Resources, Schedule, Scheme
from weft.plan.liveness import Amount, Liveness, liveness
from weft.plan.register_weights import FEWEST, SPILLING, WEIGHTS
from weft.target import Target

MOST_REGISTERS = 255
"""Registers that a thread can have on NVIDIA GPUs; what it needs beyond these is spilled to memory."""
REGISTER_GRAIN = 8
"""Registers are given to threads in so many."""
LEAST_REGISTERS = 16
VECTOR_BYTES = 16
"""What a thread loads or stores at once."""
RESERVED_BYTES = 1024
"""Shared memory of a program that the system takes, from Hopper on."""
REGISTERS, SCHEDULERS, MOST_WARPS = 65536, 4, 64
"""Of a multiprocessor of NVIDIA GPUs."""
STAGE_ALIGNMENT = 16
"""Of what lies in shared memory, bytes."""
MOST_BLOCKS = 4
"""Blocks of a loop over columns that ptxas has in flight at most."""


@dataclass(frozen=True, eq=False)
class Demand:
    """What a program needs under a split, as far as it does not depend on the rest of the schedule: found once for all
    candidates.

    width: columns, None if known at run time only. item_bytes: of the smallest element that is loaded or stored along
    the columns. dynamic: whether a size is known at run time only, so that addresses are computed in 64 bits.
    """

    live: Liveness
    width: int | None
    item_bytes: int
    dynamic: bool

    @staticmethod
    def of(program: Program, schedule: Schedule) -> Demand:
        """Of all schedules with this scheme and this split that keep the same of a row."""
        looped, again = schedule.scheme == "LOOP", schedule.keeps == "tiles"
        return _demand(program, schedule.rows, schedule.columns, schedule.segments, looped, again)


@lru_cache(maxsize=KEPT)
def _demand(
    program: Program,
    rows: tuple[str, ...],
    columns: tuple[str, ...],
    segments: tuple[str, ...],
    looped: bool,
    again: bool,
) -> Demand:
    live = liveness(program, rows, columns, segments, looped, again)
    sizes = {d.name: d.size for d in program.dims}
    numbers = [n for n in (sizes[c] for c in columns) if isinstance(n, int)]
    width = prod(numbers) if len(numbers) == len(columns) else None
    item_bytes = min((dtypes.itemsize(b.dtype) for b in live.vectors), default=VECTOR_BYTES)
    return Demand(live, width, item_bytes, any(isinstance(s, str) for s in sizes.values()))


def resources(kernel: Kernel, target: Target) -> Resources:
    """Of a kernel on a GPU; nothing of a CPU's."""
    if target.kind == "cpu":
        return Resources(None, None, None, "model")
    schedule, demand = kernel.schedule, Demand.of(kernel.program, kernel.schedule)
    wanted, most = wanted_registers(demand, schedule), most_registers(schedule.warps, 1, target)
    spilled = max(4, 4 * (wanted - most)) if spills(demand, schedule, target) else 0
    held = min(registers_per_thread(demand, schedule), most)
    return Resources(held, spilled, shared_bytes(demand, schedule), "model")


def registers_per_thread(demand: Demand, schedule: Schedule) -> int:
    """Registers that ptxas gives a thread, if there are enough."""
    return given_registers(wanted_registers(demand, schedule), schedule.warps, FEWEST[weights_of(schedule)])


@lru_cache(maxsize=4096)
def given_registers(wanted: int, warps: int, fewest: float) -> int:
    """What ptxas gives a thread that could use ``wanted`` registers and can do with ``fewest`` of these: it orders
    instructions so that as many programs fit a multiprocessor as with the latter, and uses what they then leave."""
    least = fewest * wanted
    return min(wanted, min((step for step in _steps(warps) if step >= least), default=wanted))


@cache
def _steps(warps: int) -> tuple[int, ...]:
    """Registers of a thread with which one program more fits a multiprocessor, falling. Its four schedulers have a
    quarter of the registers each."""
    each = max(SCHEDULERS, warps)
    shares = (REGISTERS // (32 * each * count) for count in range(1, MOST_WARPS // each + 1))
    return tuple(min(MOST_REGISTERS, share // REGISTER_GRAIN * REGISTER_GRAIN) for share in shares)


@lru_cache(maxsize=4096)
def wanted_registers(demand: Demand, schedule: Schedule) -> int:
    """Registers that a thread could use: those of an order of instructions in which none waits for want of one."""
    own = (schedule.scheme, schedule.keeps, schedule.rows_per_tile, schedule.pieces, schedule.warps)
    wanted = _but_for_finish(demand, *own, schedule.stages > 1, bool(schedule.segments))
    if schedule.finish == "same":
        wanted += WEIGHTS[weights_of(schedule)].get("finish", 0.0) * _finish_loads(demand, schedule)
    return max(LEAST_REGISTERS, round(wanted))


@lru_cache(maxsize=4096)
def _but_for_finish(
    demand: Demand,
    scheme: Scheme,
    keeps: Keeps,
    rows: int,
    pieces: tuple[int, ...],
    warps: int,
    staged: bool,
    segmented: bool,
) -> float:
    """From what many candidates have in common: they differ in chunks, which the finish alone depends on, and in how
    many stages there are."""
    split = ((), (), ("",) if segmented else ())
    schedule = Schedule(scheme, *split, rows, pieces=pieces, warps=warps, stages=1 + staged, keeps=keeps)
    found = features(demand, schedule)
    return sum(weight * found[name] for name, weight in WEIGHTS[weights_of(schedule)].items())


def weights_of(schedule: Schedule) -> str:
    """Which weights hold."""
    return schedule.scheme if schedule.keeps == "values" else f"{schedule.scheme}_TILES"


def spills(demand: Demand, schedule: Schedule, target: Target, slack: float = 1.0) -> bool:
    """Whether a thread needs more registers than it can have, or more than ``slack`` times as many.

    So do kernels that reduce what comes from no load: Triton has no layout to take for it, and where a row is several
    pieces it moves single elements through shared memory, thousands of instructions.
    """
    if demand.live.detached and len(schedule.pieces) > 1 and schedule.rows_per_tile == 1:
        return True
    return wanted_registers(demand, schedule) > slack * most_wanted(schedule, target)


def most_wanted(schedule: Schedule, target: Target) -> float:
    """Registers beyond which a thread that wants them spills: what compilers do without differs by architecture."""
    shares = SPILLING[weights_of(schedule)]
    return shares.get(target.architecture, min(shares.values())) * most_registers(schedule.warps, 1, target)


def most_registers(warps: int, programs: int, target: Target) -> int:
    """Registers that a thread can have with so many programs of so many warps on a multiprocessor."""
    share = target.registers // (32 * warps * programs)
    return min(MOST_REGISTERS, share // REGISTER_GRAIN * REGISTER_GRAIN)


def features(demand: Demand, schedule: Schedule) -> dict[str, float]:
    """What the registers that a thread wants are a sum of, by name; ``register_weights.py`` has the weights.

    base: what every kernel has, as addresses of its tensors. elements, columns, rows: of a row tile that a thread has:
    of rows, the sums and numbers of each. several_rows: whether these are more than one. waiting: values that are kept
    while threads exchange what they have of a row: of one row only where a row is in one warp, whose rows are finished
    one after the other. beside: inputs without rows that are loaded with a row, and wait. alive: values that are there
    at the same time at most, of as many rows. sums, lone_sums, invariant: column sums, those of several rows in a
    single warp, which ptxas does not finish one after the other, and weights that stay for all rows. loaded, loads:
    what is loaded of a tile, in registers and in tensors. stores, adders, row_loads, reductions: tensors with columns
    that are stored, added up over rows; inputs of rows without columns; row reductions. converted: elements that change
    their layout to meet weights. pieces: those beyond one; equal ones are as one, whose vectors lie further apart.
    lone_rows: whether a row is in one warp. finish: partial results that are on their way to a thread at once where
    column sums are completed in the same launch. segmented: whether column sums are of segments. wide: whether
    addresses are computed in 64 bits. staged, staged_elements: whether loads run ahead, and for how many elements.
    blocks, remainder: of a loop over columns: blocks in flight, and whether the last one is not whole. unaligned:
    elements of rows that are no whole number of vectors. narrow: elements that are stored in 8 bits, rounded in several
    steps.
    """
    live, pieces = demand.live, schedule.pieces or (1,)
    parts = [_share(demand, schedule, piece) for piece in pieces]
    each, columns = sum(part.columns * part.rows for part in parts), sum(part.columns for part in parts)
    rows = max(part.rows for part in parts)
    lone = bool(live.inner) and all(part.warps == 1 for part in parts)
    blocks, layouts = (demand.width or 0) / sum(pieces), len(set(parts))
    looped, staged = schedule.scheme == "LOOP", schedule.stages > 1
    beside = schedule.scheme == "ONE_SHOT" and bool(live.exchanges) and schedule.loads_beside(live.exchanges)

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
        "beside": sum(map(registers, _lasting(live.lasting))) if beside else 0,
        "sums": registers(live.sums),
        "lone_sums": registers(live.sums) if schedule.warps == 1 and rows > 1 else 0,
        "invariant": registers(live.invariant),
        "loaded": max((sum(map(registers, _amounts(loop))) for loop in live.loops), default=0),
        "loads": len(live.tiles) * layouts,
        "stores": live.stores * layouts,
        "adders": live.outer * layouts,
        "row_loads": len(live.row_inputs),
        "reductions": live.inner,
        "converted": sum(
            part.columns * part.rows
            for part, piece in zip(parts, pieces, strict=True)
            if is_converted(demand, schedule, piece)
        ),
        "pieces": layouts - 1,
        "lone_rows": int(lone),
        "finish": _finish_loads(demand, schedule) if schedule.finish == "same" else 0,
        "segmented": int(bool(schedule.segments)),
        "wide": int(demand.dynamic),
        "staged": int(staged),
        "staged_elements": each * staged,
        "blocks": min(MOST_BLOCKS, blocks) if looped else 0,
        "remainder": int(looped and blocks % 1 != 0),
        "unaligned": each if (demand.width or 0) * demand.item_bytes % VECTOR_BYTES else 0,
        "narrow": each * (demand.item_bytes == 1),
    }


def _finish_loads(demand: Demand, schedule: Schedule) -> float:
    """Partial results of one sum that a thread of the finish loads before it needs the first."""
    width = finish_columns(schedule, demand.width)
    together = finish_chunks(schedule, width)
    steps = -(-max(1, schedule.chunks) // together)
    return together * width / (32 * schedule.warps) * (steps if steps <= WRITTEN_STEPS else 1)


def _amounts(buffers: tuple[Buffer, ...]) -> list[Amount]:
    return [(dtypes.itemsize(b.dtype) / 4, 0.0, 0.0, 0.0) for b in buffers]


def _lasting(buffers: tuple[Buffer, ...]) -> list[Amount]:
    return [(0.0, dtypes.itemsize(b.dtype) / 4, 0.0, 0.0) for b in buffers]


@dataclass(frozen=True)
class _Share:
    """Columns and rows of a piece of a row tile that a thread has, and warps that share a row of it."""

    columns: int
    rows: int
    warps: int


def _share(demand: Demand, schedule: Schedule, piece: int) -> _Share:
    """As Triton lays a tile out: as many neighbours in a thread as it loads at once, the lanes of a warp side by side
    along the row, then its warps, then the next rows."""
    threads, rows = 32 * schedule.warps, schedule.rows_per_tile
    vector = max(1, min(VECTOR_BYTES // demand.item_bytes, rows * piece // threads, piece))
    lanes = min(32, piece // vector)
    warps = min(schedule.warps, max(1, piece // (vector * lanes)))
    rows_at_once = threads // (lanes * warps)
    return _Share(max(vector, piece // (lanes * warps)), max(1, -(-rows // rows_at_once)), warps)


def is_converted(demand: Demand, schedule: Schedule, piece: int) -> bool:
    """Whether inputs of the columns alone are laid out otherwise than the row tile that they meet, having too few
    elements for all threads to load as many at once: Triton then exchanges them through shared memory."""
    threads, vector = 32 * schedule.warps, VECTOR_BYTES // demand.item_bytes
    vector = min(vector, schedule.rows_per_tile * piece // threads)
    lasting = bool(demand.live.lasting) and schedule.scheme != "LOOP"
    return lasting and schedule.rows_per_tile > 1 and piece // threads < vector


def shared_bytes(demand: Demand, schedule: Schedule) -> int:
    """Shared memory of a program: row tiles that are on their way from memory, and what its threads exchange."""
    own = (schedule.scheme, schedule.keeps, schedule.rows_per_tile, schedule.pieces, schedule.warps)
    return _shared_bytes(demand, *own, schedule.stages)


@lru_cache(maxsize=4096)
def _shared_bytes(
    demand: Demand, scheme: Scheme, keeps: Keeps, rows: int, pieces: tuple[int, ...], warps: int, stages: int
) -> int:
    """What many candidates have in common: it does not depend on chunks, nor on the finish."""
    schedule = Schedule(scheme, (), (), (), rows, pieces=pieces, warps=warps, stages=stages, keeps=keeps)
    summed = 4 * schedule.rows_per_tile * sum(schedule.pieces) if demand.live.outer and schedule.warps > 8 else 0
    used = max(staged_bytes(demand, schedule) + exchanged_bytes(demand, schedule), summed)
    return RESERVED_BYTES + used if used else 0


def staged_bytes(demand: Demand, schedule: Schedule) -> int:
    """Of one stage less than there are: the last one is in registers."""
    return max(0, schedule.stages - 1) * stage_bytes(demand, schedule)


def stage_bytes(demand: Demand, schedule: Schedule) -> int:
    """Bytes of what is loaded in one turn of a loop: a row tile, or a block of a row."""
    live, rows = demand.live, schedule.rows_per_tile
    elements = rows * (sum(schedule.pieces) or 1)
    if schedule.scheme == "LOOP":
        if demand.width is not None and demand.width < 2 * elements:
            return 0  # no loop is left
        return elements * max((sum(dtypes.itemsize(b.dtype) for b in loop) for loop in live.loops), default=0)
    if schedule.scheme == "ONE_SHOT":
        return 0
    along = (*live.tiles, *live.lasting) if schedule.keeps == "tiles" else live.tiles
    tiles = elements * sum(dtypes.itemsize(b.dtype) for b in along)
    return tiles + rows * sum(dtypes.itemsize(b.dtype) for b in live.row_inputs)


def exchanged_bytes(demand: Demand, schedule: Schedule) -> int:
    """For row reductions, one number of each for every warp, and for tiles that are laid out in two ways: at the most,
    because Triton may find one layout after all, or exchange 16 bits of each element."""
    live, rows = demand.live, schedule.rows_per_tile
    reduced = 4 * schedule.warps * rows * live.inner
    vector, threads = VECTOR_BYTES // demand.item_bytes, 32 * schedule.warps
    several = len(set(schedule.pieces)) > 1 and any(p // threads < vector for p in schedule.pieces)
    converted = [p for p in schedule.pieces if several or is_converted(demand, schedule, p)]
    if schedule.scheme == "LOOP" and demand.width is not None and demand.width % VECTOR_BYTES:
        converted = [*schedule.pieces]
    if schedule.scheme == "COLUMN" and schedule.rows_per_tile * sum(schedule.pieces) < 16 * 32 * schedule.warps:
        converted = [*schedule.pieces]
    aligned = STAGE_ALIGNMENT * schedule.stages * (1 + len(live.row_inputs)) if schedule.scheme != "ONE_SHOT" else 0
    item_bytes = 4 if schedule.scheme != "STREAM" or several else max(2, demand.item_bytes)
    return max([reduced, *(item_bytes * rows * p for p in converted)]) + aligned
