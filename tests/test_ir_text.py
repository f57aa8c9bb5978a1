"""The printed form of programs and kernels parses back, and what is no program is refused with its line."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.test_ir_program import ARITHMETIC, CONSTANT_DTYPES, Draw, programs
from weft.backends.cpp.schedule import CppSchedule
from weft.errors import ParseError, VerificationError
from weft.ir import Builder, Dim, Program, parse, print_program
from weft.ir import dtypes as dt
from weft.ir.ops import LOGICAL, OPS
from weft.plan.kernel import Kernel, parse_kernel

MANY = settings(deadline=None, max_examples=200, derandomize=True, suppress_health_check=[HealthCheck.too_slow])

TEXT = """\
program softmax_like(s0, s1)
  dim m = s0
  dim n = 1000
  input x: bf16 [m:s1, n:1] + 4
  input w: f32 [n:2]
  cast: f32{m, n} = cast(x)
  max: f32{m} = max[n](cast)
  sub: f32{m, n} = sub(cast, max)
  const: f32{} = const[-0.125]()
  mul: f32{m, n} = mul(sub, const)
  mul_1: f32{m, n} = mul(mul, w)
  iota: i64{n} = iota[n]()
  size: i64{} = size[m, n]()
  lt: bool{n} = lt(iota, size)
  where: f32{m, n} = where(lt, mul_1, const)
  output y: f32 [n:s0, m:1] + 2 = where
end
"""
MALFORMED = [
    "dim k",
    "dim k =",
    "dim 3k = 4",
    "dim k = -4",
    "dim k = 4.0",
    "dim k = 4 5",
    "dim k = ²",
    "input z f32 [n:1]",
    "input z: f32",
    "input z: f32 [n:1",
    "input z: f32 [n]",
    "input z: f32 [n:1:2]",
    "input z: f32 [n:1] + -3",
    "input z: f32 [n:1] + s0",
    "input z: f32 [n:1] = cast",
    "output z: f32 [n:1]",
    "output z: f32 [n:1] =",
    "output z: f32 [n] = w",
    "output z: f32 [n:1] = w w",
    "a = neg(w)",
    "a: f32 = neg(w)",
    "a: f32{n} = neg",
    "a: f32{n} = neg(w",
    "a: f32{n} = neg w",
    "a: f32{n} neg(w)",
    "a: f32{} = const[1.2.3]()",
    "a: f32{} = const[.]()",
    "-a: f32{n} = neg(w)",
    "1a: f32{n} = neg(w)",
    "program",
    "program two words()",
    "program 3()",
    "end of it",
    "anything else",
    "{",
]


def kernel_text(text: str = TEXT) -> str:
    schedule = "STREAM rows=(m) columns=(n) segments=() rows_per_tile=4 rows_per_chunk=32 held=(cast, sub) finish=same"
    return f"schedule {schedule}\n{text}"


@st.composite
def kernels(draw: Draw) -> Kernel:
    program = draw(programs())
    dims = draw(st.permutations([dim.name for dim in program.dims]))
    cut = draw(st.integers(0, len(dims)))
    rows, columns = tuple(dims[:cut]), tuple(dims[cut:])
    schedule = CppSchedule(
        draw(st.sampled_from(["ONE_SHOT", "STREAM", "LOOP", "COLUMN"])),
        rows,
        columns,
        rows[: draw(st.integers(0, len(rows)))],
        draw(st.integers(1, 64)),
        draw(st.sampled_from(["none", "same", "separate"])),
        tuple(v.name for v in program.values[: draw(st.integers(0, 3))]),
        draw(st.integers(1, 4096)),
    )
    return Kernel(program, schedule)


def parse_alone(text: str) -> None:
    """Parse; a text that reads as a program but breaks a rule of programs is none of this file's business."""
    with contextlib.suppress(VerificationError):
        parse(text)


def insert(text: str, number: int, line: str) -> str:
    """``text`` with ``line`` as its line of that number, from one."""
    lines = text.splitlines()
    return "\n".join([*lines[: number - 1], line, *lines[number - 1 :], ""])


@MANY
@given(programs())
def test_a_program_is_what_its_text_says(program: Program) -> None:
    text = print_program(program)
    again = parse(text)
    assert again == program
    assert print_program(again) == text


