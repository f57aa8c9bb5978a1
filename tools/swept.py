"""Kernels of a sweep, as lines of a file: which they are, and what was found of each."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from tools.gpu_cells import Cell, parts_of
from weft.backends.cuda.schedule import CudaSchedule
from weft.backends.triton.demand import Demand
from weft.backends.triton.schedule import TritonSchedule
from weft.plan.schedule import Schedule
from weft.plan.split import Split
from weft.target import Target

TARGET = Target.named("h200")
NUMBERS = ("rows_per_tile", "pieces", "piece_columns", "warps", "stages", "chunks")
FIELDS = ("scheme", *NUMBERS, "finish", "remat", "hoisted", "register_cap")
"""Of Triton's schedules, as columns of a file."""
CLUSTER_FIELDS = (
    *(
        "scheme",
        "rows_per_tile",
        "cluster",
        "warps",
        "groups",
        "blocks",
        "vectors",
        "lanes",
        "stages",
        "chunks",
        "weights",
        "lag",
        "tile",
        "finish",
    ),
)
"""Of schedules of CUDA C++."""
CLUSTER_WORDS = ("weights", "tile", "finish")
"""Those that are no numbers."""


FIGURES = ("arch", "registers", "spill_bytes", "shared_bytes", "us", "copy_us", "wrong", "failure")
PLACES = ("workload", "dtype", "rows", "columns", "part", "place")
CLUSTER_COLUMNS: tuple[str, ...] = (*PLACES, *CLUSTER_FIELDS, *FIGURES, "other_us")
"""Of a file of schedules of CUDA C++. other_us: of Triton's schedule."""
COLUMNS: tuple[str, ...] = (*PLACES, *FIELDS, *FIGURES)
"""Of a file of Triton's schedules. part: the name of the program; place: of the schedule among those of its kernel
that were taken, the shortest predicted time first. registers, spill_bytes, shared_bytes: as ptxas says for the
architecture."""
SWEEPS = Path(__file__).parent / "sweeps"
TIMED, COMPILED = SWEEPS / "h200_schedules.csv", SWEEPS / "ptxas.csv"
"""Schedules timed on an H200 by ``tools.gpu_sweep``; kernels compiled for other GPUs by ``tools.ptxas_sweep``."""
CLUSTERS_TIMED = SWEEPS / "h200_clusters.csv"
"""Schedules of CUDA C++ kernels timed on an H200."""
CLUSTERS_COMPILED = SWEEPS / "cuda_ptxas.csv"
"""Schedules of CUDA C++ kernels compiled for an H200 by ``tools.ptxas_sweep --backend cuda``."""
FITS = Path(str(resources.files("weft.plan"))) / "calibration" / "schedules"
"""What the package reads of what is fitted to them."""
CLUSTERS_FIT = FITS.parent / "clusters" / "h200.json"
"""The same of CUDA C++."""
CLUSTERS_REGISTERS = CLUSTERS_FIT.with_name("registers.json")
"""Weights of registers of CUDA C++ kernels, of any GPU."""


@dataclass(frozen=True)
class Swept:
    """A kernel of a sweep. figures: of its line in the file, by column."""

    cell: Cell
    split: Split
    schedule: TritonSchedule
    figures: dict[str, str]

    @property
    def demand(self) -> Demand:
        return Demand.of(self.split.program, self.schedule)

    @property
    def place(self) -> int:
        return int(self.figures["place"])


def read_clusters(files: Sequence[Path], every: int = 1) -> Iterator[tuple[Cell, Split, CudaSchedule, dict[str, str]]]:
    """Kernels in CUDA C++ of some files that were compiled, with their lines. every: shapes of which those of one are
    read."""
    for path in files:
        places: dict[Cell, int] = {}
        with path.open() as file:
            for row in csv.DictReader(file):
                cell = Cell(row["workload"], row["dtype"], int(row["rows"]), int(row["columns"]))
                if places.setdefault(cell, len(places)) % every or not row["registers"]:
                    continue
                split = parts_of(cell, TARGET)[row["part"]]
                fixed: dict[str, Any] = {k: row[k] if k in CLUSTER_WORDS else int(row[k]) for k in CLUSTER_FIELDS[1:]}
                yield cell, split, CudaSchedule(row["scheme"], *split.dims, **fixed), row  # type: ignore[arg-type]


def line(cell: Cell, part: str, place: int, schedule: Schedule) -> dict[str, Any]:
    """Of a file, without figures."""
    where = {"workload": cell.workload, "dtype": cell.dtype, "rows": cell.rows, "columns": cell.columns}
    found = {"part": part, "place": place} | {key: getattr(schedule, key) for key in fields_of(schedule)}
    return where | {key: int(value) if isinstance(value, bool) else value for key, value in found.items()}


def fields_of(schedule: Schedule) -> tuple[str, ...]:
    return FIELDS if isinstance(schedule, TritonSchedule) else CLUSTER_FIELDS


def read(files: Sequence[Path], every: int = 1) -> Iterator[Swept]:
    """Kernels of some files that were compiled. every: shapes of which those of one are read."""
    for path in files:
        places: dict[Cell, int] = {}
        with path.open() as file:
            for row in csv.DictReader(file):
                cell = Cell(row["workload"], row["dtype"], int(row["rows"]), int(row["columns"]))
                if places.setdefault(cell, len(places)) % every or not row["registers"]:
                    continue
                split = parts_of(cell, TARGET)[row["part"]]
                numbers: dict[str, Any] = {key: int(row[key]) for key in NUMBERS}
                names = {key: row[key] for key in ("finish", "remat")}
                schedule = TritonSchedule(row["scheme"], *split.dims, **numbers, **names)  # type: ignore[arg-type]
                schedule = replace(schedule, hoisted=row["hoisted"] == "1", register_cap=int(row["register_cap"]))
                yield Swept(cell, split, schedule, row)
