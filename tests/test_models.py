"""The models have the parameters that they are known for, and learn the data that is made for them."""

import pytest
import torch

from tests.cases import SMALL_MODELS
from weft.bench.models import (
    MODELS,
    DitConfig,
    Gpt2Config,
    LlamaConfig,
    Plain,
    ResidualMix,
    ScaleShiftConfig,
    TransformerConfig,
    VitConfig,
)

SMALL = SMALL_MODELS["plain"]


def test_only_residual_mix_has_vectors_to_learn():
    def vectors(name: str) -> set[str]:
        parameters = MODELS[name](**{**SMALL, "blocks": 1}).named_parameters()
        return {key.removeprefix("blocks.0.") for key, value in parameters if value.dim() == 1}

    learned = {"attn_norm.weight", "mlp_norm.weight", "attn_scale", "mlp_scale", "final_norm.weight"}
    assert vectors("plain") == set()
    assert vectors("residual_mix") == learned
    assert ResidualMix(**SMALL).get_parameter("blocks.0.resid_mix").shape == (2, 32)


def test_residual_mix_starts_as_the_plain_model():
    plain, mixed = Plain(**SMALL), ResidualMix(**SMALL)
    missing, unexpected = mixed.load_state_dict(plain.state_dict(), strict=False)
    assert missing
    assert not unexpected
    tokens, targets = plain.make_batch(2, 8, seed=0)
    torch.testing.assert_close(mixed(tokens, targets), plain(tokens, targets))


def test_default_sizes_are_those_of_the_full_workload():
    assert TransformerConfig() == TransformerConfig(dim=512, blocks=11, heads=8, kv_heads=4, vocabulary=4096)
    with pytest.raises(ValueError, match="multiple"):
        TransformerConfig(dim=30, heads=4)


def test_attention_is_causal():
    model = ResidualMix(**SMALL)
    tokens, targets = model.make_batch(1, 8, seed=0)
    changed = tokens.clone()
    changed[0, -1] = (changed[0, -1] + 1) % model.config.vocabulary
    ignore_last = targets.clone()
    ignore_last[0, -1] = -100
    torch.testing.assert_close(model(tokens, ignore_last), model(changed, ignore_last))


def test_batches_are_reproducible_and_targets_follow_tokens():
    model = Plain(**SMALL)
    tokens, targets = model.make_batch(3, 10, seed=4)
    assert tokens.shape == targets.shape == (3, 10)
    assert tokens.dtype == targets.dtype == torch.int64
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
    assert torch.equal(tokens, model.make_batch(3, 10, seed=4)[0])
    assert not torch.equal(tokens, model.make_batch(3, 10, seed=5)[0])


def test_heads_that_do_not_divide_the_width_are_refused():
    for config in (Gpt2Config, LlamaConfig, DitConfig, VitConfig):
        with pytest.raises(ValueError, match="multiple of heads"):
            config(dim=30, heads=4)
    with pytest.raises(ValueError, match="kv_heads"):
        LlamaConfig(heads=8, kv_heads=3)


def test_models_by_name_have_sizes_for_tests():
    assert set(MODELS) == set(SMALL_MODELS)
    assert ScaleShiftConfig() == ScaleShiftConfig(dim=1024, tables=1)


@pytest.mark.parametrize("name", ["gpt2", "vit"])
def test_models_with_learned_positions_refuse_more(name: str):
    model = MODELS[name](**SMALL_MODELS[name])
    with pytest.raises(ValueError, match="positions"):
        model.make_batch(1, 65, seed=0)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_language_models_do_not_see_later_tokens(name: str):
    model = MODELS[name](**SMALL_MODELS[name])
    tokens, targets = model.make_batch(1, 8, seed=0)
    targets[0, -1] = -100
    changed = tokens.clone()
    changed[0, -1] = (changed[0, -1] + 1) % 96
    torch.testing.assert_close(model(tokens, targets), model(changed, targets))


def test_rotary_positions_make_scores_depend_on_distance_only():
    from weft.bench.models.llama import rotated

    angles = torch.outer(torch.arange(9.0), torch.tensor([1.0, 0.1])).repeat(1, 2).double()
    query, key = torch.randn(2, 1, 1, 1, 4, dtype=torch.float64).expand(2, 1, 1, 9, 4)
    turned = [rotated(x, angles.cos(), angles.sin())[0, 0] for x in (query, key)]
    scores = turned[0] @ turned[1].T
    assert torch.allclose(scores[1:, 1:], scores[:-1, :-1])
    assert not torch.allclose(scores[0, 1:], scores[0, :-1])


def test_a_new_diffusion_transformer_predicts_nothing():
    model = MODELS["dit"](**SMALL_MODELS["dit"])
    patches, noise, time, label = model.make_batch(4, 16, seed=0)
    torch.testing.assert_close(model(patches, noise, time, label), noise.square().mean())


FIRST_LOSS = {"dit": 0.9}
"""Losses start at the logarithm of the vocabulary or classes, or at four: but the noise of `dit` has spread one."""


@pytest.mark.parametrize("name", MODELS)
def test_models_learn_and_every_parameter_gets_a_gradient(name: str):
    torch.manual_seed(0)
    model = MODELS[name](**SMALL_MODELS[name])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses: list[float] = []
    for step in range(40):
        loss = model(*model.make_batch(8, 32, seed=step))
        optimizer.zero_grad()
        loss.backward()
        assert loss.dtype == torch.float32
        assert all(value.grad is not None for value in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > FIRST_LOSS.get(name, 4)
    slow = name == "gpt2"  # its head starts as small as its embedding
    assert losses[-1] < (0.8 if slow else 0.7) * losses[0]
