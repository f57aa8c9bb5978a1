"""Elements of a row as sums of multiples: what is computed with fewer operations, and what stays as it is."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cuda_kernels import WORKLOADS_OF_ROWS, kernel_of
from tests.gpu.nonfinite import spoiled
from weft.backends.cuda.inputs import in_one_pass
from weft.ir.affine import sums_of_multiples
from weft.ir.builder import Builder
from weft.ir.interpret import interpret
from weft.ir.parser import parse
from weft.ir.printer import print_value
from weft.ir.program import Dim, Program
from weft.ir.simplify import drop_unused
from weft.ir.structure import loops_of

ROWS, COLUMNS = 3, 4
SIGNS = ("neg",)


def operations(program: Program) -> int:
    """On an element, in all loops over the columns n. A product that is only added to something else is none, and a
    sign neither."""
    loops, by_name, types = loops_of(program, ("m",), ("n",)), program.by_name(), program.types()
    total = 0
    for values, stores, inner, outer in zip(loops.values, loops.stores, loops.inner, loops.outer, strict=True):
        names = [name for name in values if "n" in types[name][1]]
        uses = Counter(arg for name in (*names, *inner, *outer) for arg in by_name[name].args)
        uses.update(output.value for output in stores)
        alone = {name for name in names if by_name[name].op == "mul" and uses[name] == 1}
        total += sum(by_name[name].op not in SIGNS for name in names)
        total -= sum(
            bool(alone & {*by_name[n].args}) for n in (*names, *outer) if by_name[n].op in ("add", "sub", "sum")
        )
    return total


def program_of(body: str, dtype: str = "f32", *, columns: int = COLUMNS) -> Program:
    """Of rows m with columns n of x and y, with numbers a and b of a row and w of a column, and the given values, of
    which the last one is written."""
    lines = [line.strip() for line in body.strip().splitlines()]
    last, kind = lines[-1].partition(":")[0], lines[-1].partition(":")[2].partition("{")[0].strip().replace("T", dtype)
    text = "".join(f"  {line}\n" for line in lines).replace(" T{", f" {dtype}{{")
    inputs = "".join(f"  input {name}: {dtype} [m:{columns}, n:1]\n" for name in "xy")
    inputs += "".join(f"  input {name}: {dtype} [m:1]\n" for name in "ab") + f"  input w: {dtype} [n:1]\n"
    head = f"program p()\n  dim m = {ROWS}\n  dim n = {columns}\n{inputs}"
    return parse(f"{head}{text}  output out: {kind} [m:{columns}, n:1] = {last}\nend\n")


def changed(body: str, dtype: str = "f32") -> list[str]:
    """The values behind, as they are printed."""
    return [print_value(value) for value in sums_of_multiples(program_of(body, dtype), ("n",)).values]


def stays(body: str, dtype: str = "f32") -> bool:
    program = program_of(body, dtype)
    return sums_of_multiples(program, ("n",)) is program


# what norms become

FEWER = {
    "rms_norm_backward": (14, 13),
    "layer_norm_forward": (11, 7),
    "layer_norm_backward": (16, 13),
    "add_rms_norm_backward": (15, 14),
    "layer_norm_backward_bias": (17, 14),
    "modulated_layer_norm_forward": (12, 8),
    "modulated_layer_norm_backward": (18, 15),
    "thunder_layer_norm_backward": (17, 15),
}
"""Operations on an element, before and behind."""


@pytest.mark.parametrize("name", WORKLOADS_OF_ROWS)
def test_a_workload_has_as_few_operations(name: str) -> None:
    _, kernel = kernel_of(name, (64, 2048))
    rows, columns = kernel.schedule.rows, kernel.schedule.columns
    after = in_one_pass(kernel).program
    if name not in FEWER:
        assert sums_of_multiples(kernel.program, columns) is kernel.program
    elif (rows, columns) == (("m",), ("n",)):
        assert (operations(kernel.program), operations(after)) == FEWER[name]
    assert sums_of_multiples(after, columns) is after


def test_layer_norm_forward_multiplies_and_adds_at_once() -> None:
    _, kernel = kernel_of("layer_norm_forward", (64, 2040))
    printed = [print_value(value) for value in in_one_pass(kernel).program.values]
    assert printed[-8:-1] == [
        "mul: f32{m} = mul(div, rsqrt)",
        "mul_1: f32{m, n} = mul(cast, rsqrt)",
        "sub: f32{m, n} = sub(mul_1, mul)",
        "cast_1: f32{n} = cast(weight)",
        "mul_2: f32{m, n} = mul(sub, cast_1)",
        "cast_2: f32{n} = cast(bias)",
        "add_1: f32{m, n} = add(mul_2, cast_2)",
    ]


def test_layer_norm_backward_has_three_operations_an_element_in_its_last_loop() -> None:
    """And one of them multiplies by the weight. That has nothing to do with the normalised row any more."""
    _, kernel = kernel_of("layer_norm_backward", (64, 2040))
    program = in_one_pass(kernel).program
    loops, types = loops_of(program, ("m",), ("n",)), program.types()
    by_name = program.by_name()
    printed = [print_value(by_name[n]) for n in loops.values[-1] if "n" in types[n][1] and by_name[n].op != "cast"]
    assert printed == [
        "mul_2: f32{m, n} = mul(cast_1, cast_2)",
        "sub_1: f32{m, n} = sub(mul_2, div)",
        "mul_8: f32{m, n} = mul(cast, mul_7)",
        "sub_2: f32{m, n} = sub(mul_6, mul_8)",
        "mul_9: f32{m, n} = mul(sub_1, rstd)",
        "add: f32{m, n} = add(mul_9, sub_2)",
    ]


# rules


def test_a_constant_is_multiplied_once_a_row() -> None:
    assert changed("low: T{m, n} = sub(x, a)\n high: T{m, n} = mul(low, b)") == [
        "mul: f32{m} = mul(a, b)",
        "mul_1: f32{m, n} = mul(x, b)",
        "sub: f32{m, n} = sub(mul_1, mul)",
    ]


def test_factors_of_one_term_are_added() -> None:
    body = "one: T{m, n} = mul(x, a)\n other: T{m, n} = mul(b, x)\n both: T{m, n} = sub(one, other)"
    assert changed(body) == ["sub: f32{m} = sub(a, b)", "mul: f32{m, n} = mul(x, sub)"]


def test_what_has_the_longest_factor_is_next_to_the_constant() -> None:
    """They are what may nearly cancel out, and are added up before others are."""
    body = """low: T{m, n} = sub(x, a)
    high: T{m, n} = mul(low, b)
    higher: T{m, n} = mul(high, b)
    other: T{m, n} = mul(y, a)
    sum: T{m, n} = sub(other, higher)
    result: T{m, n} = mul(sum, b)"""
    found = [line.partition(" = ")[2] for line in changed(body) if "{m, n}" in line]
    assert [line[:6] for line in found] == ["mul(x,", "sub(mu", "mul(y,", "add(mu"]


def test_a_sum_that_is_needed_is_still_there() -> None:
    program = program_of("low: T{m, n} = sub(x, a)\n high: T{m, n} = mul(low, b)\n square: T{m, n} = mul(low, high)")
    assert sums_of_multiples(program, ("n",)) is program


def test_signs_are_no_operations() -> None:
    body = "low: T{m, n} = sub(a, x)\n minus: T{m, n} = neg(low)\n high: T{m, n} = mul(minus, b)"
    assert changed(body)[-2:] == ["mul_1: f32{m, n} = mul(x, b)", "sub: f32{m, n} = sub(mul_1, mul)"]


def test_a_multiply_add_is_one_of_a_sum() -> None:
    body = "low: T{m, n} = fma(x, a, b)\n high: T{m, n} = mul(low, b)"
    assert changed(body)[-2:] == ["mul_2: f32{m, n} = mul(x, mul_1)", "add: f32{m, n} = add(mul_2, mul)"]


def test_float64_is_as_float32() -> None:
    assert (
        changed("low: T{m, n} = sub(x, a)\n high: T{m, n} = mul(low, b)", "f64")[-1]
        == "sub: f64{m, n} = sub(mul_1, mul)"
    )


# what is left alone

ALONE = {
    "the exponent of a softmax": """
        low: T{m, n} = sub(x, a)
        scaled: T{m, n} = mul(low, b)
        power: T{m, n} = exp(scaled)""",
    "an exponent behind a cast and another sum": """
        low: T{m, n} = sub(x, a)
        scaled: T{m, n} = mul(low, b)
        narrow: bf16{m, n} = cast(scaled)
        wide: T{m, n} = cast(narrow)
        twice: T{m, n} = add(wide, wide)
        power: T{m, n} = exp(twice)""",
    "a divisor": """
        low: T{m, n} = sub(x, a)
        scaled: T{m, n} = mul(low, b)
        part: T{m, n} = div(y, scaled)""",
    "what is compared": """
        low: T{m, n} = sub(x, a)
        scaled: T{m, n} = mul(low, b)
        more: T{m, n} = maximum(scaled, y)""",
    "a division": """
        low: T{m, n} = sub(x, a)
        part: T{m, n} = div(low, b)""",
    "a difference from the largest, and from what follows": """
        most: T{m} = max[n](x)
        low: T{m, n} = sub(x, most)
        lower: T{m, n} = sub(low, a)""",
    "a difference from an input, which may be the largest": """
        low: T{m, n} = sub(x, a)
        lower: T{m, n} = sub(low, b)""",
    "a difference of two inputs": """
        low: T{m, n} = sub(x, y)
        lower: T{m, n} = sub(low, a)
        scaled: T{m, n} = mul(lower, b)
        more: T{m, n} = mul(scaled, w)""",
    "a difference from a constant": """
        one: T{} = const[1.0]()
        low: T{m, n} = sub(x, one)
        scaled: T{m, n} = mul(low, b)""",
    "a square": """
        low: T{m, n} = sub(x, a)
        square: T{m, n} = mul(low, low)""",
    "a product of two with columns": """
        low: T{m, n} = sub(x, a)
        scaled: T{m, n} = mul(low, w)""",
    "a number of 16 bits": """
        low: T{m, n} = sub(x, a)
        narrow: bf16{m, n} = cast(low)
        wide: T{m, n} = cast(narrow)
        scaled: T{m, n} = mul(wide, b)""",
    "what gains nothing": """
        scaled: T{m, n} = mul(x, a)
        high: T{m, n} = add(scaled, b)""",
}


@pytest.mark.parametrize("what", list(ALONE))
def test_it_stays(what: str) -> None:
    if what == "a difference of two inputs":
        found = [line.partition(" = ")[2] for line in changed(ALONE[what]) if "{m, n}" in line]
        assert found == ["sub(x, y)", "mul(sub, b)", "sub(mul_1, mul)", "mul(sub_1, w)"]
    else:
        assert stays(ALONE[what])


def test_integers_stay() -> None:
    assert stays("low: T{m, n} = sub(x, a)\n high: T{m, n} = mul(low, b)", "i32")


def test_what_follows_column_sums_stays() -> None:
    """It is computed once, not for each row."""
    program = parse(
        "program p()\n  dim m = 3\n  dim n = 4\n  input x: f32 [m:4, n:1]\n  input a: f32 []\n"
        "  sum: f32{n} = sum[m](x)\n  low: f32{n} = sub(sum, a)\n"
        "  high: f32{n} = mul(low, a)\n  output y: f32 [n:1] = high\nend\n"
    )
    assert sums_of_multiples(program, ("n",)) is program


def test_several_passes_stay() -> None:
    program = program_of(
        "sum: T{n} = sum[m](x)\n low: T{m, n} = sub(x, a)\n high: T{m, n} = mul(low, b)\n"
        " rest: T{m, n} = sub(high, sum)"
    )
    assert sums_of_multiples(program, ("n",)) is program
    assert sums_of_multiples(program, ()) is program


@pytest.mark.parametrize("name", ["rms_norm_backward", "layer_norm_backward", "layer_norm_forward"])
def test_rows_that_are_not_finite_are_the_same(name: str) -> None:
    """An element of layer norm's backward may be NaN in place of an infinity."""
    case, kernel = kernel_of(name, (64, 520), torch.float32)
    torch.manual_seed(0)
    inputs = spoiled([torch.randn(tuple(64 if d == "m" else 520 for d in b.dims)) for b in kernel.program.inputs])
    assert [b.name for b in case.program.inputs] == [b.name for b in kernel.program.inputs]
    before, after = (interpret(program, inputs) for program in (kernel.program, in_one_pass(kernel).program))
    for one, other in zip(before, after, strict=True):
        assert torch.equal(one.isfinite(), other.isfinite())
        assert bool((other.isnan() | ~one.isnan()).all())
        known = one.isfinite()
        torch.testing.assert_close(other[known], one[known])


