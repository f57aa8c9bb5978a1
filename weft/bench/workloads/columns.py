"""Columns reduced together with rows or pointwise work: sums and maxima of both, GELU's gradients, batch norm."""

import math

import torch
from torch import Tensor

from weft.bench.inputs import NORM_EPS
from weft.bench.workloads.workload import Workload, wide


def row_column_sum(x: Tensor) -> tuple[Tensor, Tensor]:
    """The sums of the rows `[M]` and of the columns `[N]` of `x [M, N]`."""
    return x.sum(1), x.sum(0)


def row_column_amax(x: Tensor) -> tuple[Tensor, Tensor]:
    """The largest elements of the rows `[M]` and of the columns `[N]` of `x [M, N]`; M and N are not zero."""
    return x.amax(1), x.amax(0)


def gelu_backward_bias(dy: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """`dx [M, N]`, the gradient of the exact GELU of `x [M, N]`, and the sum of the rounded `dx` over rows, `[N]`: the
    gradient of the bias of the linear layer before it."""
    data = wide(x)
    cdf = 0.5 * (1 + torch.erf(data * math.sqrt(0.5)))
    density = torch.exp(-0.5 * data * data) * (1 / math.sqrt(2 * math.pi))
    dx = (wide(dy) * (cdf + data * density)).to(x.dtype)
    return dx, dx.sum(0)


def batch_norm_forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`y [M, N]`: every column of `x [M, N]` less its mean, over its standard deviation, times `weight [N]` plus
    `bias [N]`, as in training.

    Both statistics come from one pass over the data, as sums of `x` and of its square.
    """
    data = wide(x)
    mean = data.mean(0)
    variance = (data.square().mean(0) - mean.square()).relu()
    y = (data - mean) * (variance + NORM_EPS).rsqrt() * wide(weight) + wide(bias)
    return y.to(x.dtype)


COLUMNS = (
    Workload(row_column_sum, (16384, 4096)),
    Workload(row_column_amax, (16384, 4096)),
    Workload(gelu_backward_bias, (8192, 16384)),
    Workload(batch_norm_forward, (65536, 256)),
)
