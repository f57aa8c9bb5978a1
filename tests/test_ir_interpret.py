"""The interpreter against torch: every op in both modes, every kind of buffer, and what is written where."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from weft.ir import Builder, Dim, Program, interpret
from weft.ir import dtypes as dt
from weft.ir.interpret import interpret_into
from weft.ir.ops import LOGICAL, OPS

M, N = 3, 5
INF, NAN = math.inf, math.nan

# What every op means, in other words than those of the table.
POINTWISE: dict[str, Callable[..., Tensor]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "fma": lambda a, b, c: c + b * a,
    "pow": lambda a, b: a**b,
    "neg": lambda a: -a,
    "abs": lambda a: torch.where(a < 0, -a, a),
    "maximum": lambda a, b: torch.where((a > b) | (a != a), a, b),
    "minimum": lambda a, b: torch.where((a < b) | (a != a), a, b),
    "sqrt": lambda a: torch.pow(a, 0.5),
    "rsqrt": lambda a: 1 / torch.sqrt(a),
    "reciprocal": lambda a: 1 / a,
    "exp": lambda a: torch.special.expm1(a) + 1,
    "log": lambda a: torch.log2(a) * math.log(2),
    "tanh": lambda a: torch.sinh(a) / torch.cosh(a),
    "sigmoid": lambda a: 1 / (1 + torch.exp(-a)),
    "erf": lambda a: 1 - torch.special.erfc(a),
    "erfc": lambda a: 1 - torch.special.erf(a),
    "exp2": lambda a: torch.exp(a * math.log(2)),
    "expm1": lambda a: torch.exp(a) - 1,
    "log1p": lambda a: torch.log(1 + a),
    "log2": lambda a: torch.log(a) / math.log(2),
    "log10": lambda a: torch.log(a) / math.log(10),
    "sin": lambda a: torch.exp(1j * a).imag,
    "cos": lambda a: torch.exp(1j * a).real,
    "tan": lambda a: torch.sin(a) / torch.cos(a),
    "asin": lambda a: torch.atan2(a, torch.sqrt(1 - a * a)),
    "acos": lambda a: torch.atan2(torch.sqrt(1 - a * a), a),
    "atan": lambda a: torch.complex(torch.ones_like(a), a).angle(),
    "sinh": lambda a: (torch.exp(a) - torch.exp(-a)) / 2,
    "cosh": lambda a: (torch.exp(a) + torch.exp(-a)) / 2,
    "floor": lambda a: a.long() - torch.where(a.long() > a, 1, 0).to(a.dtype),
    "ceil": lambda a: a.long() + torch.where(a.long() < a, 1, 0).to(a.dtype),
    "trunc": lambda a: a.long().to(a.dtype),
    "round": lambda a: ((a.double() + 1.5 * 2**52) - 1.5 * 2**52).to(a.dtype),
    "atan2": lambda a, b: torch.complex(*torch.broadcast_tensors(b, a)).angle(),
    "copysign": lambda a, b: torch.where(b.signbit(), -abs(a), abs(a)),
    "fmod": lambda a, b: (a.double() - b * (a.double() / b).trunc()).to(a.dtype),
    "floor_divide": lambda a, b: torch.where(b == 0, 0, (a.double() / b).floor()).to(a.dtype),
    "remainder": lambda a, b: torch.where(b == 0, 0, a - b * (a.double() / b).floor()).to(a.dtype),
    "bitwise_and": lambda a, b: ~(~a | ~b),
    "bitwise_or": lambda a, b: a + b - (a & b),
    "bitwise_xor": lambda a, b: (a | b) - (a & b),
    "bitwise_not": lambda a: -a - 1,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "logical_and": lambda a, b: a & b,
    "logical_or": lambda a, b: a | b,
    "logical_not": lambda a: ~a,
}
REDUCTIONS: dict[str, Callable[[Tensor, tuple[int, ...]], Tensor]] = {
    "sum": lambda x, axes: x.sum(axes, dtype=x.dtype),
    "max": lambda x, axes: x.amax(axes),
    "min": lambda x, axes: x.amin(axes),
    "m2": lambda x, axes: x.var(axes, correction=0) * math.prod(x.shape[axis] for axis in axes),
    "sumexp": lambda x, axes: torch.exp(torch.logsumexp(x, axes) - x.amax(axes)),
}
DOMAIN_POSITIVE = ("sqrt", "rsqrt", "log", "log1p", "log2", "log10", "pow")


def make_builder() -> Builder:
    return Builder("p", (Dim("m", "s0"), Dim("n", N)), ("s0",))


def random_tensor(dtype: str, *shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(shape, generator=generator, dtype=torch.float64) * 3
    if dtype == "bool":
        return numbers > 0
    return numbers.round().to(dt.TORCH_DTYPES[dtype]) if dtype in dt.INTEGERS else numbers.to(dt.TORCH_DTYPES[dtype])


def run(builder: Builder, inputs: Sequence[Tensor], *, exact: bool) -> Tensor:
    return interpret(builder.finish(), inputs, (M,), exact=exact)[0]


def output(builder: Builder, value: str, dims: Sequence[str] | None = None) -> None:
    dims = sorted(builder.dims_of(value)) if dims is None else dims
    builder.output("y", value, builder.dtype(value), dims, [0] * len(dims))


def expected_dtype(dtype: str, exact: bool) -> torch.dtype:
    return torch.float64 if exact and dt.is_float(dtype) else dt.TORCH_DTYPES[dtype]


def check(found: Tensor, expected: Tensor, dtype: str, exact: bool) -> None:
    """``dtype`` is the one the program computes in; a float64 result is right to float64's digits."""
    assert found.shape == expected.shape
    assert found.is_contiguous()
    narrow = not exact and dtype == "f32"
    tolerance = 1e-5 if narrow else 1e-13
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


