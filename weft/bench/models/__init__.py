"""Models whose training steps are full of row and column reductions, and data that they can learn.

Each is a module whose `forward` takes what its `make_batch` makes and returns its loss; its constructor takes the sizes
as keywords, and the defaults are those of the full-size workload.
"""

from collections.abc import Callable

from weft.bench.models.dit import Dit, DitConfig
from weft.bench.models.gpt2 import Gpt2, Gpt2Config
from weft.bench.models.llama import Llama, LlamaConfig
from weft.bench.models.model import Model
from weft.bench.models.scale_shift import ScaleShiftConfig, ScaleShiftTable
from weft.bench.models.transformer import Plain, ResidualMix, TransformerConfig
from weft.bench.models.vit import Vit, VitConfig

__all__ = [
    "DEFAULT_SHAPES",
    "MODELS",
    "Dit",
    "DitConfig",
    "Gpt2",
    "Gpt2Config",
    "Llama",
    "LlamaConfig",
    "Model",
    "Plain",
    "ResidualMix",
    "ScaleShiftConfig",
    "ScaleShiftTable",
    "TransformerConfig",
    "Vit",
    "VitConfig",
]

MODELS: dict[str, Callable[..., Model]] = {
    "plain": Plain,
    "residual_mix": ResidualMix,
    "scale_shift_table": ScaleShiftTable,
    "gpt2": Gpt2,
    "llama": Llama,
    "dit": Dit,
    "vit": Vit,
}
"""Models by name; each takes the fields of its configuration (its attribute `config`) as keywords."""

DEFAULT_SHAPES: dict[str, tuple[int, int]] = {
    "plain": (32, 2048),
    "residual_mix": (48, 2048),
    "scale_shift_table": (1, 8192),
    "gpt2": (16, 1024),
    "llama": (4, 2048),
    "dit": (32, 256),
    "vit": (128, 196),
}
"""Batch and sequence (patches for images) of every full-size workload."""
