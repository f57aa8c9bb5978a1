"""What a thread and an SM must hold for a kernel on a GPU, predicted before any code exists.

Registers are a sum of what ``demand.py`` counts, with weights that ``python -m tools.ptxas_fit`` finds for
each scheme; ``calibration/schedules/registers.json`` has them, and how well they fit. Shared memory follows from how
Triton allocates it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from importlib.resources import files
from operator import attrgetter
from typing import Any, TypeVar

from weft.backends.triton.demand import Demand, crowded_registers, features, finish_loads, is_converted, share_of
from weft.backends.triton.schedule import VECTOR_BYTES, TritonKernel, TritonSchedule
from weft.ir import dtypes
from weft.plan.kernel import Resources
from weft.target import Target

MOST_REGISTERS = 255
"""Registers that a thread can have on NVIDIA GPUs; what it needs beyond these is spilled to memory."""
REGISTER_GRAIN = 8
"""Registers are given to threads in so many."""
LEAST_REGISTERS = 16
RESERVED_BYTES, MOVED_BYTES = 1024, 1024
"""Shared memory of a program that the system takes, and of a warp while sums take the layout they are stored in."""
REGISTERS, SCHEDULERS, MOST_WARPS = 65536, 4, 64
"""Of a multiprocessor of NVIDIA GPUs; some hold fewer warps, which ptxas does not ask for."""
MOST_CROWDED = 0.85
"""Share of its registers that a thread may hold at the least: of 756 kernels with 2 to 40 loads that were predicted to
fit otherwise 55 of 65 with more spilled, and of 8400 of the sweeps, which have up to 9 loads, five have more."""
MOST_TILES, MOST_INPUTS, MARGIN = 4, 7, 0.9
"""Tensors of rows and columns, and all inputs, that kernels of the sweeps load at the most, and the share of what is
there that kernels with more may want: of 88 with more of the first that wanted more than that and no more than all 38
spilled, of 390 of the sweeps eleven."""
STAGE_ALIGNMENT = 16
"""Of what lies in shared memory, bytes."""
Number = TypeVar("Number", int, float)
MOST_KNOWN = 16384
"""Figures of candidates that are kept, of each kind."""
_IN_COMMON = attrgetter(*(f.name for f in fields(TritonSchedule) if f.name not in ("chunks", "finish", "stages")))


def resources(kernel: TritonKernel, target: Target) -> Resources:
    """Of a kernel on a GPU."""
    schedule, demand = kernel.schedule, Demand.of(kernel.program, kernel.schedule)
    wanted, most = wanted_registers(demand, schedule), most_registers(schedule.warps, 1, target)
    spilled = max(4, 4 * (wanted - most)) if spills(demand, schedule, target) else 0
    cap = schedule.register_cap
    held = min(wanted, cap) if cap else min(registers_per_thread(demand, schedule), most)
    return Resources(held, spilled, shared_bytes(demand, schedule), "model")


def registers_per_thread(demand: Demand, schedule: TritonSchedule) -> int:
    """Registers that ptxas gives a thread, if there are enough."""
    return given_registers(wanted_registers(demand, schedule), schedule.warps, weights_of(schedule).fewest)


@lru_cache(maxsize=4096)
def given_registers(wanted: int, warps: int, fewest: float) -> int:
    """What ptxas gives a thread that could use ``wanted`` registers and can do with ``fewest`` of these: it orders
    instructions so that as many programs fit a multiprocessor as with the latter, and uses what they then leave; at
    most all that there are."""
    steps = _steps(warps)
    return min(wanted, min((step for step in steps if step >= fewest * wanted), default=steps[0]))


@cache
def _steps(warps: int) -> tuple[int, ...]:
    """Registers of a thread with which one program more fits a multiprocessor, falling. Its four schedulers have a
    quarter of the registers each."""
    each = max(SCHEDULERS, warps)
    shares = (REGISTERS // (32 * each * count) for count in range(1, MOST_WARPS // each + 1))
    return tuple(min(MOST_REGISTERS, share // REGISTER_GRAIN * REGISTER_GRAIN) for share in shares)


@lru_cache(maxsize=4096)
def wanted_registers(demand: Demand, schedule: TritonSchedule) -> int:
    """Registers that a thread could use: those of an order of instructions in which none waits for want of one."""
    wanted = _but_for_finish(demand, schedule, min(2, schedule.stages))
    if schedule.finish == "same":
        wanted += weights_of(schedule).weights.get("finish", 0.0) * finish_loads(demand, schedule)
    return max(LEAST_REGISTERS, round(wanted))


def _of_tile(find: Callable[[Demand, TritonSchedule], Number]) -> Callable[[Demand, TritonSchedule, int], Number]:
    """A function of what many candidates have in common: they differ in chunks, which the finish alone depends on, and
    in stages, which are the last argument. Once for all of these."""
    known: dict[tuple[Any, ...], Number] = {}

    def of(demand: Demand, schedule: TritonSchedule, stages: int) -> Number:
        key = (demand, stages, schedule.finish == "none", _IN_COMMON(schedule))
        found = known.get(key)
        if found is None:
            if len(known) >= MOST_KNOWN:
                known.clear()
            finish = "none" if schedule.finish == "none" else "separate"
            found = known[key] = find(demand, schedule.but(chunks=0, finish=finish, stages=stages))
        return found

    return of


@_of_tile
def _but_for_finish(demand: Demand, tile: TritonSchedule) -> float:
    found = features(demand, tile)
    return sum(weight * found[name] for name, weight in weights_of(tile).weights.items())


@dataclass(frozen=True)
class Weights:
    """Of a group of schedules. weights: registers of a thread for each unit of a feature, by its name. fewest: share of
    the registers that it wants with which a kernel can do. spilling: share of all registers beyond which a kernel that
    wants more is over the spill threshold. met: how well that fits ``tools/sweeps``, what ptxas of Triton 3.6 gives
    kernels of sweeps over random shapes."""

    weights: dict[str, float]
    fewest: float
    spilling: float
    met: str = ""


@cache
def weights() -> dict[str, Weights]:
    """By group."""
    found = json.loads((files("weft.plan") / "calibration" / "schedules" / "registers.json").read_text())
    return {group: Weights(**own) for group, own in found.items()}


def weights_of(schedule: TritonSchedule) -> Weights:
    """Those of a scheme, or of a kind of its kernels."""
    return weights()[group_of(schedule)]


def group_of(schedule: TritonSchedule) -> str:
    """Schedules with the same weights. Where columns are summed up without loading ahead, a program has all rows."""
    scheme = schedule.scheme
    if schedule.remat != "none":
        return f"{scheme}_{schedule.remat.upper()}"
    if scheme == "STREAM" and schedule.finish == "none":
        return "STREAM_ROWS"
    return f"{scheme}_WHOLE" if scheme == "COLUMN" and schedule.stages == 1 else scheme


@lru_cache(maxsize=4096)
def spills(demand: Demand, schedule: TritonSchedule, target: Target, slack: float = 1.0) -> bool:
    """Whether a thread needs more registers than it can have, or more than ``slack`` times as many: of kernels that the
    sweeps have the like of, since of others it is not known how far predictions are off.

    So do kernels that reduce what comes from no load: Triton has no layout to take for it, and where a row is several
    pieces it moves single elements through shared memory, thousands of instructions.
    """
    if demand.live.detached and schedule.pieces > 1 and schedule.rows_per_tile == 1:
        return True
    wanted, most = demanded(demand, schedule, target)
    return wanted > most * (slack if is_swept(demand) else min(1.0, slack))


def is_swept(demand: Demand) -> bool:
    """Whether the sweeps have kernels with as many loads, so that how far predictions are off is known."""
    live = demand.live
    inputs = len(live.tiles) + len(live.lasting) + len(live.row_inputs)
    return len(live.tiles) <= MOST_TILES and inputs <= MOST_INPUTS


def demanded(demand: Demand, schedule: TritonSchedule, target: Target) -> tuple[float, float]:
    """Registers that a thread wants, and beyond which it spills: those of all it computes, or those that it holds at
    the least, whichever is closer to its limit."""
    most = most_wanted(schedule, target) * (1 if is_swept(demand) else MARGIN)
    crowd = _crowded(demand, schedule, 1), MOST_CROWDED * most_registers(schedule.warps, 1, target)
    return max((wanted_registers(demand, schedule), most), crowd, key=lambda pair: pair[0] / pair[1])


@_of_tile
def _crowded(demand: Demand, tile: TritonSchedule) -> float:
    return crowded_registers(demand, tile)


def most_wanted(schedule: TritonSchedule, target: Target) -> float:
    """Registers beyond which a thread that wants them spills."""
    return weights_of(schedule).spilling * most_registers(schedule.warps, 1, target)


def most_registers(warps: int, programs: int, target: Target) -> int:
    """Registers that a thread can have with so many programs of so many warps on a multiprocessor."""
    share = target.registers // (32 * warps * programs)
    return min(MOST_REGISTERS, share // REGISTER_GRAIN * REGISTER_GRAIN)


def shared_bytes(demand: Demand, schedule: TritonSchedule) -> int:
    """Shared memory of a program: row tiles that are on their way from memory, and the scratch of reductions and of
    changes of layout."""
    return _shared_bytes(demand, schedule, schedule.stages)


def most_shared_bytes(demand: Demand, schedule: TritonSchedule) -> int:
    """As ``shared_bytes``, at the most. Where the tiles on their way have elements of several sizes, half of 40 kernels
    drawn at random took as much again as where sums are stored, beside the tiles, to have all in one layout."""
    sizes = {dtypes.itemsize(b.dtype) for b in demand.live.tiles}
    moved = schedule.scheme == "STREAM" and schedule.stages > 1 and len(sizes) > 1
    return shared_bytes(demand, schedule) + MOVED_BYTES * schedule.warps * moved


@_of_tile
def _shared_bytes(demand: Demand, tile: TritonSchedule) -> int:
    along_rows = tile.rows_per_tile if tile.warps > 8 else tile.warps // share_of(demand, tile).warps
    summed = 4 * along_rows * tile.tile_columns if along_rows > 1 else 0
    moved = MOVED_BYTES * tile.warps if tile.scheme == "STREAM" else 0
    used = staged_bytes(demand, tile) + scratch_bytes(demand, tile)
    used = max(used, summed, moved) if demand.live.outer else used
    return RESERVED_BYTES + used if used else 0


def staged_bytes(demand: Demand, schedule: TritonSchedule) -> int:
    """Of one stage less than there are: the last one is in registers."""
    return max(0, schedule.stages - 1) * stage_bytes(demand, schedule)


def stage_bytes(demand: Demand, schedule: TritonSchedule) -> int:
    """Bytes of what is loaded in one turn of a loop: a row tile, or a block of a row."""
    live, rows = demand.live, schedule.rows_per_tile
    elements = rows * schedule.tile_columns
    if schedule.scheme == "LOOP":
        if demand.width is not None and demand.width < 2 * elements:
            return 0  # no loop is left
        return elements * max((sum(dtypes.itemsize(b.dtype) for b in loop) for loop in live.loops), default=0)
    if schedule.scheme == "ONE_SHOT":
        return 0
    along = (*live.tiles, *live.lasting) if schedule.remat == "tiles" else live.tiles
    tiles = elements * sum(dtypes.itemsize(b.dtype) for b in along)
    return tiles + rows * sum(dtypes.itemsize(b.dtype) for b in live.row_inputs)


def scratch_bytes(demand: Demand, schedule: TritonSchedule) -> int:
    """For row reductions, one number of each for every warp, and for tiles that are laid out in two ways: at the most,
    because Triton may find one layout after all, or move 16 bits of each element."""
    live, rows = demand.live, schedule.rows_per_tile
    reduced = 4 * schedule.warps * rows * live.inner
    converted = is_converted(demand, schedule)
    if schedule.scheme == "LOOP" and demand.width is not None and demand.width % VECTOR_BYTES:
        converted = True
    if schedule.scheme == "COLUMN" and rows * schedule.tile_columns < 16 * 32 * schedule.warps:
        converted = True
    aligned = STAGE_ALIGNMENT * schedule.stages * (1 + len(live.row_inputs)) if schedule.scheme != "ONE_SHOT" else 0
    item_bytes = 4 if schedule.scheme != "STREAM" else max(2, demand.item_bytes)
    return max(reduced, converted * item_bytes * rows * schedule.piece_columns) + aligned
