"""Kernels, schedules and plans as data, with a printed form that parses back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from weft.errors import ParseError, Refusal
from weft.ir.names import Names, renamed_program
from weft.ir.parser import parse
from weft.ir.printer import print_program
from weft.ir.program import Program, Size
from weft.plan.legality import Kind
from weft.plan.schedule import Schedule, parse_schedule
from weft.target import Target

if TYPE_CHECKING:
    from weft.plan.tuned import Tuned

S = TypeVar("S", bound=Schedule, covariant=True)

SEPARATOR = "; "
"""Stands between the lines of a kernel that is printed in one; no line has it."""


@dataclass(frozen=True)
class Kernel(Generic[S]):
    """One launch (two with a separate finish): a program and its schedule, of some backend. This text is its
    identity."""

    program: Program
    schedule: S

    @property
    def name(self) -> str:
        return self.program.name

    @property
    def line(self) -> str:
        """The text without newlines, for graphs: generators of code write what a graph has into comments of one line,
        as TorchInductor does above its Triton kernels."""
        return SEPARATOR.join(line.strip() for line in str(self).splitlines())

    def renamed(self, names: Names) -> Kernel[S]:
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
    block. None: does not apply. resources_from: a backend's model, or the compiler."""

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


def parse_kernel(text: str) -> Kernel:
    """The kernel that prints as ``text``, or whose ``line`` that is; raises ParseError."""
    first, _, rest = (text if "\n" in text else text.replace(SEPARATOR, "\n")).partition("\n")
    keyword, _, schedule = first.strip().partition(" ")
    if keyword != "schedule":
        raise ParseError(f"line 1: not a schedule: {first!r}")
    return Kernel(parse(rest, first_line=2), parse_schedule(schedule))
