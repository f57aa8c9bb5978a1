"""Programs that no workload is like, for the tests of the Triton backend."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Written:
    """A program as text. columns: of each split it runs under. parameters: of each run. schedules: how many are forced
    beside the one that is chosen. ops: an operation that its plan has to have.
    keeps_names: whether values have their names in the one kernel, which the planner names by operations."""

    text: str
    columns: tuple[tuple[str, ...], ...] = (("n",),)
    parameters: tuple[tuple[int, ...], ...] = ((),)
    schedules: int = 1
    ops: str | None = None
    keeps_names: bool = False


def _program(body: str, parameters: str = "", **dims: int | str) -> str:
    lines = [f"program p({parameters})", *(f"  dim {name} = {size}" for name, size in dims.items())]
    return "\n".join([*lines, *(f"  {line.strip()}" for line in body.strip().splitlines()), "end", ""])


_NORM = """
    input x: bf16 [m:{stride}, n:1]
    input dy: f32 [m:{stride}, n:1]
    wide: f32{{m, n}} = cast(x)
    square: f32{{m, n}} = mul(wide, wide)
    total: f32{{m}} = sum[n](square)
    count: f32{{}} = size[n]()
    mean: f32{{m}} = div(total, count)
    root: f32{{m}} = rsqrt(mean)
    normed: f32{{m, n}} = mul(wide, root)
    output y: f32 [m:{stride}, n:1] = normed
"""
_SUMS = """
    {norm}
    scaled: f32{{m, n}} = mul(normed, dy)
    column: f32{{n}} = sum[m](scaled)
    output dw: f32 [n:1] = column
"""
_STATISTICS = """
    input x: f32 [m:{n}, n:1]
    m2: f32{{n}} = m2[m](x)
    largest: f32{{n}} = max[m](x)
    sumexp: f32{{n}} = sumexp[m](x)
    logarithm: f32{{n}} = log(sumexp)
    shifted: f32{{n}} = add(logarithm, largest)
    output variance: f32 [n:1] = m2
    output logsumexp: f32 [n:1] = shifted
"""
_PICKS = """
    input x: {dtype} [m:{n}, n:1]
    input index: {kind} [m:1]
    places: {kind}{{n}} = iota[n]()
    apart: {kind}{{}} = const[37]()
    at: {kind}{{m}} = mul(index, apart)
    here: bool{{m, n}} = eq(places, at)
    wide: f32{{m, n}} = cast(x)
    zero: f32{{}} = const[0.0]()
    chosen: f32{{m, n}} = where(here, wide, zero)
    picked: f32{{m}} = sum[n](chosen)
    largest: f32{{m}} = max[n](wide)
    below: f32{{m, n}} = sub(wide, largest)
    each: f32{{m, n}} = exp(below)
    total: f32{{m}} = sum[n](each)
    output y: f32 [m:1] = picked
    output z: f32 [m:1] = total
