"""Exact inputs of the workloads, which find a lost row or column.

They are small integers and powers of two, chosen so that every mean divides evenly and every intermediate, partial sums
included, is exactly representable in float32. Any order of summation then gives the bits of the float64 result rounded
once, so tests compare with `==` where a tolerance would hide a missing row. Names of tensors are those of
``weft.bench.inputs``.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from weft.bench.inputs import (
    IGNORED,
    MODULATION_SEED,
    Device,
    InputMaker,
    Shape,
    batch_and_sequence,
    per_head,
    statistics_dtype,
)
from weft.bench.workloads import WORKLOADS


def exact_inputs(
    name: str, shape: Shape, dtype: torch.dtype, device: Device = "cpu", seed: int = 0
) -> tuple[Tensor, ...]:
    """Of a workload. Some shapes have none: ValueError."""
    return _MAKERS[name](WORKLOADS[name].names, shape, dtype, device, seed)


def exact_norm_forward_inputs(
    centred: bool, names: Sequence[str], shape: Shape, dtype: torch.dtype, device: Device = "cpu", seed: int = 0
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
    zero_means: bool,
    names: Sequence[str],
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


def exact_modulated_forward_inputs(
    names: Sequence[str], shape: Shape, dtype: torch.dtype, device: Device = "cpu", seed: int = 0
) -> tuple[Tensor, ...]:
    """The rows of `exact_norm_forward_inputs` as `[B, T, N]`, even scales and shifts divisible by four, so that no
    output is zero. Needs N = 2, or N >= 4."""
    batch, sequence = batch_and_sequence(shape[0])
    generator = torch.Generator().manual_seed(seed + MODULATION_SEED)
    (x,) = exact_norm_forward_inputs(True, ["x"], shape, dtype, device, seed)
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


_RMS_FORWARD, _LAYER_FORWARD = partial(exact_norm_forward_inputs, False), partial(exact_norm_forward_inputs, True)
_BACKWARD = partial(exact_norm_backward_inputs, False)
_MAKERS: dict[str, InputMaker] = {
    "rms_norm_forward": _RMS_FORWARD,
    "rms_norm_backward": _BACKWARD,
    "layer_norm_forward": _LAYER_FORWARD,
    "layer_norm_backward": _BACKWARD,
    "thunder_layer_norm_backward": partial(exact_norm_backward_inputs, True),
    "add_rms_norm_forward": _RMS_FORWARD,
    "add_rms_norm_backward": _BACKWARD,
    "layer_norm_backward_bias": _BACKWARD,
    "rms_norm_fp8": _RMS_FORWARD,
    "modulated_layer_norm_forward": exact_modulated_forward_inputs,
    "modulated_layer_norm_backward": exact_modulated_backward_inputs,
    "qk_norm_forward": partial(per_head, _RMS_FORWARD),
    "qk_norm_backward": partial(per_head, _BACKWARD),
    "softmax_forward": exact_softmax_inputs,
    "softmax_backward": exact_softmax_inputs,
    "log_softmax_forward": exact_log_softmax_inputs,
    "log_softmax_backward": exact_log_softmax_inputs,
    "cross_entropy_forward": exact_cross_entropy_inputs,
    "cross_entropy_backward": exact_cross_entropy_inputs,
    "row_column_sum": exact_sum_inputs,
    "row_column_amax": exact_sum_inputs,
    "gelu_backward_bias": exact_gelu_inputs,
    "batch_norm_forward": exact_batch_norm_inputs,
}

WEIGHT_OUTPUTS = {
    "rms_norm_backward": (1,),
    "layer_norm_backward": (1, 2),
    "thunder_layer_norm_backward": (1, 2),
    "add_rms_norm_backward": (1,),
    "layer_norm_backward_bias": (1, 2, 3),
    "modulated_layer_norm_backward": (1, 2),
    "qk_norm_backward": (1,),
    "row_column_sum": (1,),
    "gelu_backward_bias": (1,),
}
"""Which outputs of a workload are gradients of weights, biases or modulations, that is, sums over rows (of a batch
element); none of the others."""
