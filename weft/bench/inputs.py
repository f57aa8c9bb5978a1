"""Random inputs of the workloads, for timing and accuracy; ``tests/exact_inputs.py`` has others.

Every maker takes the names of the tensors it is to make, in order, and the logical shape `(M, N)`. The names:

| name | shape | dtype | what |
|---|---|---|---|
| `x`, `residual`, `dy`, `dresidual` | `[M, N]` | asked for | data, incoming gradients |
| `y`, `log_y` | `[M, N]` | asked for | saved outputs of softmax and of log-softmax |
| `weight`, `bias` | `[N]` | asked for | affine parameters of a norm |
| `mean`, `rstd` | `[M, 1]` | float32, or float64 where that is asked for | saved statistics of `x` |
| `flat_mean` | `[M]` | as `mean` | the same mean before its broadcast |
| `scale`, `shift` | `[B, N]` | asked for | modulation of a norm's result, one for each batch element |
| `target` | `[M]` | int64 | the right column of each row, or `IGNORED` |
| `maximum`, `log_total` | `[M, 1]` | as `mean` | largest logit of a row; log of the sum of `exp(x - maximum)` |
| `count`, `dloss` | `[]` | as `mean` | number of targets that are not ignored; gradient of the loss |

With modulation, rows are `[B, T]`: `batch_and_sequence` makes both from M. `per_head` makes them `[B, H, T]`.
"""

from collections.abc import Callable, Sequence
from math import isqrt
from typing import Protocol

import torch
from torch import Tensor

Shape = tuple[int, int]
Device = str | torch.device

NORM_EPS = 1e-6
"""Added to the mean square by every norm here. Lost beside the exact forward inputs' mean square of 4096 (half a
float32 unit there is 2.4e-4) and far below half a unit of the float64 result (1.2e-10 against 3e-8, relative)."""

IGNORED = -100
"""The target of a position that a loss leaves out: the default `ignore_index` of PyTorch."""

MODULATION_SEED = 2**40
"""Added to the seed for what is drawn per batch element, which would repeat the data otherwise."""


class InputMaker(Protocol):
    """Makes fresh inputs for data of one shape `(M, N)` and dtype; equal arguments give equal tensors."""

    def __call__(
        self, names: Sequence[str], shape: Shape, dtype: torch.dtype, device: Device = "cpu", seed: int = 0
    ) -> tuple[Tensor, ...]: ...


def random_norm_inputs(
    names: Sequence[str], shape: Shape, dtype: torch.dtype, device: Device = "cpu", seed: int = 0
) -> tuple[Tensor, ...]:
    """Normally distributed data, weights around one, and statistics computed from `x`: of layer norm with a mean among
    the names, else of RMS norm, which subtracts none."""
    rows, columns = shape
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*size: int, scale: float = 1.0, shift: float = 0.0) -> Tensor:
        return (torch.randn(size, generator=generator, device=device) * scale + shift).to(dtype)

    # The data has a mean and a spread of its own in every row and column: a kernel that mixes rows up shows.
    x = (normal(rows, columns) * (1 + normal(rows, 1).abs()) + 0.5 * normal(columns)).to(dtype)
    wide = x.to(statistics_dtype(dtype))
    centred = not {"mean", "flat_mean"}.isdisjoint(names)
    mean = wide.mean(1, keepdim=True) if centred else torch.zeros_like(wide[:, :1])
    makers: dict[str, Callable[[], Tensor]] = {
        "x": lambda: x,
        **dict.fromkeys(("residual", "dy", "dresidual"), lambda: normal(rows, columns)),
        "weight": lambda: normal(columns, scale=0.25, shift=1.0),
        "bias": lambda: normal(columns, scale=0.25),
        "mean": lambda: mean,
        "flat_mean": lambda: mean.squeeze(1),
        "rstd": lambda: ((wide - mean).square().mean(1, keepdim=True) + NORM_EPS).rsqrt(),
    }
    return tuple(makers[name]() for name in names)


def random_modulated_inputs(
    names: Sequence[str], shape: Shape, dtype: torch.dtype, device: Device = "cpu", seed: int = 0
) -> tuple[Tensor, ...]:
    """The inputs of a layer norm as `[B, T, N]` (statistics `[B, T, 1]`), and modulations `[B, N]` (spread 1/4)."""
    batch, sequence = batch_and_sequence(shape[0])
    generator = torch.Generator(device).manual_seed(seed + MODULATION_SEED)
    of_rows = [name for name in names if name not in ("scale", "shift")]
    made = {
        name: value.view(batch, sequence, value.shape[1])
        for name, value in zip(of_rows, random_norm_inputs(of_rows, shape, dtype, device, seed), strict=True)
    }
    for name in ("scale", "shift"):
        made[name] = (torch.randn(batch, shape[1], generator=generator, device=device) / 4).to(dtype)
    return tuple(made[name] for name in names)


