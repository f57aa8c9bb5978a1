"""A learned table of modulations, added to a conditioning vector: gradients that are sums over positions, and over the
batch where the table broadcasts."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.bench.models.model import Model


@dataclass(frozen=True)
class ScaleShiftConfig:
    """Sizes of the model: width of the stream, and how often two chained blocks are repeated with a table each."""

    dim: int = 1024
    tables: int = 1


class ModulatedPair(nn.Module):
    """Two chained blocks whose shifts, scales and gates come from one table `[1, 6, D]` and the condition."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(1, 6, dim) / dim**0.5)
        self.first, self.second = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """The stream `[B, T, D]` after both blocks; `condition` is `[B, 1, D]` or `[1, 1, D]`."""
        shift, scale, gate, shift2, scale2, gate2 = (self.table + condition).chunk(6, 1)
        x = x + self.first(modulated(x, shift, scale)) * gate
        return x + self.second(modulated(x, shift2, scale2)) * gate2


def modulated(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """The layer norm of `x [B, T, D]` in float32 (float64 for float64), with nothing learned, times `1 + scale` plus
    `shift`, which broadcast over positions; in the dtype of `x`."""
    data = x.to(torch.promote_types(x.dtype, torch.float32))
    return (F.layer_norm(data, x.shape[-1:]) * (1 + scale) + shift).to(x.dtype)


class ScaleShiftTable(Model):
    """Chained modulated blocks and a squared error."""

    def __init__(self, **sizes: int) -> None:
        super().__init__()
        self.config = ScaleShiftConfig(**sizes)
        self.pairs = nn.ModuleList(ModulatedPair(self.config.dim) for _ in range(self.config.tables))

    def forward(self, x: Tensor, condition: Tensor, target: Tensor) -> Tensor:
        """The mean squared error of the stream `x [B, T, D]`, conditioned by `[B, 1, D]`, against `target`."""
        for pair in self.pairs:
            x = pair(x, condition)
        difference = x - target
        return difference.to(torch.promote_types(x.dtype, torch.float32)).square().mean()

    def make_batch(self, batch: int, sequence: int, seed: int) -> tuple[Tensor, ...]:
        """Normal data and conditions; the target is the data plus one fixed vector for all, `[D]` of spread two."""
        fixed = torch.randn(self.config.dim, generator=torch.Generator().manual_seed(0)) * 2
        sample = torch.Generator().manual_seed(seed + 1)
        x = torch.randn(batch, sequence, self.config.dim, generator=sample)
        condition = torch.randn(batch, 1, self.config.dim, generator=sample) / self.config.dim**0.5
        return x, condition, x + fixed
