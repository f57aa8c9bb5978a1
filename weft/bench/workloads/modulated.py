"""Norms whose rows are made of batches, positions and heads: modulated layer norm (adaLN) and RMS norm of heads."""

from functools import partial

import torch.nn.functional as F
from torch import Tensor

from weft.bench.inputs import NORM_EPS, per_head, random_modulated_inputs, random_norm_inputs
from weft.bench.workloads.workload import Workload, wide


def modulated_layer_norm_forward(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """`y [B, T, N]`: the layer norm of `x [B, T, N]`, with nothing learned, times `1 + scale` plus `shift`, both
    `[B, N]`; computed in float32 (float64 for float64) and rounded once."""
    data = wide(x)
    centred = data - data.mean(-1, keepdim=True)
    rstd = (centred.square().mean(-1, keepdim=True) + NORM_EPS).rsqrt()
    y = centred * rstd * (1 + wide(scale).unsqueeze(1)) + wide(shift).unsqueeze(1)
    return y.to(x.dtype)


def modulated_layer_norm_backward(
    dy: Tensor, x: Tensor, scale: Tensor, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """`dx [B, T, N]`, `dscale [B, N]` and `dshift [B, N]`; `mean` and `rstd` are `[B, T, 1]`."""
    x_hat = (wide(x) - mean) * rstd
    g = wide(dy) * (1 + wide(scale).unsqueeze(1))
    dx = rstd * (g - g.mean(-1, keepdim=True) - x_hat * (x_hat * g).mean(-1, keepdim=True))
    dscale = (wide(dy) * x_hat).sum(1)
    dshift = wide(dy).sum(1)
    return dx.to(x.dtype), dscale.to(scale.dtype), dshift.to(scale.dtype)


def qk_norm_forward(x: Tensor, weight: Tensor) -> Tensor:
    """The RMS norm of every head: `y [B, H, T, D]` from `x [B, H, T, D]`, a view of a linear layer's `[B, T, H * D]`,
    and `weight [D]`."""
    return F.rms_norm(x, (x.shape[-1],), weight, NORM_EPS)


def qk_norm_backward(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    """`dx [B, T, H * D]`, the gradient of the linear layer's result, and `dweight [D]`.

    `dy` and `x` are `[B, H, T, D]` and `rstd` is `[B, H, T, 1]`, all views of what memory holds as `[B, T, H, ...]`.
    """
    x_hat = wide(x) * rstd
    g = wide(dy) * wide(weight)
    dx = rstd * (g - x_hat * (x_hat * g).mean(-1, keepdim=True))
    dweight = (wide(dy) * x_hat).sum((0, 1, 2))
    return dx.to(x.dtype).transpose(1, 2).flatten(2), dweight.to(weight.dtype)


MODULATED = (
    Workload(modulated_layer_norm_forward, (16384, 1152), random_modulated_inputs),
    Workload(modulated_layer_norm_backward, (16384, 1152), random_modulated_inputs),
    Workload(qk_norm_forward, (131072, 128), partial(per_head, random_norm_inputs)),
    Workload(qk_norm_backward, (131072, 128), partial(per_head, random_norm_inputs)),
)
