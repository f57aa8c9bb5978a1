"""Kernels that other processes build while TorchInductor generates code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._inductor import config
from torch._inductor.graph import GraphLowering
from torch._inductor.utils import fresh_inductor_cache

import weft
from tests.test_compile_workers import SEPARATE
from weft import compiler
from weft.compiler import Compilation
from weft.errors import Refusal, RefusedError
from weft.integration import backend
from weft.integration.report import Report
from weft.options import Options
from weft.plan.kernel import Kernel
from weft.runtime import launch, runners_up
from weft.runtime.cache import Cache


@pytest.fixture(autouse=True)
def events(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Has kernels for CPUs count as what others are building; what is done in turn."""
    torch._dynamo.reset()
    weft.counters.reset()
    weft.clear_reports()
    done: list[str] = []

    def noted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given, **named: (done.append(name), function(*given, **named))[1]

    monkeypatch.setattr(backend.head_start, "covers", lambda *_: True)
    monkeypatch.setattr(backend, "rewrite", noted("rewrite", backend.rewrite))
    monkeypatch.setattr(compiler, "build", noted("build", compiler.build))
    with fresh_inductor_cache():
        yield done


def normed(x: Tensor, w: Tensor) -> Tensor:
    return F.layer_norm(x, (96,), w).sin()


def reports() -> list[Report]:
    return [report for report in weft.last_reports() if isinstance(report, Report)]


def check(compiled: Callable[..., Tensor]) -> None:
    x, w = torch.randn(40, 96, requires_grad=True), torch.randn(96, requires_grad=True)
    found = torch.autograd.grad(compiled(x, w).sum(), (x, w))
    torch.testing.assert_close(found, torch.autograd.grad(normed(x, w).sum(), (x, w)), rtol=1e-4, atol=1e-4)


def test_kernels_are_built_once_code_is_generated(events: list[str]) -> None:
    check(torch.compile(normed, backend="weft"))
    assert events == ["rewrite", "build"] * 2
    assert weft.counters.launches == weft.counters.kernels == weft.counters.regions == 2
    assert [len(report.regions) for report in reports()] == [1, 1]


def test_where_all_is_timed_first_or_nothing_waits_kernels_are_built_at_once(events: list[str]) -> None:
    torch.compile(normed, backend="weft", options={"cpp_wrapper": True})(torch.randn(40, 96), torch.randn(96))
    assert events == ["build", "rewrite"]


def failing(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has that many builds of a graph fail."""
    made, left = compiler.build, [times]

    def build(compilation: Compilation, options: Options) -> Compilation:
        left[0] -= 1
        refusals = (Refusal("internal_error", "normed", "the compiler gave up"),)
        return made(compilation, options) if left[0] < 0 else replace(compilation, regions=(), refusals=refusals)

    monkeypatch.setattr(compiler, "build", build)


def test_a_region_that_cannot_be_built_is_left_to_inductor(events: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    failing(2, monkeypatch)
    with config.patch(fx_graph_cache=True):
        with pytest.warns(UserWarning, match="the compiler gave up"):
            check(torch.compile(normed, backend="weft"))
        assert events == ["rewrite", "rewrite", "rewrite", "build"]  # of the forward twice, at last without a region
        assert weft.counters.regions == weft.counters.launches == 1
        assert [len(report.regions) for report in reports()] == [0, 1]
        assert weft.counters.refusals["internal_error"] == 1
        torch._dynamo.reset()
        check(torch.compile(normed, backend="weft"))
    assert weft.counters.pass_calls == 3  # TorchInductor's cache has what came of it in the end
    assert weft.counters.launches == 2


def test_strict_mode_stops_at_a_kernel_that_cannot_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(2, monkeypatch)
    compiled = torch.compile(normed, backend="weft", options={"strict": True})
    with pytest.raises(Exception, match="the compiler gave up") as raised:
        compiled(torch.randn(40, 96), torch.randn(96))
    assert isinstance(raised.value.__cause__ or raised.value, RefusedError) or "RefusedError" in str(raised.value)


def test_an_error_of_inductors_is_raised_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any) -> None:
        raise RuntimeError("no code today")

    monkeypatch.setattr(GraphLowering, "codegen", stop)
    with pytest.raises(Exception, match="no code today"):
        torch.compile(normed, backend="weft")(torch.randn(40, 96), torch.randn(96))
    assert weft.counters.pass_calls == 1


def test_a_runner_up_stands_in_for_the_kernel_that_the_code_names(monkeypatch: pytest.MonkeyPatch) -> None:
    made = compiler.build
    pairs: list[tuple[Kernel, Kernel]] = []

    def build(compilation: Compilation, options: Options) -> Compilation:
        (region,) = compilation.regions
        (kernel,) = region.plan.kernels
        other = replace(kernel, schedule=kernel.schedule.but(rows_per_tile=2 * kernel.schedule.rows_per_tile))
        pairs.append((kernel, other))
        source = compiler.render(other)
        launch.prepare([other], [source], options)
        region = replace(region, plan=replace(region.plan, kernels=(other,)), sources=(source,))
        return made(replace(compilation, regions=(region,)), options)

    monkeypatch.setattr(compiler, "build", build)
    check(torch.compile(normed, backend="weft"))
    assert weft.counters.launches == weft.counters.regions == 2
    for report, (kernel, other) in zip(reports(), pairs, strict=True):
        assert launch.running(kernel) == other
        assert report.regions[0].plan.kernels == (other,)


def test_other_processes_know_what_stands_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    options = Options.read({"cache_dir": str(tmp_path / "cache")})
    other = replace(SEPARATE, schedule=SEPARATE.schedule.but(warps=2 * SEPARATE.schedule.warps))
    assert runners_up.known(SEPARATE, options) == SEPARATE  # no GPU
    device = SimpleNamespace(name="H200")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: device.name)
    runners_up.keep(SEPARATE, other, options)
    assert runners_up.known(SEPARATE, options) == other
    assert runners_up.known(other, options) == other
    device.name = "B200"
    assert runners_up.known(SEPARATE, options) == SEPARATE
    device.name = "H200"
    (entry,) = Cache(options.cache_dir, options.cache_bytes).entries()
    entry.path.write_text("of another release")
    assert runners_up.known(SEPARATE, options) == SEPARATE
