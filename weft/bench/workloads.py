"""The named workloads: functions of tensors that reduce along rows, along columns, or along both.

Each is a plain PyTorch function of `[M, N]` data. Backwards spell out what autograd computes: in float32 (float64 for
float64 data), rounded to the dtype of the data at the end, with the statistics that the forward saved as inputs.
Tests, benchmarks and documentation all take them from `WORKLOADS`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.bench.inputs import (
    NORM_EPS,
    Device,
    Shape,
    exact_norm_backward_inputs,
    exact_norm_forward_inputs,
    exact_softmax_inputs,
    random_norm_inputs,
    random_softmax_inputs,
    statistics_dtype,
)


class InputMaker(Protocol):
    """Makes fresh inputs for data of one shape `(M, N)` and dtype; equal arguments give equal tensors."""

    def __call__(
        self, shape: Shape, dtype: torch.dtype, device: Device = "cpu", seed: int = 0
    ) -> tuple[Tensor, ...]: ...


@dataclass(frozen=True)
class Workload:
    """A function with what is needed to run, check and time it."""

    name: str
    fn: Callable[..., Tensor | tuple[Tensor, ...]]
    default_shape: Shape
    """Rows and columns of the data, as a large model has them."""
    make_inputs: InputMaker
    """Random inputs."""
    exact_inputs: InputMaker
    """Inputs whose outputs do not depend on the order of summation: see `weft.bench.inputs`."""
    weight_outputs: tuple[int, ...]
    """Which outputs are gradients of weights or biases, that is, sums over rows."""
    summary: str

    def outputs(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The outputs of `fn`, as a tuple even where there is only one."""
        result = self.fn(*inputs)
        return (result,) if isinstance(result, Tensor) else tuple(result)


def rms_norm_forward(x: Tensor, weight: Tensor) -> Tensor:
    """`y [M, N]` from `x [M, N]` and `weight [N]`."""
    return F.rms_norm(x, (x.shape[-1],), weight, NORM_EPS)


def rms_norm_backward(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    """`dx [M, N]` and `dweight [N]`; `rstd [M, 1]` is `rsqrt(mean(x ** 2) + eps)`."""
    x_hat = _wide(x) * rstd
    g = _wide(dy) * _wide(weight)
    dx = rstd * (g - x_hat * (x_hat * g).mean(-1, keepdim=True))
    dweight = (_wide(dy) * x_hat).sum(0)
    return dx.to(x.dtype), dweight.to(weight.dtype)


def layer_norm_forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`y [M, N]` from `x [M, N]`, `weight [N]` and `bias [N]`."""
    return F.layer_norm(x, (x.shape[-1],), weight, bias, NORM_EPS)


def layer_norm_backward(
    dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """`dx [M, N]`, `dweight [N]` and `dbias [N]`; `mean` and `rstd` are `[M, 1]`."""
    x_hat = (_wide(x) - mean) * rstd
    g = _wide(dy) * _wide(weight)
    dx = rstd * (g - g.mean(-1, keepdim=True) - x_hat * (x_hat * g).mean(-1, keepdim=True))
    dweight = (_wide(dy) * x_hat).sum(0)
    dbias = _wide(dy).sum(0)
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
    centred = _wide(x) - mean_again
    g = _wide(weight).expand(rows, columns) * _wide(dy)
    x_hat = centred * rstd.expand(rows, columns)
    dbias = _wide(dy).sum(0)
    dweight = (_wide(dy) * x_hat).sum(0)

    d_centred = rstd.expand(rows, columns) * g
    d_rstd = (centred * g).sum(1).reshape(rows, 1)
    d_mean = (-d_centred).sum(1).reshape(rows, 1)
    d_variance = (-0.5 * d_rstd * rstd.pow(3.0)).sum(1)
    d_mean_total = d_mean.sum(1)

    spread_mean = one_over_n * d_mean_total.reshape(rows, 1).expand(rows, columns)
    centred_again = _wide(x) - mean.reshape(rows, 1).expand(rows, columns)
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
    x_hat = _wide(x) * rstd
    g = _wide(dy) * _wide(weight)
    dx = rstd * (g - x_hat * (x_hat * g).mean(-1, keepdim=True)) + _wide(dresidual)
    dweight = (_wide(dy) * x_hat).sum(0)
    return dx.to(x.dtype), dweight.to(weight.dtype)


def softmax_forward(x: Tensor) -> Tensor:
    """`y [M, N]`, the softmax of each row of `x [M, N]`."""
    return torch.softmax(x, -1)


def softmax_backward(dy: Tensor, y: Tensor) -> Tensor:
    """`dx [M, N]` from the gradient `dy [M, N]` and the saved output `y [M, N]`."""
    product = _wide(dy) * _wide(y)
    dx = product - _wide(y) * product.sum(-1, keepdim=True)
    return dx.to(dy.dtype)


def _wide(value: Tensor) -> Tensor:
    """`value` in the dtype of computation: float32, or float64 for float64."""
    return value.to(statistics_dtype(value.dtype))


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


def _softmax(fn: Callable[..., Tensor], shape: Shape, names: str, summary: str) -> Workload:
    return Workload(
        name=fn.__name__,
        fn=fn,
        default_shape=shape,
        make_inputs=partial(random_softmax_inputs, names.split()),
        exact_inputs=partial(exact_softmax_inputs, names.split()),
        weight_outputs=(),
        summary=summary,
    )


_ALL = (
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
    _softmax(softmax_forward, (4096, 50257), "x", "softmax over a vocabulary"),
    _softmax(softmax_backward, (4096, 50257), "dy y", "gradient of softmax over a vocabulary"),
)

WORKLOADS: dict[str, Workload] = {workload.name: workload for workload in _ALL}
"""Every workload by its name."""
