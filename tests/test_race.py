"""Races of regions against TorchInductor's code for the same nodes; times are given here, but for one test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._inductor import config

import weft
from weft.capture.trace import trace
from weft.compiler import Compilation, CompiledRegion, compile_graph
from weft.errors import Refusal
from weft.integration import race
from weft.integration.extract import extract, is_whole
from weft.integration.sizes import UnknownSymbolError
from weft.options import Options
from weft.runtime.raced import Raced
from weft.target import Target

CPU = Target.named("cpu")


class Times:
    """Stands in for the clock: every side is run once, and both have to compute the same. us: of weft's kernels, which
    run twice, and of TorchInductor's code. races: how many there were."""

    def __init__(self, *us: float) -> None:
        self.us = us
        self.races = 0

    def __call__(self, runs: Sequence[Callable[[], Any]], rounds: int, *_: Any) -> list[list[float]]:
        self.races += 1
        own, again, inductor = (run() for run in runs)
        for results in zip(own, again, inductor, strict=True):
            for other in results[1:]:
                torch.testing.assert_close(results[0], other, equal_nan=True, rtol=2e-4, atol=2e-4)
        return [[each] * rounds for each in self.us]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    weft.counters.reset()
    weft.clear_reports()


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Times:
    """A clock by which weft is faster."""
    found = Times(10.0, 10.0, 20.0)
    monkeypatch.setattr(race, "times_us", found)
    return found


def raced(function: Callable[..., Any], folder: Path, **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    given = {"race": True, "cache_dir": str(folder / "weft"), **options}
    return torch.compile(function, backend="weft", fullgraph=True, options=given)


class Norms(torch.nn.Module):
    """Equal layers, whose norms are equal regions but for the first and the last."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(48) for _ in range(layers))
        self.linears = torch.nn.ModuleList(torch.nn.Linear(48, 48) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for norm, linear in zip(self.norms, self.linears, strict=True):
            x = linear(norm(x))
        return x


def gradients(model: torch.nn.Module, call: Callable[..., Tensor], x: Tensor) -> list[Tensor]:
    model.zero_grad()
    call(x).square().sum().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def regions_and_refusals() -> tuple[list[Any], list[Refusal]]:
    reports = [r for r in weft.last_reports() if hasattr(r, "regions")]
    return [c for r in reports for c in r.regions], [r for report in reports for r in report.refusals]  # type: ignore[union-attr]


# what is raced, and how often


def test_equal_regions_are_raced_once_and_never_again(times: Times, tmp_path: Path) -> None:
    model, x = Norms(4), torch.randn(64, 48)
    expected = gradients(model, model, x)
    for again in (False, True):
        weft.clear_reports()
        found = gradients(model, raced(model, tmp_path), x)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        regions, _ = regions_and_refusals()
        programs = {str(race.raced.key_of(race.identity_of(r))) for r in regions}  # type: ignore[arg-type]
        assert all(r.race == Raced(10.0, 20.0, 2.0, 2.0, 0.05) for r in regions), again
        assert len(regions) > len(programs) == times.races
    files = [*(tmp_path / "weft").rglob("*.race.json")]
    assert len(files) == times.races
    kept = json.loads(files[0].read_text())
    assert kept["raced"]["inductor_us"] == 20.0
    assert kept["of"]["versions"]["torch"] == torch.__version__
    assert kept["of"]["device"] == Target.current("cpu").device


SCRIPT = """
import sys, torch, weft
from weft.integration import race
timed = []
race.times_us = lambda runs, *_: timed.append([run() for run in runs]) or [[9.0], [9.0], [18.0]]
options = {"race": True, "cache_dir": sys.argv[1]}
with torch._inductor.config.patch(fx_graph_cache=sys.argv[2] == "graphs"):
    torch.compile(lambda x: x.softmax(-1), backend="weft", options=options)(torch.randn(64, 48))
print(len(timed), weft.counters.pass_calls)
"""


@pytest.mark.slow
def test_other_processes_find_the_outcome(tmp_path: Path) -> None:
    """One that takes the graph from TorchInductor's cache does not ask for it."""
    env = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}

    def run(graphs: str) -> str:
        command = [sys.executable, "-c", SCRIPT, str(tmp_path / "weft"), graphs]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout.split("\n")[-2]

    assert [run("graphs"), run("graphs"), run("none")] == ["1 1", "0 0", "0 1"]


def test_nothing_is_raced_without_the_option(times: Times, tmp_path: Path) -> None:
    raced(lambda x: x.softmax(-1), tmp_path, race=False)(torch.randn(64, 48))
    assert times.races == 0
    assert [r.race for r in regions_and_refusals()[0]] == [None]
    assert not [*tmp_path.rglob("*.race.json")]


