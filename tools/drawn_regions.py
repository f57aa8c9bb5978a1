"""Regions of many loads, drawn at random: up to 40 tensors that meet in pointwise work, row sums and column sums."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from weft.ir.builder import Builder
from weft.ir.program import Dim, Program
from weft.ir.simplify import simplify

ELEMENTS = (2**26, 2**26, 2**26, 2**25, 2**24, 2**22)
"""Of the data, to draw from."""
VECTOR = 8
FEWEST, MOST = 2, 40
"""Inputs of a region."""
NARROWEST, WIDEST = 128, 8192
"""Columns."""
WHOLE = 0.7
"""The part of the inputs that have all rows and columns; others are vectors of either."""
MOST_ROW_SUMS, MOST_COLUMN_SUMS, MOST_WHOLE_OUTPUTS = 2, 3, 3
EARLY, SHARED = 0.3, 0.15
"""How often a column sum is of what any inputs have met in, and how often a value is used once more."""


def drawn_widths(draw: random.Random, count: int, least: int, most: int, multiple: int = VECTOR) -> list[int]:
    """Multiples of a number, evenly by their logarithm."""
    low, high = math.log(least), math.log(most)
    return [max(multiple, round(math.exp(draw.uniform(low, high)) / multiple) * multiple) for _ in range(count)]


def drawn_region(seed: int, loads: int | None = None, columns: int | None = None, rows: int | None = None) -> Program:
    """Everything follows from the seed, but for what is given: how many inputs there are, how wide rows are, and how
    many."""
    draw = random.Random(seed)
    count = draw.randint(FEWEST, MOST)
    multiple = 1 if draw.random() < 0.1 else 8
    (width,) = drawn_widths(draw, 1, NARROWEST, WIDEST, multiple)
    return _Region(draw, loads or count, columns or width, rows).drawn(f"region_{seed}")


@dataclass
class _Region:
    draw: random.Random
    loads: int
    columns: int
    rows: int | None

    def drawn(self, name: str) -> Program:
        draw, rows = self.draw, self.rows or max(1, self.draw.choice(ELEMENTS) // self.columns)
        self.builder = Builder(name, (Dim("m", rows), Dim("n", self.columns)))
        self.values = [self._input(at) for at in range(self.loads)]
        draw.shuffle(self.values)
        row_sums = draw.randint(0, MOST_ROW_SUMS)
        while len(self.values) > 1 or row_sums:
            if row_sums and draw.random() < row_sums / (len(self.values) + row_sums - 1):
                row_sums -= 1
                self._meet(self._row_sum(self._whole()))
            else:
                self._meet(self._taken())
        (last,) = self.values
        every = [v.name for v in self.builder.values if v.dims == ("m", "n")] or [last]
        for at in range(draw.randint(1, MOST_WHOLE_OUTPUTS)):
            self._output(f"out{at}", self._pointwise(draw.choice(every)) if at else last, ("m", "n"))
        for at in range(draw.randint(0, MOST_COLUMN_SUMS)):
            value = draw.choice(every) if draw.random() < EARLY else self._product(last, draw.choice(every))
            if "m" in self.builder.dims_of(value):
                self._output(f"column{at}", self.builder.reduce("sum", value, ("m",)), ("n",))
        return simplify(self.builder.finish())

    def _input(self, at: int) -> str:
        """In float32; the first one has all rows and columns."""
        whole = at == 0 or self.draw.random() < WHOLE
        dims = ("m", "n") if whole else (self.draw.choice("mn"),)
        strides = (self.columns, 1) if whole else (1,)
        buffer = self.builder.input(f"x{at}", self.draw.choice(("bf16", "f32")), dims, strides)
        return self.builder.cast(buffer, "f32")

    def _taken(self) -> str:
        """One of the values that have not met, which mostly is then no longer there."""
        value = self.draw.choice(self.values)
        if len(self.values) > 1 and self.draw.random() >= SHARED:
            self.values.remove(value)
        return value

    def _whole(self) -> str:
        """One of the values with rows and columns."""
        return self.draw.choice([v for v in self.values if len(self.builder.dims_of(v)) == 2])

    def _meet(self, value: str) -> None:
        """Put a value together with another one."""
        at = self.draw.randrange(len(self.values))
        self.values[at] = self._product(value, self.values[at])

    def _product(self, one: str, other: str) -> str:
        return self._pointwise(self.builder.op(self.draw.choice(("add", "mul", "sub")), one, other))

    def _pointwise(self, value: str) -> str:
        ops = ("", "", "", "tanh", "exp", "sqrt", "neg")
        op = self.draw.choice(ops)
        return self.builder.op(op, value) if op else value

    def _row_sum(self, value: str) -> str:
        total = self.builder.reduce("sum", value, ("n",))
        mean = self.builder.op("div", total, self.builder.count(("n",), "f32"))
        return self.builder.op("rsqrt", mean) if self.draw.random() < 0.5 else mean

    def _output(self, name: str, value: str, dims: tuple[str, ...]) -> None:
        strides = (self.columns, 1) if len(dims) > 1 else (1,)
        dtype = self.draw.choice(("bf16", "f32"))
        self.builder.output(name, self.builder.cast(value, dtype), dtype, dims, strides)
