"""A vision transformer: patches by a convolution, a class token, learned positions, layer norms, GELU."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.bench.models.model import Block, Model, grid

CHANNELS = 3


@dataclass(frozen=True)
class VitConfig:
    """Sizes of the model; the defaults are those of ViT-B/16. patch: pixels along its side; positions: most patches."""

    dim: int = 768
    blocks: int = 12
    heads: int = 12
    patch: int = 16
    positions: int = 196
    classes: int = 1000

    def __post_init__(self) -> None:
        if self.dim % self.heads:
            raise ValueError(f"dim must be a multiple of heads: {self}")


class Vit(Model):
    """The whole model with its loss."""

    def __init__(self, **sizes: int) -> None:
        super().__init__()
        self.config = config = VitConfig(**sizes)
        self.embedding = nn.Conv2d(CHANNELS, config.dim, config.patch, stride=config.patch)
        self.class_token = nn.Parameter(0.02 * torch.randn(1, 1, config.dim))
        self.position = nn.Parameter(0.02 * torch.randn(1, config.positions + 1, config.dim))
        self.blocks = nn.ModuleList(Block(config.dim, config.heads, eps=1e-6) for _ in range(config.blocks))
        self.final_norm = nn.LayerNorm(config.dim, eps=1e-6)
        self.head = nn.Linear(config.dim, config.classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """The mean cross-entropy, a float32 scalar, of `images [B, 3, H, W]` and `labels`, int64 `[B]`."""
        patches = self.embedding(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.class_token.expand(patches.shape[0], -1, -1), patches), 1)
        x = x + self.position[:, : x.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.final_norm(x)[:, 0]).float(), labels)

    def make_batch(self, batch: int, sequence: int, seed: int) -> tuple[Tensor, ...]:
        """Images of `sequence` patches, as square as that allows: the fixed patch of their class everywhere, and noise.

        Raises ValueError for more patches than positions.
        """
        config = self.config
        if sequence > config.positions:
            raise ValueError(f"{sequence} patches are more than the {config.positions} positions")
        pattern = torch.randn(
            config.classes, CHANNELS, config.patch, config.patch, generator=torch.Generator().manual_seed(0)
        )
        sample = torch.Generator().manual_seed(seed + 1)
        labels = torch.randint(config.classes, (batch,), generator=sample)
        images = pattern[labels].repeat(1, 1, *grid(sequence))
        return images + 0.5 * torch.randn(images.shape, generator=sample), labels
