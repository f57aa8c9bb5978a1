"""What a program has to do in CUDA C++ under a split, whatever its schedule: bytes, operations, exchanges."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

from weft.backends.binary import ALIGNMENT_BYTES
from weft.backends.cuda import legality
from weft.backends.cuda.beginnings import turn_tiles
from weft.backends.cuda.inputs import in_one_pass
from weft.backends.cuda.schedule import MOST_LANES, CudaSchedule, Tile
from weft.backends.cuda.view import View
from weft.backends.instructions import cost_of
from weft.errors import Refusal
from weft.ir.dtypes import itemsize
from weft.ir.ops import states_of
from weft.ir.program import Value
from weft.ir.structure import KEPT
from weft.plan.kernel import Kernel
from weft.plan.sizes import Sizes
from weft.plan.split import Split

REDUCED, REDUCED_VECTOR = {"sumexp": 10.5, "m2": 3.0}, {"sumexp": 12.0}
"""Operations of taking one more element into a row reduction, where that is more than one: an exponential, and the
largest of a vector; a difference, its sum and that of its square. And of one more vector: another exponential, by which
the centre moves."""

TERM = 10.5
"""Those of one whose exponential waits: a product less, one of it with a factor more, and none of a vector."""

SECTOR_BYTES = 32
"""Of the second cache, which a store writes at once."""
CHAINS = 4
"""Partial results that a thread has of a row reduction, so that none waits for the one before it."""
PARTIALS = {"sumexp": 2, "m2": 2 * CHAINS + 2}
"""Numbers that a thread has of those whose centre moves."""


@dataclass(frozen=True)
class Work:
    """Of a program under a split. moved_bytes: of all tensors, each once; distinct_bytes: of those that are copied
    ahead. copied: bytes of an element of each input that is copied ahead; written: of each output that is written row
    by row; weights: of each input that is the same for all rows of a segment; kept: of each of these in shared memory.
    row_numbers: inputs of which a row has one element. is_packed: whether rows of what is copied lie together in
    memory. weight_casts: operations on an element that are not done again where weights are kept in shared memory.
    lanes: elements of a vector. is_any_width: whether the width is known at run time only, and columns the likely one.
    is_early: whether vectors begin before rows, as far as is likely; alike: how far rows are apart that surely begin at
    the same place. sums_vanish: whether row reductions are sums of what is zero beside a row, if what is copied is.
    outer: outer reductions, column sums among them. passes: loops over the columns of a row; loads: of vectors in them.
    operations: on an element, in float32 additions. exchanges: of row reductions; numbers: that are exchanged;
    exponentials: those of them that are sums of exponentials; terms: exponentials that are terms of these, and used
    again; partials: that a thread has of all. sums: column sums; picks: elements of a row that are taken by their
    index; finishes: whether something is left to do behind the rows. rows: inside a segment, of so many; is_segmented:
    whether a kernel has any."""

    moved_bytes: int
    distinct_bytes: int
    copied: tuple[int, ...]
    written: tuple[int, ...]
    weights: tuple[int, ...]
    kept: tuple[int, ...]
    row_numbers: int
    is_packed: bool
    weight_casts: float
    lanes: int
    is_any_width: bool
    is_early: bool
    alike: int
    sums_vanish: bool
    outer: int
    passes: int
    loads: int
    operations: float
    exchanges: int
    numbers: int
    exponentials: int
    terms: int
    partials: int
    sums: int
    picks: int
    finishes: bool
    rows: int
    columns: int
    segments: int
    is_segmented: bool

    @property
    def accumulates(self) -> bool:
        """Whether something is added up along columns."""
        return self.outer > 0

    @cached_property
    def copied_bytes(self) -> int:
        """Of all rows: what several have in common is copied for each."""
        return self.elements * sum(self.copied)

    @property
    def elements(self) -> int:
        """Of all rows."""
        return self.segments * self.rows * self.columns

    @cached_property
    def copied_again_bytes(self) -> int:
        """Which the second cache has from a row before."""
        return max(0, self.copied_bytes - self.distinct_bytes)

    @cached_property
    def stored_between_sectors(self) -> int:
        """Rows of outputs that begin between two sectors of the second cache where they lie one after the other."""
        between = sum(self.columns * size % SECTOR_BYTES != 0 for size in self.written)
        return between * self.rows * self.segments

    def shifts_weights(self, schedule: CudaSchedule) -> bool:
        """Whether weights are shifted for each row, as ``View`` says of a kernel."""
        return schedule.weights == "shared" and self.alike > 1 and not self.accumulates and bool(self.weights)

    def keeps_columns(self, schedule: CudaSchedule) -> bool:
        """Whether a thread keeps something of its columns from row to row."""
        return self.accumulates or (bool(self.weights) and not self.shifts_weights(schedule))

    def is_queued(self, schedule: CudaSchedule) -> bool:
        """Whether clusters take row tiles from a queue."""
        together = schedule.cluster == 1 or self.exchanges > 0
        return not self.accumulates and not self.has_parts(schedule) and together

    def apart(self, schedule: CudaSchedule) -> int:
        """How far the rows of a place are apart, as ``View`` says of a kernel."""
        return self.alike if self.keeps_columns(schedule) and schedule.groups == 1 else 1

    def clears_edges(self, schedule: CudaSchedule) -> bool:
        """Whether elements beside a row become zeros, as printed loops have them: for each place once, with no
        branch."""
        return self.sums_vanish and not self.is_any_width and self.apart(schedule) > 1

    def has_parts(self, schedule: CudaSchedule) -> bool:
        """Whether chunks have a part for each place that they have row tiles of."""
        return self.is_segmented or self.apart(schedule) > 1

    def places(self, schedule: CudaSchedule) -> int:
        """That chunks have parts in: of each segment one, or, as far as is likely, as many as rows may begin at."""
        return self.segments * (self.apart(schedule) if self.is_early else 1)

    def tiles(self, schedule: CudaSchedule) -> int:
        """Of all rows."""
        return self.segments * -(-self.rows // schedule.rows_per_tile)

    def copies_tiles(self, schedule: CudaSchedule) -> bool:
        """Whether the rows of a tile are copied at once, as ``View`` says of a kernel."""
        several = schedule.rows_per_tile > 1 and schedule.cluster == 1 and self.apart(schedule) == 1
        return several and self.is_packed

    def copies(self, schedule: CudaSchedule) -> int:
        """Of rows of a tile, that a block begins."""
        each = 1 if self.copies_tiles(schedule) else schedule.rows_per_tile
        return each * (len(self.copied) + self.row_numbers)

    def has_next_rows(self, schedule: CudaSchedule) -> bool:
        """Whether a row tile comes with the first row of the next one."""
        return self.is_queued(schedule) or self.has_parts(schedule)

    def places_tiles(self, schedule: CudaSchedule) -> int:
        """Row tiles of all places, with those of places that have fewer than others, and those that are left out for
        the turns from one place to another."""
        rows, places = schedule.rows_per_tile, self.places(schedule)
        if places == 1:
            return self.tiles(schedule)
        each, chunks = -(-self.segments * self.rows // (places * rows)), min(schedule.chunks, self.tiles(schedule))
        if chunks % places == 0 or places * each <= chunks:
            return places * each
        return places * (each + turn_tiles(self.sums, self.weights, self.copied, self.written, rows))

    @staticmethod
    def under(split: Split, schedule: CudaSchedule) -> Work | Refusal:
        """With the vectors of a schedule, and what that computes again."""
        return Work.of(split, schedule.lanes, "exponentials" if schedule.tile == "exponentials" else "shared")

    @staticmethod
    @lru_cache(maxsize=KEPT)
    def of(split: Split, lanes: int = MOST_LANES, tile: Tile = "shared") -> Work | Refusal:
        """Or the rule by which no such kernel is written. lanes: elements of a vector at the most. tile: where row
        tiles wait."""
        kernel = Kernel(split.program, CudaSchedule("CLUSTER", *split.dims, chunks=1, lanes=lanes, tile=tile))
        view = View(in_one_pass(kernel))
        begins_between, is_any_width = _begins_between(view, split.sizes), bool(view.unknown_sizes)
        refusal = legality.check_architecture(kernel, split.target.architecture)
        refusal = refusal or legality.check_planned(view, begins_between=begins_between)
        if (refusal := refusal or legality.check_program(view) or legality.check_nvrtc(kernel)) is not None:
            return refusal
        program, loops, streamed = view.program, view.loops, {b.name for b in view.streamed()}
        vectors = [n for names in loops.values for n in names if view.is_vector(n) and not view.is_const(n)]
        sums = [v for v in view.outer if view.sums_vectors(v)]
        inner = [[view.by_name[name] for name in names if name not in view.centres] for names in loops.inner]
        numbers = [states_of(value.op, pivoted=True) for values in inner for value in values]
        operations = sum(cost_of(view.by_name[name], name in view.rough) for name in vectors)
        weights = view.weights()
        kept = view.kept(shifted=view.alike > 1 and not view.outer)
        cast = view.cast_weights()
        floats = {one.name for one, *others in kept if one in cast and not others}
        casts = [n for n in vectors if not floats.isdisjoint(view.by_name[n].args)]
        moved = [*program.moved_inputs, *(output.buffer for output in program.outputs)]
        return Work(
            sum(map(split.sizes.bytes, moved)),
            sum(split.sizes.bytes(b) for b in program.moved_inputs if b.name in streamed),
            tuple(itemsize(b.dtype) for b in view.streamed()),
            tuple(itemsize(b.dtype) for b in view.row_outputs()),
            tuple(itemsize(b.dtype) for b in weights),
            tuple(map(view.kept_size, kept)),
            len(view.numbers()[1]),
            all(map(view.is_packed, view.copied())),
            sum(cost_of(view.by_name[name], name in view.rough) for name in casts),
            view.lanes,
            is_any_width,
            begins_between or (is_any_width and not any(_are_multiples([s], split.sizes) for s in view.unknown_sizes)),
            view.alike,
            view.sums_vanish,
            len(view.outer),
            sum(1 for names in loops.values if any(view.is_vector(name) for name in names)),
            sum(len(streamed & set(used)) for used in loops.used),
            operations + sum(_reduced(value, view) for values in inner for value in values) + 2 * len(sums),
            sum(len({(value.op, value.dtype) for value in values}) for values in inner),
            sum(numbers),
            sum(value.op == "sumexp" for values in inner for value in values),
            len(view.terms),
            sum(PARTIALS.get(value.op, CHAINS) for values in inner for value in values),
            len(sums),
            sum(1 for value in program.values if value.op == "pick"),
            bool(loops.epilogue_stores),
            max(1, split.sizes.elements(split.inside)),
            max(1, split.width),
            split.segment_count,
            bool(split.segments),
        )


def _reduced(value: Value, view: View) -> float:
    """Operations of taking one more element into a row reduction."""
    if value.name in view.held_terms.values():
        return TERM
    return REDUCED.get(value.op, 1.0) + REDUCED_VECTOR.get(value.op, 0.0) / view.lanes


def _begins_between(view: View, sizes: Sizes) -> bool:
    """Whether rows are copied ahead that likely begin between two vectors."""
    if not view.streamed():
        return False
    multiples = view.begins_with_vectors(view.reference)
    return multiples is None or not _are_multiples(multiples, sizes)


def _are_multiples(parameters: list[str], sizes: Sizes) -> bool:
    """Whether parameters are likely multiples of 16."""
    return all(sizes.number(parameter) % ALIGNMENT_BYTES == 0 for parameter in parameters)
