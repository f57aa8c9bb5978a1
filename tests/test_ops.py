"""Every ATen operation that is lowered, on every dtype it takes, compared with eager.

All operations of one dtype share a kernel: outputs that only round are equal bit by bit, functions are as near to
float64 as eager is, up to a few units in the last place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import pytest
import torch
from torch import Tensor

from tests.cases import often
from tests.run_program import run_program
from weft.capture.lower import POINTWISE
from weft.capture.regions import capture
from weft.capture.trace import trace
from weft.ir.interpret import interpret
from weft.ir.parser import parse

aten = torch.ops.aten
SHAPE = (9, 77)
FLOATS = {"f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
INTEGERS = {"i64": torch.int64, "i32": torch.int32, "i8": torch.int8, "u8": torch.uint8}
FP8 = {"f8e4m3": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2}

# name -> function; arguments are positive, of any sign, and between -1 and 1
ROUNDING: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "add": lambda p, x, u: x + p,
    "sub": lambda p, x, u: x - p,
    "rsub": lambda p, x, u: 2 - x,
    "mul": lambda p, x, u: x * p,
    "neg": lambda p, x, u: -x,
    "abs": lambda p, x, u: x.abs(),
    "square": lambda p, x, u: x.square(),
    "maximum": lambda p, x, u: torch.maximum(x, u),
    "minimum": lambda p, x, u: torch.minimum(x, u),
    "clamp": lambda p, x, u: x.clamp(-1, 2),
    "clamp_min": lambda p, x, u: x.clamp_min(0),
    "clamp_max": lambda p, x, u: x.clamp(max=1),
    "clamp_tensor": lambda p, x, u: torch.clamp(x, u, p),
    "relu": lambda p, x, u: torch.relu(x),
    "sign": lambda p, x, u: x.sign(),
    "where": lambda p, x, u: torch.where(x > u, x, p),
    "masked_fill": lambda p, x, u: x.masked_fill(x < 0, 3),
    "compare": lambda p, x, u: ((x >= u) & (x <= p)) | (x == p) ^ (u != p),
    "not": lambda p, x, u: ~(x < u).logical_and(u > 0),
    "any": lambda p, x, u: (x > p).any(-1),
    "any_column": lambda p, x, u: (x > p).any(0),
    "amax": lambda p, x, u: x.amax(-1),
    "amin_column": lambda p, x, u: x.amin(0),
}
FLOATING: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "constants": lambda p, x, u: x * 1.2345678,
    "div": lambda p, x, u: x / p,
    "div_floor": lambda p, x, u: torch.div(x, p, rounding_mode="floor"),
    "div_trunc": lambda p, x, u: torch.div(x, p, rounding_mode="trunc"),
    "floor": lambda p, x, u: x.floor(),
    "ceil": lambda p, x, u: x.ceil(),
    "trunc": lambda p, x, u: x.trunc(),
    "round": lambda p, x, u: x.round(),
    "copysign": lambda p, x, u: torch.copysign(p, x),
    "reciprocal": lambda p, x, u: p.reciprocal(),
    "isnan": lambda p, x, u: (x / (x - x.trunc())).isnan(),
    "isinf": lambda p, x, u: (1 / (x - x.trunc())).isinf(),
    "to_int": lambda p, x, u: x.to(torch.int32),
    "to_long": lambda p, x, u: p.long(),
    "to_int8": lambda p, x, u: x.to(torch.int8),
    "to_bool": lambda p, x, u: x.trunc().bool(),
}
FUNCTIONS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "sqrt": lambda p, x, u: p.sqrt(),
    "exp": lambda p, x, u: x.exp(),
    "exp2": lambda p, x, u: x.exp2(),
    "expm1": lambda p, x, u: x.expm1(),
    "log": lambda p, x, u: p.log(),
    "log1p": lambda p, x, u: p.log1p(),
    "log2": lambda p, x, u: p.log2(),
    "log10": lambda p, x, u: p.log10(),
    "rsqrt": lambda p, x, u: p.rsqrt(),
    "add_alpha": lambda p, x, u: torch.add(x.abs(), p, alpha=3),
    "sin": lambda p, x, u: x.sin(),
    "cos": lambda p, x, u: x.cos(),
    "tan": lambda p, x, u: u.tan(),
    "asin": lambda p, x, u: u.asin(),
    "acos": lambda p, x, u: u.acos(),
    "atan": lambda p, x, u: x.atan(),
    "atan2": lambda p, x, u: torch.atan2(x, p),
    "sinh": lambda p, x, u: x.sinh(),
    "cosh": lambda p, x, u: x.cosh(),
    "tanh": lambda p, x, u: x.tanh(),
    "erf": lambda p, x, u: x.erf(),
    "erfc": lambda p, x, u: x.erfc(),
    "sigmoid": lambda p, x, u: x.sigmoid(),
    "pow": lambda p, x, u: p**u,
    "pow_scalar": lambda p, x, u: p**1.7,
    "cube": lambda p, x, u: x**3,
    "fmod": lambda p, x, u: torch.fmod(x, p),
    "remainder": lambda p, x, u: torch.remainder(x, p),
    "silu": lambda p, x, u: torch.nn.functional.silu(x),
    "gelu": lambda p, x, u: torch.nn.functional.gelu(x),
    "gelu_tanh": lambda p, x, u: torch.nn.functional.gelu(x, approximate="tanh"),
    "softplus": lambda p, x, u: torch.nn.functional.softplus(x),
    "mish": lambda p, x, u: torch.nn.functional.mish(x),
    "elu": lambda p, x, u: torch.nn.functional.elu(x),
    "logsigmoid": lambda p, x, u: torch.nn.functional.logsigmoid(x),
    "hardswish": lambda p, x, u: torch.nn.functional.hardswish(x),
    "leaky_relu": lambda p, x, u: torch.nn.functional.leaky_relu(x, 0.1),
}
INTEGRAL: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "floor_divide": lambda p, x, u: torch.div(x, p, rounding_mode="floor"),
    "remainder": lambda p, x, u: torch.remainder(x, p),
    "remainder_scalar": lambda p, x, u: torch.remainder(x, 5),
    "and": lambda p, x, u: x & p,
    "or": lambda p, x, u: x | p,
    "xor": lambda p, x, u: x ^ p,
    "invert": lambda p, x, u: ~x,
    "and_scalar": lambda p, x, u: x & 6,
    "sum": lambda p, x, u: x.sum(-1),
    "sum_column": lambda p, x, u: x.sum(0),
    "to_float": lambda p, x, u: x.float() * 0.5,
    "to_half": lambda p, x, u: x.to(torch.bfloat16),
    "true_divide": lambda p, x, u: x / p,
    "positions": lambda p, x, u: x + torch.arange(2, 2 + 3 * SHAPE[1], 3, dtype=x.dtype),
}


def operands(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    if dtype.is_floating_point:
        x = torch.randn(SHAPE, generator=generator, dtype=torch.float64) * 3
        x[0, :4] = torch.tensor([0.0, 2.0, -3.0, 1.0], dtype=torch.float64)
        u = torch.rand(SHAPE, generator=generator, dtype=torch.float64) * 1.98 - 0.99
        p = torch.rand(SHAPE, generator=generator, dtype=torch.float64) * 4 + 0.1
        return p.to(dtype), x.to(dtype), u.to(dtype)
    low = 0 if dtype == torch.uint8 else -100
    x = torch.randint(low, 120, SHAPE, generator=generator).to(dtype)
    return torch.randint(1, 50, SHAPE, generator=generator).to(dtype), x, (x // 2).to(dtype)


def run(fn: Callable[..., object], inputs: tuple[Tensor, ...]) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs of the compiled function, and of the interpreter in float64. Everything must be in one program."""
    graph = trace(fn, inputs).graph
    found = capture(graph, "ops")
    assert not found.refusals, [str(r) for r in found.refusals]
    (region,) = found.regions
    assert parse(str(region.program)) == region.program
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    bound = [inputs[placeholders.index(node)] for node in region.inputs]
    order = [region.outputs.index(node) for node in graph.output_node().args[0]]
    got = run_program(region.program, bound)
    exact = interpret(region.program, bound)
    shapes = [node.meta["val"].shape for node in region.outputs]
    return [got[i].reshape(shapes[i]) for i in order], [exact[i].reshape(shapes[i]) for i in order]


