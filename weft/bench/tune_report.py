"""What tuning came to: a table for people, one object for machines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from rich import box
from rich.table import Table

from weft.bench.report import QUIET_LOAD
from weft.bench.tune import Tuning, mean_regret
from weft.errors import Refusal
from weft.integration.report import refusal_lines
from weft.plan.schedule import Schedule


@dataclass(frozen=True)
class TuneReport:
    """A run. seconds: that it took of the budget. not_kept: why the measurements are not in the cache, if so."""

    machine: dict[str, Any]
    versions: dict[str, str]
    device: str
    budget_s: float
    seconds: float
    tunings: tuple[Tuning, ...]
    refusals: tuple[Refusal, ...] = ()
    not_kept: str | None = None

    @property
    def wrong(self) -> bool:
        """Whether any schedule computed something else than the program."""
        return any(t.wrong or any(a.status == "wrong" for a in t.attempts) for t in self.tunings)

    def to_json(self) -> str:
        head = {name: getattr(self, name) for name in ("machine", "versions", "device", "budget_s", "seconds")}
        rest = {
            "mean_regret": mean_regret(self.tunings),
            "not_kept": self.not_kept,
            "kernels": [_to_dict(tuning) for tuning in self.tunings],
            "refusals": [refusal.to_dict() for refusal in self.refusals],
        }
        return json.dumps(head | rest, indent=2, allow_nan=False)


def table_of(tunings: Sequence[Tuning]) -> Table:
    """A line a kernel."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    table.add_column("kernel", overflow="fold", min_width=16)
    for heading in ("timed", "untuned us", "best us", "regret"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("chosen schedule", overflow="fold")
    for tuning in tunings:
        times = (tuning.untuned_us, tuning.best_us)
        table.add_row(
            "\n".join((tuning.job.kernel.name, *(f"  {subject}" for subject in tuning.job.subjects))),
            f"{tuning.timed}/{tuning.candidates}",
            *("-" if us is None else f"{us:.1f}" for us in times),
            "-" if tuning.regret is None else f"{100 * tuning.regret:.1f} %",
            chosen_text(tuning),
        )
    return table


def chosen_text(tuning: Tuning) -> str:
    """In what the chosen schedule differs from the untuned one."""
    if tuning.is_taken:
        return difference(tuning.job.kernel.schedule, tuning.chosen)
    if tuning.final is None:
        return "untuned: not measured"
    if tuning.final.schedule == tuning.job.kernel.schedule:
        return "untuned: the best"
    return f"untuned: {difference(tuning.job.kernel.schedule, tuning.final.schedule)} is within {_margin(tuning)}"


def difference(one: Schedule, other: Schedule) -> str:
    """The fields of ``other`` that ``one`` has otherwise."""
    changed = [f.name for f in fields(one) if getattr(one, f.name) != getattr(other, f.name)]
    return " ".join(f"{name}={_field(getattr(other, name))}" for name in changed)


def lines_of(report: TuneReport) -> list[str]:
    """What the table does not say, a line each."""
    lines: list[str] = []
    regret, measured = mean_regret(report.tunings), [t for t in report.tunings if t.regret is not None]
    if regret is not None:
        kernels = "1 kernel" if len(measured) == 1 else f"{len(measured)} kernels, in geometric mean"
        lines.append(f"regret of the untuned choice: {100 * regret:.1f} % of the best time, {kernels}")
    for tuning in report.tunings:
        if tuning.job.parameters:
            sizes = ", ".join(f"{name} = {size}" for name, size in tuning.job.hints.items())
            lines.append(f"{_name(tuning)}: tuned at {sizes}, and used for all other run-time sizes as well")
    left = sum(tuning.not_tried for tuning in report.tunings)
    if left:
        lines.append(f"not tried: {left} candidates; the budget of {report.budget_s:g} s was over")
    for problem in dict.fromkeys(t.problem for t in report.tunings if t.problem):
        names = [_name(t) for t in report.tunings if t.problem == problem]
        lines.append(f"{names[0] if len(names) == 1 else f'{len(names)} kernels'}: {problem}")
    if report.tunings and report.machine.get("load", 0.0) > QUIET_LOAD:
        lines.append(f"NOT QUIET: the load was {report.machine['load']:.1f} at the beginning; little can be told apart")
    for status, what in (("wrong", "WRONG, never taken"), ("failed", "failed")):
        for tuning in report.tunings:
            found = [attempt for attempt in tuning.attempts if attempt.status == status]
            if found:
                first = f"{difference(tuning.job.kernel.schedule, found[0].schedule)}: {found[0].reason}"
                lines.append(f"{_name(tuning)}: {len(found)} {what}; the first with {first}")
    if not report.tunings:
        lines.append("there is no kernel of weft to tune")
    return lines + refusal_lines(report.refusals)


def margins_line(tunings: Iterable[Tuning]) -> str:
    """The margins that were asked for."""
    found = sorted({f"{100 * t.margin:.1f}" for t in tunings if t.margin is not None}, key=float)
    shown = found[0] if len(found) == 1 else f"{found[0]} to {found[-1]}"
    return f"another schedule is taken if it is faster by more than {shown} %, in three of four rounds at least"


def _margin(tuning: Tuning) -> str:
    return "the margin" if tuning.margin is None else f"the margin of {100 * tuning.margin:.1f} %"


def _name(tuning: Tuning) -> str:
    return f"{tuning.job.kernel.name} ({', '.join(tuning.job.subjects)})"


def _field(value: Any) -> str:
    return f"({', '.join(map(str, value))})" if isinstance(value, tuple) else str(value)


def _to_dict(tuning: Tuning) -> dict[str, Any]:
    counts = {s: sum(attempt.status == s for attempt in tuning.attempts) for s in ("wrong", "failed")}
    return {
        "name": tuning.job.kernel.name,
        "subjects": list(tuning.job.subjects),
        "kernel": str(tuning.job.kernel),
        "sizes": tuning.job.hints,
        "candidates": tuning.candidates,
        "timed": tuning.timed,
        "not_tried": tuning.not_tried,
        **counts,
        "untuned_us": tuning.untuned_us,
        "best_us": tuning.best_us,
        "regret": tuning.regret,
        "noise": None if tuning.final is None else tuning.final.noise,
        "margin": tuning.margin,
        "taken": tuning.is_taken,
        "untuned": str(tuning.job.kernel.schedule),
        "best": None if tuning.final is None else str(tuning.final.schedule),
        "chosen": str(tuning.chosen),
        "problem": tuning.problem,
        "attempts": [
            {"schedule": str(a.schedule), "status": a.status, "ratio": a.ratio, "us": a.us, "reason": a.reason}
            for a in tuning.attempts
        ],
    }