@MANY
@given(kernels())
def test_a_kernel_is_what_its_text_says(kernel: Kernel) -> None:
    assert parse_kernel(str(kernel)) == parse_kernel(kernel.line) == kernel
    assert "\n" not in kernel.line
    assert str(parse_kernel(str(kernel))) == str(kernel)


def test_the_text_of_a_program() -> None:
    program = parse(TEXT)
    assert print_program(program) == str(program) == TEXT
    assert program.name == "softmax_like"
    assert program.parameters == ("s0", "s1")
    assert program.dims == (Dim("m", "s0"), Dim("n", 1000))
    assert program.inputs[0].strides == ("s1", 1)
    assert program.inputs[0].offset == 4
    assert program.values[3].attributes == (-0.125,)
    assert program.outputs[0].value == "where"
    assert program.outputs[0].buffer.dims == ("n", "m")


@pytest.mark.parametrize("op", OPS)
def test_every_op_parses_back(op: str) -> None:
    row = OPS[op]
    accepted = ["bool"] if op in LOGICAL else ["f64", "f32"] if row.floats_only else list(ARITHMETIC)
    accepted = ["i64", "i32"] if row.integers_only else accepted
    builder = Builder("p", (Dim("m", 3), Dim("n", "s0")), ("s0",))
    condition = builder.input("c", "bool", ["n"], [1])
    for dtype in [*accepted, "bool"] if row.dtype in ("bool", "select") else accepted:
        x = builder.input("x", dtype, ["m", "n"], ["s0", 1])
        if op == "const":
            value = builder.const(-3, dtype)
        elif row.kind == "source":
            value = builder.op(op, dtype=dtype, attributes=["s0" if op == "parameter" else "n"])
        elif op == "cast":
            for target in dt.TORCH_DTYPES:
                value = builder.op(op, x, dtype=target)
                builder.output("y", value, target, ["m", "n"], ["s0", 1])
            continue
        elif row.kind == "reduction":
            value = builder.op(op, x, attributes=["m", "n"])
        elif row.kind == "gather":
            value = builder.op(op, x, builder.input("i", "i64", ["m"], [1]), attributes=["n"])
        else:
            value = builder.op(op, *([condition, x, x] if row.dtype == "select" else [x] * row.arity))
        builder.output("y", value, builder.dtype(value), ["m", "n"], ["s0", 1])
    program = builder.finish()
    assert {v.op for v in program.values} == {op}
    assert parse(print_program(program)) == program


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize(
    "number", [0.0, -0.0, 1.0, -1.5, 1e22, -1e-45, 5e-324, 1.7976931348623157e308, math.inf, -math.inf, 0.1]
)
def test_a_float_parses_back_to_its_last_bit(number: float, dtype: str) -> None:
    builder = Builder("p", ())
    builder.output("y", builder.const(number, dtype), dtype, [], [])
    (found,) = parse(print_program(builder.finish())).values[0].attributes
    assert isinstance(found, float)
    assert (found, math.copysign(1, found)) == (number, math.copysign(1, number))


def test_a_constant_that_is_no_number_prints_the_same_again() -> None:
    builder = Builder("p", ())
    builder.output("y", builder.const(math.nan, "f32"), "f32", [], [])
    text = print_program(builder.finish())
    assert "const[nan]" in text
    assert print_program(parse(text)) == text


@pytest.mark.parametrize(
    ("number", "dtype"), [(0, "i32"), (-(2**63), "i64"), (2**63 - 1, "i64"), (True, "bool"), (False, "bool")]
)
def test_integers_and_bools_parse_back_with_their_type(number: int, dtype: str) -> None:
    builder = Builder("p", ())
    builder.output("y", builder.const(number, dtype), dtype, [], [])
    (found,) = parse(print_program(builder.finish())).values[0].attributes
    assert found == number
    assert type(found) is type(number)


def test_a_name_that_reads_like_a_number_stays_a_name() -> None:
    builder = Builder("p", (Dim("inf", "s0"),), ("s0",))
    builder.output("y", builder.op("size", dtype="f32", attributes=["inf"]), "f32", [], [])
    program = builder.finish()
    assert parse(print_program(program)) == program


def test_comments_blank_lines_and_indentation_do_not_matter() -> None:
    spaced = "# first\n\n" + "\n  # between\n\n".join(f"\t {line.strip()}  " for line in TEXT.splitlines())
    assert parse(spaced) == parse(TEXT)


