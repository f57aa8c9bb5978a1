"""The models have the parameters that they are known for, and learn the data that is made for them."""

import pytest
import torch

from weft.bench.models import MODELS, Plain, ResidualMix, TransformerConfig, make_batch

SMALL = {"dim": 32, "blocks": 2, "heads": 4, "kv_heads": 2, "vocabulary": 96}


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
    tokens, targets = make_batch(plain.config, 2, 8, seed=0)
    torch.testing.assert_close(mixed(tokens, targets), plain(tokens, targets))


def test_default_sizes_are_those_of_the_full_workload():
    assert TransformerConfig() == TransformerConfig(dim=512, blocks=11, heads=8, kv_heads=4, vocabulary=4096)
    with pytest.raises(ValueError, match="multiple"):
        TransformerConfig(dim=30, heads=4)


def test_attention_is_causal():
    model = ResidualMix(**SMALL)
    tokens, targets = make_batch(model.config, 1, 8, seed=0)
    changed = tokens.clone()
    changed[0, -1] = (changed[0, -1] + 1) % model.config.vocabulary
    ignore_last = targets.clone()
    ignore_last[0, -1] = -100
    torch.testing.assert_close(model(tokens, ignore_last), model(changed, ignore_last))


def test_batches_are_reproducible_and_targets_follow_tokens():
    config = TransformerConfig(**SMALL)
    tokens, targets = make_batch(config, 3, 10, seed=4)
    assert tokens.shape == targets.shape == (3, 10)
    assert tokens.dtype == targets.dtype == torch.int64
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
    assert torch.equal(tokens, make_batch(config, 3, 10, seed=4)[0])
    assert not torch.equal(tokens, make_batch(config, 3, 10, seed=5)[0])


@pytest.mark.parametrize("name", MODELS)
def test_models_learn_and_every_parameter_gets_a_gradient(name: str):
    torch.manual_seed(0)
    model = MODELS[name](**SMALL)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses: list[float] = []
    for step in range(40):
        loss = model(*make_batch(model.config, 8, 32, seed=step))
        optimizer.zero_grad()
        loss.backward()
        assert all(value.grad is not None for value in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 4
    assert losses[-1] < 0.7 * losses[0]
