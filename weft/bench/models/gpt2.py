"""GPT-2: learned positions, layer norms with biases, GELU by tanh, a head tied to the embedding."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.bench.models.model import Block, Model
from weft.bench.models.tokens import make_tokens


@dataclass(frozen=True)
class Gpt2Config:
    """Sizes of the model; the defaults are those of the smallest GPT-2. positions: the longest sequence."""

    dim: int = 768
    blocks: int = 12
    heads: int = 12
    vocabulary: int = 50257
    positions: int = 1024

    def __post_init__(self) -> None:
        if self.dim % self.heads:
            raise ValueError(f"dim must be a multiple of heads: {self}")


class Gpt2(Model):
    """The whole model with its loss."""

    def __init__(self, **sizes: int) -> None:
        super().__init__()
        self.config = config = Gpt2Config(**sizes)
        self.embedding = nn.Embedding(config.vocabulary, config.dim)
        self.position = nn.Embedding(config.positions, config.dim)
        blocks = (Block(config.dim, config.heads, is_causal=True, gelu="tanh") for _ in range(config.blocks))
        self.blocks = nn.ModuleList(blocks)
        self.final_norm = nn.LayerNorm(config.dim)
        for embedding in (self.embedding, self.position):
            nn.init.normal_(embedding.weight, std=0.02)  # the head is the same matrix: larger, its logits would be wild

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The mean cross-entropy, a float32 scalar, of `tokens` and `targets`, both int64 `[B, T]`."""
        x = self.embedding(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.final_norm(x), self.embedding.weight).float()
        return F.cross_entropy(logits.view(-1, self.config.vocabulary), targets.view(-1))

    def make_batch(self, batch: int, sequence: int, seed: int) -> tuple[Tensor, ...]:
        """Tokens and their successors; see `make_tokens`. Raises ValueError for a sequence without positions."""
        if sequence > self.config.positions:
            raise ValueError(f"a sequence of {sequence} is longer than the {self.config.positions} positions")
        return make_tokens(self.config.vocabulary, batch, sequence, seed)
