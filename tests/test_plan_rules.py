"""The rules by which the planner says no, with their numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.plan_cases import (
    COLUMNS,
    CPU,
    DATA,
    ROWS,
    TARGETS,
    M,
    N,
    interpreted,
    planned,
    program,
    refusal_of,
    workload,
)
from weft.ir import Builder, Dim
from weft.ir.interpret import interpret
from weft.ir.ops import ONLINE
from weft.ir.structure import Cut, analyse
from weft.plan import legality
from weft.plan.kernel import Plan
from weft.plan.planner import MAX_DIMENSIONS, check_worthwhile, plan, plan_split, splits
from weft.plan.verify import verify_plan
from weft.target import Target


def test_whole_rows() -> None:
    data = """
  dim m = 4
  dim k = 6
  dim n = 8
  input x: f32 [m:48, k:8, n:1]
  input y: f32 [m:6, k:1]
"""
    body = """
  part: f32{m, k} = sum[n](x)
  whole: f32{m} = sum[k, n](x)
  outer: f32{k, n} = sum[m](x)
  less: f32{m} = sum[k](y)
  few: f32{k} = sum[m](y)
  output out0: f32 [m:6, k:1] = part
  output out1: f32 [m:1] = whole
  output out2: f32 [k:8, n:1] = outer
  output out3: f32 [m:1] = less
  output out4: f32 [k:1] = few
"""
    values, columns = program(data, body).by_name(), ("k", "n")
    assert legality.check_whole_rows(values["whole"], ("m", "k", "n"), columns) is None
    assert legality.check_whole_rows(values["outer"], ("m", "k", "n"), columns) is None
    assert legality.check_whole_rows(values["less"], ("m", "k"), ("n",)) is None
    part = refusal_of(legality.check_whole_rows(values["part"], ("m", "k", "n"), columns))
    assert (part.rule, part.subject, part.have, part.limit) == ("partial_row", "part", 1, 2)
    assert part.message == "reduces over n only, where a row is all of the columns (k, n)"
    less = refusal_of(legality.check_whole_rows(values["less"], ("m", "k"), columns))
    assert (less.have, less.limit) == (1, 2)
    few = refusal_of(legality.check_whole_rows(values["few"], ("m", "k"), columns))
    assert (few.subject, few.have, few.limit) == ("few", 1, 2)
    assert few.message == "reduces what varies over k only, where a row is all of the columns (k, n)"
    assert legality.check_whole_rows(values["few"], ("m", "k"), ("k",)) is None
    whole = refusal_of(plan_split(program(data, body), M, columns, CPU, {}))
    assert replace(whole, subject="part") == part
    assert isinstance(plan_split(program(data, body), ("m", "k"), N, CPU, {}), Plan)


def test_a_moving_centre_is_for_sums_over_the_rows_of_whole_tiles() -> None:
    """Only the planner makes such reductions, where they are; elsewhere no kernel has them."""
    for op in ONLINE:
        given = program(DATA, f"  total: f32{{n}} = {op}[m](x)\n  output out0: f32 [n:1] = total")
        assert isinstance(plan_split(given, M, N, CPU, {}), Plan)
        for rows, columns in ((N, M), ((), M + N), (M + N, ())):
            refusal = refusal_of(plan_split(given, rows, columns, CPU, {}))
            assert refusal.rule in ("online_reduction", "partial_row")
        along = program(DATA, f"  total: f32{{m}} = {op}[n](x)\n  output out0: f32 [m:1] = total")
        refusal = refusal_of(plan_split(along, M, N, CPU, {}))
        assert (refusal.rule, refusal.subject) == ("online_reduction", op)
        straddling = program(DATA, f"  total: f32{{}} = {op}[m, n](x)\n  output out0: f32 [] = total")
        assert refusal_of(plan_split(straddling, M, N, CPU, {})).rule == "online_reduction"


def test_outer_dependency() -> None:
    refusal = refusal_of(legality.check_outer_dependency(Cut("centred", "mean", "outer_dependency", ("b", "m"))))
    assert (refusal.rule, refusal.subject) == ("outer_dependency", "centred")
    assert refusal.message == "varies over b, m, but needs mean, which is complete only after the whole pass over b, m"
    assert legality.check_outer_dependency(Cut("total", "mean", "epilogue_reduction", N)) is None


def test_epilogue_pointwise() -> None:
    reduced = refusal_of(legality.check_epilogue_pointwise(Cut("total", "mean", "epilogue_reduction", N)))
    assert (reduced.rule, reduced.subject) == ("epilogue_reduction", "total")
    assert reduced.message == "reduces mean, which is complete only after the pass, where a kernel reduces nothing"
    operand = refusal_of(legality.check_epilogue_pointwise(Cut("scaled", "row", "epilogue_operand", ("b", "m"))))
    assert (operand.rule, operand.subject) == ("epilogue_operand", "scaled")
    assert operand.message == "needs row after the pass over b, m, where values of a row are gone"
    assert legality.check_epilogue_pointwise(Cut("centred", "mean", "outer_dependency", M)) is None


SEGMENTS = """
  dim b = 3
  dim m = 64
  dim n = 32
  input x: f32 [b:2048, m:32, n:1]
  input w: f32 [b:32, n:1]
