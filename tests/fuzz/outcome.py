"""What a case can come to, and the rule that decides whether two results agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


class Mismatch(AssertionError):
    """A case that fails. ``kind`` names what went wrong and stays the same while the case is made smaller."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


@dataclass(frozen=True)
class Outcome:
    """A case that passed: how many kernels of weft's ran, and how many results were compared. torchs: how many of these
    were wrong, but have the same bits without weft."""

    kernels: int
    compared: int
    torchs: int = 0


def largest(x: Tensor) -> float:
    """The largest magnitude; 0 if there is no element."""
    return x.double().abs().max().item() if x.numel() else 0.0


def check_close(name: str, mine: Tensor, exact: Tensor, native: Tensor, disturbed: Sequence[Tensor]) -> None:
    """Raise Mismatch if ``mine`` is further from ``exact`` than rounding explains.

    exact: the float64 result. native: the same in the dtypes of the program. disturbed: float64 results with every
    operation off by about a rounding error: how far they are apart says how well-conditioned the result is. Allowed
    are four times what these show, plus four units in the last place of the largest element.
    """
    if not mine.dtype.is_floating_point:
        wrong = (mine != exact.to(mine.dtype)).sum().item()
        if wrong:
            raise Mismatch("value", f"{name}: {wrong} of {mine.numel()} elements differ ({mine.dtype})")
        return
    gap = (mine.double() - exact).abs()
    native_error = largest(native.double() - exact)
    noise = max((largest(other - exact) for other in disturbed), default=0.0)
    if not all(other.isfinite().all() for other in disturbed):
        return  # at the edge of what the function is defined on
    bound = 4 * (native_error + noise) + 4 * torch.finfo(mine.dtype).eps * largest(exact)
    bad = ~(gap <= bound)  # catches NaN too
    if bad.any():
        place = tuple(bad.nonzero()[0].tolist())
        raise Mismatch(
            "value",
            f"{name}: {int(bad.sum())} of {mine.numel()} elements differ, e.g. {place}: {mine[place].item():.9g}, "
            f"not {exact[place].item():.9g}; bound {bound:.3g}, eager's error {native_error:.3g}, noise {noise:.3g}",
        )
