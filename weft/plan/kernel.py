"""Kernels, schedules and plans as data, with a printed form that parses back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from weft.errors import ParseError, Refusal
from weft.hashing import hash_once
from weft.ir.names import Names, renamed, renamed_program
from weft.ir.parser import parse
from weft.ir.printer import print_program
from weft.ir.program import Program, Size
from weft.target import Target

if TYPE_CHECKING:
    from weft.plan.tuned import Tuned

Scheme = Literal["ONE_SHOT", "STREAM", "LOOP", "COLUMN"]
Kind = Literal["pointwise", "inner", "outer", "mixed-order"]
Finish = Literal["none", "same", "separate"]
Backend = Literal["cpp", "triton"]
Inputs = Literal["normal", "evict_last"]
Keeps = Literal["values", "tiles", "inputs"]

SEPARATOR = "; "
"""Stands between the lines of a kernel that is printed in one; no line has it."""
VECTOR_BYTES = 16
"""What a GPU's thread loads or stores at once."""
VECTOR = 8
"""Neighbouring columns of a GPU's thread: 16 bytes of 16 bits each."""


@hash_once
@dataclass(frozen=True)
class Schedule:
    """How a kernel runs.

    rows, columns: the split of the program's dimensions, slowest first. segments: row dimensions that an outer
    reduction keeps; a chunk never straddles two of them. rows_per_tile: rows along the fastest row dimension that are
    taken together; their column sums are added up first. rows_per_chunk: rows whose column sums are taken together, in
    order, before chunks are combined in order; fixed here, so that results do not depend on how many threads run.
    piece_columns, pieces: of what a GPU's program has of a row at a time, or of a block of a loop over it: so many
    equal pieces of so many columns, a power of two; columns behind the last of the row are masked. held: values kept
    from one loop over the columns to the next instead of being computed again: in the output that they are, or in
    memory of their own. finish: where column sums are completed: in the same launch, in a separate one, or nowhere,
    since there are none or a program has all rows. inputs: whether what is loaded of rows goes from a GPU's caches as
    all else does, or last. keeps: what a GPU's thread keeps in registers: values while row sums are exchanged, and
    weights for all rows, in float32; or of a row only its tiles as they were loaded, from which values are computed
    again, while weights are loaded with each row; or all inputs as they were loaded, weights for all rows. hoisted:
    whether a GPU loads what has no rows, as weights, before row sums are exchanged, not where it is needed, until when
    it holds no registers. register_cap: registers that a GPU's compiler is told a thread may have, unless they spill:
    those that leave room for as many programs as a multiprocessor is to hold; 0 if it is told nothing.
    """

    scheme: Scheme
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    segments: tuple[str, ...] = ()
    rows_per_tile: int = 8
    rows_per_chunk: int = 64
    held: tuple[str, ...] = ()
    finish: Finish = "none"
    backend: Backend = "cpp"
    piece_columns: int = 1
    pieces: int = 1
    warps: int = 0
    stages: int = 0
    chunks: int = 0
    inputs: Inputs = "normal"
    keeps: Keeps = "values"
    hoisted: bool = False
    register_cap: int = 0

    @property
    def tile_columns(self) -> int:
        """Columns of all pieces, those that are masked included."""
        return self.piece_columns * self.pieces

    @property
    def elements(self) -> float:
        """Of a row tile in a thread of a GPU."""
        return self.rows_per_tile * self.tile_columns / (32 * self.warps)

    def but(self, **changes: Any) -> Schedule:
        """The same with other values of some fields, as ``dataclasses.replace`` makes it in ten times the time: a plan
        has thousands of candidates."""
        made = object.__new__(Schedule)
        made.__dict__.update(self.__dict__, **changes)
        made.__dict__.pop("_hash", None)
        return made

    def renamed(self, names: Names) -> Schedule:
        """The same under new names. Raises KeyError for a dimension or a value that has none."""
        rows, columns, segments = (renamed(dims, names.dims) for dims in (self.rows, self.columns, self.segments))
        return replace(self, rows=rows, columns=columns, segments=segments, held=renamed(self.held, names.values))

    def __str__(self) -> str:
        split = (
            f"{self.scheme} rows=({', '.join(self.rows)}) columns=({', '.join(self.columns)}) "
            f"segments=({', '.join(self.segments)}) rows_per_tile={self.rows_per_tile}"
        )
        if self.backend == "cpp":
            return f"{split} rows_per_chunk={self.rows_per_chunk} held=({', '.join(self.held)}) finish={self.finish}"
        rest = "" if self.inputs == "normal" else f" inputs={self.inputs}"
        rest += "" if self.keeps == "values" else f" keeps={self.keeps}"
        rest += " hoisted" if self.hoisted else ""
        rest += f" register_cap={self.register_cap}" if self.register_cap else ""
        return (
            f"{split} finish={self.finish} backend={self.backend} pieces={self.pieces}x{self.piece_columns} "
            f"warps={self.warps} stages={self.stages} chunks={self.chunks}{rest}"
        )


