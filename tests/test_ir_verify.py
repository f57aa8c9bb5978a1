"""Every rule of the verifier refuses a program that breaks it and nothing else, and says which name does."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from weft.errors import VerificationError
from weft.ir import Buffer, Dim, Output, Program, Value, verify
from weft.ir import dtypes as dt

M, N = Dim("m", "s0"), Dim("n", 8)
X = Buffer("x", "f32", ("m", "n"), ("s0", 1))
H = Buffer("h", "bf16", ("m", "n"), (8, 1))
I = Buffer("i", "i64", ("n",), (1,))  # noqa: E741
B = Buffer("b", "bool", ("n",), (1,))
TOTAL = Value("total", "sum", ("x",), ("n",), "f32", ("m",))
Y = Output(Buffer("y", "f32", ("m",), (1,)), "total")
PROGRAM = Program("p", ("s0",), (M, N), (X, H, I, B), (TOTAL,), (Y,))


def with_value(
    op: str, args: tuple[str, ...], dtype: str, dims: tuple[str, ...], attributes: tuple[str | float, ...] = ()
) -> Program:
    return replace(PROGRAM, values=(TOTAL, Value("v", op, args, attributes, dtype, dims)))


def with_input(buffer: Buffer) -> Program:
    return replace(PROGRAM, inputs=(*PROGRAM.inputs, buffer))


def with_output(buffer: Buffer, value: str) -> Program:
    return replace(PROGRAM, outputs=(Y, Output(buffer, value)))


def refused(program: Program, message: str) -> None:
    with pytest.raises(VerificationError, match=f"^{re.escape(message)}"):
        verify(program)


def test_the_program_the_others_are_made_from_is_correct() -> None:
    assert verify(PROGRAM) is PROGRAM


def test_dimensions_have_different_names() -> None:
    refused(replace(PROGRAM, dims=(M, N, Dim("n", 3))), "p: two dimensions have the same name")


def test_parameters_have_different_names() -> None:
    refused(replace(PROGRAM, parameters=("s0", "s0")), "p: two parameters have the same name")


def test_a_size_is_a_parameter() -> None:
    refused(replace(PROGRAM, dims=(M, N, Dim("k", "s9"))), "k: s9 is no parameter of the program")


def test_a_size_is_not_negative() -> None:
    refused(replace(PROGRAM, dims=(M, N, Dim("k", -1))), "k: -1 is negative")
    verify(replace(PROGRAM, dims=(M, N, Dim("k", 0))))


def test_a_dimension_has_more_than_one_element() -> None:
    refused(replace(PROGRAM, dims=(M, N, Dim("k", 1))), "k: a dimension of size one is no dimension")


def test_inputs_have_different_names() -> None:
    refused(with_input(Buffer("x", "f32", ("n",), (1,))), "x: the name is taken")


def test_a_value_does_not_take_the_name_of_an_input() -> None:
    refused(replace(PROGRAM, values=(TOTAL, replace(TOTAL, name="x"))), "x: the name is taken")


def test_values_have_different_names() -> None:
    refused(replace(PROGRAM, values=(TOTAL, TOTAL)), "total: the name is taken")


def test_an_output_does_not_take_the_name_of_a_value() -> None:
    refused(with_output(replace(Y.buffer, name="total"), "total"), "total: the name is taken")


def test_an_output_does_not_take_the_name_of_an_input() -> None:
    refused(with_output(replace(Y.buffer, name="x"), "total"), "x: the name is taken")


def test_outputs_have_different_names() -> None:
    refused(with_output(Y.buffer, "total"), "y: the name is taken")


def test_a_buffer_has_a_known_dtype() -> None:
    refused(with_input(Buffer("z", "f8", ("n",), (1,))), "z: unknown dtype f8")


def test_a_buffer_has_a_stride_for_each_dimension() -> None:
    refused(with_input(Buffer("z", "f32", ("n",), ())), "z: one stride a dimension")
    refused(with_input(Buffer("z", "f32", ("n",), (1, 1))), "z: one stride a dimension")


def test_a_buffer_is_no_diagonal() -> None:
    refused(with_input(Buffer("z", "f32", ("n", "n"), (8, 1))), "z: a dimension occurs twice (a diagonal)")


def test_a_buffer_has_known_dimensions() -> None:
    refused(with_input(Buffer("z", "f32", ("n", "k"), (1, 8))), "z: unknown dimension in ('n', 'k')")


def test_a_stride_is_a_parameter() -> None:
    refused(with_input(Buffer("z", "f32", ("n",), ("s1",))), "z: s1 is no parameter of the program")


def test_a_stride_is_not_negative() -> None:
    refused(with_input(Buffer("z", "f32", ("n",), (-1,))), "z: -1 is negative")
    verify(with_input(Buffer("z", "f32", ("n",), (0,))))


@pytest.mark.parametrize(
    ("buffer", "message"),
    [
        (Buffer("z", "f8", ("m",), (1,)), "z: unknown dtype f8"),
        (Buffer("z", "f32", ("m",), (-2,)), "z: -2 is negative"),
        (Buffer("z", "f32", ("m", "m"), (1, 1)), "z: a dimension occurs twice (a diagonal)"),
    ],
)
def test_the_buffer_of_an_output_obeys_the_same_rules(buffer: Buffer, message: str) -> None:
    refused(with_output(buffer, "total"), message)


def test_an_output_is_written_with_something() -> None:
    refused(with_output(Buffer("z", "f32", ("m",), (1,)), "gone"), "z: is written with gone, which does not exist")


def test_an_output_has_the_dtype_of_its_value() -> None:
    refused(with_output(Buffer("z", "bf16", ("m",), (1,)), "total"), "z: is bf16 but its value is f32")


def test_an_output_has_the_dimensions_of_its_value() -> None:
    refused(
        with_output(Buffer("z", "f32", ("n",), (1,)), "total"), "z: lacks dimensions ['m'] that its value varies over"
    )


def test_an_output_may_have_more_dimensions_than_its_value() -> None:
    verify(with_output(Buffer("z", "f32", ("n", "m"), (1, 8)), "total"))


def test_an_output_may_be_an_input() -> None:
    verify(with_output(Buffer("z", "bf16", ("m", "n"), (8, 1)), "h"))


def test_an_op_is_in_the_table() -> None:
    refused(with_value("conv", ("x",), "f32", ("m", "n")), "v: no op named 'conv'")


@pytest.mark.parametrize("args", [(), ("x",), ("x", "x", "x")])
def test_an_op_has_its_number_of_operands(args: tuple[str, ...]) -> None:
    refused(with_value("add", args, "f32", ("m", "n")), f"v: add takes 2 operands, not {len(args)}")


@pytest.mark.parametrize("arg", ["v", "gone", "y"])
def test_an_operand_is_defined_before_it_is_used(arg: str) -> None:
    refused(with_value("neg", (arg,), "f32", ("m",)), f"v: operand {arg} is not defined before it")


def test_values_are_in_order() -> None:
    later = Value("first", "neg", ("second",), (), "f32", ("m",))
    second = Value("second", "neg", ("total",), (), "f32", ("m",))
    refused(replace(PROGRAM, values=(TOTAL, later, second)), "first: operand second is not defined before it")
    verify(replace(PROGRAM, values=(TOTAL, second, later)))


def test_a_reduction_drops_something() -> None:
    refused(with_value("sum", ("x",), "f32", ("m", "n")), "v: a reduction drops at least one dimension")


def test_a_reduction_drops_what_its_operand_varies_over() -> None:
    message = "v: drops ['n'], which its operand does not vary over"
    refused(with_value("max", ("total",), "f32", ("m",), ("n",)), message)
    refused(with_value("max", ("total",), "f32", (), ("m", "n")), message)


def test_size_counts_something() -> None:
    refused(with_value("size", (), "i64", ()), "v: size is over at least one dimension")


def test_iota_counts_along_something() -> None:
    with pytest.raises(VerificationError, match=r"^v: "):
        verify(with_value("iota", (), "i64", ("n",)))


def test_iota_and_size_name_known_dimensions() -> None:
    refused(with_value("iota", (), "i64", (), ("k",)), "v: names an unknown dimension")
    refused(with_value("size", (), "i64", (), ("n", "k")), "v: names an unknown dimension")


@pytest.mark.parametrize("dims", [(), ("m",), ("n", "m"), ("m", "n", "n"), ("m", "k")])
def test_a_pointwise_value_varies_over_the_union_of_its_operands(dims: tuple[str, ...]) -> None:
    with pytest.raises(VerificationError, match=rf"^v: varies over .*, not {re.escape(str(dims))}"):
        verify(with_value("mul", ("total", "x"), "f32", dims))


def test_a_reduction_varies_over_what_is_left() -> None:
    refused(with_value("sum", ("x",), "f32", ("m", "n"), ("m",)), "v: varies over {'n'}, not ('m', 'n')")
    refused(with_value("sum", ("x",), "f32", ("m",), ("m",)), "v: varies over {'n'}, not ('m',)")


def test_iota_varies_over_its_dimension() -> None:
    refused(with_value("iota", (), "i64", (), ("n",)), "v: varies over {'n'}, not ()")


@pytest.mark.parametrize(("op", "attributes"), [("const", (1.0,)), ("size", ("n",))])
def test_constants_and_sizes_vary_over_nothing(op: str, attributes: tuple[str | float, ...]) -> None:
    verify(with_value(op, (), "f32", (), attributes))
    refused(with_value(op, (), "f32", ("n",), attributes), "v: varies over set(), not ('n',)")


def test_a_value_has_a_known_dtype() -> None:
    refused(with_value("cast", ("x",), "f8", ("m", "n")), "v: unknown dtype f8")


@pytest.mark.parametrize("dtype", [name for name in dt.TORCH_DTYPES if dt.is_narrow(name)])
def test_narrow_dtypes_are_only_loaded_cast_and_stored(dtype: str) -> None:
    message = f"v: {dtype} is only loaded, cast and stored: cast it first"
    narrow = with_value("cast", ("x",), dtype, ("m", "n"))
    verify(narrow)
    for op, args, result, dims, dropped in (
        ("neg", ("v",), dtype, ("m", "n"), ()),
        ("div", ("v", "v"), dtype, ("m", "n"), ()),
        ("lt", ("v", "v"), "bool", ("m", "n"), ()),
        ("max", ("v",), dtype, ("m",), ("n",)),
    ):
        after = Value("w", op, args, dropped, result, dims)
        refused(replace(narrow, values=(*narrow.values, after)), message.replace("v:", "w:"))
    verify(replace(narrow, values=(*narrow.values, Value("w", "cast", ("v",), (), "f32", ("m", "n")))))


@pytest.mark.parametrize("dtype", [name for name in dt.TORCH_DTYPES if dt.is_narrow(name)])
def test_numbers_of_16_bits_are_added_and_multiplied(dtype: str) -> None:
    number = with_value("const", (), dtype, (), (1.0 if dt.is_float(dtype) else 1,))
    narrow = with_value("cast", ("x",), dtype, ("m", "n"))
    product = replace(narrow, values=(*narrow.values, Value("w", "mul", ("v", "v"), (), dtype, ("m", "n"))))
    mixed = replace(narrow, values=(*narrow.values, Value("w", "add", ("x", "v"), (), "f32", ("m", "n"))))
    if dtype in dt.HALVES:
        verify(number)
        verify(product)
        refused(mixed, f"w: operands have different dtypes ['f32', '{dtype}']")
    else:
        for program, subject in ((number, "v"), (product, "w"), (mixed, "w")):
            refused(program, f"{subject}: {dtype} is only loaded, cast and stored: cast it first")


def test_where_takes_a_bool() -> None:
    refused(with_value("where", ("x", "x", "x"), "f32", ("m", "n")), "v: the first operand of where is bool")
    verify(with_value("where", ("b", "x", "total"), "f32", ("m", "n")))
    verify(with_value("where", ("b", "b", "b"), "bool", ("n",)))


@pytest.mark.parametrize("op", ["add", "lt", "pow"])
def test_operands_have_one_dtype(op: str) -> None:
    refused(with_value(op, ("x", "i"), "f32", ("m", "n")), "v: operands have different dtypes ['f32', 'i64']")


def test_the_branches_of_where_have_one_dtype() -> None:
    refused(with_value("where", ("b", "x", "i"), "f32", ("m", "n")), "v: operands have different dtypes ['f32', 'i64']")


def test_a_value_has_the_dtype_of_its_operands() -> None:
    refused(with_value("add", ("x", "x"), "f64", ("m", "n")), "v: is f64, expected f32")
    refused(with_value("sum", ("i",), "f32", (), ("n",)), "v: is f32, expected i64")
    refused(with_value("bitwise_or", ("i", "i"), "i32", ("n",)), "v: is i32, expected i64")
    refused(with_value("where", ("b", "i", "i"), "f32", ("n",)), "v: is f32, expected i64")


def test_a_comparison_is_bool() -> None:
    refused(with_value("lt", ("x", "x"), "f32", ("m", "n")), "v: is f32, expected bool")
    verify(with_value("lt", ("x", "x"), "bool", ("m", "n")))
    verify(with_value("eq", ("b", "b"), "bool", ("n",)))


@pytest.mark.parametrize(("op", "count"), [("bitwise_and", 2), ("bitwise_or", 2), ("bitwise_not", 1)])
def test_bits_are_those_of_integers(op: str, count: int) -> None:
    refused(with_value(op, ("x",) * count, "f32", ("m", "n")), f"v: {op} is defined on integers, not f32")
    refused(with_value(op, ("b",) * count, "bool", ("n",)), f"v: {op} is defined on integers, not bool")
    verify(with_value(op, ("i",) * count, "i64", ("n",)))


@pytest.mark.parametrize(("op", "args"), [("exp", ("i",)), ("div", ("i", "i")), ("pow", ("i", "i")), ("sqrt", ("i",))])
def test_functions_are_defined_on_floats(op: str, args: tuple[str, ...]) -> None:
    refused(with_value(op, args, "i64", ("n",)), f"v: {op} is defined on floats, not i64")


@pytest.mark.parametrize(("op", "count"), [("logical_and", 2), ("logical_or", 2), ("logical_not", 1)])
def test_logic_is_defined_on_bool(op: str, count: int) -> None:
    refused(with_value(op, ("i",) * count, "i64", ("n",)), f"v: {op} is defined on bool, not i64")
    verify(with_value(op, ("b",) * count, "bool", ("n",)))


@pytest.mark.parametrize(("op", "count"), [("add", 2), ("neg", 1), ("maximum", 2)])
def test_arithmetic_is_not_defined_on_bool(op: str, count: int) -> None:
    refused(with_value(op, ("b",) * count, "bool", ("n",)), f"v: {op} is not defined on bool")


@pytest.mark.parametrize("op", ["sum", "max", "min"])
def test_reductions_are_not_defined_on_bool(op: str) -> None:
    refused(with_value(op, ("b",), "bool", (), ("n",)), f"v: {op} is not defined on bool")


@pytest.mark.parametrize(
    ("op", "args", "dtype", "dims", "attributes"),
    [
        ("const", (), "f32", (), ()),
        ("const", (), "f32", (), (1.0, 2.0)),
        ("const", (), "f32", (), ("n",)),
        ("const", (), "i64", (), (1.5,)),
        ("const", (), "i64", (), (2**64,)),
        ("iota", (), "f32", ("n",), ("n", "n")),
        ("sum", ("x",), "f32", ("m",), ("n", "n")),
        ("add", ("x", "x"), "f32", ("m", "n"), ("n",)),
        ("cast", ("x",), "f64", ("m", "n"), (1,)),
    ],
)
def test_attributes_are_what_the_op_reads_and_no_more(
    op: str, args: tuple[str, ...], dtype: str, dims: tuple[str, ...], attributes: tuple[str | float, ...]
) -> None:
    with pytest.raises(VerificationError, match=r"^v: "):
        verify(with_value(op, args, dtype, dims, attributes))