def test_sizes_that_are_known_at_run_time_are_those_of_the_first_call(times: Times, tmp_path: Path) -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return F.layer_norm(x.view(-1, w.shape[0]), (w.shape[0],), w)

    seen: list[Any] = []
    compiled = raced(function, tmp_path)
    x, w = torch.randn(12, 5, 48), torch.randn(48)
    torch._dynamo.mark_dynamic(x, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(race, "times_us", lambda runs, *rest: seen.append(runs[2]()) or times(runs, *rest))
        torch.testing.assert_close(compiled(x, w), function(x, w), rtol=1e-4, atol=1e-4)
    assert [t.shape[0] for t in seen[0] if t.ndim == 2] == [60] * len([t for t in seen[0] if t.ndim == 2])
    assert times.races == 1


def test_indices_are_legal_for_the_smallest_dimension(times: Times, tmp_path: Path) -> None:
    x, y = torch.randn(64, 5, requires_grad=True), torch.randint(5, (64,))
    raced(lambda x, y: F.cross_entropy(x, y), tmp_path)(x, y).backward()
    assert times.races > 0
    assert all(isinstance(r.race, Raced) for r in regions_and_refusals()[0])


def test_parts_of_a_tensor_are_read_where_both_sides_read_it(times: Times, tmp_path: Path) -> None:
    """A part in memory of its own would be other numbers, and more bytes."""

    def rotated(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
        return F.layer_norm(x * c + torch.cat((-x[..., 24:], x[..., :24]), -1) * s, (48,))

    inputs = torch.randn(2, 16, 4, 48), torch.randn(16, 1, 48), torch.randn(16, 1, 48)
    assert [b.within for b in region_of(rotated, *inputs).program.inputs] == ["", "", "", "x", "x"]
    torch.testing.assert_close(raced(rotated, tmp_path)(*inputs), rotated(*inputs), rtol=1e-4, atol=1e-4)
    assert times.races == 1
    (outcome,) = [region.race for region in regions_and_refusals()[0]]
    assert isinstance(outcome, Raced)


def test_a_tensor_that_a_region_puts_together_is_a_result_of_both_sides(times: Times, tmp_path: Path) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.cat([x.exp().sum(0), x.sin().sum(0)])

    x = torch.randn(64, 48)
    (region,) = compile_graph(trace(function, [x]).graph, target=CPU).regions
    assert any(region.region.slots)
    assert len(extract(region.region, {}).module(x)) == 1
    torch.testing.assert_close(raced(function, tmp_path)(x), function(x), rtol=1e-4, atol=1e-4)
    assert times.races == 1


def test_parts_of_a_tensor_that_others_write_as_well_are_not_raced(times: Times, tmp_path: Path) -> None:
    def joined(x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x.softmax(-1).sum(0), y.softmax(-1).sum(0)])

    inputs = torch.randn(64, 32), torch.randn(48, 16)
    torch.testing.assert_close(raced(joined, tmp_path)(*inputs), joined(*inputs))
    regions, refusals = regions_and_refusals()
    assert times.races == 0
    assert [r.race.message for r in regions] == ["it writes a part of a tensor that other regions write as well"] * 2
    assert not refusals


# who wins


def test_what_inductor_wins_is_left_to_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(race, "times_us", Times(30.0, 30.0, 20.0))
    model, x = Norms(2), torch.randn(64, 48)
    expected = gradients(model, model, x)
    torch.testing.assert_close(gradients(model, raced(model, tmp_path), x), expected, rtol=1e-4, atol=1e-4)
    regions, refusals = regions_and_refusals()
    lost = [refusal for refusal in refusals if refusal.rule == "race_lost"]
    assert not regions
    assert weft.counters.refusals["race_lost"] == len(lost) >= 3
    assert {(refusal.have, refusal.limit) for refusal in lost} == {(30.0, 20.0)}
    assert all(refusal.where for refusal in lost)
    text = "\n".join(report.text() for report in weft.last_reports())
    assert "30.0 us measured with weft, 20.0 us with Inductor's code" in text
    assert "race_lost: was predicted to take " in text


@pytest.mark.parametrize(
    ("own", "again", "inductor", "lost"),
    [
        ([10.0] * 8, [10.0] * 8, [9.0] * 8, True),
        ([10.0] * 8, [10.0] * 8, [9.6] * 8, False),  # within what moves from process to process
        ([10.0] * 8, [12.0] * 8, [9.0] * 8, False),  # twice what weft's kernels differ from themselves
        ([10.0] * 8, [10.0] * 8, [8.0] * 5 + [11.0] * 3, False),  # slower in more than a quarter of the rounds
        ([10.0] * 8, [10.0] * 8, [8.0] * 7 + [11.0], True),
    ],
)
def test_inductor_wins_by_more_than_the_noise(
    own: list[float], again: list[float], inductor: list[float], lost: bool
) -> None:
    assert Raced.of(own, again, inductor, "cpu").is_lost is lost


def test_the_margin_of_a_gpu_is_smaller() -> None:
    assert Raced.of([10.0], [10.0], [9.6], "cuda").is_lost


def test_real_times_are_measured(tmp_path: Path) -> None:
    x = torch.randn(64, 48)
    torch.testing.assert_close(raced(lambda x: x.softmax(-1), tmp_path)(x), x.softmax(-1))
    regions, refusals = regions_and_refusals()
    measured = [r.race for r in regions] or [refusal.have for refusal in refusals]
    assert len(measured) == 1
    assert isinstance(measured[0], Raced | float)


# what goes wrong


def one_not_raced(function: Callable[..., Any], x: Tensor, folder: Path) -> Refusal:
    """The reason why the one region of a function has no race; its kernel is used all the same."""
    weft.clear_reports()
    torch.testing.assert_close(raced(function, folder)(x), function(x))
    (region,), refusals = regions_and_refusals()
    assert not refusals
    assert weft.counters.launches > 0
    assert isinstance(region.race, Refusal)
    assert f"not raced: {region.race.message}" in weft.last_reports()[-1].text()
    return region.race


def test_a_race_that_might_run_out_of_memory_is_not_run(
    times: Times, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(race, "_free_bytes", lambda _: 1000)
    found = one_not_raced(lambda x: x.softmax(-1), torch.randn(64, 48), tmp_path)
    assert (found.have, found.limit) == (3 * 2 * 4 * 64 * 48, 1000)
    assert times.races == 0


def test_where_inductor_fails_the_kernels_stay(times: Times, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("fails\non such a graph")

    with monkeypatch.context() as patch:
        patch.setattr(race, "_compiled", broken)
        found = one_not_raced(lambda x: x.softmax(-1), torch.randn(64, 48), tmp_path)
    assert found.message == "RuntimeError: fails on such a graph"
    assert not [*tmp_path.rglob("*.race.json")]
    raced(lambda x: x.softmax(-1), tmp_path)(torch.randn(64, 48))
    assert times.races == 1  # the failure is not kept


def test_an_outcome_that_cannot_be_read_is_measured_again(times: Times, tmp_path: Path) -> None:
    x = torch.randn(64, 48)
    raced(lambda x: x.softmax(-1), tmp_path)(x)
    (path,) = (tmp_path / "weft").rglob("*.race.json")
    path.write_text("{}")
    raced(lambda x: x.softmax(-1), tmp_path)(x)
    assert times.races == 2


def test_a_size_that_nobody_knows_is_said() -> None:
    module = trace(lambda x: x.softmax(-1), [torch.randn(64, 48)], dynamic_rows=True)
    (region,) = compile_graph(module.graph, target=CPU).regions
    with pytest.raises(UnknownSymbolError, match=r"^the size s\d+ is known at run time only$"):
        extract(region.region, {})


# what is said


def test_explanations_have_the_outcomes(times: Times, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def softmax(x: Tensor) -> Tensor:
        return x.softmax(-1)

    x = torch.randn(64, 48)
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "weft"))
    raced(softmax, tmp_path)(x)
    line = "raced: 10.0 us measured, 20.0 us in Inductor's code for the same nodes"
    assert line in weft.last_reports()[-1].text()
    assert line not in weft.explain(softmax, x).text()
    monkeypatch.setenv("WEFT_RACE", "1")
    found = weft.explain(softmax, x)
    assert line in found.text()
    assert [r["race"]["us"] for r in found.to_dict()["regions"]] == [10.0]
    assert line not in weft.explain(softmax, x, target="cpu").text()  # another machine than that at hand
    times.us = (30.0, 30.0, 20.0)
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "other" / "weft"))
    raced(softmax, tmp_path / "other")(x)
    assert [r["rule"] for r in weft.explain(softmax, x).to_dict()["refusals"]] == ["race_lost"]