# drawn programs


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Rows of float64 in which most is linear, with row reductions between, and sums of columns of some."""
    builder = Builder("drawn", (Dim("m", ROWS), Dim("n", COLUMNS)))
    vectors = [builder.input(name, "f64", ("m", "n"), (COLUMNS, 1)) for name in "xy"]
    vectors += [builder.op("mul", *vectors), builder.input("w", "f64", ("n",), (1,))]
    numbers = [builder.input(name, "f64", ("m",), (1,)) for name in "ab"]
    linear = list[str]()
    for _ in range(draw(st.integers(2, 9))):
        op = draw(st.sampled_from(("add", "sub", "mul", "mul", "neg", "fma", "sum", "product")))
        one = draw(st.sampled_from([*vectors, *linear[-3:], *linear[-3:]]))
        other = draw(st.sampled_from([*vectors, *linear[-3:], *numbers]))
        number = draw(st.sampled_from(numbers))
        if op == "sum":
            numbers.append(builder.reduce("sum", one, ("n",)))
        elif op == "product":
            vectors.append(builder.op("mul", one, draw(st.sampled_from(vectors[:2]))))
        else:
            operands = {"neg": (one,), "mul": (number, one), "fma": (one, number, other)}.get(op, (one, other))
            linear.append(builder.op(op, *operands))
    written = draw(st.lists(st.sampled_from([*vectors, *linear, *numbers]), min_size=1, max_size=3))
    for at, name in enumerate([*written, *linear[-1:]]):
        dims = [d for d in ("m", "n") if d in builder.dims_of(name)]
        if draw(st.booleans()) and {*dims} == {"m", "n"}:
            name, dims = builder.reduce("sum", name, ("m",)), ["n"]
        strides = [COLUMNS if each == "m" and "n" in dims else 1 for each in dims]
        builder.output(f"out{at}", name, "f64", dims, strides)
    return drop_unused(builder.finish())


@settings(deadline=None, max_examples=300, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(program=programs(), seed=st.integers(0, 100))
def test_drawn_programs_have_the_same_results_and_no_more_operations(program: Program, seed: int) -> None:
    after = sums_of_multiples(program, ("n",))
    assert operations(after) < operations(program) or after == program
    assert sums_of_multiples(after, ("n",)) == after
    generator = torch.Generator().manual_seed(seed)
    inputs = [
        torch.randint(-2, 3, tuple(ROWS if d == "m" else COLUMNS for d in b.dims), generator=generator).double()
        for b in program.inputs
    ]
    bound = {b.name: t for b, t in zip(program.inputs, inputs, strict=True)}
    before = interpret(program, inputs)
    for one, other in zip(before, interpret(after, [bound[b.name] for b in after.inputs]), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-9)
