"""Shapes drawn at random, and the kernels that a workload may be made of at such a shape."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tools.drawn_regions import ELEMENTS, FEWEST, VECTOR, drawn_region, drawn_widths
from weft.bench.workloads import WORKLOADS
from weft.capture.regions import capture
from weft.capture.trace import trace
from weft.ir.dtypes import TORCH_DTYPES
from weft.ir.online import online
from weft.ir.program import Program
from weft.ir.simplify import simplify
from weft.ir.structure import analyse, split_straddling
from weft.plan.partition import cut, separate
from weft.plan.split import Split
from weft.target import Target

WIDEST = 65536
FEW_ROWS = 4096
"""Up to which a number of rows is drawn, where it does not follow from the elements."""
DTYPES = ("bf16",) * 6 + ("f16", "f32")
REGION = "region"
"""How workloads are called that are drawn themselves, by what they are drawn from and how many tensors they load."""
MOST_LOADS = 10
"""Of these."""


@dataclass(frozen=True, order=True)
class Cell:
    """A workload at a shape. dtype: of ``weft.ir.dtypes``."""

    workload: str
    dtype: str
    rows: int
    columns: int

    def __str__(self) -> str:
        return f"{self.workload} {self.rows}x{self.columns} {self.dtype}"


def drawn_cells(
    seed: int,
    workloads: Sequence[str],
    count: int,
    elements: tuple[int, int] | None = None,
    wide: float = 0.3,
    widest: int = WIDEST,
) -> list[Cell]:
    """Cells of these workloads in turn: widths that are multiples of 8, most of them up to 8192, and others; as many
    rows as make up the data, or few. elements: of the data, the least and the most, evenly by their logarithm; by
    default much, for the most part. wide: the part of them that is of 8192 columns and more, up to ``widest``."""
    draw, found = random.Random(seed), list[Cell]()
    for at in range(count):
        multiple = 1 if draw.random() < 0.2 else VECTOR
        least, most = (8192, widest) if draw.random() < wide else (64, 8192)
        (columns,) = drawn_widths(draw, 1, least, most, multiple)
        of_all = draw.choice(ELEMENTS) if elements is None else math.exp(draw.uniform(*map(math.log, elements)))
        rows = int(of_all) // columns
        if draw.random() < 0.35:
            rows = min(rows, round(math.exp(draw.uniform(0, math.log(FEW_ROWS)))))
        found.append(Cell(workloads[at % len(workloads)], draw.choice(DTYPES), max(1, rows), columns))
    return found


def cells_of_regions(seed: int, count: int, elements: tuple[int, int], most_loads: int = MOST_LOADS) -> list[Cell]:
    """Regions that are drawn, each at a shape of its own; none with roots, which take several times as long of what is
    no positive number. elements: as above. most_loads: inputs of a region."""
    draw, found = random.Random(seed), list[Cell]()
    while len(found) < count:
        ((columns,), (size,)) = drawn_widths(draw, 1, 64, 8192), drawn_widths(draw, 1, *elements)
        name = f"{REGION} {draw.randrange(10**6)} {draw.randint(FEWEST, most_loads)}"
        cell = Cell(name, "mixed", max(1, size // columns), columns)
        program = program_of(cell)
        found += [] if program is None or any(value.op == "sqrt" for value in program.values) else [cell]
    return found


@lru_cache(maxsize=4096)
def program_of(cell: Cell) -> Program | None:
    """What a workload computes at a shape, without any data; None where that is no region: a sum of one row."""
    kind, *numbers = cell.workload.split()
    if kind == REGION:
        seed, loads = map(int, numbers)
        return drawn_region(seed, loads, cell.columns, cell.rows)
    with FakeTensorMode():
        fakes = WORKLOADS[cell.workload].make_inputs((cell.rows, cell.columns), TORCH_DTYPES[cell.dtype], "cpu")
    inputs = [torch.empty_strided(f.shape, f.stride(), dtype=f.dtype) for f in fakes]
    regions = capture(trace(WORKLOADS[cell.workload].fn, inputs).graph, cell.workload).regions
    return simplify(regions[0].program) if regions else None


@lru_cache(maxsize=4096)
def parts_of(cell: Cell, target: Target) -> dict[str, Split]:
    """The passes of a workload under the split whose columns are its fastest dimensions, and what they are where rows
    and columns are apart, by the names of their programs."""
    program = program_of(cell)
    if program is None:
        return {}
    names = tuple(d.name for d in program.dims)
    width = 1
    at = len(names)
    while at > 0 and width < cell.columns:
        at -= 1
        size = program.dims[at].size
        width *= size if isinstance(size, int) else cell.columns
    rows, columns = names[:at], names[at:]
    whole = online(split_straddling(program, rows, columns), rows, columns)
    found: dict[str, Split] = {}
    for part in cut(whole, analyse(whole, rows), {}).programs:
        for each in (part, *separate(part, part.in_order(rows), saving=True)):
            split = Split.of(each, each.in_order(rows), each.in_order(columns), target, {})
            found.setdefault(each.name, split)
    return found