"""

PROGRAMS: dict[str, Written] = {
    "one element of each row, of rows between vectors": Written(
        _program(_PICKS.format(n=1001, kind="i64", dtype="bf16"), m=9, n=1001), schedules=5
    ),
    "one element of each row, of a width known at run time only": Written(
        _program(_PICKS.format(n="s0", kind="i32", dtype="f16"), "s0", m=7, n="s0"),
        parameters=((150,), (2056,)),
        schedules=2,
    ),
    "rows and columns of run-time sizes": Written(
        _program(_SUMS.format(norm=_NORM.format(stride="s1")), "s0, s1", m="s0", n="s1"),
        parameters=((1, 1), (5, 33), (20, 64), (3, 1030), (0, 7)),
        schedules=1,
    ),
    "columns of run-time size, nothing reduced along them": Written(
        _program(
            """
            input x: f32 [m:s1, n:1]
            twice: f32{m, n} = add(x, x)
            column: f32{n} = sum[m](twice)
            output y: f32 [m:s1, n:1] = twice
            output dw: f32 [n:1] = column
            """,
            "s0, s1",
            m="s0",
            n="s1",
        ),
        parameters=((1, 1), (37, 33), (0, 9)),
        schedules=2,
    ),
    "no row": Written(
        _program(_SUMS.format(norm=_NORM.format(stride=40)), "s0", m="s0", n=40), parameters=((0,), (1,))
    ),
    "no columns": Written(
        _program(
            """
            input x: f32 [m:1]
            twice: f32{m} = add(x, x)
            total: f32{} = sum[m](twice)
            output y: f32 [m:1] = twice
            output z: f32 [] = total
            """,
            m=1000,
        ),
        columns=((),),
    ),
    "no rows": Written(
        _program(
            """
            input x: f32 [n:1]
            total: f32{} = sum[n](x)
            share: f32{n} = div(x, total)
            output y: f32 [n:1] = share
            output z: f32 [] + 2 = total
            """,
            n=300,
        ),
        columns=(("n",),),
    ),
    "results are broadcast over rows and over columns": Written(
        _program(
            """
            input x: f32 [m:30, n:1]
            input w: f32 [n:1]
            input v: f32 [m:2]
            row: f32{m} = sum[n](x)
            column: f32{n} = sum[m](x)
            double: f32{n} = add(w, w)
            output rows: f32 [m:30, n:1] = row
            output numbers: f32 [m:30, n:1] = v
            output weights: f32 [m:60, n:2] + 1 = double
            output columns: f32 [n:1] = column
            output weight: f32 [n:1] = w
            output once: f32 [m:1] = v
            """,
            m=21,
            n=30,
        ),
        columns=(("n",), ("m",)),
    ),
    "expanded inputs are reduced": Written(
        _program(
            """
            input x: bf16 [m:0, n:0]
            input y: f32 [m:0, n:1]
            input z: f32 [m:1, n:0]
            wide: f32{m, n} = cast(x)
            sum_x: f32{m} = sum[n](wide)
            sum_y: f32{m} = sum[n](y)
            sum_z: f32{m} = sum[n](z)
            both: f32{m} = add(sum_x, sum_y)
            all: f32{m} = add(both, sum_z)
            column_x: f32{n} = sum[m](wide)
            column_y: f32{n} = sum[m](y)
            column_z: f32{n} = sum[m](z)
            most: f32{n} = max[m](z)
            output rows: f32 [m:1] = all
            output copy: f32 [m:50, n:1] = wide
            output a: f32 [n:1] = column_x
            output b: f32 [n:1] = column_y
            output c: f32 [n:1] = column_z
            output d: f32 [n:1] = most
            """,
            m=19,
            n=50,
        ),
        schedules=3,
    ),
    "names of the language, of the renderer and of pieces": Written(
        _program(
            """
            input tl: f32 [tile:100, range:1]
            input w: f32 [range:1]
            input tl_tile: f32 [tile:1]
            triton: f32{tile, range} = mul(tl, w)
            sum: f32{tile} = sum[range](triton)
            range_a: f32{tile, range} = sub(triton, sum)
            column_exists: f32{tile, range} = mul(range_a, tl_tile)
            column_exists_a: f32{tile, range} = mul(column_exists, tl)
            column_exists_b: f32{tile, range} = add(column_exists_a, tl)
            sum_sum: f32{range} = sum[tile](column_exists_b)
            sum_partial: f32{range} = add(sum_sum, w)
            row_exists: f32{tile} = add(sum, tl_tile)
            sum_more: f32{tile} = sum[range](column_exists_b)
            chunk: f32{tile} = add(sum_more, row_exists)
            output part: f32 [tile:100, range:1] = column_exists_b
            output tl_at: f32 [range:1] = sum_partial
            output float: f32 [tile:1] = chunk
            """,
            tile=23,
            range=100,
        ),
        columns=(("range",),),
        keeps_names=True,
        schedules=3,
    ),
    "a running index has the name of a value": Written(
        _program(
            """
            input x: f32 [a:70, b:7, c:1]
            input y: f32 [b:9, c:1]
            product: f32{a, b, c} = mul(x, y)
            column_a: f32{a} = sum[b, c](product)
            column_exists_b: f32{a} = add(column_a, column_a)
            rest: f32{a, b, c} = sub(product, column_exists_b)
            column_exists_a: f32{b, c} = sum[a](rest)
            output kept: f32 [a:70, b:7, c:1] = rest
            output part: f32 [b:7, c:1] = column_exists_a
            """,
            a=11,
            b=9,
            c=7,
        ),
        columns=(("b", "c"),),
        keeps_names=True,
        schedules=3,
    ),
    "three row dimensions in another order in memory, two of them segments": Written(
        _program(
            """
            input x: f32 [a:200, b:4800, c:600, n:1]
            input scale: f32 [a:400, b:1200, n:2]
            scaled: f32{a, b, c, n} = mul(x, scale)
            total: f32{a, b, c} = sum[n](scaled)
            rest: f32{a, b, c, n} = sub(scaled, total)
            column: f32{a, b, n} = sum[c](rest)
            number: f32{a, b} = sum[c](total)
            output y: f32 [a:6400, b:1600, c:200, n:1] = rest
            output dscale: f32 [a:800, b:200, n:1] = column
            output dshift: f32 [a:4, b:1] = number
            """,
            a=3,
            b=4,
            c=8,
            n=200,
        ),
        schedules=3,
    ),
    "column sums of what follows row sums, of rows that fit no registers": Written(
        _program(
            """
            input x: f32 [m:70000, n:1]
            sum: f32{m} = sum[n](x)
            scaled: f32{m, n} = mul(x, sum)
            column: f32{n} = sum[m](scaled)
            output y: f32 [n:1] = column
            """,
            m=3,
            n=70000,
        ),
        schedules=0,
    ),
    "statistics of columns": Written(_program(_STATISTICS.format(n=70), m=90, n=70), schedules=3, ops="m2"),
    "statistics of columns of few rows": Written(_program(_STATISTICS.format(n=33), m=2, n=33), ops="sumexp"),
    "statistics of columns of run-time size": Written(
        _program(_STATISTICS.format(n="s1"), "s0, s1", m="s0", n="s1"), parameters=((1, 5), (70, 33)), schedules=4
    ),
    "statistics of columns in float64, with segments and row sums": Written(
        _program(
            """
            input x: f64 [b:600, m:20, n:1]
            row: f64{b, m} = sum[n](x)
            rest: f64{b, m, n} = mul(x, row)
            m2: f64{b, n} = m2[m](rest)
            sumexp: f64{b, n} = sumexp[m](x)
            all: f64{n} = m2[b, m](x)
            output rows: f64 [b:30, m:1] = row
            output y: f64 [b:20, n:1] = m2
            output z: f64 [b:20, n:1] = sumexp
            output v: f64 [n:1] = all
            """,
            b=3,
            m=30,
            n=20,
        ),
        schedules=3,
    ),
}

FAR = """program p()
  dim m = {rows}
  dim n = 8
  input x: u8 [m:{apart}, n:1]
  wide: i32{{m, n}} = cast(x)
  sum: i32{{m}} = sum[n](wide)
  output y: i32 [m:1] = sum
end
"""
"""Sums of rows that lie far apart."""
