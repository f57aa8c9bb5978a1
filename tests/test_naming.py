"""Programs are named after what they compute, and after nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from weft.bench.workloads import WORKLOADS
from weft.capture.naming import name_of
from weft.capture.regions import capture
from weft.capture.trace import trace
from weft.compiler import compile_graph
from weft.ir.parser import parse
from weft.runtime.executable import digest_of


@pytest.mark.parametrize(
    ("workload", "name"),
    [
        ("softmax_forward", "row_max_exp_row_sum"),
        ("layer_norm_backward_bias", "row_sum_column_sum"),
        ("rms_norm_forward", "row_sum_rsqrt"),
        ("batch_norm_forward", "column_sum_rsqrt"),
        ("gelu_backward_bias", "erf_exp_column_sum"),
    ],
)
def test_names_say_reductions_and_functions(workload: str, name: str) -> None:
    inputs = WORKLOADS[workload].make_inputs((64, 96), torch.bfloat16)
    (region,) = capture(trace(WORKLOADS[workload].fn, inputs).graph).regions
    assert region.program.name == name


@pytest.mark.parametrize(("functions", "name"), [(2, "exp_log_total_sum"), (6, "total_sum")])
def test_a_long_name_is_left_with_the_reductions(functions: int, name: str) -> None:
    lines = ["program p()", "  dim m = 6", "  dim n = 8", "  input x: f32 [m:8, n:1]"]
    last = "x"
    for function in ("exp", "log", "tanh", "erf", "sin", "cos")[:functions]:
        lines.append(f"  {function}: f32{{m, n}} = {function}({last})")
        last = function
    lines += [f"  all: f32{{}} = sum[m, n]({last})", "  output out0: f32 [] = all", "end"]
    assert name_of(parse("\n".join(lines))) == name


def first_block(x: Tensor, w: Tensor) -> Tensor:
    return torch.softmax(x @ w, -1)


def second_block(x: Tensor, w: Tensor) -> Tensor:
    y = x @ w
    return (y - y.amax(-1, keepdim=True)).exp() / (y - y.amax(-1, keepdim=True)).exp().sum(-1, keepdim=True)


def test_equal_blocks_of_different_functions_share_a_kernel() -> None:
    x, w = torch.randn(40, 64), torch.randn(64, 64)
    graph = trace(lambda x, w: second_block(first_block(x, w), w), (x, w)).graph
    kernels = compile_graph(graph).kernels
    assert len(kernels) == 2
    assert len({digest_of(kernel) for kernel in kernels}) == 1
    assert kernels[0].name == "row_max_exp_row_sum"
