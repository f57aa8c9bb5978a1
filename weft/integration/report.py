"""What became of the graphs of this process, newest last."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import fx

from weft.backends.source import Source
from weft.capture.sources import Place, compact, texts
from weft.compiler import Compilation, CompiledRegion
from weft.errors import Refusal
from weft.ir.program import Buffer, Program
from weft.plan.kernel import Estimate, Kernel, Plan, Resources
from weft.plan.legality import kind_of
from weft.plan.tuned import Tuned
from weft.rules import find_rule
from weft.runtime import launch
from weft.runtime.raced import Raced

_LOG = logging.getLogger(__name__)
SOURCE = "weft_source"
"""Where a placeholder has the names of its tensor in the user's program: one."""
GRADIENTS = "weft_gradients"
"""Where a node of a backward has the names of the tensors whose gradient it is."""
SHOWN_LINES, SHOWN_NAMES = 6, 4
"""Of the user's program, a region; of its tensors or modules, a kernel."""


@dataclass(frozen=True)
class ReportedRegion:
    """What is said of a region, without nodes: one of them would keep all of the graph, and what its nodes carry.

    operations: how many nodes it computes. inputs, gradients: by buffer, as far as that is known, what the user's
    program calls a tensor that is read, and those whose gradient is written. The rest is that of ``CompiledRegion`` and
    ``Region``.
    """

    program: Program
    plan: Plan
    sources: tuple[Source, ...]
    operations: int
    inputs: dict[str, tuple[str, ...]]
    gradients: dict[str, tuple[str, ...]]
    places: tuple[Place, ...]
    reduced_at: tuple[Place, ...]
    race: Raced | Refusal | None = None

    @staticmethod
    def of(compiled: CompiledRegion) -> ReportedRegion:
        region = compiled.region
        inputs = _noted(SOURCE, region.program.inputs, region.inputs)
        gradients = _noted(GRADIENTS, [o.buffer for o in region.program.outputs], region.outputs)
        own = compiled.program, compiled.plan, compiled.sources
        return ReportedRegion(
            *own, len(region.members), inputs, gradients, region.places, region.reduced_at, compiled.race
        )


def _shown(buffers: Iterable[Buffer], names: Mapping[str, str]) -> str:
    """Names of buffers for a reader; the parts of a tensor are one."""
    wholes = (names.get(b.name) or names.get(b.within) or b.within or b.name for b in buffers)
    return ", ".join(dict.fromkeys(wholes))


def _noted(key: str, buffers: Sequence[Buffer], nodes: Sequence[fx.Node]) -> dict[str, tuple[str, ...]]:
    """The names that are noted on the nodes behind buffers, by buffer."""
    bound = zip(buffers, nodes, strict=True)
    return {buffer.name: node.meta[key] for buffer, node in bound if key in node.meta}


@dataclass(frozen=True)
class Report:
    """One compiled graph: which operations share a kernel, what was left out and why."""

    regions: tuple[ReportedRegion, ...]
    refusals: tuple[Refusal, ...]

    @staticmethod
    def of(compilation: Compilation) -> Report:
        return Report(tuple(map(ReportedRegion.of, compilation.regions)), compilation.refusals)

    def text(self) -> str:
        """A few lines a region, then what was left out, counted by reason."""
        regions = [line for region in self.regions for line in region_lines([region])]
        return "\n".join([*regions, *refusal_lines(self.refusals)])

    def to_dict(self) -> dict[str, Any]:
        """Lists of regions, kernels, decisions and refusals; ``region`` in the latter is a place in the first."""
        regions, kernels, decisions = [], [], []
        for at, region in enumerate(self.regions):
            plan = region.plan
            regions.append(
                {
                    "name": region.program.name,
                    "operations": region.operations,
                    "lines": list(lines_of([region])),
                    "program": str(region.program),
                    "race": _measurement(region.race),
                }
            )
            sources = [source.text for source in region.sources] or [None] * len(plan.kernels)
            names = buffer_names([region])
            parts = zip(plan.kernels, plan.kinds, plan.estimates, plan.resources, sources, strict=True)
            described = [_kernel(*part, names) for part in parts]
            kernels += [
                {"region": at, "purpose": purpose([region], place)} | own | {"tuned": _measurement(found)}
                for place, (own, found) in enumerate(zip(described, plan.measurements, strict=True))
            ]
            for taken, found in ((True, plan.decisions), (False, plan.alternatives)):
                decisions += [{"region": at, "taken": taken and d.refusal is None} | d.to_dict() for d in found]
        refusals = [refusal.to_dict() for refusal in self.refusals]
        return {"regions": regions, "kernels": kernels, "decisions": decisions, "refusals": refusals}


