"""Arithmetic of two floats of 16 bits at a time: which becomes that, and that no bit of a result does."""

from __future__ import annotations

import importlib.util
from itertools import product

import pytest
import torch
from torch import Tensor

from weft.backends.binary import Job, Variant
from weft.backends.triton import text as triton
from weft.backends.triton.schedule import TritonSchedule
from weft.ir.dtypes import HALVES, TORCH_DTYPES
from weft.ir.halves import in_halves
from weft.ir.interpret import interpret
from weft.ir.parser import parse
from weft.ir.program import Program
from weft.ir.simplify import simplify
from weft.options import Options
from weft.plan.kernel import Kernel
from weft.runtime.gpu.builds import binaries

BODY = """
  wide_x: f32{{m}} = cast(x)
  wide_y: f32{{m}} = cast(y)
  {value}
  out: {dtype}{{m}} = cast(value)
"""


def program_of(value: str, dtype: str = "bf16", more: str = "", outputs: str = "") -> Program:
    lines = ["program p()", "  dim m = 65536", f"  input x: {dtype} [m:1]", f"  input y: {dtype} [m:1]"]
    lines += BODY.format(value=value, dtype=dtype).strip("\n").splitlines()
    lines += [*([f"  {more}"] if more else []), f"  output z: {dtype} [m:1] = out", *([outputs] if outputs else [])]
    return parse("\n".join([*lines, "end"]) + "\n")


def operations(program: Program) -> list[tuple[str, str]]:
    return [(value.op, value.dtype) for value in program.values]


def every_number(dtype: str) -> tuple[Tensor, Tensor]:
    """All numbers of 16 bits, and others in another order."""
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int16)
    other = bits[torch.randperm(len(bits), generator=torch.Generator().manual_seed(5))]
    return bits.view(TORCH_DTYPES[dtype]), other.view(TORCH_DTYPES[dtype])


@pytest.mark.parametrize(("op", "dtype"), list(product(("add", "sub", "mul"), HALVES)))
def test_bits_stay(op: str, dtype: str) -> None:
    before = program_of(f"value: f32{{m}} = {op}(wide_x, wide_y)", dtype)
    after = in_halves(before)
    assert operations(after) == [(op, dtype)]
    x, y = every_number(dtype)
    (mine,), (wide,) = (interpret(p, (x, y), exact=False) for p in (after, before))
    assert torch.equal(mine.nan_to_num(), wide.nan_to_num())
    assert torch.equal(mine.isnan(), wide.isnan())
    assert simplify(after) == simplify(before)


@pytest.mark.parametrize(("number", "is_one"), [("0.5", True), ("3.0", True), ("0.1", False), ("0.044715", False)])
def test_a_number_has_to_be_one_of_16_bits(number: str, is_one: bool) -> None:
    program = program_of(f"c: f32{{}} = const[{number}]()\n  value: f32{{m}} = mul(wide_x, c)")
    assert (("mul", "bf16") in operations(in_halves(program))) == is_one
    assert (in_halves(program) == program) != is_one


@pytest.mark.parametrize("value", ["div(wide_x, wide_y)", "maximum(wide_x, wide_y)", "tanh(wide_x)"])
def test_other_operations_stay(value: str) -> None:
    program = program_of(f"value: f32{{m}} = {value}")
    assert in_halves(program) == program


def test_what_float32_is_needed_of_stays() -> None:
    """A sum that is stored as well, one that another value is made of, and one that is cast to two types."""
    value = "value: f32{m} = mul(wide_x, wide_y)"
    stored = program_of(value, outputs="  output w: f32 [m:1] = value")
    used = program_of(value, more="more: f32{m} = add(value, value)", outputs="  output w: f32 [m:1] = more")
    cast = program_of(value, more="more: f16{m} = cast(value)", outputs="  output w: f16 [m:1] = more")
    for program in (stored, used, cast):
        assert in_halves(program) == program


def test_operands_of_another_type_stay() -> None:
    program = program_of("other: f16{m} = cast(wide_y)\n  w: f32{m} = cast(other)\n  value: f32{m} = add(wide_x, w)")
    assert in_halves(program) == program


def test_results_are_operands_again() -> None:
    program = program_of(
        "a: f32{m} = add(wide_x, wide_y)\n  b: bf16{m} = cast(a)\n  c: f32{m} = cast(b)\n"
        "  value: f32{m} = mul(c, wide_y)"
    )
    assert operations(in_halves(program)) == [("add", "bf16"), ("mul", "bf16")]


ROW = """program p()
  dim m = 64
  dim n = 32000
  input x: f32 [m:32000, n:1]
  input a: bf16 [m:1]
  input b: bf16 [m:1]
  wide_a: f32{m} = cast(a)
  wide_b: f32{m} = cast(b)
  product: f32{m} = mul(wide_a, wide_b)
  rounded: bf16{m} = cast(product)
  factor: f32{m} = cast(rounded)
  largest: f32{m} = max[n](x)
  value: f32{m, n} = mul(x, factor)
  moved: f32{m, n} = sub(value, largest)
  output y: f32 [m:32000, n:1] = moved
end
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize("rows", [1, 2])
def test_a_number_of_one_row_is_computed_too(rows: int) -> None:
    """Triton takes no tensor of one element for two."""
    schedule = TritonSchedule(
        "LOOP", ("m",), ("n",), rows_per_tile=rows, pieces=2, piece_columns=512, warps=2, stages=1
    )
    kernel = Kernel(parse(ROW), schedule)
    source = triton.render(kernel)
    assert "w.mul_halves(a_row, b_row)" in source.text
    (binary,) = binaries(Job(kernel, source, Variant.expected(kernel, {}), 90), Options.read()).values()
    assert binary.usage.spill_bytes == 0
