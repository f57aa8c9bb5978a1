"""Values of rows as sums of multiples: the same numbers, in fewer operations, and only of what has few bits."""

from __future__ import annotations

import pytest
import torch

from tests.cuda_kernels import WORKLOADS_OF_ROWS, kernel_of
from tests.exact_inputs import exact_inputs
from weft.ir.affine import affine_along_rows
from weft.ir.interpret import interpret
from weft.ir.parser import parse
from weft.ir.program import Program

SIZE = 6, 16
GAINED = ("layer_norm_forward", "layer_norm_backward", "rms_norm_backward", "add_rms_norm_backward",
          "layer_norm_backward_bias", "modulated_layer_norm_forward", "modulated_layer_norm_backward",
          "thunder_layer_norm_backward")  # fmt: skip


def of(body: str) -> Program:
    return parse(f"program p()\n  dim m = {SIZE[0]}\n  dim n = {SIZE[1]}\n{body}end\n")


def of_rows(body: str, kind: str = "bf16") -> Program:
    """Of an input with rows, one that all rows have in common, and two with a number for each row."""
    inputs = (
        f"  input x: {kind} [m:{SIZE[1]}, n:1]\n  input w: {kind} [n:1]\n  input a: f32 [m:1]\n  input b: f32 [m:1]\n"
    )
    converted = "  x1: f32{m, n} = cast(x)\n  w1: f32{n} = cast(w)\n" if kind != "f32" else ""
    return of(inputs + converted + body + f"  output y: f32 [m:{SIZE[1]}, n:1] = r\n")


def operations(program: Program) -> list[str]:
    """Of what varies along columns, but for casts."""
    return [v.op for v in program.values if "n" in v.dims and v.op != "cast"]


@pytest.mark.parametrize("name", WORKLOADS_OF_ROWS)
def test_a_program_means_the_same(name: str) -> None:
    case, kernel = kernel_of(name, (64, 512), warps=4)
    made = affine_along_rows(kernel.program, kernel.schedule.columns)
    assert (made is kernel.program) == (name not in GAINED)
    bound = dict(
        zip(
            (b.name for b in case.program.inputs),
            case.bind(exact_inputs(name, (64, 512), torch.bfloat16, "cpu", 3)),
            strict=True,
        )
    )
    given = [bound[b.name] for b in made.inputs]
    for mine, right in zip(interpret(made, given), interpret(kernel.program, given), strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-12, atol=1e-12)


def test_a_difference_times_a_number_is_one_operation() -> None:
    made = affine_along_rows(of_rows("  d: f32{m, n} = sub(x1, a)\n  r: f32{m, n} = mul(d, b)\n"), ("n",))
    assert operations(made) == ["mul", "add"]
    assert [v.op for v in made.values if v.dims == ("m",)] == ["mul", "neg"]


@pytest.mark.parametrize(
    "body",
    [
        "  r: f32{m, n} = sub(x1, a)\n",
        "  r: f32{m, n} = mul(x1, a)\n",
        "  p: f32{m, n} = mul(x1, a)\n  r: f32{m, n} = add(p, b)\n",
        "  p: f32{m, n} = mul(x1, w1)\n  r: f32{m, n} = sub(p, b)\n",
        "  d: f32{m, n} = sub(x1, a)\n  r: f32{m, n} = mul(d, d)\n",
        "  d: f32{m, n} = sub(x1, a)\n  r: f32{m, n} = div(d, b)\n",
    ],
)
def test_what_takes_as_few_operations_as_it_is_stays(body: str) -> None:
    program = of_rows(body)
    assert affine_along_rows(program, ("n",)) is program


def test_terms_of_one_base_are_one_term() -> None:
    body = "  p: f32{m, n} = mul(x1, a)\n  q: f32{m, n} = sub(x1, b)\n  r: f32{m, n} = sub(p, q)\n"
    made = affine_along_rows(of_rows(body), ("n",))
    assert operations(made) == ["mul", "add"]


def test_what_has_32_bits_stays() -> None:
    """A row whose mean is far from zero would lose those that it has."""
    program = of_rows("  d: f32{m, n} = sub(x, a)\n  r: f32{m, n} = mul(d, b)\n", "f32")
    assert affine_along_rows(program, ("n",)) is program


def test_numbers_of_rows_alone_stay() -> None:
    body = "  d: f32{m} = sub(a, b)\n  e: f32{m} = mul(d, b)\n  r: f32{m, n} = mul(x1, e)\n"
    program = of_rows(body)
    assert affine_along_rows(program, ("n",)) is program


@pytest.mark.parametrize("far", [0, 3, 40, 250])
def test_rows_whose_mean_is_far_from_zero_lose_nothing_that_is_seen(far: int) -> None:
    """In float32, for a mean of so many standard deviations, of which bfloat16 tells a few steps."""
    torch.manual_seed(far)
    _, kernel = kernel_of("layer_norm_backward", (64, 512), warps=4)
    made = affine_along_rows(kernel.program, kernel.schedule.columns)
    x = (torch.randn(64, 512) + far).bfloat16()
    mean, var = x.double().mean(1), x.double().var(1, correction=0)
    given = {"x": x, "dy": torch.randn(64, 512).bfloat16(), "weight": torch.randn(512).bfloat16(),
             "mean": mean.float(), "rstd": (var + 1e-5).rsqrt().float()}  # fmt: skip
    inputs = [given[b.name] for b in made.inputs]
    exact = interpret(kernel.program, inputs)
    before, after = (interpret(program, inputs, exact=False) for program in (kernel.program, made))
    for right, old, new in zip(exact, before, after, strict=True):
        errors = [(found.double() - right).square().mean().sqrt() for found in (old, new)]
        assert errors[1] <= 1.02 * errors[0]