def buffer_names(equal: Sequence[ReportedRegion]) -> dict[str, str]:
    """What the user's program calls the inputs and outputs of equal regions, by buffer, as far as that is known."""
    read, written = _together(r.inputs for r in equal), _together(r.gradients for r in equal)
    named = {buffer: " or ".join(compact(own)) for buffer, own in read.items()}
    return named | {buffer: f"{' and '.join(compact(own))} gradient" for buffer, own in written.items()}


def _together(named: Iterable[Mapping[str, Iterable[str]]]) -> dict[str, list[str]]:
    """The names that equal regions have, by buffer."""
    found: dict[str, list[str]] = {}
    for own in named:
        for buffer, names in own.items():
            found.setdefault(buffer, []).extend(names)
    return found


def purpose(equal: Sequence[ReportedRegion], at: int) -> str:
    """What one of the kernels of equal regions is for: the gradients it writes, else the modules whose data the regions
    reduce, or ``file.py:12`` where that is in no module; empty where the graph says nothing."""
    gradients = _together(r.gradients for r in equal)
    written = [o.buffer.name for o in equal[0].plan.kernels[at].program.outputs]
    if names := compact(name for buffer in written for name in gradients.get(buffer, ())):
        return f"{_listed(names)} gradient{'s' * (len(names) > 1)}"
    places = (place for region in equal for place in region.reduced_at)
    return _listed(compact(place.module or place.line.partition(": ")[0] for place in places))


def _listed(names: Sequence[str]) -> str:
    left_out = len(names) - SHOWN_NAMES
    return ", ".join(names) if left_out <= 1 else f"{', '.join(names[:SHOWN_NAMES])} and {left_out} more"


def region_lines(equal: Sequence[ReportedRegion]) -> list[str]:
    """The kernels of equal regions, why they are what they are, and the user's lines."""
    plan, count, names = equal[0].plan, equal[0].operations, buffer_names(equal)
    times = f" ({len(equal)} times)" if len(equal) > 1 else ""
    lines = [f"region of {count} operation{'s' * (count != 1)} -> {len(plan.kernels)} kernel(s){times}"]
    for kernel, kind, estimate in zip(plan.kernels, plan.kinds, plan.estimates, strict=True):
        moved = (estimate.bytes_read + estimate.bytes_written) / 1e6
        lines += [
            f"  {kind} kernel, {kernel.schedule.scheme}, {moved:.2f} MB, {estimate.predicted_us:.0f} us predicted",
            f"    reads {_shown(kernel.program.inputs, names)}",
            f"    writes {_shown((o.buffer for o in kernel.program.outputs), names)}",
        ]
    lines += [f"  {line}" for line in (*reasons(plan), *race_lines(equal[0].race))]
    return lines + [f"  from {line}" for line in lines_of(equal)[:SHOWN_LINES]]


def race_lines(race: Raced | Refusal | None) -> list[str]:
    """What a race of a region came to."""
    if race is None:
        return []
    if isinstance(race, Refusal):
        return [f"not raced: {race.message}{f'; {race.compared}' if race.compared else ''}"]
    return [f"raced: {race}"]


def lines_of(equal: Sequence[ReportedRegion]) -> tuple[str, ...]:
    """The places of equal regions in the user's program."""
    return texts(place for region in equal for place in region.places)


def refusal_lines(refusals: Iterable[Refusal]) -> list[str]:
    """What was left out, a line a reason."""
    lines: list[str] = []
    for equal in refusal_groups(refusals):
        first = equal[0]
        figures = f"; {first.compared}" if first.compared else ""
        lines.append(f"left out: {len(equal)} x {first.rule}: {first.message}{figures}")
        if find_rule(first.rule).stage in ("plan", "race"):  # of whole regions
            places = dict.fromkeys(refusal.where for refusal in equal if refusal.where)
            lines += [f"  from {place}" for place in [*places][:SHOWN_LINES]]
    return lines


