"""Every rule of the simplifier where it applies and where it must not, and that no rule changes a bit."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.test_ir_program import NUMBERS, parameter_values, programs
from weft.ir import Builder, Dim, Program, interpret, print_program, simplify
from weft.ir import dtypes as dt
from weft.ir.interpret import sizes_of
from weft.ir.printer import print_value

MANY = settings(deadline=None, max_examples=300, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
INF, NAN = math.inf, math.nan
Expression = Callable[[Builder, str], str]


def one_input(expression: Expression, dtype: str = "f32", size: int = 4) -> Program:
    """A program of one vector x[n] that writes ``expression`` of it, broadcast over n where it lacks that."""
    builder = Builder("p", (Dim("n", size),))
    value = expression(builder, builder.input("x", dtype, ["n"], [1]))
    builder.output("y", value, builder.dtype(value), ["n"], [1])
    return builder.finish()


def simplified(expression: Expression, dtype: str = "f32") -> list[str]:
    """Values of the simplified program, as they are printed, and what is written."""
    program = simplify(one_input(expression, dtype))
    return [*(print_value(value) for value in program.values), program.outputs[0].value]


def unchanged(expression: Expression, dtype: str = "f32") -> bool:
    program = one_input(expression, dtype)
    return simplify(program) == program


def binary(op: str, number: float, dtype: str = "f32", *, swapped: bool = False) -> Expression:
    def build(builder: Builder, x: str) -> str:
        args = [x, builder.const(number, dtype)]
        return builder.op(op, *(reversed(args) if swapped else args))

    return build


def casts(*targets: str) -> Expression:
    def build(builder: Builder, x: str) -> str:
        for target in targets:
            x = builder.op("cast", x, dtype=target)
        return x

    return build


def position(builder: Builder, op: str) -> str:
    return builder.op(op, dtype="f32", attributes=["n"])


def same_bits(found: Tensor, expected: Tensor) -> bool:
    """Equal shape, dtype and bits; any not-a-number is like any other."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    if not found.dtype.is_floating_point:
        return torch.equal(found, expected)
    if found.itemsize == 1:  # torch neither compares 8-bit floats nor tells their signs
        found, expected = found.double(), expected.double()
    nan = expected.isnan()
    alike = (found == expected) & (found.signbit() == expected.signbit())
    return bool((found.isnan() == nan).all()) and bool((alike | nan).all())


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


# fold_constants


@pytest.mark.parametrize(
    ("op", "numbers", "dtype", "expected"),
    [
        ("add", (1, 2), "i64", "i64{} = const[3]()"),
        ("mul", (2**31 - 1, 2), "i32", "i32{} = const[-2]()"),
        ("sub", (0.5, 2), "f64", "f64{} = const[-1.5]()"),
        ("add", (0.1, 0.2), "f64", "f64{} = const[0.30000000000000004]()"),
        ("add", (2.0**24, 1), "f32", "f32{} = const[16777216.0]()"),
        ("sqrt", (2,), "f32", "f32{} = const[1.4142135381698608]()"),
        ("neg", (0.0,), "f32", "f32{} = const[-0.0]()"),
        ("lt", (1, 2), "f32", "bool{} = const[True]()"),
        ("lt", (INF, 2), "f32", "bool{} = const[False]()"),
        ("logical_not", (True,), "bool", "bool{} = const[False]()"),
        ("minimum", (INF, 2), "f32", "f32{} = const[2.0]()"),
    ],
)
def test_ops_on_constants_are_computed_in_their_own_dtype(
    op: str, numbers: tuple[float, ...], dtype: str, expected: str
) -> None:
    def build(builder: Builder, x: str) -> str:
        return builder.op(op, *(builder.const(n, dtype) for n in numbers))

    assert simplified(build) == [f"const: {expected}", "const"]


def test_a_choice_between_constants_is_made() -> None:
    def build(builder: Builder, x: str) -> str:
        return builder.op("where", builder.const(False, "bool"), builder.const(1, "f32"), builder.const(2, "f32"))

    assert simplified(build) == ["const: f32{} = const[2.0]()", "const"]


@pytest.mark.parametrize(
    ("number", "dtype", "target", "expected"),
    [
        (0.1, "f64", "f32", "f32{} = const[0.10000000149011612]()"),
        (-1.5, "f32", "i64", "i64{} = const[-1]()"),
        (2, "i64", "f64", "f64{} = const[2.0]()"),
        (3, "i32", "bool", "bool{} = const[True]()"),
        (True, "bool", "f32", "f32{} = const[1.0]()"),
    ],
)
def test_casts_of_constants_are_made(number: float, dtype: str, target: str, expected: str) -> None:
    def build(builder: Builder, x: str) -> str:
        return builder.op("cast", builder.const(number, dtype), dtype=target)

    assert simplified(build) == [f"const: {expected}", "const"]


def test_chains_of_constants_fold_to_one() -> None:
    def build(builder: Builder, x: str) -> str:
        half = builder.op("reciprocal", builder.const(2, "f32"))
        return builder.op("add", x, builder.op("mul", half, builder.op("add", half, half)))

    assert simplified(build) == ["const: f32{} = const[0.5]()", "add: f32{n} = add(x, const)", "add"]


@pytest.mark.parametrize(("op", "numbers"), [("div", (1, 0)), ("log", (0,)), ("sqrt", (-1,)), ("mul", (1e30, 1e31))])
def test_what_is_not_finite_is_not_folded(op: str, numbers: tuple[float, ...]) -> None:
    def build(builder: Builder, x: str) -> str:
        return builder.op("add", x, builder.op(op, *(builder.const(n, "f32") for n in numbers)))

    assert unchanged(build)


