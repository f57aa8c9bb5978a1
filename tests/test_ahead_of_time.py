"""AOTInductor with weft's pass in its configuration: packages work, without weft."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor
from torch import nn

import weft
from weft.errors import warn_once
from weft.integration.backend import WeftPass
from weft.options import Options


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    weft.counters.reset()
    weft.clear_reports()
    warn_once.cache_clear()


def package(model: nn.Module, x: torch.Tensor, folder: Path, **options: Any) -> str:
    configuration = {"post_grad_custom_post_pass": WeftPass(Options.read(options))}
    exported = torch.export.export(model, (x,))
    path = str(folder / "model.pt2")
    return torch._inductor.aoti_compile_and_package(exported, package_path=path, inductor_configs=configuration)


@pytest.mark.slow
def test_a_package_runs_without_weft_and_one_warning_says_so(tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64), nn.Softmax(-1)).eval(), torch.randn(128, 64)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        path = package(model, x, tmp_path)
    assert sum("weft: " in str(w.message) and "AOTInductor" in str(w.message) for w in caught) == 1
    torch.testing.assert_close(torch._inductor.aoti_load_package(path)(x), model(x))
    assert weft.counters.refusals == {"ahead_of_time": 1}
    assert weft.counters.regions == weft.counters.launches == 0
    assert "left out: 1 x ahead_of_time" in weft.last_reports()[-1].text()


def test_in_strict_mode_no_package_is_built(tmp_path: Path) -> None:
    model, x = nn.Softmax(-1).eval(), torch.randn(128, 64)
    with pytest.raises(Exception, match="ahead_of_time: graph: a package of AOTInductor cannot call weft's kernels"):
        package(model, x, tmp_path, strict=True)


def test_a_wrapper_in_cpp_that_python_starts_has_the_kernels() -> None:
    model, x = nn.Sequential(nn.LayerNorm(64), nn.Softmax(-1)), torch.randn(128, 64)
    options: dict[str, Any] = {"cpp_wrapper": True, "cpp_cache_precompile_headers": False}  # these take longer here
    compiled = torch.compile(model, backend="weft", options=options)
    torch.testing.assert_close(compiled(x), model(x))
    assert weft.counters.launches == 1
    assert weft.counters.fallbacks == 0
