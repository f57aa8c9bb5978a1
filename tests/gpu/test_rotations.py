"""Norms with rotations, and padded gradients of shifted logits, on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import weft
from tests.accuracy import rounding_excess
from tests.test_rotations import Turn, halves, pairs, selected, thirds

BATCH, TOKENS, HEADS, SHARED, WIDTH = 3, 517, 6, 4, 64


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    x = x.unflatten(-1, (-1, WIDTH)).transpose(1, 2)
    return x * cos + halves(x) * sin


def shared(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return rotated(x, cos, sin).repeat_interleave(SHARED, 1)


def packed(x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
    query, key, value = x.chunk(3, -1)
    return rotated(query, cos, sin), rotated(key, cos, sin), value.unflatten(-1, (-1, WIDTH)).transpose(1, 2)


def stacked(x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
    query, key, value = (each.flatten(-2) for each in x.unflatten(-1, (3, HEADS, WIDTH)).unbind(-3))
    return rotated(query, cos, sin), rotated(key, cos, sin), value.unflatten(-1, (-1, WIDTH)).transpose(1, 2)


def turned(turn: Turn, x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    q = x.unflatten(-1, (HEADS, WIDTH)).float()
    q = (weight * (q * torch.rsqrt(q.square().mean(-1, keepdim=True) + 1e-6))).transpose(1, 2)
    return (q * cos + turn(q) * sin).to(x.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("turn", [halves, pairs, selected, thirds])
def test_norms_with_rotations_have_right_gradients(turn: Turn, dtype: torch.dtype) -> None:
    angles = torch.randn(2, TOKENS, WIDTH, device="cuda")
    x = torch.randn(BATCH, TOKENS, HEADS * WIDTH, device="cuda", dtype=dtype).requires_grad_()
    weight = torch.randn(WIDTH, device="cuda").requires_grad_()
    gradient = torch.randn(BATCH, HEADS, TOKENS, WIDTH, device="cuda", dtype=dtype)

    def results(function: object, x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        y = function(turn, x, weight, *angles.to(weight.dtype).unbind(0))  # type: ignore[operator]
        return y.detach(), *torch.autograd.grad(y, (x, weight), gradient.to(y.dtype))

    wide = [t.detach().double().requires_grad_() for t in (x, weight)]
    exact = results(lambda turn, x, *rest: turned_exactly(turn, x, *rest), *wide)
    mine, eager = results(torch.compile(turned, backend="weft"), x, weight), results(turned, x, weight)
    for a, b, c in zip(mine, eager, exact, strict=True):
        assert rounding_excess(a, b, c) is None
    assert weft.counters.launches
    assert not weft.counters.fallbacks


def turned_exactly(turn: Turn, x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    q = x.unflatten(-1, (HEADS, WIDTH))
    q = (weight * (q * torch.rsqrt(q.square().mean(-1, keepdim=True) + 1e-6))).transpose(1, 2)
    return q * cos + turn(q) * sin


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("made", [packed, stacked, shared])
def test_rotations_alone_have_right_gradients(made: Callable[..., Any], dtype: torch.dtype) -> None:
    """Of queries, keys and values that one product makes, and of keys for several queries."""
    heads = 3 * HEADS if made in (packed, stacked) else HEADS

    def attended(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        found = made(x @ weight, cos, sin)
        query, key, value = (t.to(x.dtype) for t in (found if isinstance(found, tuple) else (found,) * 3))
        return F.scaled_dot_product_attention(query, key, value)

    angles = torch.randn(2, TOKENS, WIDTH, device="cuda")
    x = torch.randn(BATCH, TOKENS, 64, device="cuda", dtype=dtype).requires_grad_()
    weight = (torch.randn(64, heads * WIDTH, device="cuda", dtype=dtype) / 8).requires_grad_()

    def results(function: Callable[..., Tensor], x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        y = function(x, weight, *angles.to(torch.promote_types(x.dtype, torch.float32)).unbind(0))
        return y.detach(), *torch.autograd.grad(y.square().sum(), (x, weight))

    exact = results(attended, *(t.detach().double().requires_grad_() for t in (x, weight)))
    mine, eager = results(torch.compile(attended, backend="weft"), x, weight), results(attended, x, weight)
    for a, b, c in zip(mine, eager, exact, strict=True):
        assert rounding_excess(a, b, c) is None
    assert weft.counters.launches
    assert not weft.counters.fallbacks


def test_the_gradient_of_shifted_logits_is_zero_in_their_last_rows() -> None:
    def loss(x: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(x[:, :-1].float().flatten(0, 1), labels[:, 1:].flatten())

    labels = torch.randint(32000, (4, 300), device="cuda")
    x = torch.randn(4, 300, 32000, device="cuda", dtype=torch.bfloat16).requires_grad_()
    rubbish = torch.full_like(x, torch.nan)  # in memory that is free then
    del rubbish
    (mine,) = torch.autograd.grad(torch.compile(loss, backend="weft")(x, labels), x)
    (wanted,) = torch.autograd.grad(loss(x.double(), labels), x)
    assert not mine[:, -1].any()
    torch.testing.assert_close(mine, wanted, rtol=1e-2, atol=1e-8)
    assert not weft.counters.fallbacks