def random_softmax_inputs(
    names: Sequence[str], shape: Shape, dtype: torch.dtype, device: Device = "cpu", seed: int = 0
) -> tuple[Tensor, ...]:
    """Normally distributed logits `x` (spread 2) and gradients `dy`; `y` and `log_y` are the softmax and the
    log-softmax of such logits."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(scale: float) -> Tensor:
        return torch.randn(shape, generator=generator, device=device) * scale

    makers: dict[str, Callable[[], Tensor]] = {
        "x": lambda: normal(2.0).to(dtype),
        "dy": lambda: normal(1.0).to(dtype),
        "y": lambda: torch.softmax(normal(2.0).to(statistics_dtype(dtype)), -1).to(dtype),
        "log_y": lambda: torch.log_softmax(normal(2.0).to(statistics_dtype(dtype)), -1).to(dtype),
    }
    return tuple(makers[name]() for name in names)


def random_cross_entropy_inputs(
    names: Sequence[str], shape: Shape, dtype: torch.dtype, device: Device = "cpu", seed: int = 0
) -> tuple[Tensor, ...]:
    """Normally distributed logits (spread 2, and an offset for every row), targets of which about one in eight is
    ignored, but never the first, and the statistics of both."""
    rows, columns = shape
    generator = torch.Generator(device).manual_seed(seed)
    dtype_of_statistics = statistics_dtype(dtype)
    x = torch.randn(rows, columns, generator=generator, device=device) * 2
    x = (x + torch.randn(rows, 1, generator=generator, device=device)).to(dtype)
    target = torch.randint(columns, (rows,), generator=generator, device=device)
    ignored = torch.rand(rows, generator=generator, device=device) < 1 / 8
    ignored[:1] = False
    target = target.masked_fill(ignored, IGNORED)
    maximum = x.to(dtype_of_statistics).amax(1, keepdim=True)
    makers: dict[str, Callable[[], Tensor]] = {
        "x": lambda: x,
        "target": lambda: target,
        "maximum": lambda: maximum,
        "log_total": lambda: (x - maximum).exp().sum(1, keepdim=True).log(),
        "count": lambda: (target != IGNORED).sum().to(dtype_of_statistics),
        "dloss": lambda: torch.randn((), generator=generator, device=device).to(dtype_of_statistics),
    }
    return tuple(makers[name]() for name in names)


def per_head(
    make: InputMaker, names: Sequence[str], shape: Shape, dtype: torch.dtype, device: Device = "cpu", seed: int = 0
) -> tuple[Tensor, ...]:
    """What `make` makes, every `[M, K]` tensor of it seen as `[B, H, T, K]` where memory holds `[B, T, H * K]`, as the
    heads of a linear layer's result are. `batch_sequence_heads` says what B, T and H are."""
    batch, sequence, heads = batch_sequence_heads(shape[0])
    made = make(names, shape, dtype, device, seed)
    return tuple(v if v.dim() == 1 else v.view(batch, sequence, heads, v.shape[1]).transpose(1, 2) for v in made)


def statistics_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which norms compute and in which autograd saves their statistics: at least float32."""
    return torch.promote_types(dtype, torch.float32)


def batch_and_sequence(rows: int) -> tuple[int, int]:
    """`(B, T)` with `B * T` rows: B is the largest divisor of `rows` up to 8 and up to T; `(1, 0)` for none."""
    batch = _divisor(rows)
    return batch, rows // batch


def batch_sequence_heads(rows: int) -> tuple[int, int, int]:
    """`(B, T, H)` with `B * T * H` rows: H is the largest divisor of `rows` up to 8 and up to `B * T`; B and T
    share the rest as `batch_and_sequence` has it."""
    heads = _divisor(rows)
    return *batch_and_sequence(rows // heads), heads


def _divisor(rows: int) -> int:
    """The largest divisor up to 8 and up to the square root; 1 for 0."""
    return max((d for d in range(1, min(8, isqrt(rows)) + 1) if rows % d == 0), default=1)
