"""Kernels run whatever the dimensions, parameters, buffers and values of their programs are called."""

from __future__ import annotations

from collections.abc import Sequence
from string import Template

import pytest
import torch

from weft.backends.cpp import names as cpp_names
from weft.backends.cpp import text as cpp
from weft.ir.interpret import interpret
from weft.ir.parser import parse
from weft.options import Options
from weft.plan.cost import estimate
from weft.plan.kernel import Kernel, Plan
from weft.plan.legality import kind_of
from weft.plan.schedules import schedule_for
from weft.plan.split import Split
from weft.runtime.launch import run_plan
from weft.target import Target

# column sums of every segment, a row sum that a second loop uses, an epilogue, numbers of both kinds
PROGRAM = Template("""
program names($p0, $p1, $p2)
  dim $d0 = $p0
  dim $d1 = $p1
  dim $d2 = 24
  input $i0: f32 [$d0:$p1, $d1:1]
  input $i1: f32 [$d0:$p2, $d1:24, $d2:1]
  input $i2: f32 [$d2:1]
  $v0: f32{} = parameter[$p1]()
  $v1: f32{$d0, $d1} = div($i0, $v0)
  $v2: f32{$d0, $d1, $d2} = mul($i1, $i2)
  $v3: f32{$d0, $d1} = sum[$d2]($v2)
  $v4: f32{$d0, $d1} = add($v3, $v1)
  $v5: f32{$d0, $d1, $d2} = mul($v2, $v4)
  $v6: f32{$d0, $d2} = sum[$d1]($v5)
  $v7: f32{$d0, $d2} = mul($v6, $i2)
  $v8: f32{$d0, $d2} = div($v7, $v0)
  output $o0: f32 [$d0:24, $d2:1] = $v8
  output $o1: f32 [$d0:$p2, $d1:24, $d2:1] = $v5
end
""")
SLOTS: list[str] = [
    kind + str(i) for kind, count in (("p", 3), ("d", 3), ("i", 3), ("v", 9), ("o", 2)) for i in range(count)
]
SIZES = (3, 50, 50 * 24)
TAKEN = sorted(cpp_names.TAKEN)
GROUPS = [TAKEN[start : start + len(SLOTS)] for start in range(0, len(TAKEN), len(SLOTS))]
OURS = sorted(cpp_names.OURS)
MADE: list[str] = [
    *("rows", "rows_", "rows__", "x", "x_size", "y", "tile", "x_data", "y_data", "r", "sum", "x_size_", "size"),
    *("sum_partial", "sum_tile", "sum_", "sum__tile", "sum_chunk", "sum_total", "y_lanes"),
]
"""Names that the renderer makes of others here."""


C_FUNCTIONS = ("exp", "rsqrt", "erf", "main", "memcpy")


def check_runs(names: Sequence[str]) -> str:
    """The text of the kernel with these names, which gives the results of the interpreter."""
    chosen = dict(zip(SLOTS, [*names, *(f"other{i}" for i in range(len(SLOTS)))], strict=False))
    program = parse(PROGRAM.substitute(chosen))
    target, hints = Target.named("cpu"), dict(zip(program.parameters, SIZES, strict=True))
    rows, columns = (chosen["d0"], chosen["d1"]), (chosen["d2"],)
    kernel = Kernel(program, schedule_for(Split.of(program, rows, columns, target, hints)))
    plan = Plan(target, (kernel,), (kind_of(program, columns),), (estimate(kernel, target, hints),), ())
    torch.manual_seed(0)
    inputs = (torch.randn(SIZES[:2]), torch.randn(*SIZES[:2], 24), torch.randn(24))
    made = run_plan(plan, program, inputs, SIZES, Options.read())
    for mine, exact in zip(made, interpret(program, inputs, SIZES), strict=True):
        torch.testing.assert_close(mine, exact.float(), rtol=1e-5, atol=1e-4)
    return cpp.render(kernel).text


@pytest.mark.built_together(1)
@pytest.mark.parametrize("names", GROUPS, ids=lambda names: names[0])
def test_names_that_the_kernel_text_needs_itself(names: list[str]) -> None:
    text = check_runs(names)
    assert "_data = static_cast<const float*>(buffers[0]);" in text


@pytest.mark.parametrize("shift", [0, 3, 6])
def test_parameters_dimensions_and_buffers_with_names_of_the_renderer(shift: int) -> None:
    check_runs(OURS[shift:] + OURS[:shift])


def test_names_that_the_renderer_makes_of_others() -> None:
    check_runs(MADE)
    check_runs(MADE[::-1])


def test_other_names_stay() -> None:
    text = check_runs(["tokens"])
    assert "const int64_t tokens = parameters[0];" in text
    assert "tokens_" not in text.replace("tokens_size", "")


@pytest.mark.built_together(1)
@pytest.mark.parametrize("name", C_FUNCTIONS)
def test_kernels_called_like_functions_of_c(name: str) -> None:
    program = parse(f"""
        program {name}()
          dim m = 3
          dim n = 24
          input x: f32 [m:24, n:1]
          y: f32{{m, n}} = exp(x)
          output z: f32 [m:24, n:1] = y
        end
    """)
    target = Target.named("cpu")
    kernel = Kernel(program, schedule_for(Split.of(program, ("m",), ("n",), target, {})))
    plan = Plan(target, (kernel,), ("pointwise",), (estimate(kernel, target, {}),), ())
    x = torch.randn(3, 24)
    (made,) = run_plan(plan, program, (x,), (), Options.read())
    torch.testing.assert_close(made, x.exp())