def operand_dtypes(op: str) -> list[str]:
    if op in LOGICAL:
        return ["bool"]
    if OPS[op].integers_only:
        return ["i64", "i32"]
    return ["f64", "f32"] if OPS[op].floats_only else ["f64", "f32", "i64", "i32"]


CASES = [(op, dtype) for op in (*POINTWISE, *REDUCTIONS) for dtype in operand_dtypes(op)]


def test_every_op_is_tested_here() -> None:
    assert {*POINTWISE, *REDUCTIONS, "const", "parameter", "iota", "size", "cast", "where", "pick"} == set(OPS)


@pytest.mark.parametrize("kind", ["i64", "i32"])
def test_an_element_is_picked_of_each_row(kind: str) -> None:
    builder = Builder("p", (Dim("a", 2), Dim("m", 4), Dim("n", 3)))
    x = builder.input("x", "f32", ["m", "n"], [3, 1])
    index = builder.input("index", kind, ["a", "m"], [4, 1])
    builder.output("y", builder.op("pick", x, index, attributes=["n"]), "f32", ["a", "m"], [4, 1])
    data = torch.randn(4, 3)
    places = torch.tensor([[0, 2, 3, -1], [1, 1, 0, -(2**31)]]).to(dt.TORCH_DTYPES[kind])
    (found,) = interpret(builder.finish(), (data, places))
    expected = [[data[0, 0], data[1, 2], 0, 0], [data[0, 1], data[1, 1], data[2, 0], 0]]
    assert torch.equal(found, torch.tensor(expected).double())


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(("op", "dtype"), [case for case in CASES if case[0] in POINTWISE])
def test_pointwise_ops_broadcast_and_compute_as_torch_does(op: str, dtype: str, exact: bool) -> None:
    builder = make_builder()
    x, w, r = random_tensor(dtype, M, N), random_tensor(dtype, N, seed=1), random_tensor(dtype, M, seed=2)
    if op in DOMAIN_POSITIVE:
        x = x.abs() + 0.125
    builder.input("x", dtype, ["m", "n"], [N, 1])
    builder.input("w", dtype, ["n"], [1])
    builder.input("r", dtype, ["m"], [1])
    value = builder.op(op, *"xwr"[: OPS[op].arity])
    output(builder, value)
    tensors = [t.double() if exact and dt.is_float(dtype) else t for t in (x, w, r[:, None])][: OPS[op].arity]
    expected = POINTWISE[op](*tensors)
    found = run(builder, [x, w, r], exact=exact)
    assert found.dtype == expected_dtype(builder.dtype(value), exact)
    check(found, expected, dtype, exact)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("dims", [("m",), ("n",), ("m", "n"), ("n", "m")])
