"""Two small transformers with grouped queries, QK norms and a squared leaky ReLU.

Both come from one `Transformer`: grouped-query attention with weightless RMS norms of queries and keys, an MLP of
squared leaky ReLU, an untied head, and cross-entropy over all positions. `plain` has weightless norms only, so its
backward has no column reduction. `residual_mix` has learned norm weights, per-channel scales of both branches, and a
learned mix of the residual stream with the normalised embedding; the gradient of each is a sum over all rows.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.bench.models.model import Model
from weft.bench.models.tokens import make_tokens


@dataclass(frozen=True)
class TransformerConfig:
    """Sizes of a model; the defaults are those of the full-size workload."""

    dim: int = 512
    blocks: int = 11
    heads: int = 8
    kv_heads: int = 4
    vocabulary: int = 4096

    def __post_init__(self) -> None:
        if self.dim % self.heads or self.heads % self.kv_heads:
            raise ValueError(f"dim must be a multiple of heads, and heads of kv_heads: {self}")


class Attention(nn.Module):
    """Causal attention of `heads` queries over `kv_heads` keys and values, `[B, T, D]` to `[B, T, D]`."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.heads, config.kv_heads
        self.head_dim = config.dim // config.heads
        self.query = nn.Linear(config.dim, config.dim, bias=False)
        self.key = nn.Linear(config.dim, config.kv_heads * self.head_dim, bias=False)
        self.value = nn.Linear(config.dim, config.kv_heads * self.head_dim, bias=False)
        self.out = nn.Linear(config.dim, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, sequence, dim = x.shape
        query = self.query(x).view(batch, sequence, self.heads, self.head_dim).transpose(1, 2)
        key = self.key(x).view(batch, sequence, self.kv_heads, self.head_dim).transpose(1, 2)
        value = self.value(x).view(batch, sequence, self.kv_heads, self.head_dim).transpose(1, 2)
        query, key = F.rms_norm(query, (self.head_dim,)), F.rms_norm(key, (self.head_dim,))
        key = key.repeat_interleave(self.heads // self.kv_heads, 1)
        value = value.repeat_interleave(self.heads // self.kv_heads, 1)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, sequence, dim))


class Mlp(nn.Module):
    """Two linear layers around a squared leaky ReLU of width `4 * dim`, `[B, T, D]` to `[B, T, D]`."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.dim, 4 * config.dim, bias=False)
        self.down = nn.Linear(4 * config.dim, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.leaky_relu(self.up(x), 0.5).square())


class PlainBlock(nn.Module):
    """A pre-norm block with nothing learned outside its linear layers."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attn, self.mlp = Attention(config), Mlp(config)

    def forward(self, x: Tensor, x0: Tensor) -> Tensor:
        """The residual stream after this block; `x0`, the normalised embedding, is not used. All are `[B, T, D]`."""
        x = x + self.attn(F.rms_norm(x, (x.shape[-1],)))
        return x + self.mlp(F.rms_norm(x, (x.shape[-1],)))


class ResidualMixBlock(nn.Module):
    """A pre-norm block with learned norms, branch scales, and a learned mix with the embedding stream."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attn, self.mlp = Attention(config), Mlp(config)
        self.attn_norm, self.mlp_norm = nn.RMSNorm(config.dim), nn.RMSNorm(config.dim)
        self.attn_scale = nn.Parameter(torch.ones(config.dim))
        self.mlp_scale = nn.Parameter(torch.ones(config.dim))
        self.resid_mix = nn.Parameter(torch.stack([torch.ones(config.dim), torch.zeros(config.dim)]))

    def forward(self, x: Tensor, x0: Tensor) -> Tensor:
        """The residual stream after this block; `x0` is the normalised embedding. All are `[B, T, D]`."""
        x = self.resid_mix[0] * x + self.resid_mix[1] * x0
        x = x + self.attn_scale * self.attn(self.attn_norm(x))
        return x + self.mlp_scale * self.mlp(self.mlp_norm(x))


class Transformer(Model):
    """Embedding, blocks, norm, head and loss; subclasses choose the block and whether the last norm is learned."""

    def __init__(self, config: TransformerConfig, block: Callable[[TransformerConfig], nn.Module], norm: bool) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary, config.dim)
        self.blocks = nn.ModuleList(block(config) for _ in range(config.blocks))
        self.final_norm = nn.RMSNorm(config.dim, elementwise_affine=norm)
        self.head = nn.Linear(config.dim, config.vocabulary, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The mean cross-entropy, a float32 scalar, of `tokens` and `targets`, both int64 `[B, T]`."""
        x0 = F.rms_norm(self.embedding(tokens), (self.config.dim,))
        x = x0
        for block in self.blocks:
            x = block(x, x0)
        logits = self.head(self.final_norm(x)).float()
        return F.cross_entropy(logits.view(-1, self.config.vocabulary), targets.view(-1))

    def make_batch(self, batch: int, sequence: int, seed: int) -> tuple[Tensor, ...]:
        """Tokens and their successors; see `make_tokens`."""
        return make_tokens(self.config.vocabulary, batch, sequence, seed)


class Plain(Transformer):
    """The transformer without learned norms."""

    def __init__(self, **sizes: int) -> None:
        super().__init__(TransformerConfig(**sizes), PlainBlock, norm=False)


class ResidualMix(Transformer):
    """The transformer with learned norms, scales and mixes."""

    def __init__(self, **sizes: int) -> None:
        super().__init__(TransformerConfig(**sizes), ResidualMixBlock, norm=True)
