"""One reduction alone: what TorchInductor's kernels take for it, and who gets it."""

from __future__ import annotations

import pytest

from weft.errors import Refusal
from weft.ir.parser import parse
from weft.ir.program import Program
from weft.plan.alone import cuts_evenly, lone_reduction, with_inductors_time
from weft.plan.kernel import Plan
from weft.plan.planner import plan
from weft.target import Target

H200 = Target.named("h200")


def column_sum(rows: int, columns: int, more: str = "") -> Program:
    return parse(f"""program column_sum()
  dim m = {rows}
  dim n = {columns}
  input x: bf16 [m:{columns}, n:1]
  cast: f32{{m, n}} = cast(x)
  sum: f32{{n}} = sum[m](cast)
  output out0: f32 [n:1] = sum
{more}end
""")


@pytest.mark.parametrize(
    ("rows", "columns", "evenly"),
    [
        (8192, 768, True),  # 64 parts of 128 rows
        (9856, 512, True),
        (16384, 2048, True),  # 64 parts of 256
        (8192, 2304, True),
        (25216, 2304, False),  # 59 parts
        (15771, 6240, False),
        (0, 768, True),
        (2898, 3208, False),  # 23 parts of 126 rows, which are no whole blocks
    ],
)
def test_parts_of_a_sum(rows: int, columns: int, evenly: bool) -> None:
    assert cuts_evenly(rows, columns, 132) == evenly


TIMES = [  # us of weft and of TorchInductor 2.11, H200
    (9856, 512, 7.84, 6.72),
    (8192, 2304, 15.39, 14.43),
    (16384, 2048, 24.03, 22.11),
    (4944, 320, 5.22, 4.48),
    (11875, 192, 7.20, 5.06),
    (25216, 2304, 36.96, 59.10),
    (3512, 3744, 11.97, 15.30),
    (971, 5512, 6.75, 12.54),
    (433, 1048, 2.27, 3.52),
]


@pytest.mark.parametrize(("rows", "columns", "mine", "inductors"), TIMES)
def test_the_faster_one_gets_it(rows: int, columns: int, mine: float, inductors: float) -> None:
    found = plan(column_sum(rows, columns), H200)
    assert isinstance(found, Plan if mine < inductors else Refusal)
    if isinstance(found, Plan):
        assert found.predicted_us == pytest.approx(mine, rel=0.15)
        assert found.decisions[0].apart_us == pytest.approx(inductors, rel=0.35)
    else:
        assert found.rule == "not_worthwhile"
        assert float(found.have) == pytest.approx(mine, rel=0.25)
        assert float(found.limit) == pytest.approx(inductors, rel=0.15)


def test_what_does_more_has_no_such_time() -> None:
    alone = column_sum(9856, 512)
    stored = column_sum(9856, 512, "  output out1: f32 [m:512, n:1] = cast\n")
    reduction = lone_reduction(alone)
    assert reduction is not None
    assert reduction.op == "sum"
    assert lone_reduction(stored) is None
    for program in (alone, stored):
        found = plan(program, H200)
        whole = found.figures if isinstance(found, Refusal) else found.decisions[0].to_dict()
        assert whole is not None
    taken = plan(column_sum(25216, 2304), H200)
    assert isinstance(taken, Plan)
    (kernel,), (own,) = taken.kernels, taken.estimates
    assert with_inductors_time(kernel, own, H200, {}) is not None
    assert with_inductors_time(kernel, own, Target.named("cpu"), {}) is None
    rows = kernel.schedule.but(scheme="ONE_SHOT", rows=("n",), columns=("m",))
    assert with_inductors_time(type(kernel)(kernel.program, rows), own, H200, {}) is None
