"""Inputs whose rows are made of batches, positions and heads."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from weft.bench.inputs.kinds import (
    Device,
    InputMaker,
    Shape,
    batch_and_sequence,
    batch_sequence_heads,
    statistics_dtype,
)
from weft.bench.inputs.norms import exact_gradients, exact_norm_forward_inputs, random_norm_inputs

MODULATION_SEED = 2**40
"""Added to the seed for what is drawn per batch element, which would repeat the data otherwise."""


def random_modulated_inputs(
    names: Sequence[str], shape: Shape, dtype: torch.dtype, device: Device = "cpu", seed: int = 0
) -> tuple[Tensor, ...]:
    """The inputs of a layer norm as `[B, T, N]` (statistics `[B, T, 1]`), and modulations `[B, N]` (spread 1/4)."""
    batch, sequence = batch_and_sequence(shape[0])
    generator = torch.Generator(device).manual_seed(seed + MODULATION_SEED)
    of_rows = [name for name in names if name not in ("scale", "shift")]
    made = {
        name: value.view(batch, sequence, value.shape[1])
        for name, value in zip(of_rows, random_norm_inputs(of_rows, True, shape, dtype, device, seed), strict=True)
    }
    for name in ("scale", "shift"):
        made[name] = (torch.randn(batch, shape[1], generator=generator, device=device) / 4).to(dtype)
    return tuple(made[name] for name in names)


def exact_modulated_forward_inputs(
    names: Sequence[str], shape: Shape, dtype: torch.dtype, device: Device = "cpu", seed: int = 0
) -> tuple[Tensor, ...]:
    """The rows of `exact_norm_forward_inputs` as `[B, T, N]`, even scales and shifts divisible by four, so that no
    output is zero. Needs N = 2, or N >= 4."""
    batch, sequence = batch_and_sequence(shape[0])
    generator = torch.Generator().manual_seed(seed + MODULATION_SEED)
    (x,) = exact_norm_forward_inputs(["x"], True, shape, dtype, device, seed)
    makers: dict[str, Callable[[], Tensor]] = {
        "x": lambda: x.view(batch, sequence, shape[1]),
        "scale": lambda: 2 * torch.randint(-2, 2, (batch, shape[1]), generator=generator),
        "shift": lambda: 4 * torch.randint(-2, 3, (batch, shape[1]), generator=generator),
    }
    return tuple(makers[name]().to(device=device, dtype=dtype) for name in names)


def exact_modulated_backward_inputs(
    names: Sequence[str], shape: Shape, dtype: torch.dtype, device: Device = "cpu", seed: int = 0
) -> tuple[Tensor, ...]:
    """The small integers of `exact_norm_backward_inputs` as `[B, T, N]`, with a weight `1 + scale` for every batch
    element. Needs N >= 2."""
    (rows, columns), (batch, sequence) = shape, batch_and_sequence(shape[0])
    generator = torch.Generator().manual_seed(seed)

    def integers(low: int, high: int, *size: int) -> Tensor:
        return torch.randint(low, high + 1, size, generator=generator)

    g, centred = (value.view(batch, sequence, columns) for value in exact_gradients(rows, columns, False, generator))
    weight = 2.0 ** integers(0, 2, batch, columns) * (2 * integers(0, 1, batch, columns) - 1)
    mean = integers(-4, 4, batch, sequence, 1)
    made = {
        "dy": g / weight.unsqueeze(1),
        "x": centred + mean,
        "scale": weight - 1,
        "mean": mean,
        "rstd": 2.0 ** integers(-1, 1, batch, sequence, 1),
    }
    wide = statistics_dtype(dtype)
    return tuple(made[n].to(device=device, dtype=wide if n in ("mean", "rstd") else dtype) for n in names)


def per_head(
    make: InputMaker, shape: Shape, dtype: torch.dtype, device: Device = "cpu", seed: int = 0
) -> tuple[Tensor, ...]:
    """What `make` makes, every `[M, K]` tensor of it seen as `[B, H, T, K]` where memory holds `[B, T, H * K]`, as the
    heads of a linear layer's result are. `batch_sequence_heads` says what B, T and H are."""
    batch, sequence, heads = batch_sequence_heads(shape[0])
    made = make(shape, dtype, device, seed)
    return tuple(v if v.dim() == 1 else v.view(batch, sequence, heads, v.shape[1]).transpose(1, 2) for v in made)
