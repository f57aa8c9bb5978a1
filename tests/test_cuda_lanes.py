"""Elements of vectors in CUDA C++: what is rounded to 16 bits is rounded two at a time, and what has it comes in a
later loop; those beside a row are zero where sums of products are told of them."""

from __future__ import annotations

import pytest
import torch

from tests.cuda_kernels import of_rows
from tests.on_host.kernels import run
from weft.backends.cuda.schedule import CudaKernel
from weft.backends.listed import render
from weft.ir.dtypes import TORCH_DTYPES
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


PRODUCTS = """  input x: ONE [m:77, n:1]
  input y: OTHER [m:77, n:1]
  wide_x: WIDE{m, n} = cast(x)
  wide_y: WIDE{m, n} = cast(y)
  product: WIDE{m, n} = mul(wide_x, wide_y)
  sum: WIDE{m} = sum[n](product)
  more: WIDE{m, n} = add(product, sum)
  total: WIDE{n} = sum[m](product)
  output a: WIDE [m:77, n:1] = more
  output b: WIDE [n:1] = total
"""
"""The last of them is a sum of columns, so that rows are apart."""


@pytest.mark.parametrize("tile", ["shared", "registers"])
@pytest.mark.parametrize(
    ("one", "other", "wide"),
    [("bf16", "bf16", "f32"), ("f32", "f16", "f32"), ("f8e5m2", "f32", "f32"), ("f64", "f8e5m2", "f64")],
)
def test_elements_beside_a_row_are_zero_whatever_their_type(one: str, other: str, wide: str, tile: str) -> None:
    """Vectors are of four elements, or of two: two of 8 bits are no word."""
    body = PRODUCTS.replace("ONE", one).replace("OTHER", other).replace("WIDE", wide)
    kernel = of_rows(body, 77, warps=1, vectors=2, cluster=2, chunks=3, finish="separate", tile=tile)
    text = render(kernel).text
    assert text.count("row_lanes[k].of(") == 2
    assert "keep_inside" not in text
    inputs = [torch.randint(-4, 4, (8, 77)).to(TORCH_DTYPES[each]) for each in (one, other)]
    right = interpret(kernel.program, inputs)
    for outputs in run(kernel, inputs, early=1 if one == "bf16" else 0):
        for mine, expected in zip(outputs, right, strict=True):
            assert torch.equal(mine, expected.to(mine.dtype).reshape(mine.shape))
