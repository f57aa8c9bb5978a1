"""The simplifier on constants and casts: which are computed or merged, and that no value changes."""

from __future__ import annotations

import pytest
import torch

from tests.simplify_cases import INF, Expression, binary, one_input, same_bits, simplified, unchanged
from weft.ir import Builder, interpret, simplify
from weft.ir import dtypes as dt


def casts(*targets: str) -> Expression:
    def build(builder: Builder, x: str) -> str:
        for target in targets:
            x = builder.op("cast", x, dtype=target)
        return x

    return build


def position(builder: Builder, op: str) -> str:
    return builder.op(op, dtype="f32", attributes=["n"])


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
