"""A diffusion transformer: layer norms modulated for every batch element (adaLN-zero)."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.bench.models.model import Model, merge_heads, split_heads
from weft.bench.models.scale_shift import modulated


@dataclass(frozen=True)
class DitConfig:
    """Sizes of the model; the defaults are those of DiT-XL/2. patch: numbers in a patch; classes: of conditions."""

    dim: int = 1152
    blocks: int = 28
    heads: int = 16
    patch: int = 16
    classes: int = 1000

    def __post_init__(self) -> None:
        if self.dim % self.heads or self.dim % 2:
            raise ValueError(f"dim must be even and a multiple of heads: {self}")


class DitBlock(nn.Module):
    """Attention and an MLP behind modulated layer norms, both gated; six modulations come from the condition.

    The linear layer that makes them starts at zero: a new block is the identity.
    """

    def __init__(self, config: DitConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.modulation = nn.Linear(config.dim, 6 * config.dim)
        nn.init.zeros_(self.modulation.weight)
        nn.init.zeros_(self.modulation.bias)
        self.qkv, self.out = nn.Linear(config.dim, 3 * config.dim), nn.Linear(config.dim, config.dim)
        self.up, self.down = nn.Linear(config.dim, 4 * config.dim), nn.Linear(4 * config.dim, config.dim)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """The stream `[B, T, D]` after this block; `condition` is `[B, D]`."""
        parts = self.modulation(F.silu(condition)).unsqueeze(1).chunk(6, -1)
        shift, scale, gate, shift2, scale2, gate2 = parts
        query, key, value = (
            split_heads(part, self.heads) for part in self.qkv(modulated(x, shift, scale)).chunk(3, -1)
        )
        x = x + gate * self.out(merge_heads(F.scaled_dot_product_attention(query, key, value)))
        return x + gate2 * self.down(F.gelu(self.up(modulated(x, shift2, scale2)), approximate="tanh"))


class Dit(Model):
    """Patches, blocks, a modulated last norm, and the error of the predicted noise."""

    def __init__(self, **sizes: int) -> None:
        super().__init__()
        self.config = config = DitConfig(**sizes)
        self.embedding = nn.Linear(config.patch, config.dim)
        self.label = nn.Embedding(config.classes, config.dim)
        self.time = nn.Sequential(nn.Linear(config.dim, config.dim), nn.SiLU(), nn.Linear(config.dim, config.dim))
        self.blocks = nn.ModuleList(DitBlock(config) for _ in range(config.blocks))
        self.modulation = nn.Linear(config.dim, 2 * config.dim)
        self.head = nn.Linear(config.dim, config.patch)
        for layer in (self.modulation, self.head):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, patches: Tensor, noise: Tensor, time: Tensor, label: Tensor) -> Tensor:
        """The mean squared error, a float32 scalar, of the predicted `noise`.

        `patches` and `noise` are `[B, T, P]`, `time [B]` is between zero (data) and one (noise), `label [B]` is int64.
        """
        positions = torch.arange(patches.shape[1], device=patches.device)
        mixed = patches + time.view(-1, 1, 1) * (noise - patches)
        x = self.embedding(mixed) + waves(positions, self.config.dim)
        condition = self.time(waves(1000 * time, self.config.dim)) + self.label(label)
        for block in self.blocks:
            x = block(x, condition)
        shift, scale = self.modulation(F.silu(condition)).unsqueeze(1).chunk(2, -1)
        predicted = self.head(modulated(x, shift, scale))
        return F.mse_loss(predicted.to(noise.dtype), noise)

    def make_batch(self, batch: int, sequence: int, seed: int) -> tuple[Tensor, ...]:
        """Patches of one fixed pattern `[P]` for each class with a little noise, noise to mix in, times and labels."""
        config = self.config
        patterns = 2 * torch.randn(config.classes, config.patch, generator=torch.Generator().manual_seed(0))
        sample = torch.Generator().manual_seed(seed + 1)
        label = torch.randint(config.classes, (batch,), generator=sample)
        size = (batch, sequence, config.patch)
        patches = patterns[label].unsqueeze(1) + 0.1 * torch.randn(size, generator=sample)
        return patches, torch.randn(size, generator=sample), torch.rand(batch, generator=sample), label


def waves(positions: Tensor, width: int) -> Tensor:
    """Cosines and sines of `positions [K]` at `width / 2` wavelengths from 2 pi to 20000 pi, `[K, width]` float32 (or
    the dtype of `positions`)."""
    count = width // 2
    frequencies = torch.exp(-math.log(10000.0) / count * torch.arange(count, device=positions.device))
    angles = positions.unsqueeze(1) * frequencies.to(positions.dtype if positions.is_floating_point() else None)
    return torch.cat((angles.cos(), angles.sin()), -1)