@dataclass(frozen=True)
class Kernel:
    """One launch (two with a separate finish): a program and its schedule. This text is its identity."""

    program: Program
    schedule: Schedule

    @property
    def name(self) -> str:
        return self.program.name

    @property
    def line(self) -> str:
        """The text without newlines, for graphs: generators of code write what a graph has into comments of one line,
        as TorchInductor does above its Triton kernels."""
        return SEPARATOR.join(line.strip() for line in str(self).splitlines())

    def renamed(self, names: Names) -> Kernel:
        """The same under new names; its program's own stays."""
        return Kernel(renamed_program(self.program, names), self.schedule.renamed(names))

    def __str__(self) -> str:
        return f"schedule {self.schedule}\n{print_program(self.program)}"


@dataclass(frozen=True)
class Estimate:
    """What a kernel is predicted to need: counts, and the times in microseconds that a target makes of them.

    bytes_read, bytes_written: of every buffer once. workspace_bytes: of partial column sums, written and read again.
    starts: how often threads start. vector_operations: elements times the cost of what is computed for each, in float32
    additions. row_loops: loops over the columns of one row. chunks: of rows that keep column sums of their own.
    strided_elements: elements that do not lie next to their neighbours. predicted_us: of all, where memory and
    arithmetic go on at the same time; a GPU's strided accesses count as memory.
    """

    kernel: str
    launches: int
    bytes_read: int
    bytes_written: int
    workspace_bytes: int
    starts: int
    vector_operations: float
    row_loops: int
    chunks: int
    strided_elements: int
    start_us: float = 0.0
    memory_us: float = 0.0
    compute_us: float = 0.0
    strided_us: float = 0.0
    predicted_us: float = 0.0


@dataclass(frozen=True)
class Resources:
    """What a kernel holds on a GPU. registers_per_thread: 32 bits each. spill_bytes: of a thread. shared_bytes: of a
    block. None: does not apply. resources_from: the model of ``plan/resources.py``, or the compiler."""

    registers_per_thread: int | None
    spill_bytes: int | None
    shared_bytes: int | None
    resources_from: Literal["model", "ptxas"]


@dataclass(frozen=True)
class Decision:
    """One choice: what was considered, the refusal if it was refused, and the kernels of both ways with their predicted
    times; none where time did not matter."""

    candidate: str
    refusal: Refusal | None
    together: tuple[Estimate, ...] = ()
    apart: tuple[Estimate, ...] = ()

    @property
    def together_us(self) -> float | None:
        return sum(e.predicted_us for e in self.together) if self.together else None

    @property
    def apart_us(self) -> float | None:
        return sum(e.predicted_us for e in self.apart) if self.apart else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "candidate": self.candidate,
            "refusal": None if self.refusal is None else self.refusal.to_dict(),
            "together_us": self.together_us,
            "apart_us": self.apart_us,
            "together": [asdict(e) for e in self.together],
            "apart": [asdict(e) for e in self.apart],
        }


