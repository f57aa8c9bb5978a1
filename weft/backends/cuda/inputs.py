"""What a CUDA C++ kernel is made of: a program in one pass, and its inputs, by where they are computed with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from weft.backends.cuda.schedule import MOST_LANES, CudaKernel, CudaSchedule
from weft.ir.affine import sums_of_multiples
from weft.ir.dtypes import HALVES, itemsize
from weft.ir.online import online_along_rows
from weft.ir.ops import states_of
from weft.ir.program import Buffer, Program, Value
from weft.ir.rounding import is_rounded_again, rounded_at_once
from weft.ir.structure import loops_of, terms_of
from weft.ir.zeros import zero_where
from weft.lowering.view import KernelView

GRANULE_BYTES = 16
"""What a bulk copy moves a multiple of, from and to a multiple of (PTX ISA, ``cp.async.bulk``); a thread's largest load
and store."""
IN_ONE_PASS = {"sumexp": "max", "m2": "sum"}
"""Reductions of a row with a centre that moves, and those of the same elements that come with them."""


def in_one_pass(kernel: CudaKernel) -> CudaKernel:
    """A kernel as it is computed: it takes sums of exponentials, and their largest, in one loop over the columns, sums
    of squared differences from a mean, and the mean, too, one element of a row by its address, and sums of multiples by
    fused multiply-adds."""
    columns = kernel.schedule.columns
    program = sums_of_multiples(online_along_rows(kernel.program, columns, tuple(IN_ONE_PASS)), columns)
    return replace(kernel, program=program)


class Inputs(KernelView[CudaSchedule]):
    """What a kernel in one pass reads and writes, and what of it waits for what else is computed of a row."""

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

    def cast_weights(self) -> list[Buffer]:
        """Those of which nothing is used but casts to float32."""
        uses = {b.name: [v for v in self.program.values if b.name in v.args] for b in self.weights()}
        return [b for b in self.weights() if all((v.op, v.dtype) == ("cast", "f32") for v in uses[b.name])]

    def kept_size(self, weights: tuple[Buffer, ...]) -> int:
        """Bytes of what a column has of weights in shared memory: floats, where they are cast to these and no more."""
        first, *others = weights
        return 4 if others or first in self.cast_weights() else itemsize(first.dtype)

    @property
    def sums_vanish(self) -> bool:
        """Whether each row reduction is a sum of what is zero where all rows that are copied are. Numbers of a row that
        are not finite make it NaN."""
        numbers = [value.name for value in self.program.values if not self.is_vector(value.name)]
        zero = zero_where(self.program, [b.name for b in self.streamed()], numbers)
        reduced = [self.by_name[name] for names in self.loops.inner for name in names]
        return bool(reduced) and all(value.op == "sum" and value.args[0] in zero for value in reduced)

    def count(self, dims: Iterable[str]) -> int | None:
        """Elements along some dimensions; None if known at run time only."""
        total = 1
        for dim in dims:
            size = self.program.size_of(dim)
            if isinstance(size, str):
                return None
            total *= size
        return total


def varies(buffer: Buffer, dims: Iterable[str]) -> bool:
    """Whether elements along some dimensions are not all the same one, as those of an expanded tensor are."""
    strides = buffer.stride_of
    return any(strides.get(dim, 0) != 0 for dim in dims)


def lanes_of(program: Program, columns: tuple[str, ...], rows: tuple[str, ...]) -> int:
    """Elements of a vector: of the largest type that rows are read and written in, what a thread loads at once."""
    sizes = [itemsize(b.dtype) for b in program.buffers if varies(b, columns) and varies(b, rows)]
    return min(MOST_LANES, GRANULE_BYTES // max(sizes, default=2))
