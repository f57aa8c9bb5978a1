"""Llama: RMS norms, rotary positions, grouped queries, SwiGLU."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.bench.models.model import Model, merge_heads, split_heads
from weft.bench.models.tokens import make_tokens

ROPE_BASE = 10000.0


@dataclass(frozen=True)
class LlamaConfig:
    """Sizes of the model; the defaults are those of the 1B model of Llama 3.2. hidden: width of the MLP."""

    dim: int = 2048
    blocks: int = 16
    heads: int = 32
    kv_heads: int = 8
    hidden: int = 8192
    vocabulary: int = 128256

    def __post_init__(self) -> None:
        if self.dim % (2 * self.heads) or self.heads % self.kv_heads:
            raise ValueError(f"dim must be an even multiple of heads, and heads a multiple of kv_heads: {self}")


class LlamaBlock(nn.Module):
    """Causal attention with rotary positions and a gated MLP, each behind an RMS norm."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.heads, config.kv_heads
        kv_width = config.kv_heads * (config.dim // config.heads)
        self.attn_norm, self.mlp_norm = nn.RMSNorm(config.dim, eps=1e-5), nn.RMSNorm(config.dim, eps=1e-5)
        self.query, self.out = (nn.Linear(config.dim, config.dim, bias=False) for _ in range(2))
        self.key, self.value = (nn.Linear(config.dim, kv_width, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(config.dim, config.hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(config.hidden, config.dim, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """`[B, T, D]` to `[B, T, D]`; `cosine` and `sine` are `[T, D / H]`."""
        y, group = self.attn_norm(x), self.heads // self.kv_heads
        query = rotated(split_heads(self.query(y), self.heads), cosine, sine)
        key = rotated(split_heads(self.key(y), self.kv_heads), cosine, sine).repeat_interleave(group, 1)
        value = split_heads(self.value(y), self.kv_heads).repeat_interleave(group, 1)
        x = x + self.out(merge_heads(F.scaled_dot_product_attention(query, key, value, is_causal=True)))
        y = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary positions: pairs half a head apart in `x [B, H, T, D]` are turned by the angles of their position; in the
    dtype of `x`."""
    first, second = x.chunk(2, -1)
    return (x * cosine + torch.cat((-second, first), -1) * sine).to(x.dtype)


class Llama(Model):
    """The whole model with its loss."""

    def __init__(self, **sizes: int) -> None:
        super().__init__()
        self.config = config = LlamaConfig(**sizes)
        self.embedding = nn.Embedding(config.vocabulary, config.dim)
        self.blocks = nn.ModuleList(LlamaBlock(config) for _ in range(config.blocks))
        self.final_norm = nn.RMSNorm(config.dim, eps=1e-5)
        self.head = nn.Linear(config.dim, config.vocabulary, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The mean cross-entropy, a float32 scalar, of `tokens` and `targets`, both int64 `[B, T]`."""
        width = self.config.dim // self.config.heads
        steps = torch.arange(0, width, 2, device=tokens.device) / width
        angles = torch.outer(torch.arange(tokens.shape[1], device=tokens.device), ROPE_BASE**-steps).repeat(1, 2)
        cosine, sine = angles.cos(), angles.sin()
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, cosine, sine)
        logits = self.head(self.final_norm(x)).float()
        return F.cross_entropy(logits.view(-1, self.config.vocabulary), targets.view(-1))

    def make_batch(self, batch: int, sequence: int, seed: int) -> tuple[Tensor, ...]:
        """Tokens and their successors; see `make_tokens`."""
        return make_tokens(self.config.vocabulary, batch, sequence, seed)