"""


@pytest.mark.parametrize(
    ("rule", "body"),
    [
        (
            "epilogue_reduction",
            """
  column: f32{b, n} = sum[m](x)
  total: f32{n} = max[b](column)
  output out0: f32 [n:1] = total
""",
        ),
        (
            "epilogue_operand",
            """
  column: f32{b, n} = sum[m](x)
  row: f32{b} = sum[n](w)
  both: f32{b, n} = mul(column, row)
  output out0: f32 [b:32, n:1] = both
""",
        ),
        (
            "outer_dependency",
            """
  column: f32{b, n} = sum[m](x)
  hat: f32{b, m, n} = mul(column, x)
  output out0: f32 [b:2048, m:32, n:1] = hat
""",
        ),
    ],
)
def test_every_reason_for_a_further_kernel_is_in_the_plan(rule: str, body: str) -> None:
    given = program(SEGMENTS, body)
    chosen = plan_split(given, ("b", "m"), N, CPU, {})
    assert isinstance(chosen, Plan), chosen
    verify_plan(chosen, given)
    assert len(chosen.kernels) == 2
    assert [d.refusal.rule for d in chosen.decisions if d.refusal is not None] == [rule]
    inputs = [torch.randn(3, 64, 32), torch.randn(3, 32)]
    torch.testing.assert_close(interpreted(chosen, given, inputs), interpret(given, inputs))


def test_written_once() -> None:
    body = """
  row: f32{} = sum[n](w)
  product: f32{m, n} = mul(x, row)
  output out0: f32 [m:32, n:1] = product
  output out1: f32 [] = row
