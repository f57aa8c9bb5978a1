"""Loops over columns whose number is known at run time only, or whose data has more elements than 32 bits count: types
are consistent, which the interpreter does not ask for."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from weft.backends.binary import Job, Variant, unpack
from weft.backends.triton import text as triton
from weft.ir.parser import parse
from weft.ir.program import Program
from weft.plan.kernel import Kernel, Plan
from weft.plan.planner import plan
from weft.runtime.gpu.builds import artefact
from weft.target import Target

SOFTMAX = """program softmax({parameters})
  dim m = {m}
  dim n = {n}
  input x: bf16 [m:{n}, n:1]
  cast: f32{{m, n}} = cast(x)
  top: f32{{m}} = max[n](cast)
  sub: f32{{m, n}} = sub(cast, top)
  exp: f32{{m, n}} = exp(sub)
  sum: f32{{m}} = sum[n](exp)
  div: f32{{m, n}} = div(exp, sum)
  rounded: bf16{{m, n}} = cast(div)
  output y: bf16 [m:{n}, n:1] = rounded
end
"""
BACKWARD = """program scaled_backward({parameters})
  dim m = {m}
  dim n = {n}
  input x: bf16 [m:{n}, n:1]
  input dy: bf16 [m:{n}, n:1]
  cast: f32{{m, n}} = cast(x)
  cast_1: f32{{m, n}} = cast(dy)
  mul: f32{{m, n}} = mul(cast, cast_1)
  row: f32{{m}} = sum[n](mul)
  scaled: f32{{m, n}} = mul(cast_1, row)
  column: f32{{n}} = sum[m](mul)
  output dx: f32 [m:{n}, n:1] = scaled
  output dw: f32 [n:1] = column
end
"""
SIZES = {
    "columns": ("s0", 4096, "s0"),
    "rows and columns": ("s0, s1", "s0", "s1"),
    "odd columns, many elements": ("", 2**17, 50257),
    "odd columns": ("", 4096, 50257),
}
"""Run-time parameters, rows, columns."""


def program(text: str, sizes: str) -> Program:
    parameters, rows, columns = SIZES[sizes]
    return parse(text.format(parameters=parameters, m=rows, n=columns))


def kernels(text: str, sizes: str) -> tuple[Kernel, ...]:
    found = plan(program(text, sizes), Target.named("h200"))
    assert isinstance(found, Plan), found
    return found.kernels


@pytest.mark.only_triton
@pytest.mark.parametrize("sizes", SIZES)
def test_a_row_of_any_length_compiles(sizes: str) -> None:
    (kernel,) = kernels(SOFTMAX, sizes)
    assert kernel.schedule.scheme == "LOOP"
    job = Job(kernel, triton.render(kernel), Variant.expected(kernel, {}), 90)
    (binary,) = unpack(artefact(job)).values()
    assert binary.usage.spill_bytes == 0


@pytest.mark.only_triton
@pytest.mark.parametrize("sizes", ["columns", "rows and columns"])
def test_rows_and_columns_of_any_length_compile(sizes: str) -> None:
    for kernel in kernels(BACKWARD, sizes):
        job = Job(kernel, triton.render(kernel), Variant.expected(kernel, {}), 90)
        assert unpack(artefact(job))
