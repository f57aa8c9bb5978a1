"""The loop nest of a kernel: typed statements in the order in which they are done, in whatever language.

A statement names values and buffers of the kernel's program. ``piece`` is the part of a row that it is about: a number
for each piece of columns, 0 where there is one or where a value has no columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from weft.ir.printer import print_value
from weft.ir.program import Program, Value


@dataclass(frozen=True)
class Columns:
    """The columns of all pieces of a program, which stay the same for all of its rows."""


@dataclass(frozen=True)
class Early:
    """Where the first columns lie before their row begins, so that accesses begin at a sector. of: what the rows are of
    that begin alike: a chunk or a tile. buffers: without rows, whose addresses that moves."""

    of: str
    buffers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Segment:
    """The segment whose rows a program has."""


@dataclass(frozen=True)
class Rows:
    """The rows of a tile, the one of the program if no loop is over tiles."""

    of_program: bool = False


@dataclass(frozen=True)
class Point:
    """Where the rows of a tile begin in a buffer. shifted: they all begin at the vector that the row begins in."""

    buffers: tuple[str, ...]
    shifted: bool = False


@dataclass(frozen=True)
class Load:
    """Elements of an input into registers."""

    buffer: str
    piece: int = 0


@dataclass(frozen=True)
class Compute:
    """A pointwise value. again: it was computed before, and was not kept."""

    value: str
    piece: int = 0
    again: bool = False


@dataclass(frozen=True)
class Reduce:
    """Row reductions, in one block-wide reduction. lanes: what each is the reduction of, where
    threads have added up blocks of columns; empty where it is an operand."""

    values: tuple[str, ...]
    lanes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Send:
    """What each thread has of row reductions, to all others of the block, or the cluster. Nobody waits."""

    values: tuple[str, ...]


@dataclass(frozen=True)
class Receive:
    """Row reductions, from what all threads have sent."""

    values: tuple[str, ...]


@dataclass(frozen=True)
class Start:
    """What an outer reduction, or the lanes of a row reduction, is of no elements. lanes: of a row reduction."""

    value: str
    piece: int = 0
    lanes: bool = False


@dataclass(frozen=True)
class Accumulate:
    """The rows of a tile into an outer reduction, or a block of columns into the lanes of a row reduction: pieces."""

    value: str
    pieces: tuple[int, ...] = (0,)
    lanes: bool = False


@dataclass(frozen=True)
class Keep:
    """An outer reduction of a chunk into the workspace."""

    value: str
    piece: int = 0


@dataclass(frozen=True)
class Gather:
    """Outer reductions of all chunks from the workspace, in order; side by side, so that none waits for another."""

    values: tuple[str, ...]


@dataclass(frozen=True)
class Total:
    """An outer reduction of all rows, which one program has passed over."""

    value: str


@dataclass(frozen=True)
class Store:
    """A value into an output. complete: made of complete column sums, of no row."""

    output: str
    piece: int = 0
    complete: bool = False


@dataclass(frozen=True)
class Copy:
    """The rows of a tile of inputs into the next stage of shared memory, once that is free."""

    buffers: tuple[str, ...]


@dataclass(frozen=True)
class Arrive:
    """What was copied to the next stage has arrived there."""


@dataclass(frozen=True)
class Release:
    """Nobody needs what a stage holds."""


@dataclass(frozen=True)
class Role:
    """What some warps of a program do beside the others. of: which."""

    body: tuple[Statement, ...]
    of: str


@dataclass(frozen=True)
class GridSync:
    """All programs have come here: what they have put into the workspace can be gathered."""


@dataclass(frozen=True)
class Chunks:
    """A loop over the chunks of rows of all segments that are a program's."""

    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Tiles:
    """A loop over row tiles: those of a chunk, of all rows that one program has, every so many of all, or what a
    program takes from the queue of all. ahead: of which loads run ahead."""

    body: tuple[Statement, ...]
    of: str
    ahead: bool = False


