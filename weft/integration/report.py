"""What became of the graphs of this process, newest last."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from weft.compiler import Compilation, CompiledRegion
from weft.errors import Refusal
from weft.ir.program import Buffer, Program
from weft.plan.kernel import Estimate, Kernel, Plan, Resources
from weft.plan.schedules import kind_of
from weft.plan.tuned import Tuned
from weft.render.source import Source
from weft.runtime import launch

_LOG = logging.getLogger(__name__)
SOURCE = "weft_source"
"""Where a placeholder has the name of its tensor in the user's program."""
SHOWN_LINES = 6
"""Of the user's program, a region."""


@dataclass(frozen=True)
class ReportedRegion:
    """What is said of a region, without nodes: one of them would keep all of the graph, and what its nodes carry.

    operations: how many nodes it computes. names: what the user's program calls its inputs, by buffer, as far as that
    is known. The rest is that of ``CompiledRegion`` and ``Region``.
    """

    program: Program
    plan: Plan
    sources: tuple[Source, ...]
    operations: int
    names: dict[str, str]
    lines: tuple[str, ...]

    @staticmethod
    def of(compiled: CompiledRegion) -> ReportedRegion:
        region = compiled.region
        inputs = zip(region.program.inputs, region.inputs, strict=True)
        names = {buffer.name: node.meta[SOURCE] for buffer, node in inputs if SOURCE in node.meta}
        return ReportedRegion(
            compiled.program, compiled.plan, compiled.sources, len(region.members), names, region.lines
        )

    def text(self) -> list[str]:
        """The kernels of a region, why they are what they are, and the user's lines."""
        plan, count = self.plan, self.operations
        lines = [f"region of {count} operation{'s' * (count != 1)} -> {len(plan.kernels)} kernel(s)"]
        for kernel, kind, estimate in zip(plan.kernels, plan.kinds, plan.estimates, strict=True):
            moved = (estimate.bytes_read + estimate.bytes_written) / 1e6
            lines += [
                f"  {kind} kernel, {kernel.schedule.scheme}, {moved:.2f} MB, {estimate.predicted_us:.0f} us predicted",
                f"    reads {', '.join(self.names.get(b.name, b.name) for b in kernel.program.inputs)}",
                f"    writes {', '.join(o.buffer.name for o in kernel.program.outputs)}",
            ]
        lines += [f"  {line}" for line in reasons(plan)]
        return lines + [f"  from {line}" for line in self.lines[:SHOWN_LINES]]


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
        regions = [line for region in self.regions for line in region.text()]
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
                    "lines": list(region.lines),
                    "program": str(region.program),
                }
            )
            sources = [source.text for source in region.sources] or [None] * len(plan.kernels)
            parts = zip(plan.kernels, plan.kinds, plan.estimates, plan.resources, sources, strict=True)
            described = [_kernel(*part, region.names) for part in parts]
            kernels += [
                {"region": at} | own | {"tuned": _measurement(found)}
                for own, found in zip(described, plan.measurements, strict=True)
            ]
            for taken, found in ((True, plan.decisions), (False, plan.alternatives)):
                decisions += [{"region": at, "taken": taken and d.refusal is None} | d.to_dict() for d in found]
        refusals = [refusal.to_dict() for refusal in self.refusals]
        return {"regions": regions, "kernels": kernels, "decisions": decisions, "refusals": refusals}


def refusal_lines(refusals: Iterable[Refusal]) -> list[str]:
    """What was left out, a line a reason."""
    lines: list[str] = []
    for equal in refusal_groups(refusals):
        first = equal[0]
        figures = f"; {first.compared}" if first.compared else ""
        lines.append(f"left out: {len(equal)} x {first.rule}: {first.message}{figures}")
    return lines


def refusal_groups(refusals: Iterable[Refusal]) -> list[list[Refusal]]:
    """Refusals with equal reasons together, the commonest first."""
    groups: dict[tuple[str, str], list[Refusal]] = {}
    for refusal in refusals:
        groups.setdefault((refusal.rule, refusal.message), []).append(refusal)
    return sorted(groups.values(), key=lambda equal: -len(equal))


def reasons(plan: Plan) -> list[str]:
    """Why the kernels of a plan are what they are: predicted times of the ways to do it, each cut with its rule, and
    where there is a measurement what became of it."""
    whole = plan.decisions[0]
    lines = [f"cut: {refusal}" for refusal in plan.cuts]
    if whole.together_us is not None and whole.apart_us is not None:
        alone = "rows and columns in kernels of their own" if len(whole.apart) > 1 else "an ordinary kernel"
        apart = "" if whole.apart_us == whole.together_us else f", {whole.apart_us:.1f} us with {alone}"
        lines.append(f"taken: {whole.together_us:.1f} us predicted{apart}")
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
        "outputs": [_buffer(o.buffer, program) for o in program.outputs],
    }
    counts = {name: value for name, value in estimate.to_dict().items() if name != "kernel"}
    return own | counts | held.to_dict() | {"text": str(kernel), "source": source}


def _measurement(measured: Tuned | Refusal | None) -> dict[str, Any] | None:
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
