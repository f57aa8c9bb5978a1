"""Reports and options: everything weft says of a graph as text and as JSON, and where settings come from."""

from __future__ import annotations

import gc
import json
import os
import re
import weakref
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._inductor.runtime.cache_dir_utils import cache_dir

import weft
from weft.capture.trace import trace
from weft.compiler import Compilation, compile_graph
from weft.errors import Refusal, RefusedError
from weft.integration import report
from weft.integration.backend import WeftPass
from weft.integration.report import CachedReport, Report
from weft.options import Options
from weft.plan.kernel import Decision, Estimate
from weft.plan.planner import plan_split
from weft.runtime import launch
from weft.target import Target


def model(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.softmax(x, -1)
    return (y @ w).cumsum(0), y.sum(0)


def compiled(function: Any, *inputs: Tensor) -> Compilation:
    return compile_graph(trace(function, inputs).graph)


@pytest.fixture
def found() -> Compilation:
    return compiled(model, torch.randn(8, 16), torch.randn(16, 16))


def in_passes() -> Compilation:
    """A norm by the mean distance from the mean of all rows: three kernels and two reasons."""

    def function(x: Tensor) -> Tensor:
        centred = x - x.mean(0)
        return centred / centred.abs().mean(0)

    found = compiled(function, torch.randn(2048, 64))
    (region,) = found.regions
    plan = plan_split(region.program, ("m",), ("n",), Target.named("cpu"), {})
    assert not isinstance(plan, Refusal)
    sources = tuple(region.sources[0] for _ in plan.kernels)
    return replace(found, regions=(replace(region, plan=plan, sources=sources),))


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(launch, "FOUND_BY_TEXT", [])
    report.clear_reports()
    yield
    report.clear_reports()


def test_a_report_says_what_a_kernel_reads_writes_and_moves(found: Compilation) -> None:
    (region,) = found.regions
    (kernel,), (estimate,) = region.plan.kernels, region.plan.estimates
    lines = Report.of(found).text().splitlines()
    assert lines[0] == f"region of {len(region.region.members)} operations -> 1 kernel(s)"
    moved = (8 * 16 * 4 * 2 + 16 * 4) / 1e6
    assert lines[1] == f"  mixed-order kernel, STREAM, {moved:.2f} MB, {estimate.predicted_us:.0f} us predicted"
    assert lines[2] == "    reads " + ", ".join(b.name for b in kernel.program.inputs) == "    reads x"
    assert lines[3] == "    writes out0, out1"


def test_a_report_counts_what_was_left_out_by_reason(found: Compilation) -> None:
    text = Report.of(found).text()
    assert "left out: 1 x unsupported_op: aten.mm.default is no operation weft fuses" in text
    assert "left out: 1 x unsupported_op: aten.cumsum.default is no operation weft fuses" in text


def test_the_commonest_reason_comes_first_and_equal_ones_are_one_line() -> None:
    refusals = (
        Refusal("unsupported_op", "mm", "aten.mm.default is no operation weft fuses"),
        *(Refusal("no_reduction", f"add_{i}", "no reduction shares its data") for i in range(3)),
    )
    assert Report((), refusals).text().splitlines() == [
        "left out: 3 x no_reduction: no reduction shares its data",
        "left out: 1 x unsupported_op: aten.mm.default is no operation weft fuses",
    ]


def test_figures_of_a_refusal_are_shown() -> None:
    refusals = (
        Refusal("not_worthwhile", "region", "predicted to be slower", 12.5, 7.0),
        Refusal("dimensions", "region", "has more dimensions", 9, 8),
        Refusal("unsupported_op", "mm", "is no operation"),
    )
    lines = Report((), refusals).text().splitlines()
    assert "left out: 1 x not_worthwhile: predicted to be slower; 12.5 us predicted, 7.0 us left to Inductor" in lines
    assert "left out: 1 x dimensions: has more dimensions; have 9 dimensions, limit 8" in lines
    assert "left out: 1 x unsupported_op: is no operation" in lines


def test_a_figure_of_zero_is_a_figure() -> None:
    zero = Refusal("not_worthwhile", "region", "predicted to be slower", 0, 0.0)
    assert Report((), (zero,)).text().endswith("; 0 us predicted, 0.0 us left to Inductor")
    assert str(zero).endswith("(0 us predicted, 0.0 us left to Inductor)")


def test_cuts_between_kernels_are_shown() -> None:
    found = in_passes()
    text = Report.of(found).text()
    assert "-> 3 kernel(s)" in text
    reasons = [d.refusal for d in found.regions[0].plan.decisions if d.refusal is not None]
    assert len(reasons) == 2
    for reason in reasons:
        assert f"  cut: {reason}" in text.splitlines()


def test_lines_of_the_users_program_are_shown() -> None:
    graph = trace(lambda x: torch.softmax(x, -1), (torch.randn(8, 16),))
    for i, node in enumerate(n for n in graph.graph.nodes if n.op == "call_function"):
        node.meta["stack_trace"] = f'  File "/home/user/model.py", line {i}, in forward\n    step {i}\n'
    found = Report.of(compile_graph(graph.graph))
    assert "  from model.py:0: step 0" in found.text().splitlines()
    assert found.to_dict()["regions"][0]["lines"][:2] == ["model.py:0: step 0", "model.py:1: step 1"]


def test_what_a_kernel_is_for_is_known_when_its_nodes_are_replaced() -> None:
    """A reduction that a pattern of Inductor made has the place of its reader, as long as that is in the graph."""
    graph = trace(lambda x: torch.softmax(x, -1), (torch.randn(8, 16),)).graph
    *made, last = (node for node in graph.nodes if node.op == "call_function")
    for node in made:
        node.meta.pop("stack_trace", None)
    last.meta["stack_trace"] = '  File "/home/user/model.py", line 7, in forward\n    return scores\n'
    found = compile_graph(graph)
    graph.output_node().args = (None,)
    graph.eliminate_dead_code()
    (kernel,) = Report.of(found).to_dict()["kernels"]
    assert kernel["purpose"] == "model.py:7"


@pytest.mark.parametrize("make", ["one kernel", "several kernels", "nothing"])
def test_a_report_survives_json(make: str) -> None:
    found = {
        "one kernel": lambda: compiled(model, torch.randn(8, 16), torch.randn(16, 16)),
        "several kernels": in_passes,
        "nothing": lambda: compiled(lambda x: x.exp(), torch.randn(8, 16)),
    }[make]()
    data = Report.of(found).to_dict()
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert len(data["regions"]) == len(found.regions)
    assert [r["rule"] for r in data["refusals"]] == [r.rule for r in found.refusals]
    for at, (shown, region) in enumerate(zip(data["regions"], found.regions, strict=True)):
        assert shown["operations"] == len(region.region.members)
        kernels = [k for k in data["kernels"] if k["region"] == at]
        parts = zip(kernels, region.plan.kernels, region.plan.estimates, strict=True)
        for kernel, original, estimate in parts:
            assert kernel["text"] == str(original)
            assert kernel["schedule"] == str(original.schedule)
            assert kernel["bytes_read"] == estimate.bytes_read
            assert kernel["predicted_us"] == estimate.predicted_us
            assert 'extern "C"' in kernel["source"]
        decisions = [d for d in data["decisions"] if d["region"] == at]
        wanted = [*region.plan.decisions, *region.plan.alternatives]
        assert [d["candidate"] for d in decisions] == [d.candidate for d in wanted]
        assert [d["candidate"] for d in decisions if d["taken"]] == [region.plan.decisions[0].candidate]


def estimate_of(name: str, time: float) -> Estimate:
    return Estimate(name, 1, 0, 0, 0, 1, 0.0, 0, 0, 0, time, 0.0, 0.0, 0.0, time)


def test_a_decision_is_data() -> None:
    refusal = Refusal("outer_dependency", "v", "varies over m", 1, 2, "model.py:1: x")
    parts = (estimate_of("a", 1.5), estimate_of("b", 2.0)), (estimate_of("c", 4.5),)
    found = Decision("v with w", refusal, *parts).to_dict()
    assert [e["kernel"] for e in found.pop("together") + found.pop("apart")] == ["a", "b", "c"]
    assert found == {
        "candidate": "v with w",
        "refusal": {
            "rule": "outer_dependency",
            "subject": "v",
            "message": "varies over m",
            "have": 1,
            "limit": 2,
            "where": "model.py:1: x",
            "figures": {},
        },
        "together_us": 3.5,
        "apart_us": 4.5,
    }


def test_a_refusal_reads_as_a_sentence() -> None:
    plain = Refusal("unsupported_op", "mm", "is no operation")
    assert str(plain) == "unsupported_op: mm: is no operation"
    full = replace(plain, rule="dimensions", have=3, limit=2, where="model.py:1: x @ w")
    assert str(full) == "dimensions: mm: is no operation (have 3 dimensions, limit 2) at model.py:1: x @ w"
    error = RefusedError((plain, full))
    assert "2 operation(s) are not fused" in str(error)
    assert f"  - {full}" in str(error)
    assert error.refusals == (plain, full)


def test_reports_are_kept_in_order_and_forgotten(found: Compilation) -> None:
    other = Compilation((), (Refusal("no_reduction", "exp", "alone"),))
    report.record(found)
    report.record(other)
    assert report.last_reports() == [Report.of(found), Report.of(other)]
    report.clear_reports()
    assert report.last_reports() == []


def test_a_report_keeps_nothing_of_its_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[weakref.ref[fx.Graph]] = []
    run = WeftPass.__call__

    def spy(self: WeftPass, graph: fx.Graph) -> None:
        graphs.append(weakref.ref(graph))
        run(self, graph)

    monkeypatch.setattr(WeftPass, "__call__", spy)
    x, w = (torch.randn(*shape, requires_grad=True) for shape in ((8, 16), (16, 16)))
    torch.autograd.backward(weft.fuse(model)(x, w), [torch.ones(8, 16), torch.ones(16)])
    torch._dynamo.reset()
    gc.collect()
    assert [graph() for graph in graphs] == [None, None]
    assert [len(made.to_dict()["regions"]) for made in report.last_reports()] == [1, 1]


def test_the_oldest_reports_go_first() -> None:
    made = [Compilation((), (Refusal("no_reduction", f"n{i}", "alone"),)) for i in range(70)]
    for each in made:
        report.record(each)
    kept = report.last_reports()
    assert kept == [Report.of(each) for each in made[-len(kept) :]]
    assert 1 < len(kept) < 70


def test_kernels_from_a_cache_are_reported_too(found: Compilation) -> None:
    kernels = found.kernels
    launch.FOUND_BY_TEXT.extend(kernels)
    (cached,) = report.last_reports()
    assert cached == CachedReport(kernels)
    assert cached.text().splitlines()[:2] == [
        "1 kernel(s) of graphs from Inductor's cache",
        "  mixed-order kernel, STREAM",
    ]
    data = cached.to_dict()
    assert json.loads(json.dumps(data)) == data
    assert data["kernels"][0]["text"] == str(kernels[0])
    report.clear_reports()
    assert launch.FOUND_BY_TEXT == []


# options


def test_a_given_folder_goes_before_every_variable() -> None:
    env = {"WEFT_CACHE_DIR": "/weft", "TORCHINDUCTOR_CACHE_DIR": "/inductor", "XDG_CACHE_HOME": "/xdg"}
    assert Options.read({"cache_dir": "/given"}, env).cache_dir == "/given"
    assert Options.read({}, env).cache_dir == "/weft"
    del env["WEFT_CACHE_DIR"]
    assert Options.read({}, env).cache_dir == str(Path("/inductor/weft"))
    del env["TORCHINDUCTOR_CACHE_DIR"]
    assert Options.read({}, env).cache_dir == str(Path("/xdg/weft"))
    assert Options.read({}, {}).cache_dir == str(Path.home() / ".cache" / "weft")


def test_a_folder_that_inductor_chose_itself_is_not_the_users_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setattr("os.makedirs", lambda *_, **__: None)
    monkeypatch.delenv("WEFT_CACHE_DIR", raising=False)
    before = Options.read().cache_dir
    chosen = cache_dir()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == chosen
    assert Options.read().cache_dir == before
    assert chosen not in before


@pytest.mark.parametrize("name", ["WEFT_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "XDG_CACHE_HOME"])
def test_an_empty_variable_is_none(name: str) -> None:
    assert Options.read({}, {name: ""}) == Options.read({}, {})


def test_the_compiler_is_given_or_in_the_environment_or_looked_for() -> None:
    assert Options.read({"cxx": "clang++"}, {"CXX": "g++"}).cxx == "clang++"
    assert Options.read({}, {"CXX": "g++"}).cxx == "g++"
    assert Options.read({}, {}).cxx == ""


def test_the_environment_of_the_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", "/from/the/process")
    monkeypatch.setenv("CXX", "some-compiler")
    assert Options.read().cache_dir == "/from/the/process"
    assert Options.read().cxx == "some-compiler"
    assert Options.read(None, {}).cxx == ""


def test_reading_does_not_change_what_was_given() -> None:
    given = {"strict": True}
    env: dict[str, str] = {}
    found = Options.read(given, env)
    assert found.strict
    assert given == {"strict": True}
    assert env == {}
    assert found.build_threads >= 1
    assert Options.read({"build_threads": 3}, {}).build_threads == 3


def test_unknown_options_are_all_named() -> None:
    known = "build_threads, cache_bytes, cache_dir, check, cxx, exact_widths, logs, max_reads"
    with pytest.raises(ValueError, match=f"unknown option colour, size; weft knows {known}"):
        Options.read({"size": 1, "strict": True, "colour": 2}, {})


def test_the_size_of_the_cache_is_given_or_in_the_environment() -> None:
    assert Options.read({}, {}).cache_bytes == 2 * 1024**3
    assert Options.read({}, {"WEFT_CACHE_BYTES": ""}).cache_bytes == 2 * 1024**3
    assert Options.read({}, {"WEFT_CACHE_BYTES": "1000000"}).cache_bytes == 1000000
    assert Options.read({"cache_bytes": 0}, {"WEFT_CACHE_BYTES": "1000000"}).cache_bytes == 0


@pytest.mark.parametrize("wrong", ["2 GB", "-1", "1e9", "0x10"])
def test_a_size_of_the_cache_that_is_no_number_is_named(wrong: str) -> None:
    message = re.escape(f"(cache_bytes, WEFT_CACHE_BYTES) is a number of bytes, not {wrong!r}")
    with pytest.raises(ValueError, match=message):
        Options.read({}, {"WEFT_CACHE_BYTES": wrong})
    with pytest.raises(ValueError, match=message):
        Options.read({"cache_bytes": wrong}, {})


def test_the_size_of_the_cache_changes_no_key() -> None:
    assert Options.read({"cache_bytes": 1}, {}).of_graph == Options.read({}, {}).of_graph


def test_options_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Options.read({}, {}).strict = True  # type: ignore[misc]
