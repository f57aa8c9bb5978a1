"""What operations cost on a GPU: the figures are those of the compiler."""

from __future__ import annotations

import importlib.util

import pytest

from tools.instructions import instructions, main
from weft.backends.instructions import INSTRUCTIONS, MOST_COST, ROUGH_INSTRUCTIONS, ROUNDING_COST, cost_of
from weft.ir.ops import OPS
from weft.ir.parser import parse
from weft.ir.program import Value
from weft.ir.rounding import ROUGH, is_rounded_again, rounded_at_once

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed; it has wheels for Linux only"
)


@pytest.mark.where_changed("tools", "weft/backends/triton")
@needs_triton
@pytest.mark.parametrize("op", ["exp", "tanh", "rsqrt", "erf", "exp2", "div"])
def test_the_compiler_makes_as_many_instructions(op: str) -> None:
    assert instructions(op, "f32") == pytest.approx(INSTRUCTIONS[op], rel=0.15)


@pytest.mark.where_changed("tools", "weft/backends/triton")
@needs_triton
@pytest.mark.parametrize("op", ["exp", "reciprocal", "tanh"])
def test_it_makes_fewer_of_what_is_rounded(op: str) -> None:
    assert instructions(op, "bf16") == pytest.approx(ROUGH_INSTRUCTIONS[op], rel=0.15)


@pytest.mark.where_changed("tools", "weft/backends/triton")
@needs_triton
def test_the_command_prints_a_line_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--op", "exp2"]) == 0
    assert capsys.readouterr().out.split() == ["exp2", "8.0", "8.0"]


def value(op: str, dtype: str = "f32") -> Value:
    return Value("v", op, ("x",), (), dtype, ("m", "n"))


def test_every_figure_is_of_an_operation() -> None:
    assert INSTRUCTIONS.keys() <= OPS.keys()
    assert set(ROUGH) == set(ROUGH_INSTRUCTIONS)
    assert all(ROUGH_INSTRUCTIONS[op] < INSTRUCTIONS[op] for op in ROUGH)


@pytest.mark.parametrize(
    ("op", "dtype", "rough", "cost"),
    [
        ("tanh", "f32", False, INSTRUCTIONS["tanh"]),
        ("tanh", "f32", True, ROUGH_INSTRUCTIONS["tanh"]),
        ("erf", "f32", True, INSTRUCTIONS["erf"]),
        ("add", "f32", False, 1.0),
        ("copysign", "f32", False, 2.0),
        ("cast", "bf16", False, 1.0),
        ("cast", "f8e4m3", False, ROUNDING_COST),
    ],
)
def test_an_operation_costs_what_the_tables_say(op: str, dtype: str, rough: bool, cost: float) -> None:
    assert cost_of(value(op, dtype), rough) == cost <= max(MOST_COST, cost)


PROGRAM = """
program p()
dim m = 8
dim n = 64
input x: f32 [m:64, n:1]
exp: f32{m, n} = exp(x)
neg: f32{m, n} = neg(exp)
cast: bf16{m, n} = cast(neg)
output out: bf16 [m:64, n:1] = cast
end
"""


def test_what_is_rounded_in_the_end_may_be_rough() -> None:
    program = parse(PROGRAM)
    assert is_rounded_again(program)
    assert rounded_at_once(program) == {"neg"}
    assert not is_rounded_again(parse(PROGRAM.replace("neg(exp)", "floor(exp)").replace("neg", "floor")))
