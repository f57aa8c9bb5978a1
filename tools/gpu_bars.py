"""Bars for cells of the gates: what a workload at a width has to reach, and which cells did not."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console

from tools.drawn_regions import VECTOR
from tools.gpu_drawn import bars_of, spread

FORWARDS = ("rms_norm_forward", "layer_norm_forward", "add_rms_norm_forward", "softmax_forward")
BACKWARDS = ("rms_norm_backward", "layer_norm_backward", "add_rms_norm_backward", "softmax_backward")
OTHERS = ("layer_norm_backward_bias", "modulated_layer_norm_backward", "thunder_layer_norm_backward")
FORWARD_COLUMNS = (256, 512, 1024, 2048, 3072, 4096, 5120, 8192, 12288, 16384)
BACKWARD_COLUMNS = (256, 512, 1024, 2048, 3072, 4096, 5120, 6144, 8192)
OTHER_COLUMNS = (512, 1024, 1152, 2048, 4096, 5120, 8192)
BARS = {
    "forwards": {0: 0.92, 8192: 0.93},
    "backwards": {0: 0.90, 8192: 0.92, 65536: 0.80},
    "layer_norm_backward": {0: 0.87, 8192: 0.88, 65536: 0.80},
    "others": {0: 0.84},
}
"""Fractions of a copy of the same bytes, with 2^26 elements, of rows with more columns than that."""
FORWARD_MEAN_BAR = 0.94
SMALLER_BY, SMALL = 0.03, 2**25
"""How much lower these are with so many. With fewer there is none: a launch takes longer than the data."""
WIDE = ("softmax_forward", 32768, 50257)
"""Rows that are looped over: a cell with bars of its own, and none against a copy."""
WIDE_BARS = {False: 1.4, True: 1.2}
"""TorchInductor's time over weft's there, by whether the number of columns is known at run time only."""
SPEEDUP_BARS = {"inductor": 1.5, "inductor_pipelined": 1.25}
"""Of the backwards together, in geometric mean."""
OTHER_SPEEDUP_BAR = 1.5
"""Of TorchInductor's time, of each of the others, in geometric mean over widths."""
SLOWER_BAR = 1.02
"""No peer may take less than weft's time over this."""
BELOW_EVEN_BAR = 0.06
"""How much less of a copy rows that begin between vectors may reach than those of the even width below theirs."""
RUN_TIME_BAR = 1.03
"""How much longer a kernel may take whose sizes are known at run time only."""


@dataclass(frozen=True)
class Cell:
    """group: that it was drawn for, empty if it was chosen. predicted_us: of weft's kernels; spill_bytes: of a thread
    of these. launches: kernels of weft in a call; schedules: of these. us: times by candidate. untimed: why peers have
    none. wrong: why a result is wrong, or a failure. dynamic: sizes known at run time only."""

    workload: str
    rows: int
    columns: int
    dtype: str
    launches: int = 0
    us: dict[str, float] | None = None
    wrong: str = ""
    dynamic: tuple[str, ...] = ()
    schedules: tuple[str, ...] = ()
    group: str = ""
    predicted_us: float = 0.0
    spill_bytes: int = 0
    untimed: tuple[str, ...] = ()

    @property
    def is_wide(self) -> bool:
        return (self.workload, self.rows, self.columns) == WIDE

    @property
    def schemes(self) -> tuple[str, ...]:
        """Of the schedules."""
        return tuple(schedule.split()[0] for schedule in self.schedules)

    @property
    def elements(self) -> int:
        return self.rows * self.columns

    @property
    def where(self) -> str:
        """As it is called where a bar is missed."""
        if self.has_copy_bar:
            return f"{self.workload} {self.columns}{_marked(self)}"
        return f"{self.workload} {self.rows}x{self.columns}{_marked(self)}"

    @property
    def of_copy(self) -> float:
        return self.us["copy"] / self.us["weft"] if self.us else 0.0

    @property
    def has_copy_bar(self) -> bool:
        """Whether there are rows enough for so many elements, or for as many whole rows as these are."""
        return not self.group and self.rows >= SMALL // self.columns and not self.is_wide

    @property
    def speedups(self) -> dict[str, float]:
        """Times of peers over weft's."""
        us = self.us or {}
        return {peer: us[peer] / us["weft"] for peer in us if peer not in ("copy", "weft")}


