"""Norms over rows: layer norm and RMS norm, with a residual addition, with a bias before them, with fp8 outputs."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.bench.inputs import (
    NORM_EPS,
    Shape,
    exact_norm_backward_inputs,
    exact_norm_forward_inputs,
    random_norm_inputs,
)
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


def _norm_forward(
    fn: Callable[..., Tensor | tuple[Tensor, ...]], shape: Shape, names: str, centred: bool, summary: str
) -> Workload:
    return Workload(
        name=fn.__name__,
        fn=fn,
        default_shape=shape,
        make_inputs=partial(random_norm_inputs, names.split(), centred),
        exact_inputs=partial(exact_norm_forward_inputs, names.split(), centred),
        weight_outputs=(),
        summary=summary,
    )


def _norm_backward(
    fn: Callable[..., tuple[Tensor, ...]],
    shape: Shape,
    names: str,
    weight_outputs: tuple[int, ...],
    summary: str,
    zero_means: bool = False,
) -> Workload:
    centred = "mean" in names
    return Workload(
        name=fn.__name__,
        fn=fn,
        default_shape=shape,
        make_inputs=partial(random_norm_inputs, names.split(), centred),
        exact_inputs=partial(exact_norm_backward_inputs, names.split(), zero_means),
        weight_outputs=weight_outputs,
        summary=summary,
    )


NORMS = (
    _norm_forward(rms_norm_forward, (16384, 4096), "x weight", False, "RMS norm"),
    _norm_backward(rms_norm_backward, (8192, 8192), "dy x weight rstd", (1,), "gradients of RMS norm"),
    _norm_forward(layer_norm_forward, (16384, 4096), "x weight bias", True, "layer norm"),
    _norm_backward(layer_norm_backward, (16384, 2048), "dy x weight mean rstd", (1, 2), "gradients of layer norm"),
    _norm_backward(
        thunder_layer_norm_backward,
        (16384, 2048),
        "weight flat_mean dy x rstd",
        (1, 2),
        "gradients of layer norm as a Lightning Thunder trace has them",
        zero_means=True,
    ),
    _norm_forward(
        add_rms_norm_forward, (16384, 4096), "x residual weight", False, "residual addition and RMS norm, both kept"
    ),
    _norm_backward(
        add_rms_norm_backward,
        (16384, 4096),
        "dy dresidual x weight rstd",
        (1,),
        "gradients of RMS norm plus the gradient of the residual stream",
    ),
    _norm_backward(
        layer_norm_backward_bias,
        (16384, 2048),
        "dy x weight mean rstd",
        (1, 2, 3),
        "gradients of layer norm and of the bias before it: a column sum that depends on row sums",
    ),
    _norm_forward(rms_norm_fp8, (16384, 4096), "x weight", False, "RMS norm with fp8 outputs, one scale a row"),
)
