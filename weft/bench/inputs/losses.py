"""Inputs of softmax, log-softmax and cross-entropy."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from weft.bench.inputs.kinds import IGNORED, Device, Shape, statistics_dtype


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


def exact_log_softmax_inputs(
    names: Sequence[str], shape: Shape, dtype: torch.dtype, device: Device = "cpu", seed: int = 0
) -> tuple[Tensor, ...]:
    """One logit of a row at its maximum, the rest 64, 128 or 192 below, where exp is lost: the logarithm is zero.

    The saved `log_y` belongs to no logits in particular, as the formula does not need it to: it is 0 in about a quarter
    of places, where exp is one, and -1024 elsewhere, where it is zero. Gradients are odd integers up to 15.
    """
    rows, columns = shape
    generator = torch.Generator().manual_seed(seed)
    makers: dict[str, Callable[[], Tensor]] = {
        "x": lambda: _one_largest(rows, columns, generator) + torch.randint(-8, 9, (rows, 1), generator=generator),
        "dy": lambda: 2 * torch.randint(-8, 8, (rows, columns), generator=generator) + 1,
        "log_y": lambda: -1024 * (torch.rand(rows, columns, generator=generator) > 0.25),
    }
    return tuple(makers[name]().to(device=device, dtype=dtype) for name in names)


def exact_cross_entropy_inputs(
    names: Sequence[str], shape: Shape, dtype: torch.dtype, device: Device = "cpu", seed: int = 0
) -> tuple[Tensor, ...]:
    """Rows with one largest logit and the others 64, 128 or 192 below it, where exp is lost; no target is the largest
    where there are two columns, so that every row adds to the loss.

    The largest power of two of targets below M are not ignored (all of one row): the mean divides evenly. For a
    backward (`dloss` among the names) logits are at the saved maximum in about a quarter of places and 1024 below it
    elsewhere, and the saved `log_total` is zero, which belongs to no data in particular; `dloss` is the count times -2.
    """
    rows, columns = shape
    generator = torch.Generator().manual_seed(seed)
    offset = 8 * torch.randint(-2, 3, (rows, 1), generator=generator)
    below = _one_largest(rows, columns, generator)
    if "dloss" in names:
        below = -1024 * (torch.rand(rows, columns, generator=generator) > 0.25)
    count = min(rows, 1 << max(0, (rows - 1).bit_length() - 1))
    target = (below.argmax(1) + torch.randint(1, max(columns, 2), (rows,), generator=generator)) % columns
    target[torch.randperm(rows, generator=generator)[count:]] = IGNORED
    makers: dict[str, Callable[[], Tensor]] = {
        "x": lambda: (below + offset).to(dtype),
        "target": lambda: target,
        "maximum": lambda: offset.to(statistics_dtype(dtype)),
        "log_total": lambda: torch.zeros(rows, 1, dtype=statistics_dtype(dtype)),
        "count": lambda: torch.tensor(count, dtype=statistics_dtype(dtype)),
        "dloss": lambda: torch.tensor(-2 * count, dtype=statistics_dtype(dtype)),
    }
    return tuple(makers[name]().to(device) for name in names)


def _one_largest(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """Rows of -64, -128 and -192 with a zero in one place, `[rows, columns]`."""
    values = -64 * torch.randint(1, 4, (rows, columns), generator=generator)
    return values.scatter(1, torch.randint(columns, (rows, 1), generator=generator), 0)
