"""What became of the graphs of this process, newest last."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from weft.compiler import Compilation
from weft.errors import Refusal
from weft.plan.kernel import Kernel
from weft.plan.schedules import kind_of
from weft.runtime import launch


@dataclass(frozen=True)
class Report:
    """One compiled graph: which operations share a kernel, what was left out and why."""

    compilation: Compilation

    def text(self) -> str:
        """A few lines a region, then what was left out, counted by reason."""
        lines: list[str] = []
        for compiled in self.compilation.regions:
            plan = compiled.plan
            count = len(compiled.region.members)
            lines.append(f"region of {count} operation{'s' * (count != 1)} -> {len(plan.kernels)} kernel(s)")
            for kernel, kind, estimate in zip(plan.kernels, plan.kinds, plan.estimates, strict=True):
                read, written = (", ".join(names) for names in _buffers(kernel))
                moved = (estimate.bytes_read + estimate.bytes_written) / 1e6
                lines += [
                    f"  {kind} kernel, {kernel.schedule.scheme}, "
                    f"{moved:.2f} MB, {estimate.predicted_us:.0f} us predicted",
                    f"    reads {read}",
                    f"    writes {written}",
                ]
            for decision in plan.decisions:
                if decision.refusal is not None:
                    lines.append(f"  cut: {decision.refusal}")
            lines += [f"  from {line}" for line in compiled.region.lines[:6]]
        groups: dict[tuple[str, str], list[Refusal]] = {}
        for refusal in self.compilation.refusals:
            groups.setdefault((refusal.rule, refusal.message), []).append(refusal)
        for (rule, message), refusals in sorted(groups.items(), key=lambda item: -len(item[1])):
            figures = "".join(f"; have {r.have}, limit {r.limit}" for r in refusals[:1] if r.have is not None)
            lines.append(f"left out: {len(refusals)} x {rule}: {message}{figures}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        regions = [
            {
                "operations": len(c.region.members),
                "lines": list(c.region.lines),
                "kernels": [
                    {"name": k.name, "kind": kind, "schedule": str(k.schedule), "text": str(k), "source": s.text}
                    | vars(e)
                    for k, kind, e, s in zip(c.plan.kernels, c.plan.kinds, c.plan.estimates, c.sources, strict=True)
                ],
                "decisions": [d.to_dict() for d in c.plan.decisions],
            }
            for c in self.compilation.regions
        ]
        return {"regions": regions, "refusals": [r.to_dict() for r in self.compilation.refusals]}


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


def _buffers(kernel: Any) -> tuple[list[str], list[str]]:
    program = kernel.program
    return [b.name for b in program.inputs], [o.buffer.name for o in program.outputs]


_REPORTS: deque[Report] = deque(maxlen=64)


def record(compilation: Compilation) -> None:
    _REPORTS.append(Report(compilation))


def last_reports() -> list[Report | CachedReport]:
    """One report for each of the last graphs weft compiled in this process (forward, backward, ...), oldest first; then
    one for all kernels that came from Inductor's cache, if any ran."""
    cached = [CachedReport(tuple(launch.FOUND_BY_TEXT))] if launch.FOUND_BY_TEXT else []
    return [*_REPORTS, *cached]


def clear_reports() -> None:
    """Forget all reports."""
    _REPORTS.clear()
    launch.FOUND_BY_TEXT.clear()
