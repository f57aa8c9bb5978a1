"""Passes, cuts, stages and loops of programs under a split, worked out by hand."""

from __future__ import annotations

import pytest
import torch

from weft.ir import Program
from weft.ir.interpret import interpret
from weft.ir.parser import parse
from weft.ir.structure import Cut, Structure, analyse, is_inner, is_outer, loops_of, split_straddling

ROWS, COLUMNS = ("m",), ("n",)
DATA = """
  dim m = 6
  dim n = 8
  input x: f32 [m:8, n:1]
  input y: f32 [m:8, n:1]
  input w: f32 [n:1]
"""
SEGMENTS = """
  dim b = 3
  dim m = 4
  dim n = 8
  input x: f32 [b:32, m:8, n:1]
  input w: f32 [b:8, n:1]
"""


def program(data: str, body: str) -> Program:
    return parse(f"program p()\n{data}\n{body}\nend\n")


MIXED = program(
    DATA,
    """
  xy: f32{m, n} = mul(x, y)
  row: f32{m} = sum[n](xy)
  hat: f32{m, n} = mul(x, row)
  column: f32{n} = sum[m](hat)
  scaled: f32{n} = mul(column, w)
  output out0: f32 [m:8, n:1] = hat
  output out1: f32 [n:1] = scaled
""",
)
BATCH_NORM = program(
    DATA,
    """
  total: f32{n} = sum[m](x)
  mean: f32{n} = mul(total, w)
  centred: f32{m, n} = sub(x, mean)
  square: f32{m, n} = mul(centred, centred)
  squares: f32{n} = sum[m](square)
  rstd: f32{n} = rsqrt(squares)
  hat: f32{m, n} = mul(centred, rstd)
  output out0: f32 [m:8, n:1] = hat
""",
)
SOFTMAX = program(
    DATA,
    """
  largest: f32{m} = max[n](x)
  below: f32{m, n} = sub(x, largest)
  weight: f32{m, n} = exp(below)
  total: f32{m} = sum[n](weight)
  share: f32{m} = reciprocal(total)
  result: f32{m, n} = mul(weight, share)
  output out0: f32 [m:8, n:1] = result
""",
)


def epilogue(found: Structure) -> set[str]:
    return {name for name in found.dropped if found.is_epilogue(name)}


def shapes(given: Program) -> list[object]:
    """Everything about the values but their names."""
    return [(v.op, v.attributes, v.dtype, v.dims) for v in given.values]


# passes and cuts


def test_inner_and_outer_reductions_are_one_pass() -> None:
    found = analyse(MIXED, ROWS)
    assert found.cuts == []
    assert found.pass_count == 1
    assert set(found.passes.values()) == {0}
    assert epilogue(found) == {"column", "scaled"}
    assert found.dropped["scaled"] == {"m"}


def test_stages_count_row_reductions_and_outer_ones_do_not_add_any() -> None:
    stages = analyse(MIXED, ROWS).stages
    assert {name: stages[name] for name in ("x", "xy", "row", "hat", "column", "scaled")} == {
        "x": 0,
        "xy": 0,
        "row": 1,
        "hat": 1,
        "column": 1,
        "scaled": 1,
    }
    assert [analyse(SOFTMAX, ROWS).stages[n] for n in ("x", "largest", "weight", "total", "share", "result")] == [
        *(0, 1, 1),
        *(2, 2, 2),
    ]


def test_pure_values_come_from_inputs_alone() -> None:
    pure = analyse(MIXED, ROWS).pure
    assert {name for name, is_pure in pure.items() if is_pure} == {"x", "y", "w", "xy"}


def test_a_value_over_rows_waits_for_the_column_sum_it_depends_on() -> None:
    found = analyse(BATCH_NORM, ROWS)
    assert found.cuts == [
        Cut("centred", "mean", "outer_dependency", ("m",)),
        Cut("hat", "rstd", "outer_dependency", ("m",)),
    ]
    assert found.pass_count == 3
    names = ("total", "mean", "centred", "square", "squares", "rstd", "hat")
    assert [found.passes[n] for n in names] == [0, 0, 1, 1, 1, 1, 2]


