"""Written programs through every legal split: buffers that lie in memory as capture rarely has them."""

from __future__ import annotations

import pytest

from tests.fuzz import programs
from weft.ir.parser import parse

PROGRAMS = {
    "offsets, padded rows and transposed results": """program p()
  dim m = 37
  dim n = 40
  input x: f32 [m:45, n:1] + 5
  input y: f32 [m:1, n:37] + 3
  input w: f32 [n:2] + 1
  xy: f32{m, n} = mul(x, y)
  z: f32{m, n} = add(xy, w)
  row: f32{m} = sum[n](z)
  column: f32{n} = sum[m](xy)
  output y0: f32 [m:3] + 2 = row
  output y1: f32 [n:1] + 7 = column
  output y2: f32 [m:1, n:41] + 4 = z
end
""",
    "two run-time sizes": """program p(s0, s1)
  dim m = s0
  dim n = s1
  input x: f32 [m:s1, n:1]
  row: f32{m} = sum[n](x)
  column: f32{n} = sum[m](x)
  output y0: f32 [m:1] = row
  output y1: f32 [n:1] = column
end
""",
    "positions of columns": """program p()
  dim m = 20
  dim n = 40
  input x: f32 [m:40, n:1]
  input target: i32 [m:1]
  position: i32{n} = iota[n]()
  chosen: bool{m, n} = eq(position, target)
  zero: f32{} = const[0.0]()
  where: f32{m, n} = where(chosen, x, zero)
  row: f32{m} = sum[n](where)
  column: f32{n} = sum[m](where)
  output y0: f32 [m:1] = row
  output y1: f32 [n:1] = column
end
""",
    "sums of every segment and of all": """program p()
  dim b = 3
  dim t = 20
  dim n = 40
  input x: f32 [b:800, t:40, n:1]
  row: f32{b, t} = sum[n](x)
  square: f32{b, t, n} = mul(x, x)
  segment: f32{b, n} = sum[t](square)
  all: f32{n} = sum[b, t](x)
  output y0: f32 [b:20, t:1] = row
  output y1: f32 [b:40, n:1] = segment
  output y2: f32 [n:1] = all
end
""",
    "columns of two dimensions": """program p()
  dim m = 20
  dim b = 3
  dim n = 40
  input x: f32 [m:120, b:40, n:1]
  input w: f32 [b:1]
  row: f32{m} = sum[b, n](x)
  column: f32{b, n} = sum[m](x)
  scaled: f32{b, n} = mul(column, w)
  output y0: f32 [m:1] = row
  output y1: f32 [b:40, n:1] = scaled
end
""",
    "a sum over rows of what some rows share": """program p()
  dim b = 3
  dim t = 5
  dim n = 40
  input x: f32 [b:200, t:40, n:1]
  input w: f32 [t:40, n:1]
  column: f32{n} = sum[b, t](x)
  shared: f32{n} = sum[t](w)
  row: f32{b, t} = sum[n](x)
  output y0: f32 [n:1] = column
  output y1: f32 [n:1] = shared
  output y2: f32 [b:5, t:1] = row
end
""",
}
SIZES = {"two run-time sizes": {"s0": 5, "s1": 37}}


def check(name: str, mode: programs.Mode) -> None:
    case = programs.Case(1, parse(PROGRAMS[name]), SIZES.get(name, {}), {}, mode)
    assert programs.is_valid(case)
    assert programs.check(case).kernels > 0


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("mode", ["exact", "random"])
def test_every_legal_split_computes_the_same_and_writes_nothing_else(name: str, mode: programs.Mode) -> None:
    check(name, mode)
