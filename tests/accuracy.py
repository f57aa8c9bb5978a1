"""The project's error rules: how far a kernel's results may be from float64, measured by eager's own error."""

from __future__ import annotations

import torch
from torch import Tensor

FACTOR, WEIGHT_FACTOR = 1.25, 1.02
EPSILONS = 0.1
AVERAGED = 1024
"""Elements from which on root mean squares of rounding errors are compared; with fewer, which of two results is nearer
is luck."""
AVERAGED_ROWS = 16
"""The same for rows of which no two are equal: all elements of one share the rounding of its statistics, and equal rows
share all of theirs."""


def rms(x: Tensor) -> float:
    """Root mean square of all elements; 0 if there is none."""
    return x.double().pow(2).mean().sqrt().item() if x.numel() else 0.0


def is_averaged(exact: Tensor) -> bool:
    """Whether a result, the float64 one of any shape, holds enough roundings for root mean squares to be compared."""
    if exact.numel() < AVERAGED:
        return False
    if exact.ndim < 2:
        return True
    distinct: list[Tensor] = []
    for row in exact.reshape(-1, exact.shape[-1]):
        if not any(torch.equal(row, other) for other in distinct):
            distinct.append(row)
            if len(distinct) == AVERAGED_ROWS:
                return True
    return False


def rounding_excess(mine: Tensor, eager: Tensor, exact: Tensor, is_weight_gradient: bool = False) -> str | None:
    """What is wrong with the errors of ``mine``, or None.

    The root-mean-square error may be at most 1.25 times eager's (1.02 times for gradients of weights in 16 bits), plus
    a tenth of the dtype's epsilon times the root mean square of the float64 result; of fewer than sixteen numbers, one
    epsilon.
    """
    error, allowed = rms(mine.double() - exact), rms(eager.double() - exact)
    tight = is_weight_gradient and mine.itemsize == 2
    eps = torch.finfo(mine.dtype).eps
    bound = (WEIGHT_FACTOR if tight else FACTOR) * allowed + EPSILONS * eps * rms(exact)
    if exact.numel() < AVERAGED_ROWS:  # no average over many roundings: which of two is nearer is luck
        bound = max(bound, eps * rms(exact))
    if error <= bound:
        return None
    return f"root-mean-square error {error:.3g} > {bound:.3g} (eager's {allowed:.3g})"