def together(
    functions: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]],
) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]:
    def everything(p: Tensor, x: Tensor, u: Tensor) -> tuple[Tensor, ...]:
        largest = x.amax(-1, keepdim=True)
        p, x, u = (torch.where(largest < x, largest, value) for value in (p, x, u))  # the same, behind a reduction
        return tuple(function(p, x, u) for function in functions.values())

    return everything


@pytest.mark.parametrize("dtype", often([*FLOATS, *INTEGERS], ("f32", "bf16", "i64", "i8")))
def test_operations_that_round_give_eagers_bits(dtype: str) -> None:
    check_bits(dtype)


def check_bits(dtype: str, only: Collection[str] = ()) -> None:
    """All operations of that dtype, or some of them, which use all three operands."""
    floating = dtype in FLOATS
    functions = ROUNDING | (FLOATING if floating else INTEGRAL)
    inputs = operands((FLOATS | INTEGERS)[dtype])
    if dtype in ("bf16", "f16"):  # whether the quotient is rounded before it is cut off is left open
        functions = {name: f for name, f in functions.items() if name not in ("div_floor", "div_trunc")}
    if dtype == "u8":
        functions = {name: f for name, f in functions.items() if name not in ("neg", "rsub", "clamp", "sign")}
    functions = {name: f for name, f in functions.items() if not only or name in only}
    fn = together(functions)
    got, _ = run(fn, inputs)
    for name, mine, theirs in zip(functions, got, fn(*inputs), strict=False):
        assert mine.dtype == theirs.dtype, name
        assert torch.equal(mine.nan_to_num(7), theirs.nan_to_num(7)), name
        assert torch.equal(mine.isnan(), theirs.isnan()), name


