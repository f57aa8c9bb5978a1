"""Arithmetic of two floats of 16 bits at a time has the bits of rounded float32."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from tests.test_ir_halves import every_number
from weft.backends.triton import text as triton
from weft.backends.triton.schedule import TritonSchedule
from weft.ir.dtypes import HALVES
from weft.ir.interpret import interpret
from weft.ir.parser import parse
from weft.machines import target_of
from weft.options import Options
from weft.plan.cost import estimate
from weft.plan.kernel import Kernel, Plan
from weft.runtime.launch import run_plan
from weft.target import Target

TEXT = """program p()
  dim m = 64
  dim n = 1024
  input x: {dtype} [m:1024, n:1]
  input y: {dtype} [m:1024, n:1]
  input weight: {dtype} [n:1]
  a: f32{{m, n}} = cast(x)
  b: f32{{m, n}} = cast(y)
  w: f32{{n}} = cast(weight)
  c: f32{{}} = const[-1.5]()
  first: f32{{m, n}} = {op}(a, b)
  first_rounded: {dtype}{{m, n}} = cast(first)
  first_again: f32{{m, n}} = cast(first_rounded)
  second: f32{{m, n}} = {op}(w, first_again)
  second_rounded: {dtype}{{m, n}} = cast(second)
  third: f32{{m, n}} = {op}(c, a)
  third_rounded: {dtype}{{m, n}} = cast(third)
  output first_out: {dtype} [m:1024, n:1] = first_rounded
  output second_out: {dtype} [m:1024, n:1] = second_rounded
  output third_out: {dtype} [m:1024, n:1] = third_rounded
end
"""


@pytest.mark.parametrize(("op", "dtype"), list(product(("add", "sub", "mul"), HALVES)))
@pytest.mark.parametrize(("rows", "warps"), [(1, 4), (4, 1), (1, 32)])
def test_bits_are_those_of_rounded_float32(op: str, dtype: str, rows: int, warps: int) -> None:
    """Of all numbers that there are; with two elements of a row in a thread and more, and with one."""
    program = parse(TEXT.format(op=op, dtype=dtype))
    schedule = TritonSchedule("ONE_SHOT", ("m",), ("n",), rows_per_tile=rows, piece_columns=1024, warps=warps, stages=1)
    kernel = Kernel(program, schedule)
    assert f"w.{op}_halves" in triton.render(kernel).text
    x, y = (t.view(64, 1024) for t in every_number(dtype))
    weight = y[7].clone()
    expected = interpret(program, (x, y, weight), exact=False)
    target = target_of(torch.device("cuda"), program.name)
    assert isinstance(target, Target)
    plan = Plan(target, (kernel,), ("pointwise",), (estimate(kernel, target, {}),), ())
    made = run_plan(plan, program, [t.cuda() for t in (x, y, weight)], (), Options.read())
    for mine, exact in zip(made, expected, strict=True):
        assert torch.equal(mine.cpu().nan_to_num(), exact.nan_to_num())
        assert torch.equal(mine.cpu().isnan(), exact.isnan())
