"""Predicted time of a kernel on a GPU under a schedule, from what a multiprocessor has to do and to wait for.

Memory takes time for its bytes, more where too few of them are on their way (Little's law) and where too many are.
Tiles take time for their instructions, which the programs of a multiprocessor share, or for what one program waits for
until its tile is done, whichever is more. The two go on side by side. ``Load`` counts, without constants, for every
scheme, from the ``Work`` of a program; ``Constants`` make it a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean

from weft.backends.overlap import together
from weft.backends.triton.accesses import BANKS, bank_turns, sectors_bytes
from weft.backends.triton.beginnings import early_rows
from weft.backends.triton.constants import CROWD_BYTES, OPEN_ROWS, Constants, Count, constants
from weft.backends.triton.demand import Demand, is_converted, share_of
from weft.backends.triton.finish_tasks import finish_steps
from weft.backends.triton.resources import (
    REGISTER_GRAIN,
    RESERVED_BYTES,
    SCHEDULERS,
    registers_per_thread,
    shared_bytes,
    wanted_registers,
)
from weft.backends.triton.schedule import VECTOR_BYTES, TritonSchedule
from weft.backends.triton.work import COPIED_BYTES, Work
from weft.plan.split import Split
from weft.target import Target

FEW_ROUNDS = 4
"""Up to which a last round of programs that is not full takes as long as a full one."""
PICK_FILLS = 1
"""Times more that a row waits for an element that is taken by its index: 244 loops over rows with one took 9 to 21 %
more than predicted without, in geometric mean, and no more than 4 % with it."""
UNEVEN_POWER = 4.0
"""How suddenly memory takes longer where some multiprocessors have more to move than others."""
SCATTERED, SCATTERED_COST = 16, 0.05
"""How far the rows of a tile are apart, and by how much longer its memory takes then, where columns are added up. With
it choices for 67 kernels of 256 to 2100 columns in 16 bits, an odd number of them, lose 1.6 % of the shortest time in
place of 3.3, and 11 % in place of 35 at the most; in either half of these widths as much. Where rows are eight apart
choices are as good without."""
EDGE_STORE = 9.0
"""Operations on an element for each output of rows that begin between vectors, where columns are added up: vectors are
stored, and then once more, element by element, those at the ends of rows. Of 829 kernels near the best of theirs the
average takes 0.7 % longer than predicted, 7 % without."""
UNSURE = 1.1
"""Of the registers that a thread wants, what ptxas gives kernels of rows that begin between vectors at the most; what
it is predicted to give, what is wanted and this are as likely. Of 1845 such kernels that are no loop over rows a
multiprocessor has as many programs as predicted in 48 %, and what is chosen has to be good with fewer, too: with all
three choices of 485 kernels lose 3.5 % in place of 4.2."""
TABLE_COST = 0.5
"""Of what is loaded from the second cache alone, as a part of the time of what goes there and back: the keys of Llama
and Gemma, repeated for each query's head beside tables of 1 and 2 MB that 256 and 64 programs load, took twice as long
as a copy."""


@dataclass(frozen=True)
class Times:
    """Of a kernel, in microseconds. start: what goes on beside nothing else, and starts of programs; memory, tiles:
    what goes on at a time."""

    all: Count
    start: Count
    memory: Count
    tiles: Count


@dataclass(frozen=True)
class Load:
    """What a schedule has to do. moved_us: bytes at the bandwidth of a copy, with what rows of a tile that are far
    apart take more; cached_us: those that are read again; cold_us: those that take the place of what others left in the
    cache. in_flight_bytes: of a multiprocessor; tile_bytes: that a program asks for at once and waits for: a warp that
    loads a part of a row into registers waits for its own. busy: the part of the programs' time that they have
    something to do. resident: programs that it has at a time. rounds: tiles that a program takes one after the other:
    of rows, or blocks of a row. scheduled: warps that share a scheduler of a multiprocessor, the one with the most.
    elements: of a thread in a tile, operations: on each of them, and again: those that are repeated; edges: how often
    one of them is stored by itself, as it may lie before or behind a row that begins between two vectors; accesses:
    loads and stores of vectors that these take. shuffles: row sums that a warp has, and turns that its parts of column
    sums take at shared memory where a program adds up whole columns. block_reductions: across warps in a tile, and
    weights that pass between them. programs: that a multiprocessor starts; later: whether some start when others have
    ended. steps: of the finish. finishes: functions that are launched for it; barriers: that programs wait at for it.
    segments: parts of a row that are a program's, for each byte of them. gathers: column sums that a chunk leaves to
    the finish, and reductions between threads for them; levels: doublings of the threads that add up for one column.
    spread: doublings of a kilobyte until what programs ask for first. fills: loads for each tile that nothing runs
    ahead of: the first ones of loops over the columns, and of weights that wait. same: loads of weights by programs of
    a multiprocessor that start together, as a part of how often that happens. open_rows: of a multiprocessor, that
    begin between vectors and are on their way.
    """

    moved_us: Count
    cached_us: Count
    cold_us: Count
    in_flight_bytes: Count
    tile_bytes: Count
    busy: Count
    resident: Count
    rounds: Count
    scheduled: Count
    elements: Count
    operations: Count
    again: Count
    edges: Count
    accesses: Count
    shuffles: Count
    block_reductions: Count
    programs: Count
    later: Count
    steps: Count
    finishes: Count
    barriers: Count
    segments: Count
    gathers: Count
    levels: Count
    spread: Count
    fills: Count
    same: Count
    open_rows: Count

    @staticmethod
    def of(work: Work, demand: Demand, schedule: TritonSchedule, target: Target, registers: int = 0) -> Load:
        """demand: of the same program and split. registers: of a thread, if that is known."""
        units, looped = target.units, schedule.scheme == "LOOP"
        early = early_rows(demand.begins, demand.width, schedule)
        is_between = early is not None and early.splits_vectors
        given = [registers or registers_per_thread(demand, schedule)]
        if is_between and not (schedule.chunks or registers):
            given += [round(more * wanted_registers(demand, schedule)) for more in (1, UNSURE)]
        shared = shared_bytes(demand, schedule)
        resident: float = fmean(programs_per_sm(each, schedule.warps, shared, target) for each in given)
        tiles, blocks = -(-work.rows // schedule.rows_per_tile), 1
        if work.is_split or looped:
            blocks = -(-work.columns // schedule.piece_columns) / schedule.pieces
        persistent = schedule.chunks > 0
        chunks = min(schedule.chunks, tiles) if persistent else tiles
        side_by_side = -(-work.columns // schedule.piece_columns) if work.is_split else 1
        programs = programs_of(work, schedule)
        resident = min(resident, -(-programs // units))
        waves = programs / (units * resident)
        waves = math.ceil(waves) if persistent or waves < FEW_ROUNDS else waves
        turns = -(-tiles // chunks) * (blocks * work.loops if looped else 1)
        rounds = float(waves * turns)
        useful = tiles * work.segments * (blocks * work.loops if looped else blocks)
        elements, threads = schedule.elements, 32 * schedule.warps
        again = work.again if schedule.remat != "none" or looped else 0
        width = schedule.tile_columns if work.is_split or looped else work.columns
        tile_bytes = schedule.rows_per_tile * min(width, work.columns) * (work.read_bytes or work.written_bytes)
        partial = 4 * work.sums * work.columns * chunks * work.segments * (schedule.finish != "none")
        vector = VECTOR_BYTES // demand.item_bytes if looped or early else work.vector
        vector = max(1, min(vector, schedule.piece_columns * schedule.rows_per_tile // threads))
        is_scattered = early is not None and early.phases >= SCATTERED and schedule.rows_per_tile > 1 and work.sums > 0
        has_edges = is_between and persistent and not looped and work.sums > 0
        edges = min(2, schedule.pieces) / schedule.pieces * work.stores if is_between and not has_edges else 0.0
        again_loaded = sum(1 for rows in work.shared if rows % schedule.rows_per_tile)
        beside, stay = math.gcd(vector, early.step) if early else vector, persistent and schedule.remat != "tiles"
        turn = work.columns // schedule.tile_columns if looped else schedule.stages - 1
        copied = schedule.stages > 1 and turn > looped and vector * demand.item_bytes >= COPIED_BYTES
        ahead = max(1, min(schedule.stages - 1, turn if looped else turns)) if copied else 1
        per_us = target.bandwidth_gbps * 1e3
        whole = early or looped or work.is_split
        share, part = 1 / work.loops if looped else 1, share_of(demand, schedule, None if whole else vector)
        reread_bytes = work.again_bytes * looped
        tall = schedule.rows_per_tile
        table_bytes = sum(item * max(1, tall / in_turn) for item, in_turn in work.tables)
        table_bytes *= programs * schedule.piece_columns * work.is_split
        in_cache = work.moved_bytes / target.cache_bytes
        partly_bytes = sum(sectors_bytes(each, schedule, in_cache) for each in work.strided)
        missed = min(1.0, resident * units * work.columns * work.read_bytes / target.cache_bytes)
        converted = not persistent and is_converted(demand, schedule)
        is_late = bool(demand.live.lasting and work.block_reductions) and not schedule.hoisted
        is_late = is_late and (schedule.scheme == "ONE_SHOT" or schedule.remat == "tiles")
        apart = width * (blocks > 1) if work.is_split else 0
        if demand.begins and not (early or looped):
            apart = min(32 * vector, schedule.piece_columns)
        added = work.added if work.sums and schedule.finish != "none" else ()
        banked = persistent and schedule.stages > 1 and not looped and schedule.piece_columns <= threads
        conflicts = 2 * BANKS * SCHEDULERS * work.copied * banked  # shared memory is one for all schedulers
        turns_of_sum = bank_turns(part, schedule, VECTOR_BYTES // demand.item_bytes)
        whole_sums = work.sums * schedule.pieces * work.is_split * (schedule.finish == "none") / turns
        steps = sum(finish_steps(schedule, work.columns, chunks, each) for each in added)
        return Load(
            moved_us=(work.moved_bytes + partly_bytes + reread_bytes * missed)
            * (1 + SCATTERED_COST * is_scattered)
            / per_us,
            cached_us=(2 * partial + reread_bytes * (1 - missed) + TABLE_COST * table_bytes) / per_us,
            cold_us=min(work.moved_bytes, target.cache_bytes) / per_us,
            in_flight_bytes=max(1, resident * tile_bytes * ahead),
            tile_bytes=0 if looped and not copied else tile_bytes,
            busy=min(1.0, useful / (rounds * resident * units)),
            resident=resident,
            rounds=rounds,
            scheduled=math.ceil(resident * schedule.warps / SCHEDULERS),
            elements=elements,
            operations=work.operations * share
            + EDGE_STORE * work.stores * has_edges
            + conflicts
            + work.vector_operations / vector
            + work.row_operations * part.rows / elements,
            again=again * share,
            edges=edges * share,
            accesses=elements
            * (
                (work.tensors + again_loaded) / vector
                + work.single
                + (0 if stay else len(demand.live.lasting) / (beside * part.rows))
            )
            * share,
            shuffles=work.row_sums * part.rows / (blocks * work.loops if looped else 1) + whole_sums * turns_of_sum,
            block_reductions=(part.warps > 1)
            * (work.block_reductions / (blocks * work.loops if looped else 1) + converted)
            + whole_sums * (turns_of_sum > 0),
            programs=programs / units,
            later=int(rounds > turns),
            steps=steps,
            finishes=int(schedule.finish == "separate"),
            barriers=int(schedule.finish == "same"),
            segments=1 / (apart * demand.item_bytes) if apart else 0,
            gathers=work.sums * (schedule.finish != "none") * (1 + schedule.pieces * float(waves) * (part.tall > 1)),
            levels=work.sums * schedule.pieces * float(waves) * math.log2(part.tall),
            spread=math.log2(1 + min(programs, resident * units) * tile_bytes / 1024),
            fills=(1 + PICK_FILLS * work.picks) / blocks if looped else is_late,
            same=0 if looped else len(demand.live.lasting) * programs / units / side_by_side / max(1, waves) ** 2,
            open_rows=resident * schedule.rows_per_tile * ahead * is_between,
        )

    def us(self, known: Constants) -> Count:
        """Microseconds."""
        return self.times_us(known).all

    def times_us(self, known: Constants) -> Times:
        """Microseconds, in parts."""
        needed_bytes = known.in_flight_bytes + self.tile_bytes
        scarce = together(1.0, needed_bytes / self.in_flight_bytes, known.sharpness)
        crowded = known.crowded * self.in_flight_bytes / CROWD_BYTES
        moved_us = self.moved_us * (1 + known.segment_bytes * self.segments + known.open * self.open_rows / OPEN_ROWS)
        uneven = together(1.0, 1 / (self.busy * known.sm_share), UNEVEN_POWER)
        memory_us = (
            moved_us / known.bandwidth * (scarce + crowded) * uneven
            + known.cached * self.cached_us
            + known.cold * self.cold_us
        )
        operations = (
            self.elements * (self.operations + known.again * self.again + known.edge * self.edges)
            + known.access * self.accesses
            + known.overhead
        )
        operations = operations + known.shuffle * self.shuffles
        issue_ns = known.issue_ns * operations * self.scheduled
        wait_ns = known.tile_ns + known.block_reduction_ns * self.block_reductions
        wait_ns = wait_ns + known.fill_ns * self.fills + known.latency_ns * operations
        tile_us = 1e-3 * together(issue_ns, wait_ns, known.compute_power)
        power = known.power + known.overlap * (1 - 1 / self.resident)
        both_us = together(memory_us, self.rounds * tile_us, power)
        programs_us = 1e-3 * known.program_ns * self.programs
        both_us = together(both_us, programs_us, known.power)
        ends_us = (
            known.barrier_us * self.barriers
            + known.gather_us * self.gathers
            + known.level_us * self.levels
            + known.spread_us * self.spread
            + known.tail * tile_us
            + 1e-3 * known.same_ns * self.same
            + known.step_us * self.steps
            + known.finish_us * self.finishes
        )
        start_us = known.start_us + known.later_us * self.later + ends_us
        return Times(both_us + start_us, start_us + programs_us, memory_us, self.rounds * tile_us)


def times_us(split: Split, schedule: TritonSchedule, registers: int = 0, warm: bool = False) -> Times:
    """Microseconds of a kernel under a schedule. registers: of a thread, if that is known. warm: whether the caches
    have what is read."""
    work, demand = Work.of(split, schedule.scheme == "LOOP"), Demand.of(split.program, schedule)
    load = Load.of(work, demand, schedule, split.target, registers)
    known = constants(split.target)[way_of(schedule, work, demand)]
    return load.times_us(known.warm() if warm else known)


def way_of(schedule: TritonSchedule, work: Work, demand: Demand) -> str:
    """Which constants hold: those of a scheme, or of a kind of its kernels."""
    splits = "_SPLIT" if demand.begins and demand.begins.splits_vectors else ""
    match schedule.scheme:
        case "STREAM" if schedule.stages == 1:
            return "STREAM_ONCE"
        case "STREAM" if not work.sums:
            return "STREAM_ROWS" + splits
        case "STREAM" if schedule.remat == "tiles":
            return "STREAM_TILES"
        case "ONE_SHOT":
            return "ONE_SHOT" + splits if work.block_reductions else "POINTWISE"
        case "LOOP":
            return "LOOP" + splits
        case "COLUMN" if schedule.finish == "none":
            return "COLUMN_WHOLE"
        case "STREAM" if splits and early_rows(demand.begins, demand.width, schedule) is None:
            return "STREAM_SPLIT"
        case scheme:
            return scheme


def programs_of(work: Work, schedule: TritonSchedule) -> int:
    """Programs that are started."""
    tiles = -(-work.rows // schedule.rows_per_tile)
    chunks = min(schedule.chunks, tiles) if schedule.chunks else tiles
    return chunks * work.segments * (-(-work.columns // schedule.piece_columns) if work.is_split else 1)


def programs_per_sm(registers: int, warps: int, shared: int, target: Target) -> int:
    """Programs that a multiprocessor holds at a time, one at least. shared: bytes of a program, with those that the
    system takes of each if it has any. Each of four schedulers has its own quarter of the registers."""
    grains = -(-registers // REGISTER_GRAIN) * REGISTER_GRAIN
    by_registers = SCHEDULERS * (target.registers // SCHEDULERS // (grains * 32)) // warps
    by_memory = (target.shared_bytes + RESERVED_BYTES) // max(shared, RESERVED_BYTES)
    return max(1, min(by_registers, by_memory, target.most_warps // warps, target.most_programs))