@dataclass(frozen=True)
class Tasks:
    """A loop over blocks of columns, and all combinations of the segments that are kept, of what is complete then."""

    body: tuple[Statement, ...]
    kept: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tile:
    """What is done with the rows of a tile; addresses in it are of these rows."""

    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Behind:
    """What is done with a tile once what lies before it is done with the next one, too."""

    body: tuple[Statement, ...]


@dataclass(frozen=True)
class EachRow:
    """A loop over the rows of a tile."""

    body: tuple[Statement, ...]


@dataclass(frozen=True)
class ColumnLoop:
    """A loop over the columns of a row, a vector at a time. Column sums of a tile start and are kept in it."""

    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Hold:
    """A value, or what was loaded, into memory or registers, for later loops over the columns. lanes: elements of a row
    reduction."""

    value: str
    lanes: bool = False


@dataclass(frozen=True)
class Restore:
    """What an earlier loop over the columns has put somewhere. of: the row reduction whose terms these are, which get
    the centre that all elements of a row have."""

    value: str
    of: str = ""


@dataclass(frozen=True)
class Exponentials:
    """Elements of sums of exponentials that are held become terms: of differences from the largest that each thread
    has, and are added up."""

    values: tuple[str, ...]


@dataclass(frozen=True)
class Blocks:
    """A loop over whole blocks of columns, from the first or the second on."""

    body: tuple[Statement, ...]
    first: int


@dataclass(frozen=True)
class Block:
    """One block of columns. start: the head of a row, whole blocks in a loop, or the rest. pieces: that it has. masked:
    whether some of its columns may not exist. whole: pieces of it all of whose columns do."""

    body: tuple[Statement, ...]
    start: str
    pieces: int
    masked: bool = False
    whole: tuple[int, ...] = ()


@dataclass(frozen=True)
class Rest:
    """A block of columns behind the whole ones, if there are any. after: the least that lies before."""

    body: tuple[Statement, ...]
    after: int


Statement = (
    Columns | Early | Segment | Rows | Point | Load | Compute | Reduce | Start | Accumulate | Keep | Gather | Total
    | Store | Copy | Arrive | Release | Role | GridSync | Chunks | Tiles | Tasks | Tile | Blocks | Block | Rest
    | EachRow | ColumnLoop | Hold | Restore | Exponentials | Send | Receive | Behind
)  # fmt: skip


@dataclass(frozen=True)
class Nest:
    """What a function of a kernel does. program: whose values the statements name."""

    program: Program
    body: tuple[Statement, ...]

    def __str__(self) -> str:
        return "\n".join([f"nest {self.program.name}", *_lines(self.body, 1, self.program.by_name()), ""])

    def statements(self) -> Iterator[Statement]:
        """All of them, those of loops behind the loops."""
        yield from flat(self.body)

    def phases(self) -> tuple[Nest, ...]:
        """What is done before all programs wait for each other, and what behind that."""
        at = [i for i, each in enumerate(self.body) if isinstance(each, GridSync)]
        starts, ends = [0, *(i + 1 for i in at)], [*at, len(self.body)]
        return tuple(replace(self, body=self.body[i:j]) for i, j in zip(starts, ends, strict=True))


SUBJECTS = ("value", "values", "buffer", "buffers", "output")
"""Fields that print without their names."""


def flat(body: Iterable[Statement]) -> Iterator[Statement]:
    """Statements, those of loops behind the loops."""
    for each in body:
        yield each
        yield from flat(getattr(each, "body", ()))


def _lines(body: Sequence[Statement], depth: int, values: Mapping[str, Value]) -> Iterator[str]:
    for each in body:
        made = values.get(each.value) if isinstance(each, Compute) else None
        yield "  " * depth + line(each) + ("" if made is None else f": {print_value(made).partition(': ')[2]}")
        yield from _lines(getattr(each, "body", ()), depth + 1, values)


def line(statement: Statement) -> str:
    """Its kind and its fields, but for those that are as they are by default."""
    texts = [re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(statement).__name__).lower()]
    for field in fields(statement):
        value = getattr(statement, field.name)
        if field.name == "body" or value == field.default:
            continue
        shown = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
        texts.append(shown if field.name in SUBJECTS else f"{field.name}={shown}")
    return " ".join(texts)
