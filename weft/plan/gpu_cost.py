"""Predicted time of a kernel on a GPU under a schedule, from what a multiprocessor has to do and to wait for.

Three things take time: bytes, fewer a second where too few are on their way (Little's law); instructions, fewer a
second where few warps share a scheduler; and what a row tile costs whatever its size, with each exchange of row sums
between threads. The first goes on beside the other two. Constants are fitted by ``python -m weft.bench.gpu_fit`` to
``calibration/schedules/h200.csv``, measured on an H200; those of other GPUs are the same, but for their bandwidth.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from weft.ir import dtypes
from weft.ir.ops import lookup
from weft.ir.program import Buffer, Program
from weft.ir.structure import loops_of
from weft.plan.cost import Sizes
from weft.plan.kernel import Schedule
from weft.plan.resources import (
    MOST_WARPS,
    REGISTER_GRAIN,
    RESERVED_BYTES,
    SCHEDULERS,
    Demand,
    registers_per_thread,
    shared_bytes,
)
from weft.target import Target

MOST_COST = 4.0
"""Of one operation in float32 additions: a GPU has functions that a CPU computes in many steps."""
MOST_PROGRAMS = 32
"""That a multiprocessor holds at a time."""


@dataclass(frozen=True)
class Constants:
    """Of one scheme. bandwidth: of the target's copy bandwidth. in_flight_bytes: of a multiprocessor, with which it
    reaches 0.7 of that. crowded: by how much of the time more than ``crowd_bytes`` in flight cost, each time as much
    again. issue_ns: of an operation on 128 elements. lone_warps: warps that leave as many cycles unused as they use.
    tile_ns, exchange_ns, exchange_warp_ns: of a row tile, of an exchange between threads, of that for each warp. power:
    how much two things that go on at a time add up. start_us: of a launch.
    """

    bandwidth: float
    in_flight_bytes: float
    crowded: float
    crowd_bytes: float
    issue_ns: float
    lone_warps: float
    tile_ns: float
    exchange_ns: float
    exchange_warp_ns: float
    power: float
    start_us: float


@dataclass(frozen=True)
class Work:
    """Of a program under a split. read_bytes, written_bytes: of a row's columns, each. operations: on an element, in
    float32 additions. exchanges: of row sums between threads. sums: column sums. rows: inside a segment."""

    read_bytes: int
    written_bytes: int
    operations: float
    exchanges: int
    sums: int
    rows: int
    columns: int
    segments: int

    @staticmethod
    def of(program: Program, schedule: Schedule, hints: Mapping[str, int]) -> Work:
        """hints: likely values of run-time parameters."""
        sizes, columns, segments = Sizes(program, hints), schedule.columns, schedule.segments
        rows = tuple(r for r in schedule.rows if r not in segments)
        loops = loops_of(program, schedule.rows, columns)
        by_name, types = program.by_name(), program.types()

        def is_tall(buffer: Buffer) -> bool:
            return set(rows) <= set(buffer.dims) and bool(set(buffer.dims) & set(columns))

        vectors = {name for names in loops.values for name in names if set(types[name][1]) & set(schedule.rows)}
        sums = [n for names in loops.outer for n in names if set(types[n][1]) & set(columns)]
        operations = sum(min(lookup(by_name[name].op).cost, MOST_COST) for name in vectors)
        return Work(
            sum(dtypes.itemsize(b.dtype) for b in program.inputs if is_tall(b)),
            sum(dtypes.itemsize(o.buffer.dtype) for o in program.outputs if is_tall(o.buffer)),
            operations + sum(map(len, loops.inner)) + 2 * len(sums),
            sum(1 for names in loops.inner if names),
            len(sums),
            max(1, sizes.elements(rows)),
            max(1, sizes.elements(columns)),
            max(1, sizes.elements(segments)),
        )


def kernel_us(work: Work, demand: Demand, schedule: Schedule, target: Target, known: Constants | None = None) -> float:
    """Microseconds of a kernel whose rows are in registers, one program a row tile (ONE_SHOT) or persistent programs
    (STREAM). demand: of the same program and split. known: constants other than those in the data file."""
    known = known or constants()[schedule.scheme]
    streams = schedule.scheme == "STREAM"
    registers = registers_per_thread(demand, schedule)
    resident = programs_per_sm(registers, schedule.warps, shared_bytes(demand, schedule), target)
    tiles = -(-work.rows // schedule.rows_per_tile)
    chunks = min(schedule.chunks, tiles) if streams else tiles
    parts = chunks * work.segments
    if streams:
        resident = min(resident, -(-parts // target.units))
        rounds = float(-(-tiles // chunks) * -(-parts // (target.units * resident)))
    else:
        rounds = parts / (target.units * resident)
        rounds = math.ceil(rounds) if rounds < 4 else rounds
    elements = schedule.rows_per_tile * sum(schedule.pieces)
    tile_bytes = schedule.rows_per_tile * work.columns * work.read_bytes
    in_flight = resident * tile_bytes * (max(1, schedule.stages - 1) if streams else 1)
    moved = work.segments * work.rows * work.columns * (work.read_bytes + work.written_bytes)
    busy = min(1.0, tiles * work.segments / (rounds * resident * target.units)) if streams else 1.0
    waiting = math.hypot(1.0, known.in_flight_bytes / max(1, in_flight))
    crowd = known.crowded * max(0.0, in_flight / known.crowd_bytes - 1)
    bandwidth = known.bandwidth * target.bandwidth_gbps * 1e3  # bytes a microsecond
    memory_us = moved / bandwidth * (waiting + crowd) / busy
    share = 1 + known.lone_warps / (resident * schedule.warps)
    issue_us = 1e-3 * known.issue_ns * rounds * resident * elements * work.operations / 128 * share
    exchange_ns = known.exchange_ns + known.exchange_warp_ns * schedule.warps
    tile_ns = known.tile_ns + exchange_ns * work.exchanges * exchanges_of_pieces(schedule)
    compute_us = issue_us + 1e-3 * rounds * tile_ns
    partial_us = 8 * parts * sum(schedule.pieces) * work.sums / bandwidth
    together = (memory_us**known.power + compute_us**known.power) ** (1 / known.power)
    return together + partial_us + known.start_us


def exchanges_of_pieces(schedule: Schedule) -> int:
    """How often threads exchange what they have for one row sum: once for each piece that cannot be laid on others."""
    return 1 if schedule.folds else max(1, len(schedule.pieces))


def programs_per_sm(registers: int, warps: int, shared: int, target: Target) -> int:
    """Programs that a multiprocessor holds at a time, one at least. shared: bytes of a program, with those that the
    system takes of each if it has any. Each of four schedulers has its own quarter of the registers."""
    grains = -(-registers // REGISTER_GRAIN) * REGISTER_GRAIN
    by_registers = SCHEDULERS * (target.registers // SCHEDULERS // (grains * 32)) // warps
    by_memory = (target.shared_bytes + RESERVED_BYTES) // max(shared, RESERVED_BYTES)
    return max(1, min(by_registers, by_memory, MOST_WARPS // warps, MOST_PROGRAMS))


@cache
def constants() -> dict[str, Constants]:
    """Fitted ones, by scheme."""
    file = resources.files("weft.plan") / "calibration" / "schedules" / "h200.json"
    found: dict[str, dict[str, Any]] = json.loads(file.read_text())
    return {scheme: Constants(**values) for scheme, values in found.items()}
