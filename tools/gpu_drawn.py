"""Cells of the gates that are drawn from a seed, and their bars: widths that nobody chose."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from tools.drawn_regions import VECTOR, drawn_widths

ELEMENTS = 2**26
FORWARDS = ("rms_norm_forward", "layer_norm_forward", "add_rms_norm_forward", "softmax_forward")
SUMS = ("rms_norm_backward", "add_rms_norm_backward")
MORE_SUMS = ("layer_norm_backward_bias", "modulated_layer_norm_backward")
WIDE = ("rms_norm_forward", "layer_norm_forward", "softmax_forward")
BACKWARDS = (*SUMS, "layer_norm_backward", "softmax_backward")
FEW_ROWS, FEW_COLUMNS = (1, 3, 16, 64, 100, 700, 4096), (512, 1024, 4096, 7168, 12288)
FEW = ("rms_norm_forward", "layer_norm_forward", "softmax_forward", "rms_norm_backward", "layer_norm_backward")
PERCENTILE = 0.1


@dataclass(frozen=True)
class Group:
    """Cells that are drawn alike. low, high, multiple: of widths; share: of as many as are asked for. least, mean: bars
    for the fraction of a copy of each workload, and for the geometric mean over all."""

    name: str
    workloads: tuple[str, ...]
    low: int
    high: int
    share: float = 1.0
    multiple: int = VECTOR
    least: float = 0.0
    mean: float = 0.0


GROUPS = (
    Group("forward, to 8192", FORWARDS, 256, 8192, least=0.88, mean=0.96),
    Group("backward, to 8192", SUMS, 256, 8192, least=0.85, mean=0.93),
    Group("layer norm backward, to 8192", ("layer_norm_backward",), 256, 8192, least=0.82, mean=0.91),
    Group("softmax backward, to 8192", ("softmax_backward",), 256, 8192, least=0.97),
    Group("more sums backward, to 8192", MORE_SUMS, 256, 8192, least=0.78, mean=0.88),
    Group("forward, to 16384", FORWARDS, 8200, 16384, share=0.25, least=0.88),
    Group("backward, to 16384", (*SUMS, "layer_norm_backward"), 8200, 16384, share=0.25, least=0.80),
    Group("forward, to 32768", WIDE, 16392, 32768, share=0.25, least=0.75),
    Group("forward, to 65536", WIDE, 32776, 65536, share=0.25, least=0.65),
    Group("any forward, to 8192", FORWARDS, 256, 8192, share=0.5, multiple=1, mean=0.80),
    Group("any backward, to 8192", BACKWARDS, 256, 8192, share=0.5, multiple=1, mean=0.62),
)
VOCABULARIES = ((16384, 32000), (16384, 50304), (8192, 128256))
VOCABULARY_BAR = 0.85
"""Of cross-entropy's forward, of a copy of its bytes."""


@dataclass(frozen=True)
class Drawn:
    """A cell and the group that it was drawn for."""

    group: str
    workload: str
    rows: int
    columns: int
    dtype: str = "bf16"


def drawn(seed: int, count: int, groups: Sequence[str] = ()) -> Iterator[Drawn]:
    """count: widths of the groups with a share of one. groups: parts of the names of those that are wanted."""
    for group in GROUPS:
        draw = random.Random(f"{seed} {group.name}")
        widths = drawn_widths(draw, max(1, round(count * group.share)), group.low, group.high, group.multiple)
        if not groups or any(part in group.name for part in groups):
            for workload, columns in product(group.workloads, widths):
                yield Drawn(group.name, workload, ELEMENTS // columns, columns)
    if not groups or any(part in "vocabularies" for part in groups):
        for rows, columns in VOCABULARIES:
            yield Drawn("vocabularies", "cross_entropy_forward", rows, columns)
    if not groups or any(part in "few rows" for part in groups):
        for rows, columns in product(FEW_ROWS, FEW_COLUMNS):
            for workload in FEW:
                yield Drawn("few rows", workload, rows, columns)


def bars_of(name: str) -> tuple[float, float]:
    """The least and the mean of a group; zero where there is none."""
    found = next((group for group in GROUPS if group.name == name), None)
    if found is None:
        return (VOCABULARY_BAR, 0.0) if name == "vocabularies" else (0.0, 0.0)
    return found.least, found.mean


def spread(fractions: Sequence[float]) -> tuple[float, float, float]:
    """The least, the one that a tenth are below, and the geometric mean."""
    ordered = sorted(fractions)
    return ordered[0], ordered[int(PERCENTILE * len(ordered))], statistics.geometric_mean(ordered)
