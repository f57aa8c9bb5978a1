"""Columns reduced together with rows or pointwise work: sums and maxima of both, GELU's gradients, batch norm."""

import math
from functools import partial

import torch
from torch import Tensor

from weft.bench.inputs import (
    NORM_EPS,
    exact_batch_norm_inputs,
    exact_gelu_inputs,
    exact_sum_inputs,
    random_norm_inputs,
)
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
    Workload(
        name="row_column_sum",
        fn=row_column_sum,
        default_shape=(16384, 4096),
        make_inputs=partial(random_norm_inputs, ["x"], True),
        exact_inputs=partial(exact_sum_inputs, ["x"]),
        weight_outputs=(1,),
        summary="sums of rows and of columns of the same data",
    ),
    Workload(
        name="row_column_amax",
        fn=row_column_amax,
        default_shape=(16384, 4096),
        make_inputs=partial(random_norm_inputs, ["x"], True),
        exact_inputs=partial(exact_sum_inputs, ["x"]),
        weight_outputs=(),
        summary="largest elements of rows and of columns of the same data",
    ),
    Workload(
        name="gelu_backward_bias",
        fn=gelu_backward_bias,
        default_shape=(8192, 16384),
        make_inputs=partial(random_norm_inputs, ["dy", "x"], False),
        exact_inputs=partial(exact_gelu_inputs, ["dy", "x"]),
        weight_outputs=(1,),
        summary="gradient of GELU and of the bias before it: a column sum behind pointwise work",
    ),
    Workload(
        name="batch_norm_forward",
        fn=batch_norm_forward,
        default_shape=(65536, 256),
        make_inputs=partial(random_norm_inputs, ["x", "weight", "bias"], False),
        exact_inputs=partial(exact_batch_norm_inputs, ["x", "weight", "bias"]),
        weight_outputs=(),
        summary="batch norm in training: statistics of columns, then a pass that uses them",
    ),
)
