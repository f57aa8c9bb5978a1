"""The builder infers types, makes names unique and shares equal values. Also home of the random programs of the tests.

``programs()`` draws any well-formed program. ``programs(executable=True)`` draws those whose results do not depend on
how torch orders its loops: at most twelve elements, sums of floats are counts, no exponent that is a constant with a
function of its own, no float cast to an integer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import strategies as st

from weft.errors import VerificationError
from weft.ir import Builder, Dim, Program, interpret, parse
from weft.ir import dtypes as dt
from weft.ir.ops import LOGICAL, OPS

ARITHMETIC = ("f64", "f32", "i64", "i32")
WIDE_FLOATS = ("f64", "f32")
CONSTANT_DTYPES = (*ARITHMETIC, "bool")
NUMBERS = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, -8.0, 2.0**99, 2.0**-99, 2.0**120, 2.0**-120, 3.0, 0.1, 1e-30)
PLAIN_EXPONENTS = (0.0, 1.0, 1.5, -2.0, 4.0)

Draw = Callable[[st.SearchStrategy[Any]], Any]


@st.composite
def programs(draw: Draw, executable: bool = False) -> Program:
    count = draw(st.integers(0, 3))
    parameters = ("s0", "s1")[: draw(st.integers(0, 2))]
    names = draw(st.permutations(["m", "n", "b_0"]))[:count]
    dims = tuple(Dim(name, _dim_size(draw, i, parameters, executable)) for i, name in enumerate(names))
    grower = _Grower(draw, Builder("random", dims, parameters), executable)
    for number in range(draw(st.integers(1, 3))):
        grower.add_input(f"x{number}")
    for _ in range(draw(st.integers(1, 10))):
        if draw(st.booleans()):
            grower.add_idiom()
        else:
            grower.add_value(draw(st.sampled_from(sorted(OPS))))
    for number in range(draw(st.integers(1, 3))):
        grower.add_output(f"y{number}")
    return grower.builder.finish()


def parameter_values(program: Program) -> tuple[int, ...]:
    """Sizes for the parameters of an executable program."""
    return tuple({"s0": 3, "s1": 2}[name] for name in program.parameters)


def _dim_size(draw: Draw, position: int, parameters: tuple[str, ...], executable: bool) -> int | str:
    if executable:
        small = [2, 3] if position == 0 else [2]
        return draw(st.sampled_from([*small, *(parameters[:1] if position == 0 else parameters[1:])]))
    return draw(st.sampled_from([0, 2, 7, 4096, 2**40, *parameters]))


class _Grower:
    """Adds random values to a builder, each well-typed."""

    def __init__(self, draw: Draw, builder: Builder, executable: bool) -> None:
        self.draw, self.builder, self.executable = draw, builder, executable
        self.names: list[str] = []
        self.dims = [dim.name for dim in builder.dims]

    def choose(self, options: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(list(options)))

    def strides(self, count: int) -> list[int | str]:
        numbers = st.integers(0, 7) if self.executable else st.integers(0, 2**40)
        symbols = st.sampled_from(self.builder.parameters) if self.builder.parameters else numbers
        return self.draw(st.lists(numbers | symbols, min_size=count, max_size=count))

    def add_input(self, name: str) -> None:
        dims = self.draw(st.permutations(self.dims))[: self.draw(st.integers(0, len(self.dims)))]
        offset = self.draw(st.integers(0, 5))
        dtype = self.choose(dt.TORCH_DTYPES)
        self.names.append(self.builder.input(name, dtype, dims, self.strides(len(dims)), offset))

    def add_output(self, name: str) -> None:
        value = self.choose(self.names[-4:])
        extra = self.draw(st.sets(st.sampled_from(self.dims))) if self.dims else set()
        dims = self.draw(st.permutations(sorted(self.builder.dims_of(value) | extra)))
        self.builder.output(
            name, value, self.builder.dtype(value), dims, self.strides(len(dims)), self.draw(st.integers(0, 5))
        )

    def constant(self, dtype: str) -> str:
        if dtype == "bool":
            return self.builder.const(self.draw(st.booleans()), dtype)
        if dtype in dt.INTEGERS:
            bits = 63 if dtype == "i64" else 31
            return self.builder.const(self.draw(st.integers(-(2**bits), 2**bits - 1)), dtype)
        any_float = st.floats(allow_nan=False)
        return self.builder.const(self.draw(st.sampled_from(NUMBERS) if self.executable else any_float), dtype)

    def operand(self, allowed: Sequence[str]) -> str:
        """A name of one of the dtypes; a narrow one is cast first, a constant stands in where there is none."""
        found = [name for name in self.names if dt.compute_dtype(self.builder.dtype(name)) in allowed]
        if not found or self.draw(st.integers(0, 3)) == 0:
            return self.constant(self.choose([d for d in CONSTANT_DTYPES if d in allowed]))
        name = self.choose(found)
        return self.builder.cast(name, dt.compute_dtype(self.builder.dtype(name)))

    def add_idiom(self) -> None:
        """What a rewrite rule may look for: an op with a neutral constant, a choice of equals, casts there and back."""
        builder = self.builder
        kind = self.choose(["neutral", "neutral", "choice", "casts"])
        if kind == "casts":
            name = self.choose(self.names)
            source = builder.dtype(name)
            first = self._cast(name)
            self.names.append(self._cast(first, preferred=source))
            return
        x = self.operand(WIDE_FLOATS)
        if kind == "choice":
            self.names.append(builder.op("where", builder.op("lt", self.operand(["f32"]), self.constant("f32")), x, x))
            return
        args = [x, builder.const(self.choose(NUMBERS), builder.dtype(x))]
        op = self.choose(["add", "sub", "mul", "div"])
        self.names.append(builder.op(op, *self.draw(st.permutations(args))))

    def add_value(self, op: str) -> None:
        self.names.append(self._value(op))

    def _value(self, op: str) -> str:
        builder, row = self.builder, OPS[op]
        if (op in ("iota", "size") and not self.dims) or (op == "parameter" and not builder.parameters):
            op = "const"
        if op == "const":
            return self.constant(self.choose(CONSTANT_DTYPES))
        if op == "iota":
            return builder.op("iota", dtype=self.choose(ARITHMETIC), attributes=[self.choose(self.dims)])
        if op == "parameter":
            return builder.op("parameter", dtype=self.choose(ARITHMETIC), attributes=[self.choose(builder.parameters)])
        if op == "size":
            counted = self.draw(st.lists(st.sampled_from(self.dims), min_size=1, unique=True))
            return builder.op("size", dtype=self.choose(ARITHMETIC), attributes=counted)
        if op == "cast":
            return self._cast(self.choose(self.names))
        if row.kind == "reduction":
            return self._reduction(op)
        if row.kind == "gather":
            return self._gather(op)
        if row.dtype == "select":
            second, third = self._pair(CONSTANT_DTYPES)
            return builder.op(op, self.operand(["bool"]), second, third)
        allowed = ["bool"] if op in LOGICAL else WIDE_FLOATS if row.floats_only else ARITHMETIC
        allowed = ("i64", "i32") if row.integers_only else allowed
        allowed = CONSTANT_DTYPES if row.dtype == "bool" else allowed
        if op == "pow" and self.executable:
            return builder.op(op, *self._power())
        first = self.operand(allowed)
        return builder.op(op, first, *(self.operand([builder.dtype(first)]) for _ in range(row.arity - 1)))

    def _cast(self, name: str, preferred: str | None = None) -> str:
        targets = list(dt.TORCH_DTYPES)
        if self.executable and dt.is_float(self.builder.dtype(name)):
            targets = [*dt.FLOATS, "bool"]
        if preferred in targets and self.draw(st.booleans()):
            return self.builder.op("cast", name, dtype=preferred)
        return self.builder.op("cast", name, dtype=self.choose(targets))

    def _pair(self, allowed: Sequence[str]) -> tuple[str, str]:
        first = self.operand(allowed)
        return first, self.operand([self.builder.dtype(first)])

    def _power(self) -> tuple[str, str]:
        base = self.operand(WIDE_FLOATS)
        dtype = self.builder.dtype(base)
        exponents = [b.name for b in self.builder.inputs if b.dtype == dtype]
        return base, self.choose([*exponents, self.builder.const(self.choose(PLAIN_EXPONENTS), dtype)])

    def _reduction(self, op: str) -> str:
        builder, operand = self.builder, self.operand(WIDE_FLOATS if OPS[op].floats_only else ARITHMETIC)
        dims = sorted(builder.dims_of(operand))
        if not dims:
            return operand
        if self.executable and dt.is_float(dtype := builder.dtype(operand)):
            # no order of summation, and no choice between zeros of different sign
            operand = self._summable(op, builder.op("gt", operand, builder.const(0.0, dtype)), operand)
        dropped = self.draw(st.lists(st.sampled_from(dims), min_size=1, unique=True))
        return builder.op(op, operand, attributes=dropped)

    def _gather(self, op: str) -> str:
        data, index = self.operand(ARITHMETIC), self.operand(["i64", "i32"])
        dims = sorted(self.builder.dims_of(data) - self.builder.dims_of(index))
        return self.builder.op(op, data, index, attributes=[self.choose(dims)]) if dims else data

    def _summable(self, op: str, positive: str, operand: str) -> str:
        """An operand whose reduction has the same bits in any order."""
        builder, dtype = self.builder, self.builder.dtype(operand)
        if op == "m2":  # the mean of twelve or fewer is whole
            return builder.op("mul", builder.cast(positive, dtype), builder.const(24.0, dtype))
        if op == "sumexp":  # exponentials that are one or zero
            return builder.op("where", positive, builder.const(0.0, dtype), builder.const(-math.inf, dtype))
        return builder.cast(positive, dtype) if op == "sum" else builder.op("abs", operand)


def make_builder() -> Builder:
    """Dimensions m (run-time size), n = 5, k = 3, and inputs x{m,n}, w{n}, r{m} of f32."""
    builder = Builder("p", (Dim("m", "s0"), Dim("n", 5), Dim("k", 3)), ("s0",))
    builder.input("x", "f32", ["m", "n"], [5, 1])
    builder.input("w", "f32", ["n"], [1])
    builder.input("r", "f32", ["m"], [1])
    return builder


def last(builder: Builder) -> str:
    """The last value as it is printed."""
    from weft.ir.printer import print_value

    return print_value(builder.values[-1])


def test_a_pointwise_value_varies_over_the_union_in_program_order() -> None:
    builder = make_builder()
    builder.op("add", "w", "r")
    assert last(builder) == "add: f32{m, n} = add(w, r)"
    builder.op("neg", "w")
    assert last(builder) == "neg: f32{n} = neg(w)"


def test_where_takes_the_union_of_three() -> None:
    builder = make_builder()
    position = builder.op("iota", dtype="f32", attributes=["k"])
    condition = builder.op("lt", "w", "w")
    builder.op("where", condition, "r", position)
    assert last(builder) == "where: f32{m, n, k} = where(lt, r, iota)"


def test_dtypes_follow_from_the_operands() -> None:
    builder = make_builder()
    i = builder.op("iota", dtype="i64", attributes=["n"])
    assert builder.dtype(builder.op("add", i, i)) == "i64"
    comparison = builder.op("le", i, i)
    assert builder.dtype(comparison) == "bool"
    assert builder.dtype(builder.op("where", comparison, i, i)) == "i64"
    assert builder.dtype(builder.op("sum", i, attributes=["n"])) == "i64"
    assert builder.dtype(builder.op("logical_not", comparison)) == "bool"


def test_sources_vary_over_nothing_or_their_dimension() -> None:
    builder = make_builder()
    assert builder.dims_of(builder.const(1, "f32")) == frozenset()
    assert builder.dims_of(builder.op("size", dtype="f32", attributes=["m", "n"])) == frozenset()
    assert builder.dims_of(builder.op("iota", dtype="i32", attributes=["k"])) == {"k"}


def test_a_reduction_drops_its_dimensions() -> None:
    builder = make_builder()
    assert builder.dims_of(builder.reduce("sum", "x", ["n"])) == {"m"}
    builder.reduce("max", "x", ["n", "m"])
    assert last(builder) == "max: f32{} = max[m, n](x)"


def test_a_sum_over_a_dimension_the_operand_lacks_is_a_multiplication_by_its_size() -> None:
    builder = make_builder()
    result = builder.reduce("sum", "r", ["n", "k"])
    assert result == "mul"
    assert builder.dims_of(result) == {"m"}
    assert last(builder) == "mul: f32{m} = mul(r, const)"
    constant = builder.value("const")
    assert constant is not None
    assert constant.attributes == (15.0,)


def test_a_sum_over_a_lacking_dimension_of_run_time_size_asks_for_the_size() -> None:
    builder = make_builder()
    builder.reduce("sum", "w", ["m"])
    assert [v.op for v in builder.values] == ["size", "mul"]
    assert builder.values[0].attributes == ("m",)
    assert builder.values[0].dtype == "f32"


def test_static_and_run_time_sizes_are_counted_together() -> None:
    builder = make_builder()
    builder.count(["k", "m"], "i64")
    assert last(builder) == "size: i64{} = size[k, m]()"
    builder.count(["n", "k"], "i64")
    assert last(builder) == "const: i64{} = const[15]()"


def test_a_sum_over_present_and_lacking_dimensions_does_both() -> None:
    builder = make_builder()
    result = builder.reduce("sum", "w", ["k", "n"])
    assert [v.op for v in builder.values] == ["sum", "const", "mul"]
    assert builder.dims_of(result) == frozenset()


@pytest.mark.parametrize("op", ["max", "min"])
def test_an_extremum_over_a_dimension_the_operand_lacks_is_the_operand(op: str) -> None:
    builder = make_builder()
    assert builder.reduce(op, "r", ["n"]) == "r"
    assert builder.values == []
    builder.reduce(op, "x", ["n", "k"])
    assert last(builder) == f"{op}: f32{{m}} = {op}[n](x)"


@pytest.mark.parametrize("source", ["x", "w", "r"])
@pytest.mark.parametrize("dims", [["m"], ["n"], ["k"], ["m", "n"], ["n", "k"], ["m", "n", "k"]])
@pytest.mark.parametrize("op", ["sum", "max", "min"])
def test_a_reduction_equals_the_one_of_the_broadcast_operand(op: str, dims: list[str], source: str) -> None:
    builder = make_builder()
    result = builder.reduce(op, source, dims)
    kept = [d for d in ("m", "n", "k") if d not in dims]
    builder.output("y", result, "f32", kept, [0] * len(kept))
    inputs = {"x": torch.randn(4, 5), "w": torch.randn(5), "r": torch.randn(4)}
    full = {"x": inputs["x"][:, :, None], "w": inputs["w"][None, :, None], "r": inputs["r"][:, None, None]}[source]
    axes = ["mnk".index(d) for d in dims]
    reduce = {"sum": torch.sum, "max": torch.amax, "min": torch.amin}[op]
    expected = reduce(full.double().expand(4, 5, 3), axes)
    found = interpret(builder.finish(), list(inputs.values()), (4,))[0]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_names_are_unique() -> None:
    builder = make_builder()
    assert [builder.const(n, "f32") for n in (1, 2, 3)] == ["const", "const_1", "const_2"]
    assert builder.op("neg", "x", name="add_1") == "add_1"
    assert builder.op("add", "x", "x") == "add"
    assert builder.op("add", "x", "w") == "add_2"
    assert builder.input("x", "f32", ["n"], [1]) == "x_1"
    assert builder.output("add", "x", "f32", ["m", "n"], [5, 1]) == "add_3"
    assert builder.unique("r") == "r_1"
    assert builder.unique("r") == "r_2"


def test_a_builder_like_a_program_keeps_the_names_of_its_buffers_for_buffers() -> None:
    first = make_builder()
    first.output("neg", first.op("abs", "x"), "f32", ["m", "n"], [5, 1])
    program = first.finish()
    builder = Builder.like(program, extra=["exp"])
    assert (builder.name, builder.dims, builder.parameters) == (program.name, program.dims, program.parameters)
    assert builder.inputs == builder.values == builder.outputs == []
    x = builder.add_input(program.inputs[0])
    assert x == "x"
    assert builder.op("neg", x) == "neg_1"
    assert builder.op("exp", x) == "exp_1"
    assert builder.op("abs", x, name="w") == "w_1"
    assert builder.add_output(program.outputs[0].buffer, "neg_1") == "neg"
    assert builder.add_input(program.inputs[1]) == "w"
    assert builder.add_input(program.inputs[1]) == "w_2"
    assert builder.inputs[:2] == list(program.inputs[:2])
    assert builder.outputs[0].buffer == program.outputs[0].buffer
    assert builder.finish().outputs[0].value == "neg_1"


def test_equal_values_are_one() -> None:
    builder = make_builder()
    assert builder.op("add", "x", "w") == builder.op("add", "x", "w", name="other")
    assert builder.const(1, "f32") == builder.const(1.0, "f32")
    assert builder.reduce("sum", "x", ["n", "m"]) == builder.reduce("sum", "x", ["m", "n"])
    assert builder.cast("x", "f64") == builder.cast("x", "f64")
    assert len(builder.values) == 4


def test_values_that_differ_in_anything_are_not_shared() -> None:
    builder = make_builder()
    condition = builder.op("lt", "x", "w")
    names = [
        builder.op("add", "x", "w"),
        builder.op("add", "w", "x"),
        builder.op("sub", "x", "w"),
        builder.cast("x", "f64"),
        builder.cast("x", "bf16"),
        builder.reduce("sum", "x", ["n"]),
        builder.reduce("sum", "x", ["m"]),
        builder.op("iota", dtype="i64", attributes=["n"]),
        builder.op("iota", dtype="i32", attributes=["n"]),
        builder.op("iota", dtype="i64", attributes=["m"]),
        builder.op("where", condition, "x", "w"),
        builder.op("where", condition, "w", "x"),
    ]
    assert len(set(names)) == len(names)


def test_constants_that_compare_equal_but_differ_are_not_shared() -> None:
    builder = make_builder()
    names = [
        builder.const(0.0, "f32"),
        builder.const(-0.0, "f32"),
        builder.const(0, "f64"),
        builder.const(0, "i64"),
        builder.const(0, "i32"),
        builder.const(0, "bool"),
    ]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("number", "dtype", "stored"),
    [(1, "f32", 1.0), (True, "f64", 1.0), (2.0, "i64", 2), (True, "i32", 1), (3, "bool", True), (0.0, "bool", False)],
)
def test_a_constant_has_the_type_of_its_dtype(number: float, dtype: str, stored: float) -> None:
    builder = make_builder()
    builder.const(number, dtype)
    (found,) = builder.values[0].attributes
    assert found == stored
    assert type(found) is type(stored)


def test_a_cast_to_the_same_dtype_is_nothing() -> None:
    builder = make_builder()
    assert builder.cast("x", "f32") == "x"
    assert builder.values == []
    assert builder.dtype(builder.cast("x", "bf16")) == "bf16"


def test_what_a_builder_knows_of_a_name() -> None:
    builder = make_builder()
    name = builder.op("neg", "w")
    value = builder.value(name)
    assert value is builder.values[0]
    assert builder.value("w") is None
    assert (builder.dtype(name), builder.dims_of(name)) == ("f32", {"n"})


def test_a_source_needs_a_dtype() -> None:
    with pytest.raises(VerificationError, match="const needs a dtype"):
        make_builder().op("const", attributes=[1.0])


def test_an_unknown_op_is_an_error() -> None:
    with pytest.raises(KeyError, match="no op named 'conv'"):
        make_builder().op("conv", "x")


def test_the_result_is_verified() -> None:
    builder = make_builder()
    builder.output("y", "x", "f64", ["m", "n"], [5, 1])
    with pytest.raises(VerificationError, match="y: is f64 but its value is f32"):
        builder.finish()


def test_what_a_program_says_of_itself() -> None:
    builder = make_builder()
    builder.input("t", "bf16", ["n", "m"], [1, 5])
    builder.output("y", builder.op("neg", "w"), "f32", ["n"], [1])
    program = builder.finish()
    assert program.types() == {
        "x": ("f32", ("m", "n")),
        "w": ("f32", ("n",)),
        "r": ("f32", ("m",)),
        "t": ("bf16", ("m", "n")),
        "neg": ("f32", ("n",)),
    }
    assert program.by_name() == {"neg": program.values[0]}
    assert (program.size_of("m"), program.size_of("n")) == ("s0", 5)
    assert program.in_order(["k", "m"]) == ("m", "k")
    assert parse(str(program)) == program
