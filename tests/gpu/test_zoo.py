"""Gradients of every model of the zoo, at sizes people train, and twenty steps of it."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.zoo import one
from tests.zoo.__main__ import LIBRARIES
from tests.zoo.entries import ENTRIES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not all(map(find_spec, LIBRARIES)), reason="the zoo's libraries are not installed"),
]


@pytest.mark.parametrize("check", ["f32", "bf16", "training"])
@pytest.mark.parametrize("name", ENTRIES)
def test_a_model_is_right(name: str, check: str) -> None:
    assert one.run(ENTRIES[name], check, "cuda")["wrong"] == []