def test_the_same_program_is_one_pass_with_rows_and_columns_swapped() -> None:
    found = analyse(BATCH_NORM, COLUMNS)
    assert found.cuts == []
    assert found.pass_count == 1
    assert found.stages["hat"] == 2
    assert epilogue(found) == set()


def test_a_later_pass_starts_without_stages_epilogue_or_second_cut() -> None:
    found = analyse(
        program(
            DATA,
            """
  row: f32{m} = sum[n](x)
  hat: f32{m, n} = mul(x, row)
  column: f32{n} = sum[m](hat)
  back: f32{m, n} = mul(hat, column)
  further: f32{m, n} = add(back, y)
  again: f32{m} = sum[n](further)
  output out0: f32 [m:1] = again
""",
        ),
        ROWS,
    )
    assert [cut.value for cut in found.cuts] == ["back"]
    assert (found.stages["hat"], found.stages["back"], found.stages["further"], found.stages["again"]) == (1, 0, 0, 1)
    assert found.passes["again"] == 1
    assert epilogue(found) == {"column"}


def test_values_of_two_earlier_passes_meet_without_a_cut() -> None:
    """A value that reads from passes 0 and 1 is in pass 1: what pass 0 made is in memory by then."""
    found = analyse(
        program(
            DATA,
            """
  column: f32{n} = sum[m](x)
  centred: f32{m, n} = sub(x, column)
  both: f32{m, n} = mul(centred, column)
  output out0: f32 [m:8, n:1] = both
""",
        ),
        ROWS,
    )
    assert [cut.value for cut in found.cuts] == ["centred"]
    assert found.passes["both"] == 1


@pytest.mark.parametrize(
    ("reduction", "dims"),
    [("total: f32{} = sum[n](scaled)", ("n",)), ("total: f32{} = max[n](scaled)", ("n",))],
)
def test_a_reduction_of_a_column_sum_is_the_next_pass(reduction: str, dims: tuple[str, ...]) -> None:
    body = f"""
  column: f32{{n}} = sum[m](x)
  scaled: f32{{n}} = mul(column, w)
  {reduction}
  output out0: f32 [] = total
"""
    found = analyse(program(DATA, body), ROWS)
    assert found.cuts == [Cut("total", "scaled", "epilogue_reduction", dims)]
    assert found.passes["total"] == 1


def test_a_column_sum_of_segment_sums_is_the_next_pass() -> None:
    body = """
  segment: f32{b, n} = sum[m](x)
  total: f32{n} = sum[b](segment)
  output out0: f32 [n:1] = total
"""
    found = analyse(program(SEGMENTS, body), ("b", "m"))
    assert found.cuts == [Cut("total", "segment", "epilogue_reduction", ("b",))]
    assert found.passes == {"x": 0, "w": 0, "segment": 0, "total": 1}


def test_a_segment_sum_may_be_used_over_its_own_segments() -> None:
    """The epilogue keeps the row dimension b; only m, which the sum dropped, is out of reach."""
    body = """
  segment: f32{b, n} = sum[m](x)
  scaled: f32{b, n} = mul(segment, w)
  output out0: f32 [b:8, n:1] = scaled
"""
    found = analyse(program(SEGMENTS, body), ("b", "m"))
    assert found.cuts == []
    assert epilogue(found) == {"segment", "scaled"}
    body = body.replace("scaled: f32{b, n} = mul(segment, w)", "scaled: f32{b, m, n} = mul(segment, x)")
    body = body.replace("[b:8, n:1]", "[b:32, m:8, n:1]")
    assert analyse(program(SEGMENTS, body), ("b", "m")).cuts == [Cut("scaled", "segment", "outer_dependency", ("m",))]


def test_the_epilogue_has_no_row_results() -> None:
    """What was reduced along a row is gone once all rows are done; what comes from inputs alone is computed again."""
    body = """
  segment: f32{b, n} = sum[m](x)
  row: f32{b} = sum[n](w)
  ready: f32{b, n} = mul(w, w)
  first: f32{b, n} = mul(segment, ready)
  second: f32{b, n} = mul(segment, row)
  output out0: f32 [b:8, n:1] = first
  output out1: f32 [b:8, n:1] = second
"""
    found = analyse(program(SEGMENTS, body), ("b", "m"))
    assert found.cuts == [Cut("second", "row", "epilogue_operand", ("b", "m"))]
    assert found.passes["first"] == 0
    assert found.passes["second"] == 1


