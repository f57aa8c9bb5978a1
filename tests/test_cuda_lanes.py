"""Loops over the elements of a vector in CUDA C++: what is rounded to 16 bits is rounded two elements at a time, and
what has it comes in a later loop."""

from __future__ import annotations

import pytest
import torch

from tests.cuda_kernels import of_rows
from tests.on_host.kernels import run
from weft.backends.cuda.schedule import CudaKernel
from weft.backends.listed import render
from weft.ir.interpret import interpret

pytestmark = pytest.mark.where_changed("tests/on_host", "weft/backends", "weft/ir", "weft/lowering")

BODY = """  input x: f32 [m:WIDTH, n:1]
  input y: f32 [m:WIDTH, n:1]
  product: f32{m, n} = mul(x, y)
  near: HALF{m, n} = cast(product)
  back: f32{m, n} = cast(near)
  lost: f32{m, n} = sub(product, back)
  twice: f32{m, n} = add(back, product)
  nearer: HALF{m, n} = cast(twice)
  wide_again: f32{m, n} = cast(nearer)
  more: f32{m, n} = add(wide_again, lost)
  sum: f32{m} = sum[n](more)
  rest: f32{m, n} = sub(product, sum)
  third: HALF{m, n} = cast(rest)
  output a: HALF [m:WIDTH, n:1] = near
  output b: f32 [m:WIDTH, n:1] = more
  output c: HALF [m:WIDTH, n:1] = third
"""
"""Of a loop, product and lost are taken to later ones; nearer is no output, third is nothing else."""


def of_halves(half: str, columns: int) -> CudaKernel:
    return of_rows(BODY.replace("HALF", half).replace("WIDTH", str(columns)), columns, warps=1, vectors=3)


@pytest.mark.parametrize("columns", [72, 77])
@pytest.mark.parametrize("half", ["bf16", "f16"])
def test_what_is_rounded_and_used_is_right(half: str, columns: int) -> None:
    kernel = of_halves(half, columns)
    inputs = [torch.randint(-64, 64, (8, columns)).float() for _ in range(2)]
    right = interpret(kernel.program, inputs, exact=False)
    assert (right[0].float() != inputs[0] * inputs[1]).any() or half == "f16"
    for outputs in run(kernel, inputs):
        for mine, expected in zip(outputs, right, strict=True):
            assert mine.dtype == expected.dtype
            assert torch.equal(mine, expected.reshape(mine.shape))


def test_loops_come_one_after_the_other() -> None:
    lines = [line.strip() for line in render(of_halves("bf16", 72)).text.splitlines()]
    at = [lines.index(f"const auto {name}_tile = w::rounded<w::bf16>({name}_lanes);") for name in ("near", "nearer")]
    assert at[0] < at[1]
    assert lines.index("product_lanes[i] = x_tile[i] * y_tile[i];") < at[0]
    assert at[0] < lines.index("lost_lanes[i] = product_lanes[i] - back;") < at[1]
    assert at[0] < lines.index("const float back = w::cast<float>(near_tile[i]);") < at[1]
    assert at[1] < lines.index("const float wide_again = w::cast<float>(nearer_tile[i]);")
    assert not any("w::cast<w::bf16>" in line for line in lines)
