"""What all makers of inputs share: shapes, the dtype of statistics, and how rows are made of batches and heads."""

from math import isqrt
from typing import Protocol

import torch
from torch import Tensor

Shape = tuple[int, int]
Device = str | torch.device

NORM_EPS = 1e-6
"""Added to the mean square by every norm here. Lost beside the exact forward inputs' mean square of 4096 (half a
float32 unit there is 2.4e-4) and far below half a unit of the float64 result (1.2e-10 against 3e-8, relative)."""

IGNORED = -100
"""The target of a position that a loss leaves out: the default `ignore_index` of PyTorch."""


class InputMaker(Protocol):
    """Makes fresh inputs for data of one shape `(M, N)` and dtype; equal arguments give equal tensors."""

    def __call__(
        self, shape: Shape, dtype: torch.dtype, device: Device = "cpu", seed: int = 0
    ) -> tuple[Tensor, ...]: ...


def statistics_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which norms compute and in which autograd saves their statistics: at least float32."""
    return torch.promote_types(dtype, torch.float32)


def batch_and_sequence(rows: int) -> tuple[int, int]:
    """`(B, T)` with `B * T` rows: B is the largest divisor of `rows` up to 8 and up to T; `(1, 0)` for none."""
    batch = _divisor(rows)
    return batch, rows // batch


def batch_sequence_heads(rows: int) -> tuple[int, int, int]:
    """`(B, T, H)` with `B * T * H` rows: H is the largest divisor of `rows` up to 8 and up to `B * T`; B and T
    share the rest as `batch_and_sequence` has it."""
    heads = _divisor(rows)
    return *batch_and_sequence(rows // heads), heads


def _divisor(rows: int) -> int:
    """The largest divisor up to 8 and up to the square root; 1 for 0."""
    return max((d for d in range(1, min(8, isqrt(rows)) + 1) if rows % d == 0), default=1)