@pytest.mark.parametrize("dtype", often(FLOATS, ("f32", "bf16")))
def test_functions_are_as_near_to_float64_as_eager(dtype: str) -> None:
    inputs = operands(FLOATS[dtype])
    fn = together(FUNCTIONS)
    got, exact = run(fn, inputs)
    eps = torch.finfo(FLOATS[dtype]).eps
    for name, mine, theirs, reference in zip(FUNCTIONS, got, fn(*inputs), exact, strict=False):
        assert mine.dtype == theirs.dtype, name
        allowed = 2 * (theirs.double() - reference).abs() + 4 * eps * reference.abs() + 1e-7 * eps
        if dtype == "f64":
            allowed = allowed + 4 * eps
        assert ((mine.double() - reference).abs() <= allowed).all(), name


@pytest.mark.parametrize("dtype", list(FP8))
def test_eight_bit_floats_are_stored_and_loaded(dtype: str) -> None:
    storage = FP8[dtype]

    def fn(x: Tensor, q: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
        wide = q.to(torch.float32) * scale
        largest = wide.amax(-1, keepdim=True)
        x = torch.where(largest < wide, largest, x)  # the same, behind a reduction
        return (x * scale).to(storage), wide.sum(-1), x.to(torch.bfloat16).to(storage), wide.to(torch.bfloat16)

    _, x, _ = operands(torch.float32)
    x[1, :6] = torch.tensor([1e9, -1e9, float("nan"), 448.0, 1e-9, float("inf")])
    inputs = (x, torch.randn(SHAPE).to(storage), torch.rand(SHAPE[0], 1) + 0.5)
    got, _ = run(fn, inputs)
    for index, (mine, theirs) in enumerate(zip(got, fn(*inputs), strict=True)):
        assert mine.dtype == theirs.dtype
        if index == 1:
            torch.testing.assert_close(mine, theirs)
        else:
            bits = torch.uint8 if mine.dtype == storage else torch.int16
            assert torch.equal(mine.view(bits), theirs.view(bits)), index


def test_the_lists_above_hold_every_lowered_operation() -> None:
    """Every pointwise overload in the table of lowerings occurs in the traced graph of some list."""
    seen: set[object] = set()
    for dtypes, lists in ((FLOATS, (ROUNDING, FLOATING, FUNCTIONS)), (INTEGERS, (ROUNDING, INTEGRAL))):
        for functions in lists:
            for dtype in dtypes.values():
                graph = trace(together(functions), operands(dtype)).graph
                seen |= {node.target for node in graph.nodes}
    names = {target._schema.name for target in seen if hasattr(target, "_schema")}
    missing = {target._schema.name for target in POINTWISE} - names  # type: ignore[attr-defined]
    decomposed = {"aten::clone", "aten::_to_copy", "prims::fma", "aten::rsub", "aten::floor_divide", "aten::logical_or"}
    assert missing <= decomposed | {"aten::logical_xor", "aten::logical_not", "aten::square", "aten::sgn"}, missing


def test_a_size_known_at_run_time_is_a_number() -> None:
    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * x.shape[0], x.sum(-1) / x.shape[0]

    x = torch.randn(8, 16)
    graph = trace(fn, (x,), dynamic_rows=True).graph
    found = capture(graph, "sized")
    assert not [r for r in found.refusals if r.rule != "no_reduction"], found.refusals
    (region,) = found.regions
    assert "parameter[" in str(region.program)
    for rows in (1, 5, 8):
        x = torch.randn(rows, 16)
        results = run_program(region.program, [x], [rows])
        expected = fn(x)
        for mine in results:
            assert any(mine.shape == e.shape and torch.allclose(mine, e) for e in expected)
