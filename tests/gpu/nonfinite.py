"""Rows that are not all finite, and what has to become of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tests.accuracy import rms

INF, NAN = float("inf"), float("nan")
ROWS: tuple[dict[int | None, float], ...] = (
    {3: NAN},
    {7: INF},
    {11: -INF},
    {13: INF, 17: -INF},
    {None: -INF},
    {None: NAN},
)
"""What is put into a row: values by column; None for all of them."""
NAMES = (
    *("rms_norm_forward", "layer_norm_forward", "add_rms_norm_forward"),
    *("rms_norm_backward", "layer_norm_backward", "add_rms_norm_backward"),
    *("softmax_forward", "softmax_backward", "log_softmax_forward", "log_softmax_backward"),
    *("cross_entropy_forward", "cross_entropy_backward"),
)


def spoiled(inputs: Sequence[Tensor], only: int | None = None) -> tuple[Tensor, ...]:
    """Copies in which every matrix of data has each of ``ROWS`` once, each matrix in rows of its own, spread over the
    matrix. only: which of ``ROWS``."""
    made = [t.clone() for t in inputs]
    matrices = [t for t in made if is_data(t)]
    chosen = [row for at, row in enumerate(ROWS) if only in (None, at)]
    places = len(matrices) * len(chosen)
    for at, matrix in enumerate(matrices):
        for number, values in enumerate(chosen):
            row = matrix[(1 + at + number * len(matrices)) * matrix.shape[0] // (places + 1)]
            for column, value in values.items():
                row[slice(None) if column is None else column] = value
    return tuple(made)


def is_data(tensor: Tensor) -> bool:
    """Whether it is a matrix of floats with more than one column."""
    return tensor.ndim == 2 and tensor.shape[1] > 1 and tensor.is_floating_point()


def difference(mine: Tensor, exact: Tensor) -> str:
    """Where a result is not what the float64 one is: NaN and infinities in the same places, else near. Empty if
    nowhere."""
    wide = mine.double()
    for name, of in (("NaN", torch.isnan), ("inf", torch.isposinf), ("-inf", torch.isneginf)):
        wrong = (of(wide) != of(exact)).nonzero()
        if len(wrong):
            place = wrong[0].tolist()
            have, want = wide[tuple(place)].item(), exact[tuple(place)].item()
            return f"{name}: {len(wrong)} places, first {place}: {have}, in float64 {want}"
    known = exact.isfinite()
    error, size = rms((wide - exact)[known]), rms(exact[known])
    return "" if error <= 0.01 * size + 1e-6 else f"root mean square of the error {error:.3g} of {size:.3g}"