@pytest.mark.parametrize(("op", "dtype"), [case for case in CASES if case[0] in REDUCTIONS])
def test_reductions_drop_axes_as_torch_does(op: str, dtype: str, dims: tuple[str, ...], exact: bool) -> None:
    builder = make_builder()
    x = random_tensor(dtype, M, N)
    value = builder.op(op, builder.input("x", dtype, ["m", "n"], [N, 1]), attributes=dims)
    output(builder, value)
    wide = x.double() if exact and dt.is_float(dtype) else x
    found = run(builder, [x], exact=exact)
    assert found.dtype == expected_dtype(dtype, exact)
    check(found, REDUCTIONS[op](wide, tuple("mn".index(d) for d in dims)), dtype, exact)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("dtype", ["f64", "f32", "i64", "i32", "bool"])
def test_where_chooses_and_broadcasts(dtype: str, exact: bool) -> None:
    builder = make_builder()
    condition, x, r = random_tensor("bool", N), random_tensor(dtype, M, N), random_tensor(dtype, M, seed=2)
    builder.input("c", "bool", ["n"], [1])
    builder.input("x", dtype, ["m", "n"], [N, 1])
    builder.input("r", dtype, ["m"], [1])
    output(builder, builder.op("where", "c", "x", "r"))
    found = run(builder, [condition, x, r], exact=exact)
    expected = torch.where(condition, x, r[:, None]).to(expected_dtype(dtype, exact))
    assert torch.equal(found, expected)
    assert found.dtype == expected.dtype


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("dtype", ["f64", "f32", "i64", "i32"])
def test_iota_and_size_count(dtype: str, exact: bool) -> None:
    builder = make_builder()
    position = builder.op("iota", dtype=dtype, attributes=["m"])
    output(builder, builder.op("mul", position, builder.op("size", dtype=dtype, attributes=["n", "m"])))
    found = run(builder, [], exact=exact)
    assert found.dtype == expected_dtype(dtype, exact)
    assert found.tolist() == [0, 15, 30]


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("dtype", ["f64", "f32", "i64", "i32"])
def test_a_parameter_is_its_number(dtype: str, exact: bool) -> None:
    builder = make_builder()
    output(builder, builder.op("parameter", dtype=dtype, attributes=["s0"]))
    found = run(builder, [], exact=exact)
    assert (found.shape, found.dtype) == ((), expected_dtype(dtype, exact))
    assert found.item() == M


@pytest.mark.parametrize("exact", [True, False])
def test_halves_are_rounded_to_even(exact: bool) -> None:
    builder = make_builder()
    output(builder, builder.op("round", builder.input("x", "f32", ["n"], [1])))
    assert run(builder, [torch.tensor([-1.5, -0.5, 0.5, 1.5, 2.5])], exact=exact).tolist() == [-2, 0, 0, 2, 2]


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(
    ("number", "dtype"), [(-0.5, "f32"), (INF, "f64"), (-INF, "f32"), (-7, "i64"), (2**31 - 1, "i32"), (True, "bool")]
)
def test_constants(number: float, dtype: str, exact: bool) -> None:
    builder = make_builder()
    output(builder, builder.const(number, dtype))
    found = run(builder, [], exact=exact)
    assert (found.shape, found.dtype) == ((), expected_dtype(dtype, exact))
    assert found.item() == number


