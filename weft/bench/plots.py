"""Pictures of a benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from weft.bench.report import Row

COLORS = {
    "weft": "#c2410c",
    "inductor": "#2563eb",
    "inductor_pipelined": "#0891b2",
    "eager": "#525252",
    "liger": "#7c3aed",
    "quack": "#15803d",
}
STYLES = {"call": "--"}


def draw_fractions(rows: Sequence[Row], path: Path) -> None:
    """Write a PNG: for every workload and dtype the fraction of copy over the columns, a line a candidate; bars reach
    from the first to the third quartile."""
    panels: dict[str, list[Row]] = {}
    for row in rows:
        panels.setdefault(f"{row.workload}, {row.dtype}", []).append(row)
    wide = min(3, len(panels))
    high = -(-len(panels) // wide)
    figure = Figure(figsize=(1.5 + 4.5 * wide, 3.6 * high), layout="constrained", dpi=120)
    every = list(figure.subplots(high, wide, squeeze=False, sharey=True).flat)
    for axes, (title, own) in zip(every, panels.items(), strict=False):
        _draw_panel(axes, title, sorted(own, key=lambda row: row.columns))
    for axes in every[len(panels) :]:
        axes.axis("off")
    lines = {str(line.get_label()): line for axes in figure.axes for line in axes.get_legend_handles_labels()[0]}
    figure.legend([*lines.values()], [*lines], loc="outside right upper", frameon=False)
    highest = max((f.of_copy.median for row in rows for f in row.candidates if f.of_copy), default=1.0)
    every[0].set_ylim(0, 1.1 * highest)  # of all panels; a bar may reach beyond
    figure.savefig(path, format="png")


def _draw_panel(axes: Axes, title: str, rows: Sequence[Row]) -> None:
    """One workload and dtype; shapes with equal columns stand above each other."""
    names = dict.fromkeys(f.name for row in rows for f in row.candidates if f.of_copy is not None and f.peer != "copy")
    for name in names:
        peer, _, timed = name.partition(" ")
        found = [(row.columns, f.of_copy) for row in rows if (f := row.find(name)) and f.of_copy is not None]
        medians = [spread.median for _, spread in found]
        below = [spread.median - spread.first for _, spread in found]
        above = [spread.third - spread.median for _, spread in found]
        columns = [at for at, _ in found]
        style = STYLES.get(timed, "-")
        drawn = axes.errorbar(columns, medians, (below, above), color=COLORS.get(peer), linestyle=style, label=name)
        drawn.lines[0].set_marker("o")
    axes.axhline(1.0, color="#a3a3a3", linewidth=1)
    axes.set_xscale("log", base=2)
    ticks = sorted({row.columns for row in rows})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_title(title, fontsize="medium")
    axes.set_xlabel("columns N")
    axes.set_ylabel("fraction of copy")
    axes.spines[["top", "right"]].set_visible(False)
