"""What every model has: a loss as its result, and batches made for it."""

from abc import ABC, abstractmethod
from math import isqrt

from torch import Tensor, nn


class Model(nn.Module, ABC):
    """A model whose ``forward`` takes what ``make_batch`` makes and returns its loss, a float32 scalar."""

    @abstractmethod
    def make_batch(self, batch: int, sequence: int, seed: int) -> tuple[Tensor, ...]:
        """A fresh batch of `batch` samples of `sequence` positions that the model can learn; equal arguments give equal
        tensors."""


def split_heads(x: Tensor, heads: int) -> Tensor:
    """`[B, T, H * D]` seen as `[B, H, T, D]`."""
    batch, sequence, width = x.shape
    return x.view(batch, sequence, heads, width // heads).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """`[B, H, T, D]` as `[B, T, H * D]`."""
    return x.transpose(1, 2).flatten(2)


def grid(positions: int) -> tuple[int, int]:
    """The most square `(height, width)` with as many patches as there are positions."""
    height = max(h for h in range(1, isqrt(positions) + 1) if positions % h == 0)
    return height, positions // height