@pytest.mark.parametrize("line", MALFORMED)
def test_a_malformed_line_is_named(line: str) -> None:
    for number in range(2, len(TEXT.splitlines()) + 1):
        with pytest.raises(ParseError, match=rf"\bline {number}\b"):
            parse_alone(insert(TEXT, number, line))


@pytest.mark.parametrize("line", ["", "# a comment"])
def test_lines_that_say_nothing_are_counted(line: str) -> None:
    with pytest.raises(ParseError, match=r"\bline 4\b"):
        parse(insert(insert(TEXT, 3, "??"), 2, line))


@pytest.mark.parametrize("line", ["end", "dim k = 3", "output z: f32 [n:1] = w", "words"])
def test_nothing_follows_the_end(line: str) -> None:
    with pytest.raises(ParseError, match=rf"\bline {len(TEXT.splitlines()) + 1}\b.*after the end"):
        parse(TEXT + line)


@pytest.mark.parametrize("text", ["", "\n\n", "end\n", TEXT.removesuffix("end\n"), TEXT.partition("\n")[2]])
def test_a_program_starts_with_its_name_and_ends_with_end(text: str) -> None:
    with pytest.raises(ParseError, match=r"starts with 'program NAME\(\.\.\.\)' and ends with 'end'"):
        parse(text)


@MANY
@given(st.data())
def test_a_text_with_a_damaged_line_is_a_program_or_an_error_with_that_line(data: st.DataObject) -> None:
    lines = TEXT.splitlines()
    number = data.draw(st.integers(2, len(lines) - 1), label="line")
    line = lines[number - 1]
    start = data.draw(st.integers(0, len(line)), label="start")
    stop = data.draw(st.integers(start, len(line)), label="stop")
    new = data.draw(st.text("()[]{}:=,.+-_ 019ensx", max_size=4), label="new")
    lines[number - 1] = line[:start] + new + line[stop:]
    message = ""
    try:
        parse_alone("\n".join(lines))
    except ParseError as error:
        message = str(error)
    # a line cut down to "end" makes the one that follows it the wrong one
    wrong = number + 1 if lines[number - 1].strip() == "end" else number
    assert not message or f"line {wrong}:" in message


@pytest.mark.parametrize(
    "value", ["iota: i64{n} = iota()", "const: f32{} = const()", "const: f32{} = const[x]()", "size: i64{} = size()"]
)
def test_a_source_without_what_it_needs_is_an_error_of_weft(value: str) -> None:
    with pytest.raises((ParseError, VerificationError)):
        parse(f"program p()\n  dim n = 3\n  {value}\nend\n")


def test_the_text_of_a_kernel() -> None:
    kernel = parse_kernel(kernel_text())
    assert kernel.name == "softmax_like"
    assert kernel.program == parse(TEXT)
    assert kernel.schedule == CppSchedule("STREAM", ("m",), ("n",), (), 4, "same", ("cast", "sub"), 32)
    assert str(kernel) == kernel_text()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("schedule STREAM", "schedule FAST"),
        ("finish=same", "finish=maybe"),
        ("schedule STREAM", "STREAM"),
        ("rows=(m)", "rows=m"),
        ("segments=() ", ""),
        ("rows_per_tile=4", "rows_per_tile=-4"),
        ("rows_per_chunk=32", "rows_per_chunk=many"),
        ("finish=same", "finish=same finish=same"),
    ],
)
def test_a_malformed_schedule_is_line_one(before: str, after: str) -> None:
    assert before in kernel_text()
    with pytest.raises(ParseError, match="line 1: not a schedule"):
        parse_kernel(kernel_text().replace(before, after))


def test_a_kernel_needs_a_program() -> None:
    with pytest.raises(ParseError, match="starts with 'program"):
        parse_kernel(kernel_text(""))


@pytest.mark.parametrize("number", [3, 10, 17])
def test_a_malformed_line_of_a_kernel_is_counted_from_its_first(number: int) -> None:
    with pytest.raises(ParseError, match=rf"\bline {number}\b"):
        parse_kernel(insert(kernel_text(), number, "??"))


def test_all_dtypes_of_constants_are_drawn() -> None:
    assert {d for d in dt.TORCH_DTYPES if not dt.is_narrow(d)} == set(CONSTANT_DTYPES)
