"""Kernels of regions of many loads spill nothing, by ptxas for two architectures and without a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cases import often
from tools import many_loads
from tools.drawn_regions import FEWEST, MOST, drawn_region
from tools.many_loads import GPUS, compiled_region
from weft.backends.resource_usage import ResourceUsage

REGIONS = [(1, 34, 1640), (2, 12, 8032), (3, 20, 4096), (4, 40, 256), (5, 38, 6448)]
"""Seeds, loads and columns: one of 30 loads and more, and a row that is wide."""


@pytest.mark.where_changed("tools", "weft/backends/triton", "weft/ir", "weft/lowering", "weft/plan")
@pytest.mark.parametrize("target", GPUS)
@pytest.mark.parametrize(("seed", "loads", "columns"), often(REGIONS, REGIONS[:2]))
def test_no_kernel_of_many_loads_spills(seed: int, loads: int, columns: int, target: str) -> None:
    found = compiled_region(seed, target, loads, columns)
    assert not isinstance(found, str), found
    assert [line for kernel in found for line in kernel.lines() if kernel.last.spill_bytes] == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2000, 2012))
def test_no_kernel_of_a_drawn_region_spills(seed: int) -> None:
    for target in GPUS:
        found = compiled_region(seed, target)
        assert not isinstance(found, str), found
        assert [line for kernel in found for line in kernel.lines() if kernel.last.spill_bytes] == []


def test_regions_are_drawn_as_they_are_said_to_be() -> None:
    drawn = [drawn_region(seed) for seed in range(60)]
    assert all(len(p.inputs) <= MOST for p in drawn)
    assert min(len(p.inputs) for p in drawn) <= 2 * FEWEST
    assert max(len(p.inputs) for p in drawn) >= MOST - 2
    assert {b.dims for p in drawn for b in p.inputs} == {("m", "n"), ("m",), ("n",)}
    assert {b.dtype for p in drawn for b in p.buffers} == {"bf16", "f32"}
    assert str(drawn_region(7)) == str(drawn_region(7))
    wide = drawn_region(7, 12, 8032)
    assert len(wide.inputs) == 12
    assert wide.size_of("n") == 8032


def test_what_spills_is_said_and_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where all kernels spill 8 bytes, whatever their schedule."""
    monkeypatch.setattr(many_loads, "usages", lambda *_: [ResourceUsage(255, 8, 0, 8)])
    monkeypatch.setattr(many_loads, "processes", SameProcess)
    file = tmp_path / "found.json"
    assert many_loads.main(["--regions", "1", "--seed", "2", "--target", "h200", "--json", str(file)]) == 1
    said = capsys.readouterr().out
    assert "seed 2 h200" in said
    assert "8 bytes spilled; 8 in the end" in said
    kernels = json.loads(file.read_text())["kernels"]
    assert [kernel["last"]["spill_bytes"] for kernel in kernels] == [8] * len(kernels)
    monkeypatch.setattr(many_loads, "usages", lambda *_: [ResourceUsage(64, 0, 0, 0)])
    assert many_loads.main(["--regions", "1", "--seed", "2", "--target", "h200"]) == 0


class SameProcess:
    """Of a pool."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> SameProcess:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def map(self, function: object, *arguments: object, **_: object) -> object:
        return map(function, *arguments)  # type: ignore[call-overload]
