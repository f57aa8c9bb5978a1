"""A CUDA C++ kernel as its text is made of it: which inputs are copied to shared memory, and how a row is divided."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import accumulate

from weft.backends.cuda.schedule import MOST_LANES, CudaKernel, CudaSchedule
from weft.ir.affine import sums_of_multiples
from weft.ir.dtypes import HALVES, itemsize
from weft.ir.online import online_along_rows
from weft.ir.ops import states_of
from weft.ir.program import Buffer, Program, Size, Value
from weft.ir.rounding import is_rounded_again, rounded_at_once
from weft.ir.structure import loops_of, terms_of
from weft.ir.zeros import zero_where
from weft.lowering import addresses
from weft.lowering.view import KernelView

GRANULE_BYTES = 16
"""What a bulk copy moves a multiple of, from and to a multiple of (PTX ISA, ``cp.async.bulk``); a thread's largest load
and store."""
LINE_BYTES = 128
"""Of the second cache. Copies begin with a line, whatever it has before what is copied: those that begin between two
take some 6 % longer. So does what lies in shared memory."""

MOST_COUNTED = 2**31 - 1
"""In 32 bits."""
NUMBER_BYTES = 8
"""Of the place of a number of a row in a stage."""
MANY_CHUNKS = 128
"""From which a finish that is launched by itself has all the warps that a block can have."""
TURN = 3.6
"""Times as long as copies of as many bytes as a block stores and loads between rows of two places, beside the copies of
all other blocks. With what this gives all of 19 kernels that were timed with six numbers of tiles for it take within
1.3 % of the shortest time of these."""
IN_ONE_PASS = {"sumexp": "max", "m2": "sum"}
"""Reductions of a row with a centre that moves, and those of the same elements that come with them."""


def in_one_pass(kernel: CudaKernel) -> CudaKernel:
    """A kernel as it is computed: it takes sums of exponentials, and their largest, in one loop over the columns, sums
    of squared differences from a mean, and the mean, too, one element of a row by its address, and sums of multiples by
    fused multiply-adds."""
    columns = kernel.schedule.columns
    program = sums_of_multiples(online_along_rows(kernel.program, columns, tuple(IN_ONE_PASS)), columns)
    return replace(kernel, program=program)


class View(KernelView[CudaSchedule]):
    """A kernel in one pass, and how its rows are divided among threads."""

    def __init__(self, kernel: CudaKernel) -> None:
        super().__init__(kernel)
        self.inside = tuple(r for r in self.rows if r not in self.segments)
        self.lanes = min(lanes_of(self.program, self.columns, self.inside), self.schedule.lanes)
        moving = {
            (IN_ONE_PASS[v.op], v.args[0], frozenset(v.attributes)): v.name
            for v in self.program.values
            if v.op in IN_ONE_PASS
        }
        found = ((v.name, (v.op, v.args[0], frozenset(v.attributes))) for v in self.program.values if v.args)
        self.centres = {name: moving[key] for name, key in found if key in moving}
        """Reductions that come with one whose centre moves: the largest element with a sum of exponentials, a sum with
        that of squared differences from its mean; by their names those."""
        vectors = filter(self.is_vector, self.by_name if is_rounded_again(self.program) else ())
        self.rough = rounded_at_once(self.program).union(vectors)
        """Values of which a float32 that is off by a few units in the last place will do."""
        self.terms = {name: total for name, total in terms_of(self.program).items() if name in self.rough}
        """Such exponentials that are terms of a sum of them, or quotients of these; by their names that."""
        if self.held_terms:
            self.loops = loops_of(self.program, self.rows, self.columns, tuple(self.held_terms))

    @property
    def held_terms(self) -> dict[str, str]:
        """Those of ``terms`` that wait in registers."""
        return self.terms if self.schedule.tile == "exponentials" else {}

    def has_columns(self, buffer: Buffer) -> bool:
        """Whether its address changes along columns."""
        return varies(buffer, self.columns)

    def has_rows(self, buffer: Buffer) -> bool:
        """Whether its address changes along the rows of a segment."""
        return varies(buffer, self.inside)

    def used_inputs(self) -> list[Buffer]:
        """But for those of which only single elements are taken, by their addresses."""
        scalars = [self.by_name[name] for name in self.loops.scalars]
        names = {arg for value in scalars for arg in value.args[value.op == "pick" :]}.union(*self.loops.used)
        return [b for b in self.program.inputs if b.name in names]

    def picked(self) -> list[Buffer]:
        """Inputs of which single elements are taken."""
        return [self.inputs[value.args[0]] for value in self.program.values if value.op == "pick"]

    def words_of(self, value: Value) -> int:
        """Of 8 bytes, that a row reduction of a part of a row is. The numbers of squared differences are sent one by
        one."""
        if value.op == "m2":
            return states_of(value.op, pivoted=True)
        return -(-states_of(value.op) * itemsize(value.dtype) // 8)

    def streamed(self) -> list[Buffer]:
        """Inputs that are copied to shared memory, row tile by row tile."""
        return [b for b in self.used_inputs() if self.has_columns(b) and self.has_rows(b)]

    def weights(self) -> list[Buffer]:
        """Inputs with columns that are the same for all rows of a segment."""
        return [b for b in self.used_inputs() if self.has_columns(b) and not self.has_rows(b)]

    def numbers(self) -> tuple[list[Buffer], list[Buffer]]:
        """Inputs of which a row has one element: those that all rows of a segment have in common, and the others."""
        found = [b for b in self.used_inputs() if not self.has_columns(b)]
        return [b for b in found if not self.has_rows(b)], [b for b in found if self.has_rows(b)]

    def copied(self) -> list[Buffer]:
        """What a row tile comes with: its rows, and their numbers."""
        return [*self.streamed(), *self.numbers()[1]]

    def row_outputs(self) -> list[Buffer]:
        """Outputs with columns that are written row by row."""
        return [o.buffer for stores in self.loops.stores for o in stores if self.has_columns(o.buffer)]

    def count(self, dims: Iterable[str]) -> int | None:
        """Elements along some dimensions; None if known at run time only."""
        total = 1
        for dim in dims:
            size = self.program.size_of(dim)
            if isinstance(size, str):
                return None
            total *= size
        return total

    @property
    def own_vectors(self) -> int:
        """Vectors of a row that a block has place for, if rows begin with a vector; else it has one more."""
        columns = self.count(self.columns)
        if columns is None:
            return self.schedule.vectors * self.schedule.group_threads
        return -(-columns // (self.lanes * self.schedule.cluster))

    @property
    def unknown_sizes(self) -> list[str]:
        """Parameters that are sizes of columns."""
        sizes = (self.program.size_of(dim) for dim in self.columns)
        return [size for size in sizes if isinstance(size, str)]

    def most_columns(self, *, divisible: bool) -> int:
        """That the blocks of a cluster have place for. divisible: whether a parameter that is a size of columns is a
        multiple of 16; else a vector begins before a row at the cost of that place."""
        most = self.own_vectors * self.lanes * self.schedule.cluster
        return most if divisible or not self.unknown_sizes else most - self.lanes + 1

    @property
    def reference(self) -> Buffer:
        """Where a row begins in it, between two vectors or with one, a block's vectors begin."""
        return self.streamed()[0]

    def begins_with_vectors(self, buffer: Buffer) -> list[str] | None:
        """Parameters that are multiples of 16 where all of its rows begin with a vector, if it starts with one; None if
        they do not, whatever parameters are."""
        return self._whole([(step, 0) for step in self._steps(buffer)])

    def begins_alike(self, buffer: Buffer) -> list[str] | None:
        """Parameters that are multiples of 16 where its rows begin as those of the reference do, between two vectors or
        with one, if both start with one; None if they do not."""
        return self._whole(list(zip(self._steps(buffer), self._steps(self.reference), strict=True)))

    def _whole(self, pairs: list[tuple[Size, Size]]) -> list[str] | None:
        """Parameters that are multiples of 16 where all differences are whole vectors."""
        apart = [pair for pair in pairs if pair[0] != pair[1]]
        known = ((0 if isinstance(size, str) else size for size in pair) for pair in apart)
        if any((a - b) % self.lanes != 0 for a, b in known):
            return None
        return list(dict.fromkeys(size for pair in apart for size in pair if isinstance(size, str)))

    def _steps(self, buffer: Buffer) -> list[Size]:
        return [buffer.offset, *(buffer.stride_of.get(row, 0) for row in self.rows)]

    @property
    def keeps_columns(self) -> bool:
        """Whether a thread keeps something of its columns from row to row, so that it has the same of all rows."""
        return bool(self.outer or (self.weights() and not self.shifts_weights))

    @property
    def shifts_weights(self) -> bool:
        """Whether weights lie in shared memory so that a thread can take those of any columns, as rows begin between
        two vectors."""
        return self.schedule.weights == "shared" and self.alike > 1 and not self.outer and bool(self.weights())

    @property
    def is_queued(self) -> bool:
        """Whether clusters take row tiles from a queue: a tile has nothing to do with those before it, and row
        reductions keep the blocks of a cluster together, so that none is told of more tiles than it has place for."""
        together = self.schedule.cluster == 1 or any(self.loops.inner)
        return not self.outer and not self.has_parts and together

    @property
    def has_next_rows(self) -> bool:
        """Whether what comes with the copies of a row tile is the first row of the next one: the copying thread alone
        knows which that is. Else tiles are equally far apart."""
        return self.is_queued or self.has_parts

    @property
    def has_parts(self) -> bool:
        """Whether chunks have a part for each place that they have row tiles of: a segment, or the rows of it that
        begin alike."""
        return bool(self.segments) or self.apart > 1

    def most_counted(self, rows: int, segments: int) -> int:
        """The largest number that parts of chunks, and their row tiles, are counted with. rows: of a segment."""
        places, chunks = segments * self.apart, self.schedule.chunks + 1
        tiles = -(-rows // (self.apart * self.schedule.rows_per_tile)) + self.turn
        return max((places * tiles + 1) * chunks, rows + self.apart * self.schedule.rows_per_tile)

    @property
    def part_type(self) -> str:
        """What these are counted in: 32 bits if they are known to do, or if sizes are known at run time only; calls are
        checked then. Divisions of 64 bits take many registers."""
        rows, segments = self.count(self.inside), self.count(self.segments)
        if rows is None or segments is None or self.most_counted(rows, segments) <= MOST_COUNTED:
            return "int"
        return "int64_t"

    @property
    def between_rows(self) -> str:
        """By how much rows of a group's tile are apart, as a factor."""
        return " * apart" if self.apart > 1 else " * groups" if self.is_grouped else ""

    @property
    def is_grouped(self) -> bool:
        """Whether groups of warps, or of lanes, have rows of their own: of a tile each has every so many."""
        return self.schedule.groups > 1

    @property
    def apart(self) -> int:
        """How far the rows of a place are apart: they begin alike, between two vectors or with one, where a thread
        keeps something of its columns. The rows of a group do anyway."""
        return self.alike if self.keeps_columns and not self.is_grouped else 1

    @property
    def turn(self) -> int:
        """Row tiles that a chunk could do in the time from rows of one place to those of another."""
        sums = sum(1 for value in self.outer if self.sums_vectors(value))
        weights, copied, written = map(_sizes, (self.weights(), self.streamed(), self.row_outputs()))
        return turn_tiles(sums, weights, copied, written, self.schedule.rows_per_tile)

    @property
    def alike(self) -> int:
        """How far rows of a segment are apart that begin at the same place between two vectors. Rows that are not
        equally far apart in memory have no such number: more than one, then."""
        steps = [self.reference.stride_of.get(row, 0) for row in self.inside]
        if all(isinstance(s, int) and s % self.lanes == 0 for s in steps):
            return 1
        last = steps[-1]
        if not isinstance(last, int) or not self.is_one_index(self.reference):
            return self.lanes
        return self.lanes // math.gcd(self.lanes, last)

    def is_one_index(self, buffer: Buffer) -> bool:
        """Whether the rows of a segment are equally far apart in memory."""
        strides = [buffer.stride_of.get(row, 0) for row in self.inside]
        for outer, inner, dim in zip(strides, strides[1:], self.inside[1:], strict=False):
            size = self.program.size_of(dim)
            if isinstance(outer, str) or isinstance(inner, str) or isinstance(size, str) or outer != inner * size:
                return False
        return True

    @property
    def finish_warps(self) -> int:
        """Of a block of a finish that is launched by itself."""
        return 32 if self.schedule.chunks >= MANY_CHUNKS else 8

    @property
    def copies_tiles(self) -> bool:
        """Whether the rows of a tile lie together in memory, and are copied at once; else one by one."""
        schedule = self.schedule
        several = schedule.rows_per_tile > 1 and schedule.cluster == 1 and self.apart == 1
        return several and all(map(self.is_packed, self.copied()))

    @property
    def copies_by_lanes(self) -> bool:
        """Whether each lane of the warp that copies has a row of a tile; else one thread has all."""
        return self.is_grouped and not self.copies_tiles

    @property
    def copies_numbers(self) -> bool:
        """Whether numbers of rows are copied one by one."""
        return bool(self.numbers()[1]) and not self.copies_tiles

    @property
    def sums_vanish(self) -> bool:
        """Whether each row reduction is a sum of what is zero where all rows that are copied are. Numbers of a row that
        are not finite make it NaN."""
        numbers = [value.name for value in self.program.values if not self.is_vector(value.name)]
        zero = zero_where(self.program, [b.name for b in self.streamed()], numbers)
        reduced = [self.by_name[name] for names in self.loops.inner for name in names]
        return bool(reduced) and all(value.op == "sum" and value.args[0] in zero for value in reduced)

    def is_packed(self, buffer: Buffer) -> bool:
        """Whether the rows of a segment lie together in memory, or the numbers that rows have one of."""
        sizes = {dim.name: dim.size for dim in self.program.dims}
        width = addresses.count(sizes, self.columns if self.has_columns(buffer) else ())
        return self.is_one_index(buffer) and [buffer.stride_of.get(row, 0) for row in self.inside][-1:] == [width]

    @property
    def stage_offsets(self) -> dict[str, int]:
        """Where what a row tile comes with begins in a stage, by the names of inputs."""
        ends = accumulate(map(self._tile_bytes, self.copied()), initial=0)
        return {buffer.name: at for buffer, at in zip(self.copied(), ends, strict=False)}

    @property
    def stage_bytes(self) -> int:
        """Of a row tile of all inputs that are copied ahead."""
        return rounded_up(sum(map(self._tile_bytes, self.copied())))

    def _tile_bytes(self, buffer: Buffer) -> int:
        return self.slot_bytes(buffer) * (1 if self.copies_tiles else self.schedule.rows_per_tile)

    def slot_bytes(self, buffer: Buffer) -> int:
        """In a stage, of what is copied at once of an input: a row or its number, or those of a tile."""
        rows = self.schedule.rows_per_tile * self.copies_tiles
        if not self.has_columns(buffer):
            return number_bytes(rows)
        return row_bytes(self.own_vectors, self.lanes, itemsize(buffer.dtype), rows)

    def kept(self, *, shifted: bool) -> list[tuple[Buffer, ...]]:
        """Weights in shared memory, one behind the other. Two of 16 bits have words in common where they are shifted:
        half as many loads as of floats, and half of their place."""
        found: list[tuple[Buffer, ...]] = []
        for weight in self.weights():
            alone = (one for one in found if len(one) == 1 and one[0].dtype == weight.dtype)
            other = next(alone, None) if shifted and weight.dtype in HALVES else None
            if other:
                found[found.index(other)] = (*other, weight)
            else:
                found.append((weight,))
        return found

    def kept_size(self, weights: tuple[Buffer, ...]) -> int:
        """Bytes of what a column has of weights in shared memory: floats, where they are cast to these and no more."""
        first, *others = weights
        return 4 if others or first in self.cast_weights() else itemsize(first.dtype)

    def kept_bytes(self, weights: tuple[Buffer, ...]) -> int:
        """Of weights in shared memory."""
        vectors = self.own_vectors + (3 if self.shifts_weights else 1)
        return rounded_up(vectors * self.lanes * self.kept_size(weights))

    def sums_bytes(self, value: Value) -> int:
        """Of what the groups of a block have of a column sum together."""
        return rounded_up((self.own_vectors + 1) * self.lanes * itemsize(value.dtype))

    def cast_weights(self) -> list[Buffer]:
        """Those of which nothing is used but casts to float32."""
        uses = {b.name: [v for v in self.program.values if b.name in v.args] for b in self.weights()}
        return [b for b in self.weights() if all((v.op, v.dtype) == ("cast", "f32") for v in uses[b.name])]


def varies(buffer: Buffer, dims: Iterable[str]) -> bool:
    """Whether elements along some dimensions are not all the same one, as those of an expanded tensor are."""
    strides = buffer.stride_of
    return any(strides.get(dim, 0) != 0 for dim in dims)


def lanes_of(program: Program, columns: tuple[str, ...], rows: tuple[str, ...]) -> int:
    """Elements of a vector: of the largest type that rows are read and written in, what a thread loads at once."""
    sizes = [itemsize(b.dtype) for b in program.buffers if varies(b, columns) and varies(b, rows)]
    return min(MOST_LANES, GRANULE_BYTES // max(sizes, default=2))


def _sizes(buffers: Iterable[Buffer]) -> list[int]:
    return [itemsize(buffer.dtype) for buffer in buffers]


def turn_tiles(
    sums: int, weights: Iterable[int], copied: Iterable[int], written: Iterable[int], rows_per_tile: int
) -> int:
    """Row tiles that a chunk could do while it stores column sums, and loads weights that are shifted. The others:
    bytes of an element of each of them."""
    return round(TURN * (4 * sums + sum(weights)) / (rows_per_tile * (sum(copied) + sum(written))))


def row_bytes(vectors: int, lanes: int, size: int, rows: int) -> int:
    """In a stage, of a row of so many vectors of elements of so many bytes, with a vector more where that begins
    between two of them, and what is copied around it. rows: that are copied at once; zero where one is by itself."""
    return rounded_up((max(1, rows) * vectors + 1) * lanes * size + LINE_BYTES)


def number_bytes(rows: int) -> int:
    """In a stage, of a number of a row. rows: whose numbers are copied at once, with what lies around them; zero where
    one is by itself."""
    return rounded_up(NUMBER_BYTES * rows + LINE_BYTES) if rows else NUMBER_BYTES


def rounded_up(count: int) -> int:
    """Bytes of what the next begins behind in shared memory."""
    return -(-count // LINE_BYTES) * LINE_BYTES
