"""What a forward keeps for its backward, exchanged for what lies in memory anyway."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._functorch import config as functorch_config
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor import config as inductor_config
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import weft
from tests.cases import checkered
from weft.integration import kept, partitioner
from weft.integration.partitioner import Exchanges, Partitioner

ROWS, COLUMNS = 1024, 512
MB = ROWS * COLUMNS * 4


class Norm(torch.autograd.Function):
    """A norm whose backward is written with normalised rows, as PyTorch's own on a GPU is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        ctx.save_for_backward(x, weight, scale)
        return x * scale * weight

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        (gradient,) = gradients
        x, weight, scale = ctx.saved_tensors
        normal, scaled = x * scale, gradient * weight
        mean = (normal * scaled).mean(-1, keepdim=True)
        return (scaled - normal * mean) * scale, (gradient * normal).sum(0)


class Blocks(nn.Module):
    """A residual stream ``[ROWS, COLUMNS]`` that blocks mix with what it began with and read through norms. read: what
    norms are given of it."""

    def __init__(self, blocks: int = 3, read: Callable[[Tensor], Tensor] = torch.Tensor.contiguous) -> None:
        super().__init__()
        self.read = read
        self.first = nn.Parameter(torch.rand(COLUMNS) + 0.5)
        self.weights = nn.ParameterList(nn.Parameter(torch.rand(COLUMNS) + 0.5) for _ in range(blocks))
        self.mixes = nn.ParameterList(nn.Parameter(torch.rand(2, COLUMNS)) for _ in range(blocks))
        self.layers = nn.ModuleList(nn.Linear(COLUMNS, COLUMNS, bias=False) for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        x = start = x * self.first
        for weight, mix, layer in zip(self.weights, self.mixes, self.layers, strict=True):
            x = mix[0] * x + mix[1] * start
            x = x + mix[0] * layer(Norm.apply(self.read(x), weight))
        return (x * start).sum()


def partitions(function: Callable[..., Any], *inputs: Tensor, **options: Any) -> tuple[list[Exchanges], Tensor]:
    """What is exchanged when TorchInductor compiles a function with the partitioner, and the function's result."""
    told: list[Exchanges] = []
    torch._dynamo.reset()
    patches = {"custom_partitioner_fn": Partitioner(told.append), "fx_graph_cache": False}
    with inductor_config.patch(patches), functorch_config.patch(enable_autograd_cache=False):
        result = torch.compile(function, **options)(*inputs)
    return told, result


def total(results: Any) -> Tensor:
    return torch.stack([each.square().sum() for each in results]).sum()


def gradients(model: nn.Module) -> list[Tensor]:
    found = [p.grad for p in model.parameters() if p.grad is not None]
    assert len(found) == len(list(model.parameters()))
    return [each.clone() for each in found]


def test_normalised_rows_are_computed_again_from_the_stream() -> None:
    torch.manual_seed(0)
    model, x = Blocks(), torch.randn(ROWS, COLUMNS)
    model(x).backward()
    expected = gradients(model)
    model.zero_grad()
    ((found,), loss) = partitions(model, x)
    loss.backward()
    assert found == Exchanges(2, 2 * MB, 0)
    for mine, eager in zip(gradients(model), expected, strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("dynamic", "remat"), checkered([False, True], [False, True]))
def test_gradients_of_weft_are_right_with_and_without(dynamic: bool, remat: bool) -> None:
    torch.manual_seed(1)
    model, x = Blocks(), torch.randn(ROWS, COLUMNS)
    model.double()(x.double()).backward()
    expected = gradients(model)
    model.float()
    torch._dynamo.reset()
    model.zero_grad()
    torch.compile(model, backend="weft", dynamic=dynamic, options={"remat": remat})(x).backward()
    for mine, exact in zip(gradients(model), expected, strict=True):
        torch.testing.assert_close(mine.double(), exact, rtol=1e-4, atol=1e-3)


def test_what_a_matrix_product_reads_stays() -> None:
    """The backward of a linear layer reads what went in; that has to lie in memory, though half as many bytes would do
    to compute it from."""
    layer, scale = nn.Linear(COLUMNS, COLUMNS), nn.Parameter(torch.rand(COLUMNS))

    def function(x: Tensor) -> Tensor:
        return layer(x * scale).sum()

    ((found,), _) = partitions(function, torch.randn(ROWS, COLUMNS, dtype=torch.bfloat16, requires_grad=True))
    assert found.values == 0


@pytest.mark.parametrize("expensive", [True, False])
def test_what_is_expensive_is_not_computed_again(expensive: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a norm of the stream's tangents."""
    if not expensive:
        monkeypatch.setattr(kept, "CHEAP", kept.CHEAP | {torch.ops.aten.tanh.default})
    ((found,), _) = partitions(Blocks(read=torch.tanh), torch.randn(ROWS, COLUMNS))
    assert found == Exchanges(*((0, 0, 0) if expensive else (2, 2 * MB, 0)))


def test_what_a_checkpoint_decides_on_stays_as_it_decides() -> None:
    """A selective checkpoint that keeps all: normalised rows, and the stream that they could be computed from."""

    def policy(*arguments: Any, **named: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE

    model, x = Blocks(), torch.randn(ROWS, COLUMNS)
    contexts = partial(create_selective_checkpoint_contexts, policy)

    def function(x: Tensor) -> Tensor:
        return checkpoint(model, x, use_reentrant=False, context_fn=contexts)

    function(x).backward()
    expected = gradients(model)
    model.zero_grad()
    ((found,), loss) = partitions(function, x)
    loss.backward()
    assert found == Exchanges(0, 0, 0)
    for mine, eager in zip(gradients(model), expected, strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-3)


def test_small_values_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "LEAST_BYTES", MB + 1)
    ((found,), _) = partitions(Blocks(), torch.randn(ROWS, COLUMNS))
    assert found == Exchanges(0, 0, 0)


def test_results_of_the_caller_stay_results() -> None:
    """The stream is returned as well: it is written anyway, and the caller's to change."""
    torch.manual_seed(2)
    weight = nn.Parameter(torch.rand(COLUMNS))
    layer = nn.Linear(COLUMNS, COLUMNS, bias=False)

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x + layer(x)
        normal = Norm.apply(y, weight)
        return y, F.linear(normal, layer.weight)

    x = torch.randn(ROWS, COLUMNS)
    expected = torch.autograd.grad(total(function(x)), [weight, layer.weight])
    ((_, *rest), result) = partitions(function, x)
    assert not rest
    found = torch.autograd.grad(total(result), [weight, layer.weight])
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-2)


def test_a_fault_leaves_the_partition_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(partitioner, "_rewrite", fails)
    model, x = Blocks(), torch.randn(ROWS, COLUMNS)
    model(x).backward()
    expected = gradients(model)
    model.zero_grad()
    with pytest.warns(UserWarning, match="what is kept for a backward stays as it is: RuntimeError: broken"):
        told, loss = partitions(model, x)
    loss.backward()
    assert not told
    for mine, eager in zip(gradients(model), expected, strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-3)


def test_a_partitioner_of_the_users_is_left_alone() -> None:
    seen: list[str] = []

    class Own(Partitioner):
        def __call__(self, *arguments: Any, **named: Any) -> Any:
            seen.append("own")
            return min_cut_rematerialization_partition(*arguments, **named)

    torch._dynamo.reset()
    options: dict[str, Any] = {"custom_partitioner_fn": Own(), "fx_graph_cache": False}
    torch.compile(Blocks(), backend="weft", options=options)(torch.randn(ROWS, COLUMNS))
    assert seen == ["own"]


def test_an_explanation_says_what_is_computed_again() -> None:
    model, x = Blocks(), torch.randn(ROWS, COLUMNS)
    explanation = weft.explain(model, x, target="h200")
    assert "kept for the backward: 2 values computed again from others rather than kept: " in explanation.text()
    forward, backward = json.loads(explanation.to_json())["graphs"]
    assert forward["exchanges"] is None
    assert backward["exchanges"] == {"values": 2, "moved_bytes": 2 * MB, "kept_bytes": 0}
