"""Norms over rows: layer norm and RMS norm, with a residual addition, with a bias before them, with fp8 outputs."""

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.bench.inputs import NORM_EPS
from weft.bench.workloads.workload import Workload, wide

FP8_LARGEST = 448.0
"""The largest number of `torch.float8_e4m3fn`."""


def rms_norm_forward(x: Tensor, weight: Tensor) -> Tensor:
    """`y [M, N]` from `x [M, N]` and `weight [N]`."""
    return F.rms_norm(x, (x.shape[-1],), weight, NORM_EPS)


def rms_norm_backward(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    """`dx [M, N]` and `dweight [N]`; `rstd [M, 1]` is `rsqrt(mean(x ** 2) + eps)`."""
    x_hat = wide(x) * rstd
    g = wide(dy) * wide(weight)
    dx = rstd * (g - x_hat * (x_hat * g).mean(-1, keepdim=True))
    dweight = (wide(dy) * x_hat).sum(0)
    return dx.to(x.dtype), dweight.to(weight.dtype)


def layer_norm_forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`y [M, N]` from `x [M, N]`, `weight [N]` and `bias [N]`."""
    return F.layer_norm(x, (x.shape[-1],), weight, bias, NORM_EPS)


def layer_norm_backward(
    dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """`dx [M, N]`, `dweight [N]` and `dbias [N]`; `mean` and `rstd` are `[M, 1]`."""
    x_hat = (wide(x) - mean) * rstd
    g = wide(dy) * wide(weight)
    dx = rstd * (g - g.mean(-1, keepdim=True) - x_hat * (x_hat * g).mean(-1, keepdim=True))
    dweight = (wide(dy) * x_hat).sum(0)
    dbias = wide(dy).sum(0)
    return dx.to(x.dtype), dweight.to(weight.dtype), dbias.to(weight.dtype)


def layer_norm_backward_bias(
    dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`layer_norm_backward` and the bias gradient `[N]` of the linear layer before it: the sum of the rounded `dx`."""
    dx, dweight, dbias = layer_norm_backward(dy, x, weight, mean, rstd)
    return dx, dweight, dbias, dx.sum(0)


def thunder_layer_norm_backward(
    weight: Tensor, mean: Tensor, dy: Tensor, x: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """`layer_norm_backward` as Lightning Thunder traces it, with everything that a compiler has to see through.

    `mean [M]` is broadcast inside, `x - mean` is computed twice, two sums are over a dimension of size one, 1/N and
    2/N are decimal literals of six digits (0.000488281 at N = 2048), and each use casts anew. `rstd` is `[M, 1]`.
    """
    rows, columns = x.shape
    one_over_n, two_over_n = float(f"{1 / columns:.6g}"), float(f"{2 / columns:.6g}")

    mean_again = mean.reshape(rows, 1).expand(rows, columns)
    centred = wide(x) - mean_again
    g = wide(weight).expand(rows, columns) * wide(dy)
    x_hat = centred * rstd.expand(rows, columns)
    dbias = wide(dy).sum(0)
    dweight = (wide(dy) * x_hat).sum(0)

    d_centred = rstd.expand(rows, columns) * g
    d_rstd = (centred * g).sum(1).reshape(rows, 1)
    d_mean = (-d_centred).sum(1).reshape(rows, 1)
    d_variance = (-0.5 * d_rstd * rstd.pow(3.0)).sum(1)
    d_mean_total = d_mean.sum(1)

    spread_mean = one_over_n * d_mean_total.reshape(rows, 1).expand(rows, columns)
    centred_again = wide(x) - mean.reshape(rows, 1).expand(rows, columns)
    spread_variance = two_over_n * d_variance.reshape(rows, 1).expand(rows, columns) * centred_again
    dx = d_centred + spread_variance + spread_mean
    return dx.to(x.dtype), dweight.to(weight.dtype), dbias.to(weight.dtype)


def add_rms_norm_forward(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The norm of `x + residual` and that sum, rounded to the dtype of `x` before it is normalised; both `[M, N]`."""
    total = x + residual
    return F.rms_norm(total, (x.shape[-1],), weight, NORM_EPS), total


def add_rms_norm_backward(
    dy: Tensor, dresidual: Tensor, x: Tensor, weight: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    """`dx [M, N]` and `dweight [N]`; `x [M, N]` is the sum that was normalised and `dresidual [M, N]` the gradient that
    reaches it along the residual stream."""
    x_hat = wide(x) * rstd
    g = wide(dy) * wide(weight)
    dx = rstd * (g - x_hat * (x_hat * g).mean(-1, keepdim=True)) + wide(dresidual)
    dweight = (wide(dy) * x_hat).sum(0)
    return dx.to(x.dtype), dweight.to(weight.dtype)


def rms_norm_fp8(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The RMS norm of `x [M, N]` with `weight [N]` in `torch.float8_e4m3fn`, `[M, N]`, and its scales `[M, 1]`.

    A row's scale is its largest magnitude over 448, the largest number of that type; `y * scale` is the norm. The norm
    is not rounded in between. A row of zeros has the scale of 1e-12.
    """
    data = wide(x)
    rstd = (data.square().mean(-1, keepdim=True) + NORM_EPS).rsqrt()
    y = data * rstd * wide(weight)
    scale = y.abs().amax(-1, keepdim=True).clamp(min=1e-12) / FP8_LARGEST
    return (y / scale).to(torch.float8_e4m3fn), scale


NORMS = (
    Workload(rms_norm_forward, (16384, 4096)),
    Workload(rms_norm_backward, (8192, 8192)),
    Workload(layer_norm_forward, (16384, 4096)),
    Workload(layer_norm_backward, (16384, 2048)),
    Workload(thunder_layer_norm_backward, (16384, 2048), named=("weight", "flat_mean", "dy", "x", "rstd")),
    Workload(add_rms_norm_forward, (16384, 4096)),
    Workload(add_rms_norm_backward, (16384, 4096)),
    Workload(layer_norm_backward_bias, (16384, 2048)),
    Workload(rms_norm_fp8, (16384, 4096)),
)