def columns_of(name: str) -> tuple[int, ...]:
    """The widths that a workload is measured at, in elements of a row."""
    return FORWARD_COLUMNS if name in FORWARDS else BACKWARD_COLUMNS if name in BACKWARDS else OTHER_COLUMNS


def line(cell: Cell) -> str:
    """One cell as a line of text."""
    where = f"{cell.workload} {cell.rows}x{cell.columns} {cell.dtype}{_marked(cell)}"
    if cell.us is None:
        return f"{where}: {cell.wrong}"
    peers = [f"{peer} {x:.2f}x" for peer, x in cell.speedups.items()]
    schemes = f" {'+'.join(cell.schemes)}" if cell.schemes else ""
    how = f"{cell.launches} launch(es){schemes}"
    return f"{where}: {cell.us['weft']} us, {cell.of_copy:.3f} of copy, {how}  {'  '.join(peers)}"


def _marked(cell: Cell) -> str:
    return f" run-time {' and '.join(cell.dynamic)}" if cell.dynamic else ""


def report(cells: Sequence[Cell]) -> list[str]:
    """Prints means, and returns every bar that was missed."""
    console = Console()
    missed = [f"{line(cell)}" for cell in cells if cell.us is None]
    done = [cell for cell in cells if cell.us is not None]
    missed += _report_drawn(console, [cell for cell in done if cell.group])
    missed += [f"{line(cell)}: left to TorchInductor" for cell in done if not cell.launches]
    for cell in done:
        bar = round(bar_of(cell) - SMALLER_BY * (cell.elements <= SMALL), 2)
        if cell.has_copy_bar and cell.of_copy < bar:
            missed.append(f"{cell.where}: {cell.of_copy:.3f} of copy, bar {bar}")
        missed += _misses_of_wide(cell)
        faster = {peer: x for peer, x in cell.speedups.items() if x * SLOWER_BAR < 1}
        missed += [f"{cell.where}: {1 / x:.3f}x of {peer}'s time" for peer, x in faster.items()]
    done = [cell for cell in done if cell.has_copy_bar]
    missed += _misses_beside_others(done)
    forward = _mean(cell.of_copy for cell in done if cell.workload in FORWARDS)
    if forward is not None:
        console.print(f"forwards: {forward:.3f} of copy in geometric mean, bar {FORWARD_MEAN_BAR}")
        missed += ["forwards in geometric mean"] if forward < FORWARD_MEAN_BAR else []
    bars = [("backwards", BACKWARDS, peer, bar) for peer, bar in SPEEDUP_BARS.items()]
    bars += [(name, (name,), "inductor", OTHER_SPEEDUP_BAR) for name in OTHERS]
    for what, names, peer, bar in bars:
        mean = _mean(cell.speedups[peer] for cell in done if cell.workload in names and peer in cell.speedups)
        if mean is not None:
            text = f"{what}: {mean:.2f}x of {peer} in geometric mean, bar {bar}"
            console.print(text, highlight=False)
            missed += [text] if mean < bar else []
    for reason, count in Counter(reason for cell in cells for reason in cell.untimed).items():
        console.print(f"not timed in {count} cell(s): {reason}", highlight=False, markup=False)
    for each in missed:
        console.print(f"missed: {each}", highlight=False)
    return missed


