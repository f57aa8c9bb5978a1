"""Exact inputs of workloads that reduce columns without being a norm of rows."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from weft.bench.inputs.kinds import Device, Shape


def exact_sum_inputs(
    names: Sequence[str], shape: Shape, dtype: torch.dtype, device: Device = "cpu", seed: int = 0
) -> tuple[Tensor, ...]:
    """Integers of magnitude 1 to 8: none is zero, so that one that is lost changes a sum."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(_non_zero(shape, 8, generator).to(device=device, dtype=dtype) for _ in names)


def exact_gelu_inputs(
    names: Sequence[str], shape: Shape, dtype: torch.dtype, device: Device = "cpu", seed: int = 0
) -> tuple[Tensor, ...]:
    """`x` in {-64, 0, 64}, where GELU has the slopes 0, 1/2 and 1 exactly, and even gradients `dy` up to 16."""
    generator = torch.Generator().manual_seed(seed)
    makers: dict[str, Callable[[], Tensor]] = {
        "x": lambda: 64 * torch.randint(-1, 2, shape, generator=generator),
        "dy": lambda: 2 * _non_zero(shape, 8, generator),
    }
    return tuple(makers[name]().to(device=device, dtype=dtype) for name in names)


def exact_batch_norm_inputs(
    names: Sequence[str], shape: Shape, dtype: torch.dtype, device: Device = "cpu", seed: int = 0
) -> tuple[Tensor, ...]:
    """Columns with mean square 4096 about a mean that is a small multiple of four, as `exact_norm_forward_inputs` has
    rows. Needs M = 2, or 4 <= M < 4000: sums of squares stay below 2^24."""
    rows, columns = shape
    if rows in (1, 3) or rows >= 4000:
        raise ValueError(f"no exact batch norm of {rows} rows: take M = 2 or 4 <= M < 4000")
    generator = torch.Generator().manual_seed(seed)
    head = [128, -32, -32, -32, -32] if rows % 2 and rows >= 5 else []
    pattern = torch.tensor(head + [64, -64] * (rows // 2 + 1))[:rows]
    x = pattern[torch.rand(rows, columns, generator=generator).argsort(0)]
    makers: dict[str, Callable[[], Tensor]] = {
        "x": lambda: x + 4 * torch.randint(-2, 3, (columns,), generator=generator),
        "weight": lambda: 2 * torch.randint(-2, 2, (columns,), generator=generator) + 1,
        "bias": lambda: 4 * torch.randint(-2, 3, (columns,), generator=generator),
    }
    return tuple(makers[name]().to(device=device, dtype=dtype) for name in names)


def _non_zero(shape: Shape, largest: int, generator: torch.Generator) -> Tensor:
    """Integers of both signs with magnitudes from one to `largest`."""
    magnitude = torch.randint(1, largest + 1, shape, generator=generator)
    return magnitude * (2 * torch.randint(0, 2, shape, generator=generator) - 1)
