"""Predicted time of a kernel on a GPU under a schedule, from what a multiprocessor has to do and to wait for.

Memory takes time for its bytes, more where too few of them are on their way (Little's law) and where too many are. Row
tiles take time for their instructions, which the programs of a multiprocessor share, or for what one program waits for
until its tile is done, whichever is more. The two go on side by side. ``Load`` counts, without constants; those of
``Constants`` are fitted by ``python -m weft.bench.gpu_fit`` to ``calibration/schedules/h200.csv``, measured on an H200.
Those of other GPUs are the same, but for their bandwidth.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from weft.ir import dtypes
from weft.ir.ops import lookup
from weft.ir.program import Buffer
from weft.ir.structure import loops_of
from weft.plan.demand import Demand, is_converted
from weft.plan.finish import finish_steps
from weft.plan.kernel import VECTOR, Schedule
from weft.plan.resources import (
    MOST_PROGRAMS,
    MOST_WARPS,
    REGISTER_GRAIN,
    RESERVED_BYTES,
    SCHEDULERS,
    registers_per_thread,
    shared_bytes,
)
from weft.plan.split import Split
from weft.target import Target

MOST_COST = 4.0
"""Of one operation in float32 additions: a GPU has functions that a CPU computes in many steps."""
FEW_ROUNDS = 4
"""Up to which a last round of programs that is not full takes as long as a full one."""


CROWD_BYTES = 65536
"""In flight of a multiprocessor: what the price of too many is counted in."""


@dataclass(frozen=True)
class Constants:
    """Of one way to take rows. bandwidth: of the target's copy bandwidth. in_flight_bytes: of a multiprocessor, below
    which memory waits, and sharpness, how suddenly. crowded: what each ``CROWD_BYTES`` in flight cost, as a part of
    the time of memory. issue_ns: of an operation on an element in a thread, where other programs wait for it;
    latency_ns: where nobody does. access: of a load or store of two bytes in so many operations, one for each vector.
    overhead: of a row tile in a warp, operations. tile_ns, exchange_warp_ns: that a program waits for a row tile, and
    for each exchange and each warp that takes part. compute_power, power: how much the two parts of a tile's time and
    memory and tiles add up. start_us: of a launch. program_ns: until a multiprocessor has started one more program, of
    those that it starts before any ends; later_us: where some start only when others have ended. tail: row tiles that
    end after memory has. step_us: of each load of the finish that waits for another one.
    """

    bandwidth: float
    in_flight_bytes: float
    sharpness: float
    crowded: float
    issue_ns: float
    latency_ns: float
    access: float
    overhead: float
    tile_ns: float
    exchange_warp_ns: float
    compute_power: float
    power: float
    start_us: float
    program_ns: float
    later_us: float
    tail: float
    step_us: float


@dataclass(frozen=True)
class Work:
    """Of a program under a split. read_bytes, written_bytes: of a row's columns, each. operations: on an element, in
    float32 additions; again: those behind an exchange that were computed before it. exchanges: of row sums between
    threads. sums: column sums. rows: inside a segment."""

    read_bytes: int
    written_bytes: int
    operations: float
    again: float
    exchanges: int
    sums: int
    rows: int
    columns: int
    segments: int

    @staticmethod
    def of(split: Split) -> Work:
        program, rows, columns = split.program, split.inside, split.columns
        loops = loops_of(program, split.rows, columns)
        by_name, types = program.by_name(), program.types()

        def is_tall(buffer: Buffer) -> bool:
            return set(rows) <= set(buffer.dims) and bool(set(buffer.dims) & set(columns))

        vectors = {name for names in loops.values for name in names if set(types[name][1]) & set(split.rows)}
        sums = [n for names in loops.outer for n in names if set(types[n][1]) & set(columns)]
        cost = {name: min(lookup(by_name[name].op).cost, MOST_COST) for name in vectors}
        every = sum(cost.get(name, 0) for names in loops.values for name in names)
        return Work(
            sum(dtypes.itemsize(b.dtype) for b in program.inputs if is_tall(b)),
            sum(dtypes.itemsize(o.buffer.dtype) for o in program.outputs if is_tall(o.buffer)),
            sum(cost.values()) + sum(map(len, loops.inner)) + 2 * len(sums),
            every - sum(cost.values()),
            sum(1 for names in loops.inner if names),
            len(sums),
            max(1, split.sizes.elements(rows)),
            max(1, split.width),
            split.segment_count,
        )


Count = Any
"""A number, or an array of those of several schedules."""


@dataclass(frozen=True)
class Load:
    """What a schedule has to do. moved_us: bytes at the bandwidth of a copy. in_flight_bytes: of a multiprocessor.
    busy: the part of the programs' time that they have something to do. rounds: row tiles that a program takes one
    after the other. warps: of a multiprocessor, sharing four schedulers; program_warps: of a program. elements: of a
    thread in a row tile, operations: on each of them; accesses: loads and stores of two bytes that these take by
    vectors. exchanges: between threads in a row tile, of row sums and of weights. programs: of one row tile each
    that a multiprocessor starts before any of them ends; later: whether others follow. steps: of the finish."""

    moved_us: Count
    in_flight_bytes: Count
    busy: Count
    rounds: Count
    warps: Count
    program_warps: Count
    elements: Count
    operations: Count
    accesses: Count
    exchanges: Count
    programs: Count
    later: Count
    steps: Count

    @staticmethod
    def of(work: Work, demand: Demand, schedule: Schedule, target: Target) -> Load:
        """Of a kernel whose rows are in registers: one program a row tile (ONE_SHOT) or persistent programs (STREAM).
        demand: of the same program and split."""
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
            rounds = math.ceil(rounds) if rounds < FEW_ROUNDS else rounds
        elements = schedule.elements
        tile_bytes = schedule.rows_per_tile * work.columns * work.read_bytes
        moved = work.segments * work.rows * work.columns * (work.read_bytes + work.written_bytes)
        vector = max(1, min(VECTOR, schedule.pieces[-1] * schedule.rows_per_tile // (32 * schedule.warps)))
        return Load(
            moved_us=moved / (target.bandwidth_gbps * 1e3),
            in_flight_bytes=max(1, resident * tile_bytes * max(1, schedule.stages - 1)),
            busy=min(1.0, tiles * work.segments / (rounds * resident * target.units)) if streams else 1.0,
            rounds=rounds,
            warps=resident * schedule.warps,
            program_warps=schedule.warps,
            elements=elements,
            operations=work.operations + (work.again if schedule.keeps == "tiles" else 0),
            accesses=elements * (work.read_bytes + work.written_bytes) / 2 / vector,
            exchanges=work.exchanges * exchanges_of_pieces(schedule) + (not streams and converts(demand, schedule)),
            programs=0 if streams else min(resident, -(-parts // target.units)),
            later=int(not streams and rounds > 1),
            steps=finish_steps(schedule, work.columns, chunks, work.sums) if streams and work.sums else 0,
        )

    def us(self, known: Constants) -> Count:
        """Microseconds."""
        scarce = (1 + (known.in_flight_bytes / self.in_flight_bytes) ** known.sharpness) ** (1 / known.sharpness)
        crowded = known.crowded * self.in_flight_bytes / CROWD_BYTES
        memory_us = self.moved_us / known.bandwidth * (scarce + crowded) / self.busy
        operations = self.elements * self.operations + known.access * self.accesses + known.overhead
        issue_ns = known.issue_ns * operations * self.warps / SCHEDULERS
        wait_ns = known.tile_ns + known.exchange_warp_ns * self.program_warps * self.exchanges
        wait_ns = wait_ns + known.latency_ns * operations
        tile_us = 1e-3 * _together(issue_ns, wait_ns, known.compute_power)
        both_us = _together(memory_us, self.rounds * tile_us, known.power)
        start_us = known.start_us + 1e-3 * known.program_ns * self.programs + known.later_us * self.later
        return both_us + start_us + known.tail * tile_us + known.step_us * self.steps


def _together(one: Count, other: Count, power: float) -> Count:
    """Time of two things that go on at a time: from that of the longer one, with a large power, to their sum."""
    return (one**power + other**power) ** (1 / power)


def kernel_us(work: Work, demand: Demand, schedule: Schedule, target: Target) -> float:
    """Microseconds of a kernel whose rows are in registers. demand: of the same program and split."""
    return Load.of(work, demand, schedule, target).us(constants()[way_of(schedule, work.sums)])


def way_of(schedule: Schedule, sums: int) -> str:
    """Which constants hold: those of a scheme, and of persistent programs without column sums."""
    return schedule.scheme if sums or schedule.scheme == "ONE_SHOT" else "STREAM_ROWS"


def exchanges_of_pieces(schedule: Schedule) -> int:
    """How often threads exchange what they have for one row sum: once for each piece that cannot be laid on others."""
    return 1 if schedule.folds else max(1, len(schedule.pieces))


def converts(demand: Demand, schedule: Schedule) -> bool:
    """Whether threads exchange weights, since these are laid out otherwise than the rows that they meet."""
    return any(is_converted(demand, schedule, piece) for piece in schedule.pieces)


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
