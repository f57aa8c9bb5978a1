"""The models, by name, with the sizes they are tried at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.zoo.models import Causal, Diffusion, Images, Masked, Pairs, Sizes, Speech, TimmImages, Translation
from weft.bench.models import Model


@dataclass(frozen=True)
class Entry:
    """One model.

    make: takes sizes as keywords. small, full: sizes for a CPU's tests and for training on a GPU; small_batch,
    full_batch: samples and positions. layers: the sizes that are two where gradients are compared on a GPU. dropout:
    the probabilities of the family's configuration that are zero here, since each backend draws masks of its own.
    fullgraph: whether Dynamo makes one graph of it. extra: what the configuration needs at any size.
    """

    make: Callable[..., Model]
    small: Sizes
    full: Sizes
    small_batch: tuple[int, int] = (2, 48)
    full_batch: tuple[int, int] = (8, 2048)
    layers: tuple[str, ...] = ("num_hidden_layers",)
    dropout: tuple[str, ...] = ()
    fullgraph: bool = True
    extra: Sizes = field(default_factory=dict[str, Any])

    @property
    def compared(self) -> dict[str, Any]:
        """Sizes without dropout."""
        return dict.fromkeys(self.dropout, 0.0)

    def make_full(self) -> Model:
        return self.make(**{**self.extra, **self.full, **self.compared})

    def make_small(self) -> Model:
        return self.make(**{**self.extra, **self.small, **self.compared})

    def make_checked(self) -> tuple[Model, tuple[int, int]]:
        """The full width with two layers, and a batch that float64 has room for."""
        batch, sequence = self.full_batch
        made = self.make(**{**self.extra, **self.full, **self.compared, **dict.fromkeys(self.layers, 2)})
        return made, (min(batch, 2), max(sequence // 4, 1))


VOCABULARY = 32000
SMALL = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2, "vocab_size": 384}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
WIDE = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 4, "vocab_size": VOCABULARY}
WIDE_HEADS = {"num_attention_heads": 32, "num_key_value_heads": 8}
BERT = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 4, "num_attention_heads": 12}
BERT |= {"vocab_size": VOCABULARY}
NO_PADDING = {"pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2}


def language(family: str, small: Sizes, full: Sizes, **rest: Any) -> Entry:
    """A causal language model with the usual names of sizes."""
    return Entry(partial(Causal, family), {**SMALL, **HEADS, **small}, {**WIDE, **WIDE_HEADS, **full}, **rest)


LATENTS = ("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
EXPERTS = ("moe_intermediate_size", "n_routed_experts", "num_experts_per_tok", "n_group", "topk_group")
DEEPSEEK_SMALL = dict(zip((*LATENTS, *EXPERTS), (32, 16, 8, 16, 16, 32, 4, 2, 2, 1), strict=True))
DEEPSEEK_SMALL |= {"num_key_value_heads": 4}
DEEPSEEK_FULL = dict(zip((*LATENTS, *EXPERTS), (768, 512, 64, 128, 128, 1408, 16, 4, 4, 2), strict=True))
DEEPSEEK_FULL |= {"num_attention_heads": 16, "num_key_value_heads": 16}
BERT_DROPOUT = ("hidden_dropout_prob", "attention_probs_dropout_prob")
IMAGE = {"num_labels": 1000}

ENTRIES: Mapping[str, Entry] = {
    "llama": language("Llama", {}, {}),
    "qwen3": language("Qwen3", {"head_dim": 16}, {"head_dim": 128, "num_attention_heads": 16}),
    "gemma2": language("Gemma2", {"head_dim": 16}, {"head_dim": 128, "num_attention_heads": 16}, extra=NO_PADDING),
    "gemma3": language(
        "Gemma3Text",
        {"head_dim": 16, "num_key_value_heads": 1},
        {"hidden_size": 1152, "intermediate_size": 6912, "head_dim": 256, "num_attention_heads": 4}
        | {"num_key_value_heads": 1},
        extra=NO_PADDING,
    ),
    "olmo2": language("Olmo2", {}, {"num_attention_heads": 16, "num_key_value_heads": 16}, extra=NO_PADDING),
    "phi3": language("Phi3", {}, {"num_key_value_heads": 32}, extra=NO_PADDING),
    "mistral": language("Mistral", {"head_dim": 16}, {"head_dim": 64}),
    "gpt2": Entry(
        partial(Causal, "GPT2"),
        {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 384, "n_positions": 64},
        {"n_embd": 768, "n_layer": 6, "n_head": 12, "vocab_size": VOCABULARY, "n_positions": 1024},
        full_batch=(8, 1024),
        layers=("n_layer",),
        dropout=("resid_pdrop", "embd_pdrop", "attn_pdrop"),
        extra={"bos_token_id": 1, "eos_token_id": 2},
    ),
    "gpt_neox": Entry(
        partial(Causal, "GPTNeoX"),
        {**SMALL, "num_attention_heads": 4},
        {**WIDE, "num_attention_heads": 16},
        extra={"bos_token_id": 1, "eos_token_id": 2},
    ),
    "stablelm": language("StableLm", {"qk_layernorm": True}, {"num_key_value_heads": 32}, extra=NO_PADDING),
    "deepseek_v3": language(
        "DeepseekV3", {**DEEPSEEK_SMALL, "first_k_dense_replace": 2}, {**DEEPSEEK_FULL, "first_k_dense_replace": 4}
    ),
    "deepseek_v3_experts": language(
        "DeepseekV3",
        {**DEEPSEEK_SMALL, "first_k_dense_replace": 1},
        {**DEEPSEEK_FULL, "first_k_dense_replace": 1},
        fullgraph=False,
    ),
    "mamba": Entry(
        partial(Causal, "Mamba"),
        {"hidden_size": 64, "num_hidden_layers": 2, "state_size": 8, "vocab_size": 384, "time_step_rank": 4},
        {"hidden_size": 768, "num_hidden_layers": 2, "vocab_size": VOCABULARY},
        small_batch=(2, 12),
        full_batch=(32, 32),
        fullgraph=False,
        extra=NO_PADDING,
    ),
    "bert": Entry(
        partial(Masked, "Bert"),
        {**SMALL, "num_attention_heads": 4},
        {**BERT, "max_position_embeddings": 1024},
        full_batch=(8, 1024),
        dropout=BERT_DROPOUT,
    ),
    "modernbert": Entry(
        partial(Masked, "ModernBert"),
        {**SMALL, "num_attention_heads": 4},
        {**BERT, "intermediate_size": 1152},
        full_batch=(8, 1024),
        extra={"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2},
    ),
    "roberta": Entry(
        partial(Masked, "Roberta"),
        {**SMALL, "num_attention_heads": 4},
        {**BERT, "max_position_embeddings": 514},
        full_batch=(16, 512),
        dropout=BERT_DROPOUT,
    ),
    "t5": Entry(
        partial(Translation, "T5"),
        {"d_model": 64, "d_kv": 16, "d_ff": 160, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4}
        | {"vocab_size": 384},
        {"d_model": 512, "num_layers": 4, "num_decoder_layers": 4, "vocab_size": VOCABULARY},
        full_batch=(32, 512),
        layers=("num_layers", "num_decoder_layers"),
        dropout=("dropout_rate",),
        extra={"decoder_start_token_id": 0},
    ),
    "whisper": Entry(
        partial(Speech, "Whisper"),
        {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4}
        | {"decoder_attention_heads": 4, "decoder_ffn_dim": 160, "encoder_ffn_dim": 160, "vocab_size": 384}
        | {"max_source_positions": 40, "max_target_positions": 64, "num_mel_bins": 16},
        {"vocab_size": VOCABULARY},
        full_batch=(16, 448),
        layers=("encoder_layers", "decoder_layers"),
        fullgraph=False,
        extra={"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1},
    ),
    "vit": Entry(
        partial(TimmImages, "vit_base_patch16_224"),
        {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 4, "num_classes": 40},
        {"img_size": 224},
        small_batch=(4, 1),
        full_batch=(128, 1),
        layers=("depth",),
    ),
    "dinov2": Entry(
        partial(Images, "Dinov2"),
        {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 56, "num_labels": 40},
        {"hidden_size": 384, "num_attention_heads": 6, "image_size": 518},
        small_batch=(4, 1),
        full_batch=(16, 1),
        extra=IMAGE,
    ),
    "swin": Entry(
        partial(TimmImages, "swin_tiny_patch4_window7_224"),
        {"img_size": 56, "embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4), "num_classes": 40},
        {"img_size": 224, "drop_path_rate": 0.1},
        small_batch=(2, 1),
        full_batch=(64, 1),
        layers=(),
        dropout=("drop_path_rate",),
    ),
    "convnext": Entry(
        partial(TimmImages, "convnext_tiny"),
        {"img_size": 64, "dims": (16, 32, 48, 64), "depths": (1, 1, 2, 1), "num_classes": 40},
        {"img_size": 224, "drop_path_rate": 0.1},
        small_batch=(2, 1),
        full_batch=(64, 1),
        layers=(),
        dropout=("drop_path_rate",),
    ),
    "clip": Entry(
        partial(Pairs, "CLIP"),
        {
            "text": {**SMALL, "num_attention_heads": 4, "max_position_embeddings": 64, "eos_token_id": 2},
            "vision": {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4}
            | {"image_size": 32, "patch_size": 8},
            "projection_dim": 32,
        },
        {
            "text": {"num_hidden_layers": 4, "vocab_size": VOCABULARY, "eos_token_id": 2},
            "vision": {"num_hidden_layers": 4},
        },
        small_batch=(4, 24),
        full_batch=(128, 77),
        layers=(),
    ),
}


def diffusion(batch: int) -> Entry:
    """The width of DiT-B with a third of its layers, on latents of 64 x 64."""
    small = {"num_attention_heads": 4, "attention_head_dim": 16, "num_layers": 2, "sample_size": 8}
    full = {"num_attention_heads": 12, "attention_head_dim": 64, "num_layers": 4, "sample_size": 64}
    return Entry(
        Diffusion,
        {**small, "num_embeds_ada_norm": 10},
        {**full, "num_embeds_ada_norm": 1000},
        small_batch=(batch, 1),
        full_batch=(batch, 1),
        layers=("num_layers",),
        dropout=("dropout", "class_dropout"),
    )


ENTRIES = {**ENTRIES, "dit_batch_1": diffusion(1), "dit_batch_2": diffusion(2)}
FIVE = ("llama", "gpt2", "bert", "vit", "dit_batch_1")
"""Of different kinds, for every run of the tests."""