def refusal_groups(refusals: Iterable[Refusal]) -> list[list[Refusal]]:
    """Refusals with equal reasons and figures together, the commonest first."""
    groups: dict[tuple[str, str, str], list[Refusal]] = {}
    for refusal in refusals:
        groups.setdefault((refusal.rule, refusal.message, refusal.compared), []).append(refusal)
    return sorted(groups.values(), key=lambda equal: -len(equal))


def reasons(plan: Plan) -> list[str]:
    """Why the kernels of a plan are what they are: predicted times of the ways to do it, each cut with its rule, and
    where there is a measurement what became of it."""
    whole = plan.decisions[0]
    lines = [f"cut: {refusal}" for refusal in plan.cuts]
    if whole.together_us is not None and whole.apart_us is not None:
        alone = "with rows and columns in kernels of their own" if len(whole.apart) > 1 else "in an ordinary kernel"
        lines.append(f"taken: {whole.together_us:.1f} us predicted, {whole.apart_us:.1f} us left to Inductor, {alone}")
    for kernel, measured in zip(plan.kernels, plan.measurements, strict=True):
        if isinstance(measured, Tuned):
            lines.append(f"tuned: {kernel.name}: {measured}")
        elif measured is not None:
            lines.append(f"not tuned: {measured}")
    return lines


def _kernel(
    kernel: Kernel, kind: str, estimate: Estimate, held: Resources, source: str | None, names: dict[str, str]
) -> dict[str, Any]:
    program, schedule = kernel.program, kernel.schedule
    own = {
        "name": kernel.name,
        "kind": kind,
        "scheme": schedule.scheme,
        "schedule": str(schedule),
        "inputs": [_buffer(b, program) | {"source": names.get(b.name)} for b in program.inputs],
        "outputs": [_buffer(o.buffer, program) | {"source": names.get(o.buffer.name)} for o in program.outputs],
    }
    counts = {name: value for name, value in asdict(estimate).items() if name != "kernel"}
    return own | counts | asdict(held) | {"text": str(kernel), "source": source}


def _measurement(measured: Tuned | Raced | Refusal | None) -> dict[str, Any] | None:
    if measured is None:
        return None
    if isinstance(measured, Refusal):
        return {"refusal": measured.to_dict()}
    return asdict(measured)


def _buffer(buffer: Buffer, program: Program) -> dict[str, Any]:
    """Sizes that are known at run time only have names."""
    shape = [program.size_of(dim) for dim in buffer.dims]
    return {"name": buffer.name, "dtype": buffer.dtype, "dims": list(buffer.dims), "shape": shape}


@dataclass(frozen=True)
class CachedReport:
    """Kernels of graphs that came compiled from Inductor's cache: weft's compile stages did not run in this process."""

    kernels: tuple[Kernel, ...]

    def text(self) -> str:
        """A line a kernel, and how to see the rest."""
        lines = [f"{len(self.kernels)} kernel(s) of graphs from Inductor's cache"]
        lines += [f"  {kind_of(k.program, k.schedule.columns)} kernel, {k.schedule.scheme}" for k in self.kernels]
        return "\n".join([*lines, "for regions and refusals run with TORCHINDUCTOR_FORCE_DISABLE_CACHES=1"])

    def to_dict(self) -> dict[str, Any]:
        return {"kernels": [{"name": k.name, "schedule": str(k.schedule), "text": str(k)} for k in self.kernels]}


_REPORTS: deque[Report] = deque(maxlen=64)


def record(compilation: Compilation) -> None:
    """Keep the report of a graph, and log it."""
    report = Report.of(compilation)
    _REPORTS.append(report)
    if _LOG.isEnabledFor(logging.INFO):
        _LOG.info("%s", "\n".join(["graph:", *(report.text() or "nothing to fuse").splitlines()]))


def last_reports() -> list[Report | CachedReport]:
    """One report for each of the last graphs weft compiled in this process (forward, backward, ...), oldest first; then
    one for all kernels that came from Inductor's cache, if any ran."""
    cached = [CachedReport(tuple(launch.FOUND_BY_TEXT))] if launch.FOUND_BY_TEXT else []
    return [*_REPORTS, *cached]


def clear_reports() -> None:
    """Forget all reports."""
    _REPORTS.clear()
    launch.FOUND_BY_TEXT.clear()
