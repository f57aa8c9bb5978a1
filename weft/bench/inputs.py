"""Inputs of the workloads: random ones for timing and accuracy, exact ones that find a lost row or column.

Exact inputs are small integers and powers of two, chosen so that every mean divides evenly and every intermediate,
partial sums included, is exactly representable in float32. Any order of summation then gives the bits of the float64
result rounded once, so tests compare with `==` where a tolerance would hide a missing row.

Every function takes the names of the tensors it is to make, in order, and the logical shape `(M, N)`. The names:

| name | shape | dtype | what |
|---|---|---|---|
| `x`, `residual`, `dy`, `dresidual`, `y` | `[M, N]` | asked for | data, incoming gradients, saved softmax output |
| `weight`, `bias` | `[N]` | asked for | affine parameters of a norm |
| `mean`, `rstd` | `[M, 1]` | float32, or float64 where that is asked for | saved statistics of `x` |
| `flat_mean` | `[M]` | as `mean` | the same mean before its broadcast |
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Shape = tuple[int, int]
Device = str | torch.device

NORM_EPS = 1e-6
"""Added to the mean square by every norm here. Lost beside the exact forward inputs' mean square of 4096 (half a
float32 unit there is 2.4e-4) and far below half a unit of the float64 result (1.2e-10 against 3e-8, relative)."""


def statistics_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which norms compute and in which autograd saves their statistics: at least float32."""
    return torch.promote_types(dtype, torch.float32)


def random_norm_inputs(
    names: Sequence[str], centred: bool, shape: Shape, dtype: torch.dtype, device: Device = "cpu", seed: int = 0
) -> tuple[Tensor, ...]:
    """Normally distributed data, weights around one, and statistics computed from `x`.

    `centred` tells layer norm (the mean is subtracted) from RMS norm (it is zero).
    """
    rows, columns = shape
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*size: int, scale: float = 1.0, shift: float = 0.0) -> Tensor:
        return (torch.randn(size, generator=generator, device=device) * scale + shift).to(dtype)

    # The data has a mean and a spread of its own in every row and column: a kernel that mixes rows up shows.
    x = (normal(rows, columns) * (1 + normal(rows, 1).abs()) + 0.5 * normal(columns)).to(dtype)
    wide = x.to(statistics_dtype(dtype))
    mean = wide.mean(1, keepdim=True) if centred else torch.zeros_like(wide[:, :1])
    makers: dict[str, Callable[[], Tensor]] = {
        "x": lambda: x,
        "residual": lambda: normal(rows, columns),
        "dy": lambda: normal(rows, columns),
        "dresidual": lambda: normal(rows, columns),
        "weight": lambda: normal(columns, scale=0.25, shift=1.0),
        "bias": lambda: normal(columns, scale=0.25),
        "mean": lambda: mean,
        "flat_mean": lambda: mean.squeeze(1),
        "rstd": lambda: ((wide - mean).square().mean(1, keepdim=True) + NORM_EPS).rsqrt(),
    }
    return tuple(makers[name]() for name in names)