def test_a_constant_beyond_float32_is_infinite_in_float32_as_in_torch() -> None:
    builder = make_builder()
    output(builder, builder.op("add", builder.input("x", "f32", ["n"], [1]), builder.const(1e300, "f32")))
    assert torch.equal(run(builder, [torch.ones(N)], exact=False), torch.ones(N) + 1e300)


@pytest.mark.parametrize("target", dt.TORCH_DTYPES)
@pytest.mark.parametrize("source", dt.TORCH_DTYPES)
def test_casts_are_those_of_torch(source: str, target: str) -> None:
    builder = make_builder()
    x = random_tensor(source, M, N)
    output(builder, builder.op("cast", builder.input("x", source, ["m", "n"], [N, 1]), dtype=target))
    found = run(builder, [x], exact=False)
    assert found.dtype == dt.TORCH_DTYPES[target]
    expected = x.to(dt.TORCH_DTYPES[target])
    if found.itemsize == 1:  # torch compares no 8-bit floats
        found, expected = found.view(torch.uint8), expected.view(torch.uint8)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("target", ["i64", "i32"])
def test_a_cast_to_an_integer_truncates_in_both_modes(target: str) -> None:
    builder = make_builder()
    output(builder, builder.op("cast", builder.input("x", "f32", ["n"], [1]), dtype=target))
    x = torch.tensor([1.9, -1.9, 0.5, -0.5, 2.0])
    for exact in (True, False):
        found = run(builder, [x], exact=exact)
        assert found.tolist() == [1, -1, 0, 0, 2]
        assert found.dtype == dt.TORCH_DTYPES[target]


@pytest.mark.parametrize("narrow", ["bf16", "f16", "f32"])
def test_casts_between_floats_round_unless_exact(narrow: str) -> None:
    builder = make_builder()
    x = random_tensor("f64", N)
    name = builder.input("x", "f64", ["n"], [1])
    output(builder, builder.op("cast", builder.op("cast", name, dtype=narrow), dtype="f64"))
    rounded = x.to(dt.TORCH_DTYPES[narrow]).double()
    assert not torch.equal(rounded, x)
    assert torch.equal(run(builder, [x], exact=False), rounded)
    assert torch.equal(run(builder, [x], exact=True), x)


def test_every_op_rounds_to_its_own_dtype_unless_exact() -> None:
    builder = make_builder()
    x = builder.input("x", "f32", ["n"], [1])
    large = builder.const(2.0**24, "f32")
    output(builder, builder.op("sub", builder.op("add", x, large), large))
    assert run(builder, [torch.ones(N)], exact=False).tolist() == [0] * N
    assert run(builder, [torch.ones(N)], exact=True).tolist() == [1] * N


@pytest.mark.parametrize(
    ("addend", "expected"), [(-(1 + 2**-11), 2**-24), (2**-80, 1 + 2**-11 + 2**-23), (-(2**-80), 1 + 2**-11)]
)
def test_fma_rounds_once(addend: float, expected: float) -> None:
    """The square of 1 + 2^-12 is 1 + 2^-11 + 2^-24: a tie in float32 until the addend decides."""
    builder = make_builder()
    factor = builder.const(1 + 2**-12, "f32")
    output(builder, builder.op("fma", factor, factor, builder.const(addend, "f32")))
    assert run(builder, [], exact=False).item() == expected


