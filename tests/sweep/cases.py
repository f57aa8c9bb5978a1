"""What the sweep consists of. A case has a text form, by which it is named, sent to a worker and run again."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from tests.sweep.layouts import LAYOUTS
from weft.bench.workloads import WORKLOADS

Mode = Literal["static", "rows", "fuse", "dynamic"]
"""static: one kernel for the sizes at hand. rows: one kernel with a run-time number of rows (or of batches) for all of
ROWS. fuse: ``weft.fuse``, for what is no single region, and for no rows at all. dynamic: ``weft.fuse`` with run-time
sizes throughout, rows and columns both, over several shapes."""

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "f64": torch.float64}
COLUMNS = (1, 3, 64, 257, 768, 1000, 4096, 5120, 50257)
ROWS = (0, 1, 7, 1024)
WIDE, WIDE_ROWS = 262144, (1, 5)
LAYOUT_SHAPES = ((64, 257), (60, 768), (7, 1000))
MEMORY_BYTES = 2 * 1024**3
VALUES = 24
"""Values that the interpreter holds at once, in float64: the most that any workload has."""
STATIC_COLUMNS = ("thunder_layer_norm_backward",)
"""1/N is a literal there, which dynamo cannot format when N is a symbol."""
ILL_CONDITIONED = {
    ("layer_norm_forward", "expanded_columns"),
    ("modulated_layer_norm_forward", "expanded_columns"),
    ("batch_norm_forward", "expanded_rows"),
}
"""Norms of constants: the results are rounding errors over the root of epsilon."""


@dataclass(frozen=True)
class SweepCase:
    """One run. rows, columns: of the data as ``[M, N]``; which rows a mode with run-time rows takes is its own."""

    mode: Mode
    workload: str
    dtype: str
    rows: int
    columns: int
    layout: str = "contiguous"

    def __str__(self) -> str:
        return f"{self.mode}:{self.workload}:{self.dtype}:{self.rows}x{self.columns}:{self.layout}"

    @staticmethod
    def parse(text: str) -> SweepCase:
        """The case of that name. Raises ValueError that says what is wrong with it."""
        parts = text.split(":")
        if len(parts) != 5:
            raise ValueError(f"{text!r}: a case is mode:workload:dtype:MxN:layout")
        mode, workload, dtype, shape, layout = parts
        for word, known in ((mode, get_args(Mode)), (workload, WORKLOADS), (dtype, DTYPES), (layout, LAYOUTS)):
            if word not in known:
                raise ValueError(f"{text!r}: {word!r} is none of {', '.join(known)}")
        rows, columns = map(int, shape.split("x"))
        return SweepCase(mode, workload, dtype, rows, columns, layout)


def fitting_rows(rows: int, columns: int) -> int:
    """As many rows as the interpreter has memory for, at most ``rows``."""
    return min(rows, MEMORY_BYTES // (8 * VALUES * columns))


def batched_rows(rows: int, columns: int) -> int:
    """As ``fitting_rows``, but a multiple of 64: several batches, heads and positions. A single one is compiled in."""
    return max(64, fitting_rows(rows, columns) // 64 * 64)


def all_cases(workloads: Iterable[str], dtypes: Iterable[str], modes: Iterable[str]) -> list[SweepCase]:
    """The cases of these workloads, dtypes and modes, shuffled (always alike): any part of them is a fair sample."""
    workloads, wanted = list(workloads), set(modes)
    cases = [case for w in workloads for d in dtypes for case in _cases(w, d) if case.mode in wanted]
    random.Random(0).shuffle(cases)
    return list(dict.fromkeys(cases))


def _cases(workload: str, dtype: str) -> Iterator[SweepCase]:
    for columns in COLUMNS:
        for rows in ROWS:
            mode: Mode = "static" if rows else "fuse"
            yield SweepCase(mode, workload, dtype, fitting_rows(rows, columns), columns)
        yield SweepCase("rows", workload, dtype, batched_rows(1024, columns), columns)
    for rows in WIDE_ROWS:
        yield SweepCase("static", workload, dtype, rows, WIDE)
    for rows, columns in LAYOUT_SHAPES if dtype in ("f32", "bf16") else LAYOUT_SHAPES[:1]:
        for layout in LAYOUTS:
            if layout != "contiguous" and (workload, layout) not in ILL_CONDITIONED:
                yield SweepCase("static", workload, dtype, rows, columns, layout)
    for layout in ("padded", "offset1", "expanded_small"):
        yield SweepCase("rows", workload, dtype, 300, 257, layout)
    if workload not in STATIC_COLUMNS:
        yield SweepCase("dynamic", workload, dtype, 64, 257)