def test_two_column_sums_meet_in_the_epilogue() -> None:
    body = """
  first: f32{n} = sum[m](x)
  second: f32{n} = max[m](y)
  both: f32{n} = add(first, second)
  output out0: f32 [n:1] = both
"""
    found = analyse(program(DATA, body), ROWS)
    assert found.cuts == []
    assert found.dropped["both"] == {"m"}


# reductions across the split


def test_a_reduction_is_inner_outer_or_neither() -> None:
    body = "both: f32{} = sum[m, n](x)\n  output out0: f32 [] = both"
    straddling = program(DATA, body).by_name()["both"]
    row, column = MIXED.by_name()["row"], MIXED.by_name()["column"]
    assert (is_inner(row, COLUMNS), is_outer(row, ROWS)) == (True, False)
    assert (is_inner(column, COLUMNS), is_outer(column, ROWS)) == (False, True)
    assert (is_inner(straddling, COLUMNS), is_outer(straddling, ROWS)) == (False, False)
    assert not is_inner(MIXED.by_name()["xy"], COLUMNS)
    assert not is_outer(MIXED.by_name()["xy"], ROWS)


@pytest.mark.parametrize("op", ["sum", "max", "min"])
def test_a_straddling_reduction_is_an_inner_one_and_then_an_outer_one(op: str) -> None:
    before = program(
        DATA,
        f"""
  both: f32{{}} = {op}[m, n](x)
  row: f32{{m}} = {op}[n](x)
  output out0: f32 [] = both
  output out1: f32 [m:1] = row
""",
    )
    after = split_straddling(before, ROWS, COLUMNS)
    assert [(v.op, v.attributes, v.dims) for v in after.values] == [(op, ("n",), ("m",)), (op, ("m",), ())]
    assert after.outputs[1].value == after.values[0].name  # shared with the row sum that was there
    x, unused = torch.randn(6, 8), torch.zeros(6, 8)
    for mine, theirs in zip(
        interpret(after, [x, unused, unused[0]]), interpret(before, [x, unused, unused[0]]), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


def test_only_straddling_reductions_are_split() -> None:
    assert shapes(split_straddling(MIXED, ROWS, COLUMNS)) == shapes(MIXED)
    body = "kept: f32{m} = sum[b, n](x)\n  output out0: f32 [m:1] = kept"
    three = program(SEGMENTS, body)
    assert shapes(split_straddling(three, ("m",), ("b", "n"))) == shapes(three)
    halves = split_straddling(three, ("b", "m"), ("n",))
    assert [(v.attributes, v.dims) for v in halves.values] == [(("n",), ("b", "m")), (("b",), ("m",))]


# loops


def test_a_mixed_program_is_two_loops_and_an_epilogue() -> None:
    loops = loops_of(MIXED, ROWS, COLUMNS)
    assert loops.values == (("xy",), ("hat",))
    assert loops.inner == (("row",), ())
    assert loops.outer == ((), ("column",))
    assert [[o.buffer.name for o in stores] for stores in loops.stores] == [[], ["out0"]]
    assert loops.scalars == ()
    assert loops.epilogue_values == ("scaled",)
    assert [o.buffer.name for o in loops.epilogue_stores] == ["out1"]


def test_a_value_is_computed_in_every_loop_that_needs_it() -> None:
    loops = loops_of(SOFTMAX, ROWS, COLUMNS)
    assert loops.values == ((), ("below", "weight"), ("below", "weight", "result"))
    assert loops.inner == (("largest",), ("total",), ())
    assert loops.scalars == ("share",)


def test_a_held_value_is_computed_once_and_so_is_what_only_it_needs() -> None:
    loops = loops_of(SOFTMAX, ROWS, COLUMNS, held=("weight",))
    assert loops.values == ((), ("below", "weight"), ("result",))
    assert loops.inner == loops_of(SOFTMAX, ROWS, COLUMNS).inner


def test_what_a_held_value_was_made_from_is_computed_again_where_others_need_it() -> None:
    body = """
  a: f32{m, n} = mul(x, y)
  b: f32{m, n} = exp(a)
  row: f32{m} = sum[n](b)
  c: f32{m, n} = mul(b, row)
  d: f32{m, n} = add(c, a)
  output out0: f32 [m:8, n:1] = d
"""
    loops = loops_of(program(DATA, body), ROWS, COLUMNS, held=("b",))
    assert loops.values == (("a", "b"), ("a", "c", "d"))


def test_a_total_is_a_column_sum_of_row_sums() -> None:
    body = "both: f32{} = sum[m, n](x)\n  twice: f32{} = add(both, both)\n  output out0: f32 [] = twice"
    split = split_straddling(program(DATA, body), ROWS, COLUMNS)
    row, both, twice = (v.name for v in split.values)
    loops = loops_of(split, ROWS, COLUMNS)
    assert loops.inner == ((row,), ())
    assert loops.outer == ((), (both,))
    assert loops.values == ((), ())
    assert loops.epilogue_scalars == (twice,)
    assert loops.epilogue_values == ()


def test_a_result_without_rows_is_written_after_them() -> None:
    body = """
  scaled: f32{n} = mul(w, w)
  product: f32{m, n} = mul(x, scaled)
  output out0: f32 [m:8, n:1] = product
  output out1: f32 [n:1] = scaled
"""
    loops = loops_of(program(DATA, body), ROWS, COLUMNS)
    assert loops.values == (("scaled", "product"),)
    assert [o.buffer.name for o in loops.stores[0]] == ["out0"]
    assert [o.buffer.name for o in loops.epilogue_stores] == ["out1"]
    assert loops.epilogue_values == ("scaled",)


def test_a_result_that_fills_rows_is_written_with_them() -> None:
    body = """
  scaled: f32{n} = mul(w, w)
  output out0: f32 [m:8, n:1] = scaled
"""
    loops = loops_of(program(DATA, body), ROWS, COLUMNS)
    assert [o.buffer.name for o in loops.stores[0]] == ["out0"]
    assert loops.epilogue_stores == ()


def test_without_rows_nothing_is_late() -> None:
    body = "scaled: f32{n} = mul(w, w)\n  output out0: f32 [n:1] = scaled"
    loops = loops_of(program(DATA, body), (), ("m", "n"))
    assert [o.buffer.name for o in loops.stores[0]] == ["out0"]
    assert loops.epilogue_stores == ()


def test_an_input_may_be_summed_and_stored_as_it_is() -> None:
    body = """
  row: f32{m} = sum[n](x)
  output out0: f32 [m:8, n:1] = x
  output out1: f32 [m:1] = row
  output out2: f32 [n:1] = w
"""
    loops = loops_of(program(DATA, body), ROWS, COLUMNS)
    assert loops.values == ((), ())
    assert [[o.buffer.name for o in stores] for stores in loops.stores] == [["out0"], ["out1"]]
    assert [o.buffer.name for o in loops.epilogue_stores] == ["out2"]


def test_the_epilogue_computes_what_it_needs_from_inputs_again_but_no_sum() -> None:
    body = """
  scaled: f32{n} = mul(w, w)
  hat: f32{m, n} = mul(x, scaled)
  column: f32{n} = sum[m](hat)
  result: f32{n} = mul(column, scaled)
  output out0: f32 [n:1] = result
"""
    loops = loops_of(program(DATA, body), ROWS, COLUMNS)
    assert loops.values == (("scaled", "hat"),)
    assert loops.epilogue_values == ("scaled", "result")


def test_loops_are_those_of_one_pass() -> None:
    with pytest.raises(AssertionError, match="p is 3 passes"):
        loops_of(BATCH_NORM, ROWS, COLUMNS)
    assert len(loops_of(BATCH_NORM, COLUMNS, ROWS).values) == 3


def test_what_only_the_epilogue_needs_is_not_computed_for_every_tile() -> None:
    body = """
  size: f32{} = size[m]()
  square: f32{} = mul(size, size)
  half: f32{} = const[0.5]()
  scaled: f32{m, n} = mul(x, half)
  total: f32{n} = sum[m](scaled)
  mean: f32{n} = div(total, square)
  output out0: f32 [n:1] = mean
"""
    loops = loops_of(program(DATA, body), ROWS, COLUMNS)
    assert loops.scalars == ("half",)
    assert loops.epilogue_scalars == ("size", "square")