@pytest.mark.parametrize("op", ["maximum", "minimum", "max", "min"])
def test_extrema_pass_on_what_is_no_number(op: str) -> None:
    builder = make_builder()
    x = builder.input("x", "f32", ["n"], [1])
    reduction = OPS[op].kind == "reduction"
    output(builder, builder.op(op, x, attributes=["n"]) if reduction else builder.op(op, x, builder.const(0, "f32")))
    found = run(builder, [torch.tensor([1.0, NAN, -1.0, INF, 0.0])], exact=False)
    assert math.isnan(found.item() if reduction else found[1].item())


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("dims", [["m"], ["m", "n"]])
@pytest.mark.parametrize(
    ("op", "dtype", "expected"),
    [
        ("sum", "f32", 0),
        ("sum", "i64", 0),
        ("max", "f32", -INF),
        ("max", "f64", -INF),
        ("min", "f32", INF),
        ("max", "i64", -(2**63)),
        ("min", "i64", 2**63 - 1),
        ("max", "i32", -(2**31)),
        ("min", "i32", 2**31 - 1),
        ("m2", "f32", 0),
        ("m2", "f64", 0),
        ("sumexp", "f32", NAN),
        ("sumexp", "f64", NAN),
    ],
)
def test_an_empty_reduction_is_its_identity(op: str, dtype: str, expected: float, dims: list[str], exact: bool) -> None:
    builder = make_builder()
    value = builder.op(op, builder.input("x", dtype, ["m", "n"], [N, 1]), attributes=dims)
    output(builder, value)
    x = torch.empty(0, N, dtype=dt.TORCH_DTYPES[dtype])
    (found,) = interpret(builder.finish(), [x], (0,), exact=exact)
    assert found.shape == ((N,) if dims == ["m"] else ())
    assert found.dtype == expected_dtype(dtype, exact)
    assert bool((found.isnan() if math.isnan(expected) else found == expected).all())


@pytest.mark.parametrize("op", REDUCTIONS)
def test_a_reduction_of_no_rows_is_empty(op: str) -> None:
    builder = make_builder()
    output(builder, builder.op(op, builder.input("x", "f32", ["m", "n"], [N, 1]), attributes=["n"]))
    (found,) = interpret(builder.finish(), [torch.empty(0, N)], (0,), exact=False)
    assert found.shape == (0,)


def load(dims: Sequence[str], strides: Sequence[int | str], tensor: Tensor, offset: int = 0) -> Tensor:
    """What an input buffer reads from ``tensor``, as a matrix [m, n]."""
    builder = make_builder()
    output(builder, builder.input("x", "f32", dims, strides, offset), ["m", "n"])
    return run(builder, [tensor], exact=False)


BASE = torch.arange(100.0)


def test_a_buffer_is_strided() -> None:
    assert torch.equal(load(["m", "n"], [20, 2], BASE), BASE.as_strided((M, N), (20, 2)))


def test_a_buffer_is_bound_by_its_own_strides_not_the_tensors() -> None:
    matrix = BASE.reshape(10, 10).t()
    assert torch.equal(load(["m", "n"], [7, 3], matrix), BASE.as_strided((M, N), (7, 3)))


def test_a_stride_may_be_a_parameter() -> None:
    assert torch.equal(load(["m", "n"], [1, "s0"], BASE), BASE.as_strided((M, N), (1, M)))


def test_axes_of_a_buffer_have_any_order() -> None:
    matrix = torch.randn(N, M)
    assert torch.equal(load(["n", "m"], [M, 1], matrix), matrix.t())


def test_offsets_of_buffer_and_tensor_add_up() -> None:
    assert torch.equal(load(["m", "n"], [N, 1], BASE[4:], offset=3), BASE[7 : 7 + M * N].reshape(M, N))


def test_a_dimension_a_buffer_lacks_is_broadcast() -> None:
    assert torch.equal(load(["n"], [2], BASE), BASE[: 2 * N : 2].expand(M, N))
    assert torch.equal(load(["m"], [1], BASE), BASE[:M, None].expand(M, N))
    assert torch.equal(load([], [], BASE, offset=9), torch.full((M, N), 9.0))


def test_a_stride_of_zero_reads_one_element() -> None:
    assert torch.equal(load(["m", "n"], [0, 1], BASE), BASE[:N].expand(M, N))