def random_softmax_inputs(
    names: Sequence[str], shape: Shape, dtype: torch.dtype, device: Device = "cpu", seed: int = 0
) -> tuple[Tensor, ...]:
    """Normally distributed logits `x` (spread 2) and gradients `dy`; `y` is the softmax of such logits."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(scale: float) -> Tensor:
        return torch.randn(shape, generator=generator, device=device) * scale

    makers: dict[str, Callable[[], Tensor]] = {
        "x": lambda: normal(2.0).to(dtype),
        "dy": lambda: normal(1.0).to(dtype),
        "y": lambda: torch.softmax(normal(2.0).to(statistics_dtype(dtype)), -1).to(dtype),
    }
    return tuple(makers[name]() for name in names)


def exact_norm_forward_inputs(
    names: Sequence[str], centred: bool, shape: Shape, dtype: torch.dtype, device: Device = "cpu", seed: int = 0
) -> tuple[Tensor, ...]:
    """Rows with mean square 4096 about their mean, which is zero or (`centred`) a small multiple of four.

    The rows are permutations of plus and minus 64; an odd row has one 128 and four -32 in front, which changes neither
    the mean nor the mean square. `centred` needs N = 2, or N >= 4: no row of 1 or 3 has such statistics.
    """
    rows, columns = shape
    if centred and columns in (1, 3):
        raise ValueError(f"no exact layer norm row of {columns} elements: take N = 2 or N >= 4")
    generator = torch.Generator().manual_seed(seed)
    head = [128, -32, -32, -32, -32] if columns % 2 and columns >= 5 else []
    pattern = torch.tensor(head + [64, -64] * (columns // 2 + 1))[:columns]
    x = pattern[torch.rand(rows, columns, generator=generator).argsort(1)]
    if centred:
        x = x + 4 * torch.randint(-2, 3, (rows, 1), generator=generator)
    residual = torch.randint(-8, 9, (rows, columns), generator=generator)
    makers: dict[str, Callable[[], Tensor]] = {
        "x": lambda: x - residual if "residual" in names else x,
        "residual": lambda: residual,
        # With an odd weight and a bias divisible by four no output is zero or near it.
        "weight": lambda: 2 * torch.randint(-2, 2, (columns,), generator=generator) + 1,
        "bias": lambda: 4 * torch.randint(-2, 3, (columns,), generator=generator),
    }
    return tuple(makers[name]().to(device=device, dtype=dtype) for name in names)


def exact_norm_backward_inputs(
    names: Sequence[str],
    zero_means: bool,
    shape: Shape,
    dtype: torch.dtype,
    device: Device = "cpu",
    seed: int = 0,
) -> tuple[Tensor, ...]:
    """Small integers for which both row sums of a norm's backward are N times a small integer.

    With `c = x - mean` in {-2, -1, 1, 2} and `g = dy * weight`, every row has `sum(g) = N * a` and
    `sum(c * g) = N * b` for integers of the same parity, `|a|, |b| <= 2`; both are zero with `zero_means`, for
    workloads in which 1/N is a rounded literal. `rstd` is 1/2, 1 or 2 and belongs to no data in particular, as the
    formulas do not need it to. `dx` fits bfloat16, so that sums of the rounded `dx` are exact as well. Needs N >= 2.
    """
    rows, columns = shape
    if columns < 2:
        raise ValueError("exact norm gradients need rows of at least two elements")
    generator = torch.Generator().manual_seed(seed)

    def integers(low: int, high: int, *size: int) -> Tensor:
        return torch.randint(low, high + 1, size, generator=generator)

    def signs(*size: int) -> Tensor:
        return 2 * integers(0, 1, *size) - 1

    centred = integers(1, 2, rows, columns) * signs(rows, columns)
    centred[:, 0], centred[:, 1] = 1, -1
    # Where |c| is two, g is even: then sum(g) and sum(c * g) have the same parity, which _settle_row_sums needs.
    g = integers(-2, 2, rows, columns) * centred.abs()
    parity = integers(0, 1, rows, 1)
    means = [torch.zeros_like(parity) if zero_means else (2 - parity) * signs(rows, 1) for _ in range(2)]
    g = _settle_row_sums(g, centred, columns * means[0], columns * means[1])

    weight = 2.0 ** integers(0, 2, columns) * signs(columns)
    mean = integers(-4, 4, rows, 1) * ("mean" in names or "flat_mean" in names)
    rstd = 2.0 ** integers(-1, 1, rows, 1)
    makers: dict[str, Callable[[], Tensor]] = {
        "x": lambda: centred + mean,
        "dy": lambda: g / weight,
        "dresidual": lambda: integers(-8, 8, rows, columns),
        "weight": lambda: weight,
        "mean": lambda: mean,
        "flat_mean": lambda: mean.squeeze(1),
        "rstd": lambda: rstd,
    }
    statistics = {"mean", "flat_mean", "rstd"}
    return tuple(
        makers[name]().to(device=device, dtype=statistics_dtype(dtype) if name in statistics else dtype)
        for name in names
    )


def exact_softmax_inputs(
    names: Sequence[str], shape: Shape, dtype: torch.dtype, device: Device = "cpu", seed: int = 0
) -> tuple[Tensor, ...]:
    """Logits at the row's maximum in a power of two of places and 200 below it elsewhere, where exp is lost."""
    rows, columns = shape
    generator = torch.Generator().manual_seed(seed)
    most = min(columns.bit_length() - 1, 10)
    logarithm = torch.randint(0, most + 1, (rows, 1), generator=generator)
    rank = torch.rand(rows, columns, generator=generator).argsort(1).argsort(1)
    chosen = rank < 2**logarithm
    offset = torch.randint(-8, 9, (rows, 1), generator=generator)
    makers: dict[str, Callable[[], Tensor]] = {
        "x": lambda: torch.where(chosen, 0, -200) + offset,
        "dy": lambda: torch.randint(-8, 9, (rows, columns), generator=generator),
        "y": lambda: torch.where(chosen, 2.0**-logarithm, 0.0),
    }
    return tuple(makers[name]().to(device=device, dtype=dtype) for name in names)


def _settle_row_sums(g: Tensor, centred: Tensor, gradient_sum: Tensor, product_sum: Tensor) -> Tensor:
    """Add integers to `g [M, N]` where `centred` is 1 or -1 until its rows sum to `gradient_sum [M, 1]` and the rows
    of `centred * g` to `product_sum [M, 1]`, spread as evenly as integers allow."""
    missing_gradient = gradient_sum - g.sum(1, keepdim=True)
    missing_product = product_sum - (centred * g).sum(1, keepdim=True)
    for unit in (1, -1):
        places = centred == unit
        rank = places.cumsum(1) - 1
        count = places.sum(1, keepdim=True)
        amount = (missing_gradient + unit * missing_product) // 2
        share = amount // count + (rank < amount % count)
        g = g + torch.where(places, share, 0)
    return g
