"""Inputs of norms over the rows of `[M, N]` data."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from weft.bench.inputs.kinds import NORM_EPS, Device, Shape, statistics_dtype


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
    generator = torch.Generator().manual_seed(seed)

    def integers(low: int, high: int, *size: int) -> Tensor:
        return torch.randint(low, high + 1, size, generator=generator)

    def signs(*size: int) -> Tensor:
        return 2 * integers(0, 1, *size) - 1

    g, centred = exact_gradients(rows, columns, zero_means, generator)
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


def exact_gradients(rows: int, columns: int, zero_means: bool, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The integers `g` and `c` of `exact_norm_backward_inputs`, both `[rows, columns]`.

    Raises ValueError for rows of fewer than two elements.
    """
    if columns < 2:
        raise ValueError("exact norm gradients need rows of at least two elements")

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
    return _settle_row_sums(g, centred, columns * means[0], columns * means[1]), centred


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