def test_values_of_permuted_and_lacking_buffers_line_up() -> None:
    builder = Builder("p", (Dim("b", 2), Dim("m", M), Dim("n", N)))
    x = builder.input("x", "f32", ["n", "b"], [2, 1])
    y = builder.input("y", "f32", ["m"], [1])
    z = builder.input("z", "f32", ["n", "m", "b"], [6, 2, 1])
    value = builder.op("add", builder.op("mul", x, y), z)
    builder.output("out", value, "f32", ["m", "b", "n"], [10, 5, 1])
    a, b, c = torch.randn(N, 2), torch.randn(M), torch.randn(N, M, 2)
    (found,) = interpret(builder.finish(), [a, b, c], exact=False)
    assert torch.equal(found, torch.einsum("nb,m->mbn", a, b) + c.permute(1, 2, 0))


@pytest.mark.parametrize(("dims", "shape"), [([], ()), (["n"], (N,)), (["m", "n"], (M, N)), (["n", "m"], (N, M))])
def test_what_a_value_lacks_is_broadcast_at_the_store(dims: list[str], shape: tuple[int, ...]) -> None:
    builder = make_builder()
    value = builder.const(2.5, "f32") if not dims else builder.input("w", "f32", ["n"], [1])
    output(builder, value, dims)
    w = torch.arange(float(N))
    found = run(builder, [w] if dims else [], exact=False)
    expected = torch.full((), 2.5) if not dims else w[:, None].expand(N, M) if dims[0] == "n" and len(dims) > 1 else w
    assert found.shape == shape
    assert torch.equal(found, expected.expand(shape))
    assert found.is_contiguous()


def writer(strides: Sequence[int | str], dims: Sequence[str] = ("m", "n"), offset: int = 0) -> Program:
    builder = make_builder()
    builder.input("x", "f32", ["m", "n"], [N, 1])
    total = builder.op("sum", "x", attributes=["n"])
    builder.output("y", builder.op("neg", "x"), "f32", dims, strides, offset)
    builder.output("z", builder.cast(total, "bf16"), "bf16", ["m", "n"], [1, "s0"])
    return builder.finish()


@pytest.mark.parametrize(
    ("dims", "strides", "offset"),
    [(("m", "n"), (N, 1), 0), (("m", "n"), (2 * N, 2), 1), (("n", "m"), ("s0", 1), 0), (("m", "n"), (1, 7), 3)],
)
def test_outputs_are_written_through_their_strides(
    dims: tuple[str, ...], strides: tuple[int | str, ...], offset: int
) -> None:
    x = torch.randn(M, N)
    memory, sums = torch.full((64,), 99.0), torch.zeros(M * N, dtype=torch.bfloat16)
    interpret_into(writer(strides, dims, offset), [x], [memory[2:], sums], (M,))
    steps = {d: M if s == "s0" else int(s) for d, s in zip(dims, strides, strict=True)}
    expected = torch.full((64,), 99.0)
    for i in range(M):
        for j in range(N):
            expected[2 + offset + i * steps["m"] + j * steps["n"]] = -x[i, j]
    assert torch.equal(memory, expected)
    assert torch.equal(sums.reshape(N, M), x.sum(1).bfloat16().expand(N, M))


def test_results_have_the_order_of_the_outputs() -> None:
    program = writer((N, 1))
    x = torch.randn(M, N)
    first, second = interpret(program, [x], (M,), exact=False)
    assert torch.equal(first, -x)
    assert torch.equal(second, x.sum(1, keepdim=True).bfloat16().expand(M, N))
    assert second.dtype == torch.bfloat16


def test_an_input_may_be_written_as_it_is() -> None:
    builder = make_builder()
    output(builder, builder.input("h", "bf16", ["n"], [1]))
    h = torch.randn(N).bfloat16()
    assert torch.equal(run(builder, [h], exact=False), h)
    assert torch.equal(run(builder, [h], exact=True), h.double())


@pytest.mark.parametrize(("inputs", "parameters"), [(0, (M,)), (2, (M,)), (1, ()), (1, (M, M))])
def test_inputs_and_parameters_are_counted(inputs: int, parameters: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="zip"):
        interpret(writer((N, 1)), [torch.randn(M, N)] * inputs, parameters)
