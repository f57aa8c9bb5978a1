"""What a benchmark found: rows as data, as a table, as JSON and as CSV."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from weft.bench.reason import Reason
from weft.runtime.timing import Spread

QUIET_LOAD = 1.0
"""Runnable processes, over the last minute, beside which two cores still give steady figures."""
CSV_FIELDS = (
    *("workload", "shape", "dtype", "bytes", "candidate", "median_us", "first_quartile_us", "third_quartile_us"),
    *("fraction_of_copy", "ratio_to_weft", "graph_us", "kernels", "correct"),
)


@dataclass(frozen=True)
class Figures:
    """One candidate of a row. of_copy: the copy's time over its own; to_weft: its time over weft's, timed in the same
    way. kernels: launched by a call, where that is known. wrong: how its results differ; such a one has no times."""

    peer: str
    timed: str
    time_us: Spread | None = None
    of_copy: Spread | None = None
    to_weft: Spread | None = None
    graph_us: Spread | None = None
    kernels: int | None = None
    wrong: Reason | None = None

    @property
    def name(self) -> str:
        return f"{self.peer} {self.timed}".strip()

    def to_dict(self) -> dict[str, Any]:
        return {
            "candidate": self.name,
            "median_us": _median(self.time_us),
            "quartiles_us": _quartiles(self.time_us),
            "fraction_of_copy": _median(self.of_copy),
            "fraction_of_copy_quartiles": _quartiles(self.of_copy),
            "ratio_to_weft": _median(self.to_weft),
            "ratio_to_weft_quartiles": _quartiles(self.to_weft),
            "graph_us": _median(self.graph_us),
            "kernels": self.kernels,
            "correct": self.wrong is None,
            "wrong": None if self.wrong is None else str(self.wrong),
        }


@dataclass(frozen=True)
class Row:
    """One function on one shape. bytes: of all inputs and outputs, each once. rounds: that were run. refusals: of peers
    that were not timed; clocks: of a GPU, in MHz, right behind the last timing."""

    workload: str
    shape: str
    columns: int
    dtype: str
    bytes: int
    rounds: int
    candidates: tuple[Figures, ...]
    refusals: tuple[Reason, ...] = ()
    table: str = ""
    clocks: dict[str, int] | None = None

    @property
    def title(self) -> str:
        """The types of a function's inputs say its dtype."""
        return f"{self.workload} {self.shape}" if "[" in self.shape else f"{self.workload} {self.shape} {self.dtype}"

    def find(self, name: str) -> Figures | None:
        return next((figures for figures in self.candidates if figures.name == name), None)

    def to_dict(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("workload", "shape", "dtype", "bytes", "rounds")}
        own |= {} if self.clocks is None else {"clocks": self.clocks}
        own |= {"table": self.table} if self.table else {}
        refusals = [refusal.to_dict() for refusal in self.refusals]
        return own | {"candidates": [f.to_dict() for f in self.candidates], "not_timed": refusals}


@dataclass(frozen=True)
class Benchmark:
    """All rows, and what is needed to compare them with another run's."""

    machine: dict[str, Any]
    versions: dict[str, str]
    protocol: dict[str, Any]
    rows: tuple[Row, ...]

    def to_json(self) -> str:
        whole = {"machine": self.machine, "versions": self.versions, "protocol": self.protocol}
        return json.dumps(whole | {"rows": [row.to_dict() for row in self.rows]}, indent=2, allow_nan=False)