@pytest.mark.parametrize("narrow", ["bf16", "f16", "f8e4m3", "f8e5m2"])
def test_a_constant_rounded_to_a_narrow_float_is_rounded_still(narrow: str) -> None:
    """No constant has a narrow dtype, so this stays a cast or, widened again, becomes the rounded constant."""
    rounded = torch.tensor(0.1).to(dt.TORCH_DTYPES[narrow])
    for target in (narrow, "f32"):
        program = simplify(one_input(lambda b, x, to=target: b.cast(b.cast(b.const(0.1, "f32"), narrow), to)))
        (found,) = interpret(program, [], exact=False)
        assert same_bits(found, rounded.to(dt.TORCH_DTYPES[target]).expand(4))


def test_ops_with_one_constant_are_not_folded() -> None:
    for op in ("add", "sub", "maximum", "lt"):
        assert unchanged(binary(op, 2.0))


def test_positions_and_run_time_sizes_are_not_folded() -> None:
    for source in ("iota", "size"):
        assert unchanged(lambda builder, x, op=source: builder.op("mul", x, builder.op("neg", position(builder, op))))


# merge_casts


@pytest.mark.parametrize("dtype", dt.TORCH_DTYPES)
def test_a_cast_to_the_same_dtype_goes(dtype: str) -> None:
    assert simplified(casts(dtype), dtype) == ["x"]


@pytest.mark.parametrize(
    ("source", "wide"),
    [("bf16", "f32"), ("bf16", "f64"), ("f16", "f32"), ("f16", "f64"), ("f32", "f64"), ("i32", "i64"), ("i32", "f64")]
    + [(f8, wide) for f8 in ("f8e4m3", "f8e5m2") for wide in ("bf16", "f16", "f32", "f64")]
    + [(byte, wide) for byte in ("i8", "u8") for wide in ("i32", "i64", "bf16", "f16", "f32", "f64")]
    + [("bool", dtype) for dtype in dt.TORCH_DTYPES],
)
def test_a_cast_to_a_wider_dtype_and_back_goes(source: str, wide: str) -> None:
    assert simplified(casts(wide, source), source) == ["x"]


@pytest.mark.parametrize(
    ("source", "narrow"),
    [
        ("f32", "bf16"),
        ("f32", "f16"),
        ("f64", "f32"),
        ("bf16", "f16"),
        ("f16", "bf16"),
        ("f32", "i64"),
        ("f32", "bool"),
        ("i64", "f64"),
        ("i32", "f32"),
        ("i64", "i32"),
        ("i32", "bf16"),
        ("i64", "f16"),
        ("f64", "i64"),
        ("f16", "f8e4m3"),
        ("bf16", "f8e5m2"),
        ("f8e4m3", "f8e5m2"),
        ("f8e5m2", "f8e4m3"),
        ("i32", "i8"),
        ("i8", "u8"),
        ("u8", "i8"),
        ("i8", "f8e4m3"),
    ],
)
def test_a_cast_to_a_narrower_dtype_and_back_stays(source: str, narrow: str) -> None:
    assert unchanged(casts(narrow, source), source)


@pytest.mark.parametrize(
    ("source", "through", "target"),
    [
        ("bf16", "f32", "f16"),
        ("bf16", "f32", "f64"),
        ("f16", "f64", "bf16"),
        ("f32", "f64", "bf16"),
        ("i32", "i64", "f32"),
        ("i32", "f64", "f32"),
        ("bool", "f16", "i64"),
    ],
)
def test_a_cast_on_from_a_wider_dtype_is_one_cast(source: str, through: str, target: str) -> None:
    assert simplified(casts(through, target), source) == [f"cast: {target}{{n}} = cast(x)", "cast"]


@pytest.mark.parametrize(
    ("source", "through", "target"), [("f32", "bf16", "f64"), ("f64", "f32", "bf16"), ("i64", "i32", "f32")]
)
def test_a_cast_on_from_a_narrower_dtype_stays(source: str, through: str, target: str) -> None:
    assert unchanged(casts(through, target), source)


def test_a_long_chain_of_widening_casts_is_none() -> None:
    assert simplified(casts("f32", "f64", "f32", "bf16"), "bf16") == ["x"]


@pytest.mark.parametrize("through", dt.TORCH_DTYPES)
@pytest.mark.parametrize("source", dt.TORCH_DTYPES)
def test_no_merged_cast_changes_a_value(source: str, through: str) -> None:
    torch_source = dt.TORCH_DTYPES[source]
    if torch_source.is_floating_point:
        numbers = torch.tensor([0.0, -0.0, 1.0, -1.9, 0.3, 65519.9, -70000.25, 2.0**-24, 1.00390625, 1e-40, 300.7])
    else:
        numbers = torch.tensor([0, 1, -1, 16777217, 33554433, 2**31 - 1, -(2**31), 257, 65535, 2**24 + 3, 1234567891])
    x = numbers.to(torch_source)
    for target in dt.TORCH_DTYPES:
        program = one_input(casts(through, target), source, len(x))
        (expected,) = interpret(program, [x], exact=False)
        (found,) = interpret(simplify(program), [x], exact=False)
        if torch_source.is_floating_point and through in ("f16", "bf16") and target in dt.INTEGERS:
            continue  # infinity has no integer
        assert same_bits(found, expected), (source, through, target)


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
