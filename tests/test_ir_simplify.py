"""Rules of the simplifier where they apply and where they must not, and that no rule changes a bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.simplify_cases import INF, NAN, Expression, binary, one_input, same_bits, simplified, unchanged
from tests.test_ir_program import NUMBERS, parameter_values, programs
from weft.ir import Builder, Dim, Program, interpret, print_program, simplify
from weft.ir import dtypes as dt
from weft.ir.interpret import sizes_of
from weft.ir.parser import parse

MANY = settings(deadline=None, max_examples=300, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


def test_bits_are_compared_as_bits() -> None:
    values = torch.tensor([0.0, 1.0, NAN, INF])
    assert same_bits(values, values.clone())
    assert not same_bits(values, torch.tensor([-0.0, 1.0, NAN, INF]))
    assert not same_bits(values, torch.tensor([0.0, 1.0, 2.0, INF]))
    assert not same_bits(values, torch.tensor([0.0, NAN, NAN, INF]))
    assert not same_bits(values, values.double())
    small = torch.tensor([0.0, 448.0, 2.0**-9, NAN]).to(torch.float8_e4m3fn)
    assert same_bits(small, small.clone())
    assert not same_bits(small, torch.tensor([-0.0, 448.0, 2.0**-9, NAN]).to(torch.float8_e4m3fn))
    assert not same_bits(small, torch.tensor([0.0, 448.0, 2.0**-8, NAN]).to(torch.float8_e4m3fn))


# expand_powers


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize(
    ("exponent", "expected"),
    [
        (1, ["x"]),
        (2, ["mul: T{n} = mul(x, x)", "mul"]),
        (3, ["mul: T{n} = mul(x, x)", "mul_1: T{n} = mul(mul, x)", "mul_1"]),
        (-1, ["reciprocal: T{n} = reciprocal(x)", "reciprocal"]),
        (0.5, ["sqrt: T{n} = sqrt(x)", "sqrt"]),
        (-0.5, ["rsqrt: T{n} = rsqrt(x)", "rsqrt"]),
    ],
)
def test_some_powers_are_functions_of_their_own(exponent: float, expected: list[str], dtype: str) -> None:
    found = simplified(binary("pow", exponent, dtype), dtype)
    assert found == [line.replace("T", dtype) for line in expected]


@pytest.mark.parametrize("exponent", [0, -2, 4, 1.5, 0.25, 1 / 3, 2.0000001, INF])
def test_other_powers_stay(exponent: float) -> None:
    assert unchanged(binary("pow", exponent))


@pytest.mark.parametrize("number", [1, 2, 0.5])
def test_a_constant_base_stays(number: float) -> None:
    assert unchanged(binary("pow", number, swapped=True))


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("exponent", [1, 2, 3, -1, 0.5, -0.5])
def test_expanded_powers_are_bit_for_bit_those_of_torch(exponent: float, dtype: str) -> None:
    special = torch.tensor([0.0, -0.0, INF, -INF, NAN, 1e-45, -1e-40, 3e38, -3e38, 1.0, -1.0], dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    scales = torch.tensor([1e-15, 1.0, 1e10], dtype=torch.float64)[:, None]
    numbers = torch.randn(3, 10_007, generator=generator, dtype=torch.float64) * scales
    x = torch.cat([special, numbers.flatten()]).to(dt.TORCH_DTYPES[dtype])
    program = simplify(one_input(binary("pow", exponent, dtype), dtype, len(x)))
    assert "pow" not in {value.op for value in program.values}
    (found,) = interpret(program, [x], exact=False)
    assert same_bits(found, torch.pow(x, exponent))


# drop_neutral


@pytest.mark.parametrize("dtype", ["f32", "f64", "i64", "i32"])
def test_a_factor_of_one_goes(dtype: str) -> None:
    assert simplified(binary("mul", 1, dtype), dtype) == ["x"]
    assert simplified(binary("mul", 1, dtype, swapped=True), dtype) == ["x"]


def test_a_divisor_of_one_goes() -> None:
    assert simplified(binary("div", 1.0)) == ["x"]


@pytest.mark.parametrize(
    "expression",
    [
        binary("add", 0.0),
        binary("add", 0.0, swapped=True),
        binary("sub", 0.0),
        binary("mul", 0.0),
        binary("mul", 0.0, swapped=True),
        binary("mul", -1.0),
        binary("mul", 2.0),
        binary("div", 1.0, swapped=True),
        binary("maximum", -INF),
    ],
    ids=["x+0", "0+x", "x-0", "x*0", "0*x", "x*-1", "x*2", "1/x", "max(x,-inf)"],
)
def test_what_may_change_a_bit_stays(expression: Expression) -> None:
    assert unchanged(expression)


# multiply_by_power_of_two

POWERS = [2.0, 4.0, 0.5, 0.125, -1.0, -2.0, -0.25, 1024.0, 2.0**99, 2.0**-99]


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("divisor", POWERS)
def test_division_by_a_power_of_two_is_a_multiplication(divisor: float, dtype: str) -> None:
    assert simplified(binary("div", divisor, dtype), dtype) == [
        f"const: {dtype}{{}} = const[{1 / divisor!r}]()",
        f"mul: {dtype}{{n}} = mul(x, const)",
        "mul",
    ]


@pytest.mark.parametrize("divisor", [3.0, 6.0, 0.1, 1000.0, 0.0, -0.0, INF, -INF, NAN, 2.0**127, 2.0**-126, 1e-45])
def test_other_divisions_stay(divisor: float) -> None:
    program = one_input(binary("div", divisor))
    assert print_program(simplify(program)) == print_program(program)


def test_a_power_of_two_divided_stays() -> None:
    assert unchanged(binary("div", 4.0, swapped=True))


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("divisor", POWERS)
def test_division_by_a_power_of_two_is_bit_for_bit_that_of_torch(divisor: float, dtype: str) -> None:
    """Results that are subnormal, zero and infinite included; 3 shows that the comparison can fail."""
    info = torch.finfo(dt.TORCH_DTYPES[dtype])
    special = torch.tensor([0.0, -0.0, INF, -INF, NAN, info.max, -info.max, info.tiny, info.smallest_normal / 8])
    generator = torch.Generator().manual_seed(2)
    mantissas = torch.rand(4096, generator=generator, dtype=torch.float64) + 1
    exponents = torch.randint(-149, 128, (4096,), generator=generator).double()
    x = torch.cat([special.to(torch.float64), mantissas * 2**exponents]).to(dt.TORCH_DTYPES[dtype])
    program = simplify(one_input(binary("div", divisor, dtype), dtype, len(x)))
    assert {value.op for value in program.values} == {"const", "mul"}
    (found,) = interpret(program, [x], exact=False)
    assert same_bits(found, x / divisor)
    assert not same_bits(x * (1 / 3), x / 3)


# sum_one_element


def one_hot(size: int | str, *, factor: str = "", other: float = 0.0, dims: str = "n") -> Program:
    """The sum along n of a number at one position and ``other`` elsewhere, times a factor of the row or the element."""
    parameters = (size,) if isinstance(size, str) else ()
    builder = Builder("p", (Dim("m", 6), Dim("n", size)), parameters)
    index = builder.input("index", "i64", ["m"], [1])
    row = builder.input("row", "f32", ["m"], [1])
    x = builder.input("x", "f32", ["m", "n"], [size, 1])
    here = builder.op("eq", builder.op("iota", dtype="i64", attributes=("n",)), index)
    value = builder.op("where", here, builder.const(-1.0, "f32"), builder.const(other, "f32"))
    if factor:
        value = builder.op("mul", value, row if factor == "row" else x)
    total = builder.reduce("sum", value, [dims])
    kept = [d for d in ("m", "n") if d != dims]
    builder.output("y", total, "f32", kept, [1])
    return builder.finish()


@pytest.mark.parametrize("factor", ["", "row"])
def test_the_sum_of_one_element_is_that_element(factor: str) -> None:
    program = one_hot(7, factor=factor)
    found = simplify(program)
    assert not [value for value in found.values if value.op == "sum"]
    index = torch.tensor([0, 6, 3, -1, 7, -100])
    row = torch.tensor([1.5, -2.0, 3.0, 4.0, 5.0, 6.0])
    expected = torch.where((index >= 0) & (index < 7), -row if factor else -torch.ones(6), 0.0)
    inputs = {"index": index, "row": row, "x": torch.randn(6, 7)}
    for each in (program, found):
        (y,) = interpret(each, [inputs[b.name] for b in each.inputs])
        assert torch.equal(y, expected.to(y.dtype))


@pytest.mark.parametrize(
    "program",
    [one_hot(7, factor="element"), one_hot(7, other=1.0), one_hot(7, dims="m"), one_hot("columns", factor="row")],
    ids=["of the element", "not zero elsewhere", "along another dimension", "of unknown length"],
)
def test_other_sums_stay(program: Program) -> None:
    assert [value.op for value in simplify(program).values].count("sum") == 1


# sum_picked


def test_an_element_is_picked_before_it_is_rounded() -> None:
    """Of a row as it was loaded, not in a second loop over what is made of it."""
    builder = Builder("p", (Dim("m", 4), Dim("n", 7)))
    index = builder.input("index", "i64", ["m"], [1])
    x = builder.input("x", "bf16", ["m", "n"], [7, 1])
    row = builder.cast(x, "f32")
    centred = builder.op("sub", row, builder.reduce("max", row, ["n"]))
    rounded = builder.cast(builder.cast(centred, "bf16"), "f32")
    here = builder.op("eq", builder.op("iota", dtype="i64", attributes=("n",)), index)
    picked = builder.op("where", here, rounded, builder.const(0.0, "f32"))
    builder.output("y", builder.reduce("sum", picked, ["n"]), "f32", ["m"], [1])
    program = builder.finish()
    found = simplify(program)
    types = found.types()
    assert [v.op for v in found.values if "n" in types[v.name][1] and v.op not in ("iota", "eq")] == ["cast", "where"]
    inputs = {"index": torch.tensor([0, 6, -1, 7]), "x": (torch.randn(4, 7) * 100).bfloat16()}
    first, second = (interpret(p, [inputs[b.name] for b in p.inputs], exact=False)[0] for p in (program, found))
    assert torch.equal(first, second)
    assert second[2:].tolist() == [0.0, 0.0]


# where_same


def test_a_choice_between_equal_values_goes() -> None:
    def build(builder: Builder, x: str) -> str:
        return builder.op("where", builder.op("lt", x, builder.const(0, "f32")), x, x)

    assert simplified(build) == ["x"]


def test_a_choice_that_turns_out_to_be_between_equal_values_goes() -> None:
    def build(builder: Builder, x: str) -> str:
        one = builder.const(1, "f32")
        return builder.op("where", builder.op("lt", x, one), x, builder.op("mul", x, one))

    assert simplified(build) == ["x"]


def test_a_choice_between_equal_values_stays_if_only_the_condition_has_the_dimension() -> None:
    def build(builder: Builder, x: str) -> str:
        one = builder.const(1, "f32")
        return builder.op("where", builder.op("lt", x, one), one, one)

    assert unchanged(build)


def test_a_choice_between_different_values_stays() -> None:
    def build(builder: Builder, x: str) -> str:
        one = builder.const(1, "f32")
        return builder.op("where", builder.op("lt", x, one), x, one)

    assert unchanged(build)


# sharing, unused values, fixed point


def test_equal_values_are_shared_once_their_operands_are() -> None:
    def build(builder: Builder, x: str) -> str:
        one = builder.const(1, "f32")
        first = builder.op("exp", x)
        second = builder.op("exp", builder.op("mul", x, one))
        return builder.op("add", first, second)

    assert simplified(build) == ["exp: f32{n} = exp(x)", "add: f32{n} = add(exp, exp)", "add"]


def test_unused_values_and_inputs_go_and_the_rest_keeps_its_names() -> None:
    builder = Builder("p", (Dim("n", 4),))
    x, w, z = (builder.input(name, "f32", ["n"], [1]) for name in "xwz")
    builder.op("exp", w)
    builder.output("y", builder.op("add", x, z), "f32", ["n"], [1])
    builder.output("copy", z, "f32", ["n"], [1])
    program = simplify(builder.finish())
    assert [buffer.name for buffer in program.inputs] == ["x", "z"]
    assert [value.op for value in program.values] == ["add"]
    assert [(output.buffer.name, output.value) for output in program.outputs] == [("y", "add"), ("copy", "z")]


def test_buffers_keep_their_layout() -> None:
    builder = Builder("p", (Dim("m", "s0"), Dim("n", 4)), ("s0",))
    x = builder.input("x", "f32", ["n", "m"], ["s0", 2], 7)
    builder.output("mul", builder.op("mul", x, builder.const(1, "f32")), "f32", ["m", "n"], [1, "s0"], 3)
    before = builder.finish()
    after = simplify(before)
    assert after.inputs == before.inputs
    assert after.outputs[0].buffer == before.outputs[0].buffer
    assert (after.name, after.parameters, after.dims) == (before.name, before.parameters, before.dims)


@MANY
@given(programs())
def test_simplifying_twice_changes_nothing(program: Program) -> None:
    once = simplify(program)
    assert print_program(simplify(once)) == print_program(once)


@MANY
@given(programs())
def test_nothing_grows_except_by_expanded_powers(program: Program) -> None:
    cubes = sum(value.op == "pow" for value in program.values)
    assert len(simplify(program).values) <= len(program.values) + cubes


SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 3.0, INF, -INF, NAN, 1e-40, 65504.0, -7.25, 2.0**-14, 1e30]
INTEGERS = [0, 1, -1, 2**24 + 1, 2**31 - 1, -(2**31) + 1, 257]


def random_inputs(program: Program, seed: int) -> dict[str, Tensor]:
    """A tensor for each input, just large enough, of random numbers and special ones."""
    sizes = sizes_of(program, parameter_values(program))
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for buffer in program.inputs:
        steps = (
            (sizes[d] - 1) * (sizes[s] if isinstance(s, str) else s)
            for d, s in zip(buffer.dims, buffer.strides, strict=True)
        )
        count = 1 + buffer.offset + sum(steps)
        if dt.is_float(buffer.dtype):
            numbers = torch.randn(count, generator=generator, dtype=torch.float64) * 4
            chosen = torch.tensor(SPECIAL, dtype=torch.float64)
            chosen = chosen[torch.randint(len(SPECIAL), (count,), generator=generator)]
            numbers = torch.where(torch.rand(count, generator=generator) < 0.6, chosen, numbers)
        else:
            chosen = torch.tensor(INTEGERS)[torch.randint(len(INTEGERS), (count,), generator=generator)]
            numbers = torch.randint(-9, 10, (count,), generator=generator)
            numbers = torch.where(torch.rand(count, generator=generator) < 0.3, chosen, numbers)
        tensors[buffer.name] = numbers.to(dt.TORCH_DTYPES[buffer.dtype])
    return tensors


@settings(deadline=None, max_examples=500, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(programs(executable=True), st.integers(0, 2**32 - 1))
def test_simplifying_changes_no_bit_of_any_result(program: Program, seed: int) -> None:
    tensors = random_inputs(program, seed)
    after = simplify(program)
    parameters = parameter_values(program)
    expected = interpret(program, [tensors[b.name] for b in program.inputs], parameters, exact=False)
    found = interpret(after, [tensors[b.name] for b in after.inputs], parameters, exact=False)
    assert [output.buffer for output in after.outputs] == [output.buffer for output in program.outputs]
    for one, other in zip(found, expected, strict=True):
        assert same_bits(one, other), f"{print_program(program)}\nbecame\n{print_program(after)}\n{one}\nnot\n{other}"


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("op", ["add", "sub", "mul", "div", "maximum", "minimum"])
def test_no_op_with_a_constant_changes_a_bit(op: str, swapped: bool, dtype: str) -> None:
    x = torch.tensor(SPECIAL, dtype=torch.float64).to(dt.TORCH_DTYPES[dtype])
    for number in (*NUMBERS, INF, -INF, NAN):
        program = one_input(binary(op, number, dtype, swapped=swapped), dtype, len(x))
        (expected,) = interpret(program, [x], exact=False)
        (found,) = interpret(simplify(program), [x], exact=False)
        assert same_bits(found, expected), f"{number}: {found} not {expected}"


def test_dimensions_that_nothing_has_are_dropped() -> None:
    found = parse(
        """program p(s0)
          dim a = 2
          dim b = s0
          dim c = 4
          dim d = 3
          input x: f32 [a:1, b:2]
          input y: f32 [c:1]
          exp: f32{c} = exp(y)
          log: f32{a, b} = log(x)
          added: f32{c} = mul(exp, y)
          output z: f32 [c:1] = added
        end
        """
    )
    assert [dim.name for dim in simplify(found).dims] == ["b", "c"]  # what is known at run time only is an argument
