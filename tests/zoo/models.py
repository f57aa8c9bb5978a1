"""What the zoo's models have in common: a module with its loss, and batches made for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo.torchvision_operators import declare_missing
from weft.bench.models import Model
from weft.bench.models.tokens import make_tokens

Sizes = Mapping[str, Any]
IGNORED = -100
"""The label of a position that has no loss, in transformers."""


def config_of(family: str, sizes: Sizes) -> Any:
    """The configuration of a family of transformers; whatever ``sizes`` lacks is that family's default."""
    declare_missing()
    import transformers

    return getattr(transformers, f"{family}Config")(**sizes)


class Causal(Model):
    """A language model that predicts the next token. ``forward`` takes tokens, int64 [batch, sequence]."""

    def __init__(self, family: str, **sizes: Any) -> None:
        super().__init__()
        self.config = config_of(family, {"use_cache": False, **sizes})
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_config(self.config)
        self.model.loss_type = "ForCausalLM"  # where it is not set, what warns of it breaks the graph

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(input_ids=tokens, labels=tokens).loss

    def make_batch(self, batch: int, sequence: int, seed: int) -> tuple[Tensor, ...]:
        return (make_tokens(self.config.vocab_size, batch, sequence, seed)[0],)


class Masked(Model):
    """A language model that predicts tokens which were taken away, in sequences of several lengths. ``forward`` takes
    tokens and labels, int64 [batch, sequence], and which positions hold tokens, int64 of the same shape."""

    def __init__(self, family: str, **sizes: Any) -> None:
        super().__init__()
        self.config = config_of(family, sizes)
        from transformers import AutoModelForMaskedLM

        self.model = AutoModelForMaskedLM.from_config(self.config)

    def forward(self, tokens: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        return self.model(input_ids=tokens, attention_mask=mask, labels=labels).loss

    def make_batch(self, batch: int, sequence: int, seed: int) -> tuple[Tensor, ...]:
        whole = make_tokens(self.config.vocab_size, batch, sequence, seed)[0]
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.randint(sequence // 2, sequence + 1, (batch, 1), generator=generator)
        mask = torch.arange(sequence) < lengths
        chosen = mask & (torch.rand(batch, sequence, generator=generator) < 0.15)
        chosen[:, 0] = True
        labels = whole.where(chosen, torch.tensor(IGNORED))
        return whole.masked_fill(chosen, self.config.vocab_size - 1), labels, mask.long()


class Translation(Model):
    """An encoder with a decoder. ``forward`` takes tokens and labels, int64 [batch, sequence]."""

    def __init__(self, family: str, **sizes: Any) -> None:
        super().__init__()
        self.config = config_of(family, {"use_cache": False, **sizes})
        from transformers import AutoModelForSeq2SeqLM

        self.model = AutoModelForSeq2SeqLM.from_config(self.config)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        return self.model(input_ids=tokens, labels=labels).loss

    def make_batch(self, batch: int, sequence: int, seed: int) -> tuple[Tensor, ...]:
        return make_tokens(self.config.vocab_size, batch, sequence, seed)


class Speech(Model):
    """Text from sound. ``forward`` takes spectrograms [batch, bins, 2 * positions] and labels, int64 [batch,
    sequence]."""

    def __init__(self, family: str, **sizes: Any) -> None:
        super().__init__()
        self.config = config_of(family, {"use_cache": False, **sizes})
        from transformers import AutoModelForSpeechSeq2Seq

        self.model = AutoModelForSpeechSeq2Seq.from_config(self.config)

    def forward(self, sound: Tensor, labels: Tensor) -> Tensor:
        return self.model(input_features=sound, labels=labels).loss

    def make_batch(self, batch: int, sequence: int, seed: int) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(seed)
        shape = (batch, self.config.num_mel_bins, 2 * self.config.max_source_positions)
        return torch.randn(shape, generator=generator), make_tokens(self.config.vocab_size, batch, sequence, seed)[0]


class Pairs(Model):
    """Images and texts that belong together. ``forward`` takes tokens, int64 [batch, sequence], and images [batch, 3,
    height, width]."""

    def __init__(self, family: str, text: Sizes, vision: Sizes, **sizes: Any) -> None:
        super().__init__()
        self.config = config_of(family, {"text_config": dict(text), "vision_config": dict(vision), **sizes})
        from transformers import AutoModel

        self.model = AutoModel.from_config(self.config)

    def forward(self, tokens: Tensor, images: Tensor) -> Tensor:
        return self.model(input_ids=tokens, pixel_values=images, return_loss=True).loss

    def make_batch(self, batch: int, sequence: int, seed: int) -> tuple[Tensor, ...]:
        tokens = make_tokens(self.config.text_config.vocab_size, batch, sequence, seed)[0]
        return tokens, make_images(batch, self.config.vision_config.image_size, tokens[:, 0], seed)


class Images(Model):
    """Classes of images. ``forward`` takes images [batch, 3, height, width] and classes, int64 [batch]."""

    def __init__(self, family: str, **sizes: Any) -> None:
        super().__init__()
        config = config_of(family, sizes)
        from transformers import AutoModelForImageClassification

        self.size, self.classes = config.image_size, config.num_labels
        self.model = AutoModelForImageClassification.from_config(config)

    def forward(self, images: Tensor, classes: Tensor) -> Tensor:
        return self.model(pixel_values=images, labels=classes).loss

    def make_batch(self, batch: int, sequence: int, seed: int) -> tuple[Tensor, ...]:
        return make_classified(batch, self.size, self.classes, seed)


class TimmImages(Model):
    """A model of timm with cross-entropy. ``forward`` takes images [batch, 3, height, width] and classes, int64
    [batch]."""

    def __init__(self, name: str, *, img_size: int, num_classes: int = 1000, **sizes: Any) -> None:
        super().__init__()
        declare_missing()
        import timm

        self.size, self.classes = img_size, num_classes
        convolutional = name.startswith("convnext")  # takes images of any size
        sizes |= {} if convolutional else {"img_size": img_size}
        self.model: nn.Module = timm.create_model(name, pretrained=False, num_classes=num_classes, **sizes)

    def forward(self, images: Tensor, classes: Tensor) -> Tensor:
        return F.cross_entropy(self.model(images), classes)

    def make_batch(self, batch: int, sequence: int, seed: int) -> tuple[Tensor, ...]:
        return make_classified(batch, self.size, self.classes, seed)


class Diffusion(Model):
    """The diffusion transformer of diffusers, whose norms are modulated by time and class. ``forward`` takes latents
    and noise [batch, 4, height, width], times and classes, int64 [batch]. class_dropout: how often a class is
    replaced by none; diffusers has one in ten and no argument for it."""

    def __init__(self, class_dropout: float = 0.1, **sizes: Any) -> None:
        super().__init__()
        declare_missing()
        from diffusers.models.transformers.dit_transformer_2d import DiTTransformer2DModel

        self.model = DiTTransformer2DModel(in_channels=4, out_channels=4, **sizes)
        self.size, self.classes = sizes["sample_size"], sizes["num_embeds_ada_norm"]
        nn.init.normal_(self.model.proj_out_2.weight, std=0.02)
        for module in self.model.modules():
            if hasattr(module, "dropout_prob"):
                module.dropout_prob = class_dropout

    def forward(self, latents: Tensor, noise: Tensor, times: Tensor, classes: Tensor) -> Tensor:
        share = (times / 1000)[:, None, None, None]
        mixed = latents * (1 - share) + noise * share
        return F.mse_loss(self.model(mixed, timestep=times, class_labels=classes).sample.float(), noise)

    def make_batch(self, batch: int, sequence: int, seed: int) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(seed)
        latents, noise = torch.randn(2, batch, 4, self.size, self.size, generator=generator)
        times = torch.randint(1000, (batch,), generator=generator)
        return latents, noise, times, torch.randint(self.classes, (batch,), generator=generator)


def make_classified(batch: int, size: int, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Images [batch, 3, size, size] of sixteen classes at most, and their classes, int64 [batch]."""
    labels = torch.randint(min(classes, 16), (batch,), generator=torch.Generator().manual_seed(seed))
    return make_images(batch, size, labels, seed), labels


def make_images(batch: int, size: int, classes: Tensor, seed: int) -> Tensor:
    """Noise [batch, 3, size, size], each channel about a mean that the class decides."""
    means = torch.randn(1 + int(classes.max()), 3, generator=torch.Generator().manual_seed(0))[classes]
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(seed)) + means[:, :, None, None]