def write_csv(path: Path, rows: Iterable[Row]) -> None:
    """A line a candidate of a row."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, CSV_FIELDS, restval="", extrasaction="ignore")
        writer.writeheader()
        for row in rows:
            for figures in row.candidates:
                spread = figures.time_us
                quartiles = (None, None) if spread is None else (spread.first, spread.third)
                ends = dict(zip(("first_quartile_us", "third_quartile_us"), quartiles, strict=True))
                writer.writerow(row.to_dict() | figures.to_dict() | ends)


def heading(benchmark: Benchmark) -> str:
    """The machine, the versions and the protocol, a line each."""
    machine, protocol = benchmark.machine, benchmark.protocol
    processor = f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads, {machine['vectors']}"
    where = f"{machine['gpu']}; {processor}" if "gpu" in machine else processor
    how = f"at most {protocol['rounds']} rounds, all candidates in turn; medians and their interquartile ranges (IQR)"
    lines = [where, ", ".join(f"{name} {text}" for name, text in benchmark.versions.items()), how]
    if machine["load"] > QUIET_LOAD:
        lines.append(f"NOT QUIET: the load was {machine['load']:.1f} at the beginning; expect figures to move")
    return "\n".join(lines)


def table_of(row: Row) -> Table:
    """A line a candidate. Behind each median is the distance of the quartiles: of times in per cent of the median."""
    clocks = "" if row.clocks is None else f", at {row.clocks['sm_mhz']} MHz, memory {row.clocks['memory_mhz']} MHz"
    title = f"\n{row.title}, {row.bytes / 1e6:.1f} MB, {row.rounds} rounds{clocks}"
    graphs = any(f.graph_us is not None for f in row.candidates)
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, show_edge=False)
    table.add_column("candidate", min_width=16, no_wrap=True)
    for name in ("us", "IQR", *(("graph us",) if graphs else ()), "of copy", "IQR", "/ weft", "IQR", "kernels"):
        table.add_column(name, justify="right", no_wrap=True)
    for figures in row.candidates:
        table.add_row(*_cells(figures, graphs))
    return table


def _cells(figures: Figures, graphs: bool) -> Iterator[str]:
    yield figures.name
    time = figures.time_us
    if time is None:
        yield "WRONG" if figures.wrong else "-"
        return
    yield f"{time.median:.0f}" if time.median >= 1000 else f"{time.median:.1f}"
    spread = 100 * (time.third - time.first) / time.median
    yield f"{spread:.0f} %" if spread >= 10 else f"{spread:.1f} %"
    if graphs:
        yield "-" if figures.graph_us is None else f"{figures.graph_us.median:.1f}"
    for spread in (figures.of_copy, figures.to_weft):
        yield "-" if spread is None else f"{spread.median:.2f}"
        yield "-" if spread is None else f"{spread.third - spread.first:.2f}"
    yield "-" if figures.kernels is None else str(figures.kernels)


def not_timed(rows: Iterable[Row]) -> list[str]:
    """A line for every peer and reason, with the rows it holds for if that is not all of them."""
    rows = list(rows)
    places: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        wrong = [figures.wrong for figures in row.candidates if figures.wrong is not None]
        for refusal, label in [*((r, "wrong") for r in wrong), *((r, _label(r)) for r in row.refusals)]:
            have = "" if refusal.limit is None else f": {refusal.have}, limit {refusal.limit}"
            places.setdefault((f"{label}: {refusal.subject}", f"{refusal.message}{have}"), []).append(row.title)
    lines: list[str] = []
    for (subject, message), names in places.items():
        where = "" if len(names) == len(rows) else f" [{', '.join(dict.fromkeys(names))}]"
        lines.append(f"{subject}: {message}{where}")
    return lines


def _label(refusal: Reason) -> str:
    return "not replayed" if refusal.kind == "not_captured" else "not timed"


def print_rows(console: Console, rows: Sequence[Row]) -> None:
    """A table a row, then what was not timed or is wrong, and why."""
    for row in rows:
        console.print(table_of(row), highlight=False, markup=False)
    for line in not_timed(rows):
        console.out(line, highlight=False)


def _median(spread: Spread | None) -> float | None:
    return None if spread is None else spread.median


def _quartiles(spread: Spread | None) -> list[float] | None:
    return None if spread is None else [spread.first, spread.third]