"""
    given = program(DATA, body)
    found = analyse(given, M)
    refusal = refusal_of(legality.check_written_once(given, given.outputs[1], found, M))
    assert (refusal.rule, refusal.subject) == ("row_invariant_reduction", "row")
    assert refusal.message == "is the same for every row, but would be computed again in each row over m"
    assert legality.check_written_once(given, given.outputs[0], found, M) is None
    assert legality.check_written_once(given, given.outputs[1], analyse(given, ()), ()) is None
    assert replace(refusal_of(plan_split(given, M, N, CPU, {})), subject="row") == refusal
    filled = program(DATA, body.replace("out1: f32 []", "out1: f32 [m:1]"))
    assert legality.check_written_once(filled, filled.outputs[1], found, M) is None
    pure = program(DATA, body.replace("row: f32{} = sum[n](w)", "row: f32{n} = mul(w, w)").replace("[]", "[n:1]"))
    assert legality.check_written_once(pure, pure.outputs[1], analyse(pure, M), M) is None


def test_dimensions() -> None:
    builder = Builder("many", tuple(Dim(f"d{i}", 2) for i in range(MAX_DIMENSIONS + 1)))
    names = [d.name for d in builder.dims]
    strides = [2 ** (len(names) - 1 - i) for i in range(len(names))]
    x = builder.input("x", "f32", names, strides)
    builder.output("out0", builder.reduce("sum", x, names), "f32", (), ())
    refusal = refusal_of(plan(builder.finish(), CPU))
    assert (refusal.rule, refusal.subject) == ("dimensions", "many")
    assert (refusal.have, refusal.limit) == (MAX_DIMENSIONS + 1, MAX_DIMENSIONS)
    assert "more dimensions than splits are searched for" in refusal.message


def test_worthwhile() -> None:
    chosen = planned(workload("rms_norm_backward", COLUMNS), s0=ROWS)
    given = chosen.kernels[0].program
    time = chosen.predicted_us
    assert check_worthwhile(chosen, None, given) is None
    assert check_worthwhile(chosen, time, given) is None
    refusal = refusal_of(check_worthwhile(chosen, time / 2, given))
    assert (refusal.rule, refusal.subject) == ("not_worthwhile", given.name)
    assert "slower than without fusion" in refusal.message
    assert refusal.have == round(time, 1)
    assert refusal.limit == round(time / 2, 1)


def test_a_reduction_alone_must_be_predicted_faster() -> None:
    lone = program(DATA, "  total: f32{m} = sum[n](x)\n  output out0: f32 [m:1] = total")
    chosen = plan_split(lone, M, N, CPU, {})
    assert isinstance(chosen, Plan)
    time = chosen.predicted_us
    refusal = refusal_of(check_worthwhile(chosen, time, lone))
    assert (refusal.rule, refusal.have, refusal.limit) == ("not_worthwhile", round(time, 1), round(time, 1))
    assert "nothing to fuse with it" in refusal.message
    assert check_worthwhile(chosen, time * 1.01, lone) is None
    wide = "  total: f32{m} = sum[n](x)\n  y: f32{m, n} = mul(x, total)\n  output out0: f32 [m:32, n:1] = y"
    fused = program(DATA, wide)
    assert check_worthwhile(chosen, time, fused) is None


def test_a_sum_of_two_neighbours_needs_no_second_launch() -> None:
    """Every segment is one chunk: there are no parts to add up, and nothing is gained over any other compiler."""
    data = "  dim b = 1024\n  dim g = 2\n  dim n = 64\n  input x: f32 [b:128, g:64, n:1]\n"
    body = "  total: f32{b, n} = sum[g](x)\n  output out0: f32 [b:64, n:1] = total"
    for target in TARGETS:
        assert refusal_of(plan(program(data, body), Target.named(target))).rule == "not_worthwhile"


def test_a_sum_along_strided_rows_is_not_worthwhile() -> None:
    """Whatever the split, one of the tensors is read against its layout."""
    data = """
  dim m = 512
  dim n = 512
  input x: f32 [m:512, n:1]
  input y: f32 [n:512, m:1]
"""
    body = """
  xy: f32{m, n} = mul(x, y)
  row: f32{m} = sum[n](xy)
  hat: f32{m, n} = mul(xy, row)
  output out0: f32 [m:512, n:1] = hat
"""
    given = program(data, body)
    target = replace(CPU, strided_us_per_mega=1e6)
    refusal = refusal_of(plan(given, target))
    assert refusal.rule == "not_worthwhile"
    assert isinstance(refusal.have, float)
    assert isinstance(refusal.limit, float)
    assert refusal.have > refusal.limit


def test_splits_are_all_there_are_with_the_fast_dimension_in_columns_first() -> None:
    builder = Builder("p", (Dim("a", 2), Dim("b", 3), Dim("n", 4)))
    x = builder.input("x", "f32", ("a", "b", "n"), (12, 4, 1))
    builder.output("out0", x, "f32", ("a", "b", "n"), (12, 4, 1))
    found = list(splits(builder.finish()))
    assert len(found) == len(set(found)) == 8
    assert found[:2] == [(("a", "b", "n"), ()), (("a", "b"), ("n",))]
    assert all(sorted(rows + columns) == ["a", "b", "n"] for rows, columns in found)
