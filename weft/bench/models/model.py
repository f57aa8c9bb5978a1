"""What every model has: a loss as its result, and batches made for it."""

from abc import ABC, abstractmethod
from math import isqrt

import torch.nn.functional as F
from torch import Tensor, nn


class Model(nn.Module, ABC):
    """A model whose ``forward`` takes what ``make_batch`` makes and returns its loss, a float32 scalar."""

    @abstractmethod
    def make_batch(self, batch: int, sequence: int, seed: int) -> tuple[Tensor, ...]:
        """A fresh batch of `batch` samples of `sequence` positions that the model can learn; equal arguments give equal
        tensors."""


class Block(nn.Module):
    """Attention and an MLP, each behind a layer norm, `[B, T, D]` to `[B, T, D]`. gelu: how it is approximated."""

    def __init__(self, dim: int, heads: int, eps: float = 1e-5, is_causal: bool = False, gelu: str = "none") -> None:
        super().__init__()
        self.heads, self.is_causal, self.gelu = heads, is_causal, gelu
        self.attn_norm, self.mlp_norm = nn.LayerNorm(dim, eps=eps), nn.LayerNorm(dim, eps=eps)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (split_heads(part, self.heads) for part in self.qkv(self.attn_norm(x)).chunk(3, -1))
        x = x + self.out(merge_heads(F.scaled_dot_product_attention(query, key, value, is_causal=self.is_causal)))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x)), approximate=self.gelu))


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
