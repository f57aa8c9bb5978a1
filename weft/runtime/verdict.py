"""Whether the errors of an output are what rounding explains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from weft.ir import dtypes
from weft.ir.program import Buffer

# An error is allowed FACTOR times the largest deviation of a yardstick at its element, MEAN_FACTOR times the mean
# deviation and some epsilons of the output's dtype. The root mean square of all errors is held more tightly: it finds
# what changes every element a little, such as a lost row of a column sum. Chosen with a margin over what right kernels
# show; not fitted.
FACTOR, MEAN_FACTOR = 4.0, 8.0
EPSILONS, MEAN_EPSILONS = 8.0, 2.0
RMS_FACTOR, RMS_EPSILONS = 1.0, 0.25
DISTINCT_SAMPLE = 4096


@dataclass(frozen=True)
class Finding:
    """One output of a kernel that is wrong, with its worst element. index: position by dimension."""

    buffer: str
    index: Mapping[str, int]
    got: float
    expected: float
    rule: str

    def __str__(self) -> str:
        where = ", ".join(f"{dim}={i}" for dim, i in self.index.items())
        return f"{self.buffer}[{where}] is {self.got:.9g}, the reference says {self.expected:.9g} ({self.rule})"


@dataclass
class Verdict:
    """Gathers the errors of one output, part by part. excess: by how much the worst element is off beyond its own
    allowance; distinct: about how many elements differ; the rest are sums over the finite elements."""

    buffer: Buffer
    excess: float = -1.0
    worst: tuple[dict[str, int], float, float] = field(default_factory=lambda: ({}, 0.0, 0.0))
    count: int = 0
    distinct: int = 0
    squared_error: float = 0.0
    squared_expected: float = 0.0
    squared_deviation: float = 0.0
    deviation: float = 0.0

    def add(self, got: Tensor, samples: Sequence[Tensor], part: Mapping[str, range]) -> None:
        """Elements of a part. samples: what float64 says, then the yardsticks; all of one shape."""
        if got.numel() == 0:
            return
        mine = got.double()
        exact, *others = (sample.double() for sample in samples)
        rounded = [sample.to(got.dtype).double() for sample in samples]
        agrees, none_finite = torch.zeros_like(mine, dtype=torch.bool), torch.ones_like(mine, dtype=torch.bool)
        finite = mine.isfinite() & exact.isfinite()
        deviation = torch.zeros_like(mine)
        for sample in rounded:
            agrees |= (sample == mine) | (sample.isnan() & mine.isnan())
            none_finite &= ~sample.isfinite()
        for sample in others:
            finite &= sample.isfinite()
            deviation = torch.maximum(deviation, (sample - exact).abs())
        wrong = ~finite & ~agrees & (~mine.isfinite() | none_finite)
        error = torch.where(finite, (mine - exact).abs(), 0.0)
        deviation, expected = torch.where(finite, deviation, 0.0), torch.where(finite, exact, 0.0)
        eps, tiny = self._precision()
        excess = torch.where(wrong, torch.inf, error - FACTOR * deviation - EPSILONS * eps * expected.abs() - tiny)
        self.count += mine.numel()
        self.distinct += distinct(expected)
        self.squared_error += error.square().sum().item()
        self.squared_expected += expected.square().sum().item()
        self.squared_deviation += deviation.square().sum().item()
        self.deviation += deviation.sum().item()
        position = int(excess.argmax())
        if (largest := excess.reshape(-1)[position].item()) > self.excess:
            self.excess = largest
            index = dict(zip(self.buffer.dims, _unravel(position, list(mine.shape)), strict=True))
            index = {d: i + (part[d].start if d in part else 0) for d, i in index.items()}
            self.worst = (index, mine.reshape(-1)[position].item(), exact.reshape(-1)[position].item())

    def finding(self) -> Finding | None:
        if self.count == 0:
            return None
        eps, tiny = self._precision()

        def rms(total: float) -> float:
            return (total / self.count) ** 0.5

        scale = rms(self.squared_expected)
        is_float = dtypes.is_float(self.buffer.dtype)
        mean = (
            MEAN_FACTOR * self.deviation / self.count if is_float else 0.0
        )  # integers: only where a yardstick differs
        if self.excess > mean + MEAN_EPSILONS * eps * scale:
            return Finding(self.buffer.name, *self.worst, "this element is wrong")
        few = 1 + 2 / self.distinct**0.5  # a mean over few roundings is a matter of luck; equal rows have the same
        limit = few * (RMS_FACTOR * rms(self.squared_deviation) + RMS_EPSILONS * eps * scale) + tiny
        if is_float and rms(self.squared_error) > limit:
            rule = f"root mean square of all errors {rms(self.squared_error):.3g}, rounding explains {limit:.3g}"
            return Finding(self.buffer.name, *self.worst, rule)
        return None

    def _precision(self) -> tuple[float, float]:
        """Epsilon and smallest normal number of the output's dtype; 0 for integers."""
        if not dtypes.is_float(self.buffer.dtype):
            return 0.0, 0.0
        info = torch.finfo(dtypes.TORCH_DTYPES[self.buffer.dtype])
        return info.eps, info.tiny


def distinct(values: Tensor) -> int:
    """About how many different elements there are, from a sample of them: all if most of the sample differ."""
    flat = values.reshape(-1)
    sample = flat[:: (flat.numel() // DISTINCT_SAMPLE) | 1]
    found = sample.unique().numel()
    return flat.numel() if 2 * found > sample.numel() else found


def _unravel(position: int, shape: list[int]) -> list[int]:
    index: list[int] = []
    for size in reversed(shape):
        index.append(position % size)
        position //= size
    return index[::-1]
