"""The part of docs/performance.md on wide and odd rows, from files of ``tools.gpu_gates``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Cell = Mapping[str, Any]
FILES = ("backward", "sums", "forward", "odd", "narrow", "run_time", "large", "thunder", "peers")
"""Of ``benchmarks/results``, behind ``h200_rows_``."""

PAGE = """## Wide and odd rows

Fractions of copy of 2^26 elements in bf16, a line a width. Beyond 8192 columns, and at many odd widths, these kernels
are in CUDA C++ ([the note](notes/cuda.md)). Powers of two, 12288 and 24576 were chosen, and
1211, 1226, 1338 and 1899 among sizes known at run time only; all other widths were drawn when the code was finished.
Times of others are of weft before the constants of backwards were fitted again: the schedules of forwards and of
softmax backward are the same since then, those of eight backwards not.

Backwards with column sums, of two and of three or more:

`{commands[backward]}`

`{commands[sums]}`

{backward}

Forwards:

`{commands[forward]}`

{forward}

Odd widths, where rows begin anywhere between two vectors:

`{commands[odd]}`

{odd}

Layer norm backward at narrower widths, multiples of 8 that were drawn:

`{commands[narrow]}`

{narrow}

Rows and columns of a size that is known at run time only, with their time over that of known sizes:

`{commands[run_time]}`

{run_time}

Of 2^28 elements:

`{commands[large]}`

{large}

The layer norm backward as Lightning Thunder traces it ([nvFuser's PR
4663](https://github.com/NVIDIA/Fuser/pull/4663)), of 16384 rows, with TorchInductor's time over weft's:

`{commands[thunder]}`

{thunder}

Times of others over weft's, Quack 0.6.5 (with CuTe DSL 4.7.1) and Liger 0.8.5 among them:

`{commands[peers]}`

{peers}

What the bars of those commands say is missed:

{missed}

"""


def rows_page(folder: Path) -> str:
    """The section; its last line is empty. folder: of the files."""
    found = {name: json.loads((folder / f"h200_rows_{name}.json").read_text()) for name in FILES}
    cells = {name: list[Cell](each["cells"]) for name, each in found.items()}
    missed = dict.fromkeys(line for name in FILES for line in found[name]["missed"])
    return PAGE.format(
        commands={name: each["command"] for name, each in found.items()},
        backward=fractions(cells["backward"] + cells["sums"]),
        forward=fractions(cells["forward"]),
        odd=fractions(cells["odd"]),
        narrow=fractions(cells["narrow"]),
        run_time=run_times(cells["run_time"]),
        large=fractions(cells["large"]),
        thunder=by_width(cells["thunder"], lambda cell: f"{of_copy(cell)} ({over(cell, 'inductor')})"),
        peers=peers(cells["peers"]),
        missed="\n".join(f"- {line}" for line in missed),
    )


def wide_cells(folder: Path) -> list[dict[str, Any]]:
    """Cells of widths that are multiples of 8, for the picture."""
    files = (folder / f"h200_rows_{name}.json" for name in ("backward", "forward"))
    return [cell for file in files for cell in json.loads(file.read_text())["cells"] if cell["us"]]


def of_copy(cell: Cell) -> str:
    return f"{cell['us']['copy'] / cell['us']['weft']:.2f}" if cell["us"] else str(cell["wrong"])


def over(cell: Cell, peer: str) -> str:
    """A peer's time over weft's; nothing where it has none."""
    return f"{cell['us'][peer] / cell['us']['weft']:.2f}" if peer in (cell["us"] or {}) else ""


def fractions(cells: Sequence[Cell]) -> str:
    """A line a width, a column a workload."""
    return by_width(cells, of_copy)


def run_times(cells: Sequence[Cell]) -> str:
    """Of cells whose sizes are known at run time only, beside the others."""
    known = {(cell["workload"], cell["columns"]): cell["us"]["weft"] for cell in cells if not cell["dynamic"]}
    late = [cell for cell in cells if cell["dynamic"]]

    def text(cell: Cell) -> str:
        return f"{of_copy(cell)} ({cell['us']['weft'] / known[cell['workload'], cell['columns']]:.3f})"

    return by_width(late, text)


def by_width(cells: Sequence[Cell], text: Callable[[Cell], str]) -> str:
    """A line a width, a column a workload."""
    names, widths = dict.fromkeys(cell["workload"] for cell in cells), sorted({cell["columns"] for cell in cells})
    by = {(cell["columns"], cell["workload"]): text(cell) for cell in cells}
    lines = [[str(width), *(by.get((width, name), "") for name in names)] for width in widths]
    return table(["columns", *names], lines)


def peers(cells: Sequence[Cell]) -> str:
    """A line a cell, a column a peer that has a time in any."""
    names = [name for name in dict.fromkeys(n for cell in cells for n in cell["us"]) if name not in ("copy", "weft")]
    lines = [[f"{c['workload']} {c['rows']}x{c['columns']}", of_copy(c), *(over(c, n) for n in names)] for c in cells]
    return table(["", "weft, of copy", *names], lines)


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
