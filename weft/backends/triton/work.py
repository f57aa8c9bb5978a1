"""What a program has to do on a GPU under a split, whatever its schedule: bytes, operations, reductions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from weft.backends.instructions import cost_of
from weft.backends.triton.schedule import VECTOR_BYTES
from weft.ir import dtypes
from weft.ir.halves import in_halves
from weft.ir.online import online_along_rows
from weft.ir.program import Buffer, Value
from weft.ir.rounding import is_rounded_again, rounded_at_once
from weft.ir.structure import KEPT, loops_of
from weft.plan.split import Split

COPIED_BYTES = 4
"""That are copied into shared memory ahead of use at once, at the least."""
INDEX_COST = 4.0
"""Of the index of an element along some of several dimensions, in float32 additions: quotients and remainders by
constants are products, shifts and differences."""
L1_BYTES = 128 * 1024
"""What a multiprocessor's own cache keeps of tables, with what else passes through it."""


@dataclass(frozen=True)
class Strided:
    """A tensor in which neighbours along the columns are none: its elements, bytes of each, whether neighbours along
    the rows of a tile are, and whether it is written."""

    elements: int
    item_bytes: int
    along_rows: bool
    is_written: bool


@dataclass(frozen=True)
class Work:
    """Of a program under a split. moved_bytes: of all tensors, each once. again_bytes: of what loops over the
    columns but the first one load. read_bytes, written_bytes: of an element of rows and columns. item_bytes: of the
    smallest element; tensors: that have these, stores: outputs among them. single: inputs that have some of several
    dimensions along which a tile lies, of which each element is loaded by itself. vector: elements that a thread
    loads at once, as rows are aligned. operations: on an element, in float32 additions; again: those behind a block-
    wide reduction that were computed before it. loops: over the columns of a row. row_sums: along rows;
    block_reductions: of these across warps. sums: column sums; picks: elements of a row that are taken by their
    index; added: segments that are added up for each part of the finish. rows: inside a segment. copied: inputs of
    rows and columns that are copied ahead, where they are, one element at a time. row_operations, vector_operations:
    on a row in a thread, and on what it loads at once, for its place along each of several dimensions and its
    address in each tensor. shared: for each input that some of several dimensions of rows have nothing to do with,
    how many rows in turn have the same of it. strided: tensors in which neighbours along the columns are none.
    tables: inputs that some of the rows have nothing to do with, if multiprocessors' own caches do not hold them, so
    that each program loads them anew: bytes of an element, and how many rows in turn have the same of it."""

    moved_bytes: int
    again_bytes: int
    read_bytes: int
    written_bytes: int
    tensors: int
    stores: int
    single: int
    vector: int
    operations: float
    again: float
    loops: int
    row_sums: int
    block_reductions: int
    sums: int
    added: tuple[int, ...]
    rows: int
    columns: int
    picks: int
    segments: int
    is_split: bool
    copied: int
    row_operations: float
    vector_operations: float
    shared: tuple[int, ...]
    strided: tuple[Strided, ...]
    tables: tuple[tuple[int, int], ...]

    @staticmethod
    @lru_cache(maxsize=KEPT)
    def of(split: Split, looped: bool = False) -> Work:
        """looped: over the columns of a row, whose statistics are online then."""
        rows, columns = split.inside, split.columns
        program = in_halves(online_along_rows(split.program, columns) if looped else split.program)
        loops = loops_of(program, split.rows, columns)
        by_name, types = program.by_name(), program.types()
        fast = (columns or rows)[-1:]

        def is_strided(buffer: Buffer) -> bool:
            return any(buffer.stride_of.get(dim, 1) not in (0, 1) for dim in fast)

        def strided(buffer: Buffer) -> Strided:
            along_rows = any(buffer.stride_of.get(dim, 0) == 1 for dim in rows[-1:])
            is_written = any(o.buffer is buffer for o in program.outputs)
            return Strided(split.sizes.elements(buffer.dims), dtypes.itemsize(buffer.dtype), along_rows, is_written)

        tall = [b for b in program.buffers if set(rows) <= set(b.dims) and (set(b.dims) & set(columns) or not columns)]
        read = [b for b in program.inputs if b in tall]
        # without columns a pointwise kernel has no loop over them, and each row is an element
        alone = not columns and not any(loops.outer)
        named = [tuple(by_name)] if alone else loops.values
        vectors = {name for names in named for name in names if set(types[name][1]) & set(split.rows or columns)}
        sums = [n for names in loops.outer for n in names if set(types[n][1]) & set(columns)]
        finishing = loops.epilogue_blocks(split.rows) if sums else {}
        rough = set(by_name) if is_rounded_again(program) else rounded_at_once(program)
        along = set(columns or rows)

        def by_number(value: Value) -> bool:
            """Whether it is a product with the reciprocal of a number of the row, which is taken once."""
            has_columns = [bool(along & set(types[arg][1])) for arg in value.args]
            return value.op == "div" and value.dtype == "f32" and has_columns == [True, False]

        cost = {n: 1.0 if by_number(by_name[n]) else cost_of(by_name[n], n in rough) for n in vectors}
        every = sum(cost.get(name, 0) for names in named for name in names)
        single = sum(1 for b in program.inputs if 0 < len(along & set(b.dims)) < len(along))
        partly = [
            b for b in program.inputs if set(b.dims) & set(columns) and 0 < len(set(b.dims) & set(rows)) < len(rows)
        ]
        tables = [b for b in program.inputs if set(b.dims) & set(columns) and set(rows) - set(b.dims)]
        large = sum(map(split.sizes.bytes, tables)) > L1_BYTES
        moved = [*program.moved_inputs, *(o.buffer for o in program.outputs)]
        return Work(
            sum(map(split.sizes.bytes, moved)),
            sum(split.sizes.bytes(b) for used in loops.used[1:] for b in read if b.name in used),
            sum(dtypes.itemsize(b.dtype) for b in read),
            sum(dtypes.itemsize(o.buffer.dtype) for o in program.outputs if o.buffer in tall),
            len(tall),
            sum(1 for o in program.outputs if o.buffer in tall),
            single,
            min((_vector(b, columns) for b in tall), default=1),
            sum(cost.values()) + sum(map(len, loops.inner)) + 2 * len(sums) + INDEX_COST * single,
            every - sum(cost.values()),
            len(loops.values),
            sum(map(len, loops.inner)),
            sum(1 for names in loops.inner if names),
            len(sums),
            tuple(split.segment_count // max(1, split.sizes.elements(kept)) for kept in finishing),
            max(1, split.sizes.elements(rows)),
            max(1, split.width),
            sum(1 for value in program.values if value.op == "pick"),
            split.segment_count,
            bool(columns) and not split.has_inner,
            sum(1 for b in program.inputs if _is_copied_singly(b, split)),
            max(0, len(rows) - 1) * (INDEX_COST + len(tall) + len(partly)),
            max(0, len(columns) - 1) * (INDEX_COST + len(tall)),
            tuple(_rows_in_turn(b, split) for b in partly),
            tuple(strided(b) for b in moved if is_strided(b)),
            tuple((dtypes.itemsize(b.dtype), _rows_in_turn(b, split)) for b in tables if large),
        )


def _vector(buffer: Buffer, columns: tuple[str, ...]) -> int:
    """Elements of 16 bytes, or as few of them as let each row begin with a whole vector; one where neighbours are not
    beside each other, or are the same."""
    strides = buffer.stride_of
    if columns and strides.get(columns[-1], 1) not in (0, 1):
        return 1
    if columns and columns[-1] not in strides and set(columns) & set(strides):
        return 1
    known = [s for d, s in strides.items() if d not in columns[-1:] and isinstance(s, int)]
    return math.gcd(VECTOR_BYTES // dtypes.itemsize(buffer.dtype), buffer.offset, *known)


def _is_copied_singly(buffer: Buffer, split: Split) -> bool:
    """Whether loads that run ahead copy elements of a tile one by one, as those of 4 bytes in rows of odd width."""
    varies = set(buffer.dims) & set(split.inside) and set(buffer.dims) & set(split.columns)
    return bool(varies) and dtypes.itemsize(buffer.dtype) >= COPIED_BYTES and _vector(buffer, split.columns) == 1


def _rows_in_turn(buffer: Buffer, split: Split) -> int:
    """Rows one after the other that have the same of an input."""
    count = 1
    for dim in reversed(split.inside):
        if dim in buffer.dims:
            break
        count *= split.sizes.elements((dim,))
    return count
