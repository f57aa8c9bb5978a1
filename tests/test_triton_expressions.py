"""Expressions in Triton: their text, their values under Triton's interpreter, and that GPUs' compilers take them."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cases import often
from weft.backends.triton import text as triton
from weft.backends.triton.expressions import (
    COMBINE,
    SIGNATURE_TYPES,
    TRITON_TYPES,
    constant,
    expression,
    literal,
    reduction,
)
from weft.backends.triton.schedule import TritonSchedule
from weft.ir.dtypes import TORCH_DTYPES
from weft.ir.ops import OPS
from weft.ir.parser import parse
from weft.ir.rounding import rounded_at_once
from weft.plan.kernel import Kernel

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed; it has wheels for Linux only"
)
POINTWISE = [op for op in OPS.values() if op.kind == "pointwise"]
Findings = dict[str, dict[str, str | None]]
OLDEST_AND_TUNED, OTHERS = ("sm_80", "sm_90"), ("sm_86", "sm_89", "sm_100", "sm_120")
"""Targets of every run of the tests, compiled for in one process, and those of all tests, in another."""


@functools.cache
def findings(kind: str, *targets: str) -> Findings:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    if kind == "interpret":
        environment["TRITON_INTERPRET"] = "1"
    command = [sys.executable, "-m", "tests.triton_cases", kind, *targets]
    root = Path(__file__).parent.parent
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def wrong(check: str, prefix: str = "") -> dict[str, str]:
    """What the interpreter does wrong among what begins with a word."""
    return wrong_of(
        {n: text for n, text in findings("interpret")[check].items() if n.split(" ")[0] == prefix or not prefix}
    )


def wrong_of(looked_at: dict[str, str | None]) -> dict[str, str]:
    """What was found wrong; something must have been looked at."""
    assert looked_at
    return {name: text for name, text in looked_at.items() if text is not None}


@needs_triton
@pytest.mark.parametrize("op", [op.name for op in POINTWISE if op.name != "cast"])
def test_an_operation_computes_what_torch_does(op: str) -> None:
    assert wrong("values", op) == {}


@needs_triton
@pytest.mark.parametrize("source", list(TORCH_DTYPES))
def test_casts_round_as_torch_does(source: str) -> None:
    assert wrong("casts", source) == {}


@needs_triton
def test_what_becomes_a_number_of_16_bits_is_off_by_a_few_units_of_32() -> None:
    assert wrong("roundings") == {}


@needs_triton
def test_eight_bits_are_nan_or_the_largest_number_beyond_it() -> None:
    assert wrong("eight bits") == {}


@needs_triton
@pytest.mark.parametrize("op", list(COMBINE))
def test_reductions_keep_nan_and_integers_whole(op: str) -> None:
    assert wrong("reductions", op) == {}


@needs_triton
@pytest.mark.parametrize("dtype", list(TORCH_DTYPES))
def test_numbers_keep_their_value_and_their_type(dtype: str) -> None:
    assert wrong("constants", dtype) == {}


@needs_triton
@pytest.mark.parametrize("target", often((*OLDEST_AND_TUNED, *OTHERS), OLDEST_AND_TUNED))
def test_all_expressions_compile_for(target: str) -> None:
    found = findings("compile", *(OTHERS if target in OTHERS else OLDEST_AND_TUNED))[target]
    assert set(found) == set(TORCH_DTYPES)
    assert wrong_of(found) == {}


@pytest.mark.parametrize("op", POINTWISE, ids=lambda op: op.name)
def test_every_operation_has_a_text(op: object) -> None:
    assert isinstance(op, type(OPS["add"]))
    names = ["first", "second", "third"][: op.arity]
    text = expression(op.name, names, "bool" if op.dtype == "bool" else "i64" if op.integers_only else "f64")
    assert all(name in text for name in names)
    assert "{" not in text


def test_every_type_has_a_name() -> None:
    assert TRITON_TYPES.keys() == SIGNATURE_TYPES.keys() == TORCH_DTYPES.keys()


@pytest.mark.parametrize(
    ("op", "operands", "dtype", "text"),
    [
        ("add", ["x", "(y * z)"], "f32", "x + (y * z)"),
        ("sub", ["x", "-1.5"], "f64", "x - -1.5"),
        ("neg", ["x"], "f32", "-1.0 * x"),
        ("neg", ["x"], "i32", "-x"),
        ("div", ["x", "y"], "f32", "tl.div_rn(x, y)"),
        ("div", ["1.0", "y"], "f64", "1.0 / y"),
        ("sqrt", ["x"], "f32", "tl.sqrt_rn(x)"),
        ("floor_divide", ["x", "y"], "f32", "w.floor_divide(x, y)"),
        ("floor_divide", ["x", "2"], "i64", "w.floor_divide_integers(x, tl.full([], 2, tl.int64))"),
        ("ne", ["target", "-100"], "bool", "target != -100"),
        ("logical_not", ["c"], "bool", "~c"),
        ("where", ["c", "1.0", "0.0"], "f32", "tl.where(c, 1.0, 0.0)"),
        ("where", ["c", "x", "0.1"], "f64", "tl.where(c, x, 0.1)"),
        ("where", ["c", "1", "0"], "i64", "tl.where(c, tl.full([], 1, tl.int64), tl.full([], 0, tl.int64))"),
        ("maximum", ["x", "0.0"], "f32", "w.maximum(x, 0.0)"),
        ("maximum", ["x", "0.1"], "f64", "w.maximum(x, tl.full([], 0.1, tl.float64))"),
        ("maximum", ["x", "1e-40"], "f32", "w.maximum(x, tl.full([], 1e-40, tl.float32))"),
        ("exp", ["2.0"], "f64", "w.exp(tl.full([], 2.0, tl.float64))"),
    ],
)
def test_text_of(op: str, operands: list[str], dtype: str, text: str) -> None:
    assert expression(op, operands, dtype) == text


@pytest.mark.parametrize(
    ("source", "target", "text"),
    [
        ("bf16", "f32", "x.to(tl.float32)"),
        ("f32", "bf16", "x.to(tl.bfloat16)"),
        ("f64", "bf16", "x.to(tl.float32).to(tl.bfloat16)"),
        ("f32", "bool", "x.to(tl.int1)"),
        ("f32", "u8", "x.to(tl.int32).to(tl.uint8)"),
        ("f8e5m2", "i64", "x.to(tl.float32).to(tl.int64)"),
        ("f32", "f8e5m2", "w.to_f8e5m2(x)"),
        ("f32", "f32", "x"),
    ],
)
def test_text_of_a_cast(source: str, target: str, text: str) -> None:
    assert expression("cast", ["x"], target, source) == text


@pytest.mark.parametrize(
    ("number", "dtype", "text"),
    [
        (0.1, "f32", "0.1"),
        (0.1, "f64", "0.1"),
        (1 / 3, "f32", "0.33333334"),
        (1 / 3, "f64", "0.3333333333333333"),
        (2, "f32", "2.0"),
        (float("inf"), "f32", 'float("inf")'),
        (float("-inf"), "f64", 'float("-inf")'),
        (float("nan"), "f32", 'float("nan")'),
        (-0.0, "f32", "(-1.0 * tl.full([], 0.0, tl.float32))"),
        (-(2**63), "i64", "-9223372036854775808"),
        (1, "bool", "True"),
    ],
)
def test_text_of_a_number(number: float, dtype: str, text: str) -> None:
    assert literal(number, dtype) == text


def test_a_number_alone_has_a_type() -> None:
    assert constant(0.1, "f64") == "tl.full([], 0.1, tl.float64)"
    assert constant(1, "bf16") == "tl.full([], 1.0, tl.float32).to(tl.bfloat16)"
    with pytest.raises(TypeError, match="'rows' is no number"):
        literal("rows", "f32")


QUOTIENT = """program p()
  dim m = 8
  input x: f32 [m:1]
  const: f32{{}} = const[{}]()
  div: f32{{m}} = div(x, const)
  cast: bf16{{m}} = cast(div)
  output y: bf16 [m:1] = cast
