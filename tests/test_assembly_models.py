"""Gradients that are put together into one tensor, through ``torch.compile`` and in whole models."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._inductor.utils import run_and_get_code

from tests.assembly_slots import Function, _apart, slots_of  # noqa: F401
from tests.cases import SMALL_MODELS, often
from tests.compilations import compilations
from tests.test_backend import run_python
from weft.bench.models.dit import Dit
from weft.bench.models.model import Model
from weft.bench.models.scale_shift import ScaleShiftTable
from weft.bench.models.transformer import ResidualMix
from weft.runtime.counters import counters


def modulated(table: Tensor, condition: Tensor, x: Tensor) -> Tensor:
    """Six modulations from one table, of rows that go through a norm and a product in between; the gradient of the
    table is put together from six sums over positions, of two regions."""
    a, b, c, d, e, f = (table + condition).chunk(6, 1)
    y = F.layer_norm(x, x.shape[-1:]) * a + b
    z = F.layer_norm(y @ weights(x), x.shape[-1:]) * c + d
    return torch.tanh(z * e + f)


def weights(like: Tensor) -> Tensor:
    return torch.arange(1024, dtype=like.dtype).sin().view(32, 32)


def compare(function: Function, inputs: Sequence[Tensor], **options: Any) -> list[str]:
    """Gradients against float64; returns the code of the graphs, the backward last."""
    mine = [x.detach().clone().requires_grad_() for x in inputs]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    compiled = torch.compile(function, backend="weft", **options)

    def step() -> None:
        compiled(*mine).square().mean().backward()

    _, code = run_and_get_code(step)
    function(*exact).square().mean().backward()
    for a, b in zip(mine, exact, strict=True):
        assert a.grad is not None
        assert b.grad is not None
        torch.testing.assert_close(a.grad.double(), b.grad, rtol=1e-4, atol=1e-4 * float(b.grad.abs().max()))
    assert counters.launches
    assert counters.fallbacks == 0
    return code


def slots_written(code: str) -> list[int]:
    """Offsets of what launches write into the one tensor with several slots; nothing else may write or copy it."""
    calls = [line.rsplit("end', [", 1)[1] for line in code.splitlines() if "weft_launch(" in line]
    written = [
        re.findall(r"reinterpret_tensor\((buf\d+), \(.*?\), \(.*?\), (\d+)\)", c.split("], [")[1]) for c in calls
    ]
    assert len({buffer for found in written for buffer, _ in found}) == 1
    return sorted(int(offset) for found in written for _, offset in found)


@pytest.mark.parametrize("batch", often([1, 2], [2]))
@pytest.mark.parametrize("dynamic", often([False, True], [True]))
def test_gradients_of_chunks(batch: int, dynamic: bool) -> None:
    inputs = torch.randn(1, 6, 32), torch.randn(batch, 1, 32), torch.randn(batch, 12, 32) / 4
    code = compare(modulated, inputs, dynamic=dynamic)[-1]
    assert slots_written(code) == [0, 32, 64, 96, 128, 160]
    assert not [name for name in re.findall(r"cpp_fused_\w+", code) if "cat" in name]


def test_gradients_of_indexed_parameters() -> None:
    def function(mix: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return torch.tanh(mix[0] * x + mix[1] * y + mix[2])

    inputs = torch.randn(3, 32), torch.randn(40, 32), torch.randn(40, 32)
    code = compare(function, inputs)[-1]
    assert slots_written(code) == [0, 32, 64]
    assert "scatter" not in code


MODELS: dict[str, tuple[Callable[[], Model], int, int]] = {
    "table, batch 1": (lambda: ScaleShiftTable(dim=64, tables=2), 1, 16),
    "table, batch 2": (lambda: ScaleShiftTable(dim=64, tables=2), 2, 16),
    "residual mix": (lambda: ResidualMix(**{**SMALL_MODELS["residual_mix"], "dim": 64}), 4, 32),
    "dit": (lambda: Dit(dim=64, blocks=1, heads=2, classes=10), 2, 16),
}
"""Models, their batch and sequence; residual mix as in test_border.py, whose kernels are many of its own."""
EXPECTED = {"table, batch 1": 12, "table, batch 2": 12, "residual mix": 4, "dit": 8}
"""Slots in the backward of each model."""


OFTEN = often(MODELS, ("table, batch 1",))


@pytest.mark.parametrize("autocast", often([False, True], [False]), ids=["f32", "bf16"])
@pytest.mark.parametrize("name", OFTEN)
def test_gradients_of_models(name: str, autocast: bool) -> None:
    make, batch, sequence = MODELS[name]
    model = make()
    for parameter in model.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.05)  # a layer that starts at zero hides gradients behind it
    data = model.make_batch(batch, sequence, 0)

    def loss(run: Function, *args: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return run(*args)

    # NaN in fresh memory is for graphs that are run as they are; some operators of the models are not deterministic
    torch.use_deterministic_algorithms(False)
    with compilations() as found:
        loss(torch.compile(model, backend="weft"), *data).backward()
    mine = {key: p.grad for key, p in model.named_parameters()}
    model.zero_grad()
    assert len(slots_of(found[-1])) == EXPECTED[name]
    assert counters.fallbacks == 0
    exact = model.double()
    exact(*(x.double() if x.is_floating_point() else x for x in data)).backward()
    for key, parameter in exact.named_parameters():
        expected, ours = parameter.grad, mine[key]
        assert expected is not None
        assert ours is not None
        error = (ours - expected).norm() / expected.norm().clamp(min=1e-6)
        assert error < (0.1 if autocast else 1e-4), (key, float(error))


WARM = """
    import json, torch, weft
    torch.manual_seed(0)
    table = torch.randn(1, 4, 64, requires_grad=True)
    x = torch.randn(2, 50, 64)

    def function(table, x):
        a, b, c, d = table.chunk(4, 1)
        return torch.tanh(x * a + b) * c + d

    torch.compile(function, backend="weft", fullgraph=True)(table, x).square().sum().backward()
    (expected,) = torch.autograd.grad(function(table, x).square().sum(), table)
    torch.testing.assert_close(table.grad, expected, rtol=1e-4, atol=1e-3)
    print(json.dumps(weft.counters.to_dict()))
"""


@pytest.mark.slow
def test_a_second_process_writes_the_parts_too(tmp_path: Path) -> None:
    cold, warm = run_python(WARM, tmp_path), run_python(WARM, tmp_path)
    assert cold["pass_calls"] > 0
    assert warm["pass_calls"] == warm["builds"] == warm["fallbacks"] == 0
    assert warm["launches"] == cold["launches"] > 0