def _report_drawn(console: Console, cells: Sequence[Cell]) -> list[str]:
    """Prints a line for each group and workload of drawn cells, and what the model predicts; returns what is missed."""
    missed: list[str] = []
    for group in dict.fromkeys(cell.group for cell in cells):
        own = [cell for cell in cells if cell.group == group]
        least, mean = bars_of(group)
        for workload in dict.fromkeys(cell.workload for cell in own):
            alike = [cell for cell in own if cell.workload == workload]
            low, tenth, middle = spread([cell.of_copy for cell in alike])
            text = f"{group}: {workload} {low:.2f} {tenth:.2f} {middle:.3f} of copy in {len(alike)} cells"
            ratios = [1 / cell.speedups["inductor"] for cell in alike if "inductor" in cell.speedups]
            if ratios:
                text += f", {statistics.geometric_mean(ratios):.2f} of inductor's time, at most {max(ratios):.2f}"
            console.print(text, highlight=False)
            missed += [f"{text}: bar {least} at the least"] if low < least else []
        whole = spread([cell.of_copy for cell in own])[2]
        console.print(f"{group}: {whole:.3f} of copy in geometric mean", highlight=False)
        missed += [f"{group}: {whole:.3f} of copy in geometric mean, bar {mean}"] if whole < mean else []
    if cells:
        errors = [abs(math.log(cell.predicted_us / cell.us["weft"])) for cell in cells if cell.us and cell.predicted_us]
        near, far = (sum(error < math.log(most) for error in errors) / len(errors) for most in (1.15, 1.4))
        console.print(f"predicted times: {near:.0%} within 15 %, {far:.0%} within 40 %", highlight=False)
        slower = [cell.speedups["inductor"] for cell in cells if "inductor" in cell.speedups]
        late = sum(x * SLOWER_BAR < 1 for x in slower)
        console.print(f"{late} of {len(slower)} more than 2 % slower than inductor", highlight=False)
        console.print(f"{sum(cell.spill_bytes > 0 for cell in cells)} cells with kernels that spill", highlight=False)
    return missed


def _misses_beside_others(cells: Sequence[Cell]) -> list[str]:
    """Of widths beside the even ones below them, and of sizes known at run time only beside known ones, where both were
    measured."""

    def beside(cell: Cell, columns: int, dynamic: tuple[str, ...]) -> Cell:
        """The one with that width and these sizes, of as many elements but for some; the cell itself without one."""
        wanted = (cell.workload, cell.dtype, columns, dynamic)
        alike = (each for each in cells if (each.workload, each.dtype, each.columns, each.dynamic) == wanted)
        return next((each for each in alike if abs(each.elements / cell.elements - 1) < 0.05), cell)

    missed: list[str] = []
    for cell in cells:
        even = beside(cell, cell.columns // VECTOR * VECTOR, cell.dynamic)
        if cell.of_copy < even.of_copy - BELOW_EVEN_BAR:
            missed.append(f"{cell.where}: {cell.of_copy:.3f} of copy, {even.of_copy:.3f} of {even.columns} columns")
        known = beside(cell, cell.columns, ())
        if known.of_copy > RUN_TIME_BAR * cell.of_copy:
            missed.append(f"{cell.where}: {known.of_copy / cell.of_copy:.3f}x the time of known sizes")
    return missed


def _misses_of_wide(cell: Cell) -> list[str]:
    """Of the cell with bars of its own: so much faster than TorchInductor, and one kernel that loops where the number
    of columns is not known."""
    if not cell.is_wide:
        return []
    is_dynamic = "columns" in cell.dynamic
    bar, speedup, missed = WIDE_BARS[is_dynamic], cell.speedups.get("inductor"), list[str]()
    if is_dynamic and cell.schemes != ("LOOP",):
        missed.append(f"{cell.where}: {'+'.join(cell.schemes) or 'no kernel'} in place of one LOOP")
    if speedup is not None and speedup < bar:
        missed.append(f"{cell.where}: {speedup:.2f}x of inductor, bar {bar}")
    return missed


def bar_of(cell: Cell) -> float:
    """Fraction of a copy that a cell has to reach."""
    kind = "forwards" if cell.workload in FORWARDS else "backwards" if cell.workload in BACKWARDS else "others"
    bars = BARS.get(cell.workload, BARS[kind])
    even = cell.columns % VECTOR == 0  # of others the bar is that of narrow ones, and they are held against even ones
    return bars[max(least for least in bars if least == 0 or (even and cell.columns > least))]


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return statistics.geometric_mean(found) if found else None