end
"""
CAPPED = """program p()
  dim m = 8
  input x: f32 [m:1]
  tanh: f32{m} = tanh(x)
  cast: bf16{m} = cast(tanh)
  exp: f32{m} = exp(x)
  cast_1: bf16{m} = cast(exp)
  cast_2: f8e5m2{m} = cast(x)
  sum: f32{} = sum[m](exp)
  output y: bf16 [m:1] = cast
  output z: bf16 [m:1] = cast_1
  output e: f8e5m2 [m:1] = cast_2
  output s: f32 [] = sum
end
"""


@pytest.mark.parametrize(
    ("number", "text"), [("30.0", "x_row * 0.033333335"), ("1e-39", "x_row / "), ("0.0", "x_row / ")]
)
def test_a_quotient_is_a_product_where_the_inverse_is_a_number(number: str, text: str) -> None:
    program = parse(QUOTIENT.format(number))
    schedule = TritonSchedule("ONE_SHOT", ("m",), (), piece_columns=1)
    assert f"div = {text}" in triton.render(Kernel(program, schedule)).text


def test_what_becomes_a_number_of_16_bits_and_nothing_else() -> None:
    assert rounded_at_once(parse(CAPPED)) == {"tanh"}


def test_text_of_a_reduction() -> None:
    assert reduction("sum", ["x * y"], 1) == "tl.sum(x * y, 1, keep_dims=True)"
    assert reduction("max", ["x"], 0) == "w.max(x, 0)"
    with pytest.raises(KeyError):
        reduction("m2", ["x"], 0)