@dataclass(frozen=True)
class Plan:
    """Kernels in launch order, with one estimate each, and every decision on the way.

    decisions: the whole program first, then where it was cut. alternatives: the other splits into rows and columns.
    resources: of each kernel. hints: likely values of run-time parameters that the figures are for.
    products: run-time strides of intermediate buffers as products of sizes, by parameter name. tuned: of each kernel
    the measurement that its schedule is from, or why one that there is was not taken; empty if there is none of any.
    """

    target: Target
    kernels: tuple[Kernel, ...]
    kinds: tuple[Kind, ...]
    estimates: tuple[Estimate, ...]
    decisions: tuple[Decision, ...]
    products: dict[str, tuple[Size, ...]] = field(default_factory=dict[str, tuple[Size, ...]])
    alternatives: tuple[Decision, ...] = ()
    resources: tuple[Resources, ...] = ()
    hints: Mapping[str, int] = field(default_factory=dict[str, int])
    tuned: tuple[Tuned | Refusal | None, ...] = ()

    @property
    def measurements(self) -> tuple[Tuned | Refusal | None, ...]:
        """``tuned``, with an entry for each kernel in any case."""
        return self.tuned or (None,) * len(self.kernels)

    @property
    def predicted_us(self) -> float:
        return sum(e.predicted_us for e in self.estimates)

    @property
    def cuts(self) -> tuple[Refusal, ...]:
        """Why values of the program do not share a kernel, one a cut."""
        return tuple(decision.refusal for decision in self.decisions if decision.refusal is not None)

    def __str__(self) -> str:
        lines = [f"plan for {self.target.name}: {len(self.kernels)} kernel(s), {self.predicted_us:.1f} us predicted"]
        parts = zip(self.kernels, self.kinds, self.estimates, self.measurements, strict=True)
        for kernel, kind, estimate, measured in parts:
            lines += [
                f"kernel {kernel.name}: {kind}",
                f"  schedule {kernel.schedule}",
                f"  reads {estimate.bytes_read} bytes, writes {estimate.bytes_written}, workspace "
                f"{estimate.workspace_bytes}; {estimate.launches} launch(es), {estimate.predicted_us:.1f} us",
            ]
            if measured is not None:
                lines.append(f"  {measured}")
        for decision in self.decisions:
            times = ""
            if decision.together_us is not None and decision.apart_us is not None:
                times = f" (together {decision.together_us:.1f} us, apart {decision.apart_us:.1f} us)"
            lines.append(f"decision {decision.candidate}: {decision.refusal or 'yes'}{times}")
        return "\n".join([*lines, ""])


_KINDS = {"scheme": Scheme, "finish": Finish, "backend": Backend, "inputs": Inputs, "keeps": Keeps}
_PLAIN = Schedule("ONE_SHOT", (), ())


def parse_kernel(text: str) -> Kernel:
    """The kernel that prints as ``text``, or whose ``line`` that is; raises ParseError."""
    first, _, rest = (text if "\n" in text else text.replace(SEPARATOR, "\n")).partition("\n")
    keyword, _, schedule = first.strip().partition(" ")
    if keyword != "schedule":
        raise ParseError(f"line 1: not a schedule: {first!r}")
    return Kernel(parse(rest, first_line=2), parse_schedule(schedule))


def parse_schedule(text: str) -> Schedule:
    """The schedule that prints as ``text``; raises ParseError."""
    fields: dict[str, Any] = {"scheme": text.partition(" ")[0], "hoisted": " hoisted" in text}
    for name, value in re.findall(r"(\w+)=(\(.*?\)|\S+)", text):
        if name == "pieces" and value.count("x") == 1:
            fields["pieces"], fields["piece_columns"] = (int(n) if n.isdecimal() else n for n in value.split("x"))
        elif value.startswith("("):
            fields[name] = tuple(part.strip() for part in value[1:-1].split(",") if part.strip())
        else:
            fields[name] = int(value) if value.isdecimal() else value
    are_typed = all(type(value) is type(getattr(_PLAIN, name, None)) for name, value in fields.items())
    schedule = replace(_PLAIN, **fields) if are_typed else _PLAIN
    if str(schedule) != text or any(getattr(schedule, name) not in get_args(kind) for name, kind in _KINDS.items()):
        raise ParseError(f"line 1: not a schedule: {text!r}")
    return schedule
