"""weft.fuse as a function and as a decorator, and what calls with the same options share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.exc import FailOnRecompileLimitHit

import weft


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    weft.counters.reset()
    weft.clear_reports()


def softmax(x: Tensor) -> Tensor:
    return F.softmax(x, -1)


def test_a_function_that_is_fused_again_and_again_is_compiled_once() -> None:
    x = torch.randn(8, 32)
    for _ in range(20):
        torch.testing.assert_close(weft.fuse(softmax)(x), softmax(x))
    assert weft.counters.pass_calls == 1
    assert weft.counters.launches == 20


def test_other_options_are_compiled_for_themselves() -> None:
    x = torch.randn(8, 32)
    choices: list[dict[str, Any]] = [{}, {"check": "first"}, {"check": "always"}, {"strict": True}]
    for _ in range(3):
        for options in choices:
            weft.fuse(softmax, **options)(x)
    assert weft.counters.pass_calls == len(choices)

    def with_product(x: Tensor) -> Tensor:
        return F.softmax(x @ x, -1)

    square = torch.randn(16, 16)
    for _ in range(2):  # what is left out in the one is refused in the other, whoever comes first
        assert weft.fuse(with_product)(square).shape == (16, 16)
        with pytest.raises(weft.RefusedError, match="mm"):
            weft.fuse(with_product, strict=True)(square)


def test_more_options_than_torch_compiles_a_function_for_are_its_error() -> None:
    x = torch.randn(8, 32)
    with torch._dynamo.config.patch(recompile_limit=2):
        for margin in range(2):
            weft.fuse(softmax, sm_margin=margin)(x)
        with pytest.raises(FailOnRecompileLimitHit):
            weft.fuse(softmax, sm_margin=2)(x)
        assert weft.fuse(softmax, sm_margin=1)(x).shape == (8, 32)


def test_a_decorator_with_and_without_options() -> None:
    @weft.fuse
    def plain(x: Tensor) -> Tensor:
        return F.softmax(x @ x, -1)

    @weft.fuse(strict=True)
    def strict(x: Tensor) -> Tensor:
        return F.softmax(x @ x, -1)

    @weft.fuse(strict=True, check="first", dynamic=True)
    def doubled(x: Tensor) -> Tensor:
        """Twice the shares."""
        return F.softmax(x, -1) * 2

    x = torch.randn(16, 16)
    torch.testing.assert_close(plain(x), F.softmax(x @ x, -1))
    with pytest.raises(weft.RefusedError, match="mm"):
        strict(x)
    wide = torch.randn(8, 32)
    torch.testing.assert_close(doubled(wide), F.softmax(wide, -1) * 2)
    assert (doubled.__name__, doubled.__doc__) == ("doubled", "Twice the shares.")
    compiled = weft.counters.pass_calls
    doubled(torch.randn(9, 33))
    assert weft.counters.pass_calls == compiled  # for all sizes


def test_a_decorators_options_are_checked_where_they_are_given() -> None:
    with pytest.raises(ValueError, match="unknown option colour"):
        weft.fuse(colour=1)
