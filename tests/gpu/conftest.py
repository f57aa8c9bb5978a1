"""Everything in this folder is for a machine with a CUDA device, and is skipped elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import weft
from weft.backends.cuda import build

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            item.add_marker(pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"))


@pytest.fixture(autouse=True, scope="session")
def _for_racecheck() -> Iterator[None]:
    """As ``make gpu-sanitize`` asks for."""
    with pytest.MonkeyPatch.context() as patch:
        if os.environ.get("WEFT_TEST_EVERY_LANE"):
            macros = build._own_macros() | {"WEFT_EVERY_LANE": "1"}
            patch.setattr(build, "_own_macros", lambda: macros)
        yield


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    weft.counters.reset()
    weft.clear_reports()
    yield
    if torch.cuda.is_available():
        torch.cuda.synchronize()  # an error of a kernel belongs to the test that started it