def region_of(function: Callable[..., Any], *inputs: Tensor) -> CompiledRegion:
    (region,) = compile_graph(trace(function, inputs).graph, target=CPU).regions
    return region


def test_a_race_is_known_by_everything_that_it_depends_on() -> None:
    region = region_of(lambda x: x.softmax(-1), torch.randn(64, 48))
    own = race.identity_of(region)
    assert own == race.identity_of(region_of(lambda other: other.softmax(-1), torch.randn(64, 48)))
    others = [
        race.identity_of(region_of(lambda x: x.softmax(-1), torch.randn(64, 56))),
        race.identity_of(region_of(lambda x: x.softmax(-1), torch.randn(64, 56)[:, :48])),
        race.identity_of(replace(region, plan=replace(region.plan, target=replace(CPU, device="another")))),
    ]
    with config.patch({"triton.mix_order_reduction": True, "max_autotune": True}):
        others.append(race.identity_of(region))
    assert len({race.raced.key_of(identity) for identity in [own, *others]}) == 5


def test_a_graph_without_regions_has_no_race(times: Times) -> None:
    nothing = Compilation((), ())
    assert race.race(nothing, {}, Options()) == nothing
    assert times.races == 0


def test_a_region_is_whole_if_it_writes_all_parts() -> None:
    def joined(x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x.softmax(-1).sum(0), y.softmax(-1).sum(0)])

    found = compile_graph(trace(joined, [torch.randn(64, 32), torch.randn(48, 16)]).graph, target=CPU)
    assert [is_whole(region.region) for region in found.regions] == [False, False]
    assert is_whole(region_of(lambda x: x.softmax(-1), torch.randn(64, 48)).region)
