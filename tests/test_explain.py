"""What weft says of a function: the figures are those the planner used, and each choice follows from them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import weft
from weft.bench.workloads import WORKLOADS
from weft.commands.subject import resolve
from weft.compiler import CompiledRegion
from weft.explain.drawing import Drawing, draw_narrow, draw_wide, size_text
from weft.explain.explanation import Explanation
from weft.integration import race
from weft.runtime import launch
from weft.runtime.raced import Raced

KERNEL_FIELDS = {
    *("name", "scheme", "schedule", "inputs", "outputs", "bytes_read", "bytes_written", "predicted_us"),
    *("registers_per_thread", "spill_bytes", "shared_bytes", "resources_from"),
}
TARGETS = ("cpu", "h200")


@cache
def explained(name: str, target: str = "h200") -> Explanation:
    """Of a workload in its own size."""
    subject = resolve(name)
    with subject.scope():
        return weft.explain(subject.function, *subject.inputs, target=target, name=name)


def add_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = x + residual
    return F.rms_norm(total, (64,), weight), total


@pytest.fixture(scope="module")
def trained() -> Explanation:
    """A function whose inputs need gradients."""
    x = torch.randn(2048, 64, requires_grad=True)
    return weft.explain(add_norm, x, torch.randn(2048, 64), torch.ones(64, requires_grad=True), target="h200")


# what the figures say


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["rms_norm_backward", "batch_norm_forward", "modulated_layer_norm_backward"])
def test_every_decision_follows_from_the_figures_beside_it(name: str, target: str) -> None:
    found = json.loads(explained(name, target).to_json())
    assert found["decisions"]
    for decision in found["decisions"]:
        check_decision(decision, found["target"])
    for region in range(len(found["regions"])):
        own = [d for d in found["decisions"] if d["region"] == region and d["together"]]
        (taken,) = (d for d in own if d["taken"])
        assert taken["together_us"] == min(d["together_us"] for d in own)
        assert taken["together_us"] <= taken["apart_us"]
        predicted = [k["predicted_us"] for k in found["kernels"] if k["region"] == region]
        assert sum(predicted) == pytest.approx(taken["together_us"])


def check_decision(decision: dict[str, Any], target: dict[str, Any]) -> None:
    """Compute every time anew from counts and the target's constants."""
    for estimate in (*decision["together"], *decision["apart"]):
        moved = estimate["bytes_read"] + estimate["bytes_written"] + 2 * estimate["workspace_bytes"]
        arithmetic = (
            estimate["vector_operations"] / 2**20 * target["vector_op_us_per_mega"]
            + estimate["row_loops"] * target["row_overhead_us"]
            + estimate["chunks"] * target["chunk_overhead_us"]
        )
        again = (
            estimate["starts"] * target["launch_us"]
            + max(moved / (target["bandwidth_gbps"] * 1e3), arithmetic / target["units"])
            + estimate["strided_elements"] / 2**20 * target["strided_us_per_mega"]
        )
        if target["kind"] == "cpu":
            assert estimate["predicted_us"] == pytest.approx(again)
        else:  # memory and tiles go on at a time, as the model of a GPU's time says
            parts = [estimate[key] for key in ("memory_us", "compute_us")]
            assert max(parts) < estimate["predicted_us"] < estimate["start_us"] + 1.01 * sum(parts) + 10
    for way in ("together", "apart"):
        total = sum(e["predicted_us"] for e in decision[way]) if decision[way] else None
        assert decision[f"{way}_us"] == (None if total is None else pytest.approx(total))
    if decision["refusal"] is not None:
        assert not decision["taken"]
        have, limit, rule = (decision["refusal"][key] for key in ("have", "limit", "rule"))
        assert have >= limit if rule == "strided_columns" else have > limit or rule == "partial_row"


def test_a_region_that_is_not_worth_it_comes_with_both_times() -> None:
    found = json.loads(weft.explain(lambda x: x.sum(-1), torch.randn(64, 64), target="h200").to_json())
    (refusal,) = found["refusals"]
    assert (found["regions"], refusal["rule"]) == ([], "not_worthwhile")
    figures = refusal["figures"]
    check_decision(figures | {"taken": True, "refusal": None}, found["target"])
    assert refusal["have"] == round(figures["together_us"], 1)
    assert refusal["limit"] == round(figures["apart_us"], 1)
    assert refusal["have"] >= refusal["limit"]


def test_bytes_are_those_of_the_tensors() -> None:
    (kernel,) = json.loads(explained("rms_norm_backward").to_json())["kernels"]
    rows, columns = WORKLOADS["rms_norm_backward"].default_shape
    assert kernel["bytes_read"] == 2 * rows * columns * 2 + columns * 2 + rows * 4
    assert kernel["bytes_written"] == rows * columns * 2 + columns * 2
    assert {b["source"]: (b["dtype"], b["shape"]) for b in kernel["inputs"]} == {
        "dy": ("bf16", [rows, columns]),
        "x": ("bf16", [rows, columns]),
        "weight": ("bf16", [columns]),
        "rstd": ("f32", [rows]),
    }


# the object


def test_the_json_is_one_object_with_every_kernel(trained: Explanation) -> None:
    found = json.loads(trained.to_json())
    assert set(found) == {"name", "target", "plan_only", "graphs", "regions", "kernels", "decisions", "refusals"}
    assert [g["kind"] for g in found["graphs"]] == ["forward", "backward"]
    assert (found["name"], found["target"]["name"]) == ("add_norm", "h200")
    assert [k["kind"] for k in found["kernels"]] == ["inner", "mixed-order"]
    for kernel in found["kernels"]:
        assert kernel.keys() >= KERNEL_FIELDS
        assert kernel["resources_from"] == "model"
        assert 0 < kernel["registers_per_thread"] < 255
        assert "@triton.jit" in kernel["source"]
        assert found["regions"][kernel["region"]]["graph"] == kernel["graph"]
    sources = [b["source"] for b in found["kernels"][0]["inputs"]]
    assert sources == ["x", "residual", "weight"]


def test_on_a_cpu_there_are_sources_and_no_registers() -> None:
    (kernel,) = json.loads(explained("softmax_backward", "cpu").to_json())["kernels"]
    assert 'extern "C"' in kernel["source"]
    assert kernel["registers_per_thread"] is kernel["spill_bytes"] is kernel["shared_bytes"] is None


def test_the_text_names_kernels_reasons_and_lines(trained: Explanation) -> None:
    lines = trained.text().splitlines()
    summary = (
        r"add_norm on h200: 2 regions in 2 kernels of weft's, which move [\d.]+ MB: \d+ us predicted, "
        r"\d+ us left to Inductor"
    )
    assert re.fullmatch(summary, lines[0])
    assert [line for line in lines if line in ("forward:", "backward:")] == ["forward:", "backward:"]
    assert "      reads x, residual, weight" in lines
    alone = "with rows and columns in kernels of their own"
    verdict = rf"    taken: [\d.]+ us predicted, [\d.]+ us left to Inductor, {alone}"
    assert any(re.fullmatch(verdict, line) for line in lines)
    assert any(re.fullmatch(r"    from test_explain.py:\d+: total = x \+ residual", line) for line in lines)
    assert str(trained) == trained.text()


@pytest.mark.parametrize(
    ("target", "triton", "plan_only"), [("h200", False, True), ("h200", True, False), ("cpu", False, False)]
)
def test_a_plan_that_nothing_writes_code_for_says_so(
    target: str, triton: bool, plan_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from weft.explain import explanation
    from weft.explain.html import page

    monkeypatch.setattr(explanation, "supports_cuda", lambda: triton)
    found = explained("rms_norm_backward", target)
    assert found.to_dict()["plan_only"] is plan_only
    told = "a plan only: without Triton weft writes no code for GPUs, and leaves what runs on one to TorchInductor"
    assert (found.text().splitlines()[1] == told) is plan_only
    assert (told in page(found)) is plan_only


def test_a_target_without_measurements_says_so() -> None:
    text = weft.explain(lambda x: torch.softmax(x, -1), torch.randn(8, 64), target="gb200").summary()
    assert " on gb200 (its figures are not measured): " in text


def test_a_function_with_nothing_to_fuse() -> None:
    found = weft.explain(lambda x: x @ x, torch.randn(8, 8), target="cpu")
    assert "0 regions in 0 kernels" in found.text()
    assert "left out: 1 x unsupported_op: aten.mm.default is no operation weft fuses" in found.text()


def test_an_unknown_target_is_an_error() -> None:
    with pytest.raises(ValueError, match="no target named 'h300'; known: a100, b200, cpu, "):
        weft.explain(lambda x: x, torch.randn(8), target="h300")


def test_both_sides_of_a_graph_break_are_explained() -> None:
    def broken(x: Tensor) -> Tensor:
        y = torch.softmax(x, -1)
        torch._dynamo.graph_break()
        return torch.softmax(y * 2, -1)

    assert [g.kind for g in weft.explain(broken, torch.randn(8, 16), target="cpu").graphs] == ["inference"] * 2


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(64) for _ in range(5))
        self.linears = nn.ModuleList(nn.Linear(64, 64) for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        for norm, linear in zip(self.norms, self.linears, strict=True):
            x = x + linear(norm(x))
        return x


@pytest.fixture(scope="module")
def blocks() -> Explanation:
    with FakeTensorMode():
        return weft.explain(Blocks(), torch.randn(2**20, 64), target="h200")


def test_equal_blocks_of_a_model_are_shown_once(blocks: Explanation) -> None:
    groups = [g for g in blocks.equal_regions() if g.graph.kind == "forward"]
    assert [len(g.places) for g in groups] == [1, 1, 3]
    assert blocks.name == "Blocks"
    assert any(line.endswith("-> 1 kernel(s) (3 times)") for line in blocks.text().splitlines())
    first, *_ = (k for k in json.loads(blocks.to_json())["kernels"])
    assert {b["source"] for b in first["inputs"]} == {"x", "norms.0.weight", "norms.0.bias"}


def test_nothing_stays_compiled_and_nothing_is_recorded(trained: Explanation) -> None:
    weft.counters.reset()
    weft.clear_reports()
    weft.explain(add_norm, torch.randn(8, 64), torch.randn(8, 64), torch.ones(64), target="cpu")
    assert weft.counters.to_dict()["pass_calls"] == weft.counters.builds == 0
    assert weft.last_reports() == []


def test_what_is_computed_again_at_a_border_comes_with_the_bytes_it_saves() -> None:
    def widened(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        wide = x.float().exp()  # four bytes an element that two bytes are enough for
        first = torch.softmax(wide, -1).bfloat16() @ y
        return first, (wide * first.float()).sum(-1)

    with FakeTensorMode():
        found = weft.explain(widened, *torch.empty(2, 2048, 2048, dtype=torch.bfloat16), target="h200")
    (graph,) = json.loads(found.to_json())["graphs"]
    borders = graph["borders"]
    assert {entry["bytes"] for entry in borders["again"]} == {4 * 2048**2}
    assert borders["stored_bytes"] - borders["moved_bytes"] == (4 + 4 - 2) * 2048**2
    (line,) = (line for line in found.text().splitlines() if "borders: " in line)
    assert line.startswith("  borders: ")
    assert (
        f"computed again rather than stored and loaded: {size_text(borders['moved_bytes'])} moved in all, not " in line
    )


# the page


def drawings(found: Explanation) -> Iterator[tuple[Drawing, Any]]:
    for group in found.equal_regions():
        for draw in (draw_wide, draw_narrow):
            yield draw(group.first.plan, {}), group.first.plan


@pytest.mark.parametrize("name", ["batch_norm_forward", "layer_norm_backward_bias", "cross_entropy_forward"])
def test_every_tensor_and_kernel_has_a_box_of_its_own(name: str) -> None:
    for drawing, plan in drawings(explained(name)):
        kernels = [n.name for n in drawing.nodes if n.kind == "kernel"]
        assert kernels == [k.name for k in plan.kernels]
        shown = {n.name for n in drawing.nodes} - set(kernels)
        programs = [k.program for k in plan.kernels]
        assert shown == {b.name for p in programs for b in (*p.inputs, *(o.buffer for o in p.outputs))}
        for at, one in enumerate(drawing.nodes):
            assert 0 <= one.x <= one.x + one.width <= drawing.width
            assert 0 <= one.y <= one.y + one.height <= drawing.height
            for other in drawing.nodes[:at]:
                beside = one.x >= other.x + other.width or other.x >= one.x + one.width
                assert beside or one.y >= other.y + other.height or other.y >= one.y + one.height, (one, other)


@pytest.mark.parametrize("name", ["batch_norm_forward", "layer_norm_backward_bias"])
def test_edges_lead_from_box_to_box_with_the_bytes_of_the_tensor(name: str) -> None:
    for group in explained(name).equal_regions():
        plan = group.first.plan
        drawing = draw_wide(plan, {})
        moved = sorted(edge.label for edge in drawing.edges if edge.label)
        expected = {size_text(count) for count in bytes_of(plan).values()}
        assert set(moved) == expected


def bytes_of(plan: Any) -> dict[str, int]:
    from weft.ir.dtypes import itemsize

    found = {}
    for kernel in plan.kernels:
        for buffer in (*kernel.program.inputs, *(o.buffer for o in kernel.program.outputs)):
            count = itemsize(buffer.dtype)
            for dim in buffer.dims:
                count *= int(kernel.program.size_of(dim))
            found[buffer.name] = count
    return found


def test_the_page_stands_alone_and_shows_everything(trained: Explanation, tmp_path: Path) -> None:
    path = trained.to_html(tmp_path / "folder" / "page.html")
    text = path.read_text()
    assert "http" not in text
    assert not re.search(r'(src|href)="(?!#)', text)
    for kernel in json.loads(trained.to_json())["kernels"]:
        assert f">{kernel['name']}</text>" in text
    assert "total = x + residual" in text
    assert "us left to Inductor, with rows and columns in kernels of their own" in text


def test_a_narrow_page_can_break_names_and_has_figures_beside_their_reason() -> None:
    from weft.explain.html import page

    text = page(weft.explain(lambda x: (x.softmax(-1), x.sum(-1) @ x), torch.randn(64, 64), target="h200"))
    assert '<td class="name">row_<wbr>max_<wbr>exp_<wbr>row_<wbr>sum</td>' in text
    refused = text[text.index("Left to TorchInductor") :]
    assert "<th>have</th>" not in refused
    text = page(weft.explain(lambda x: x.sum(-1), torch.randn(64, 64), target="h200"))
    assert re.search(r"no faster than Inductor&#39;s; [\d.]+ us predicted, [\d.]+ us left to Inductor</td>", text)


def test_names_of_the_user_are_no_markup() -> None:
    found = weft.explain(lambda x: torch.softmax(x, -1), torch.randn(8, 16), target="cpu", name="<b>&")
    from weft.explain.html import page

    assert "<b>" not in page(found)
    assert "&lt;b&gt;&amp;" in page(found)


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (999, "999 B"), (16384, "16.4 kB"), (134217728, "134 MB"),
                                             (3 * 10**9, "3 GB"), (1234 * 10**9, "1234 GB")])  # fmt: skip
def test_sizes_for_a_person(count: int, text: str) -> None:
    assert size_text(count) == text


# measured


def softmax_of_norm(x: Tensor) -> Tensor:
    return torch.softmax(F.layer_norm(x, (64,)) @ x.new_ones(64, 32), -1)


def test_each_region_is_timed_beside_inductors_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One that is slower stays; what went wrong is said."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    outcomes = [Raced(10.0, 5.0, 0.5, 0.5, 0.02), RuntimeError("the profiler is busy")]
    ran: list[str] = []

    def run(compiled: CompiledRegion, *_: Any) -> Raced:
        ran.append(compiled.program.name)
        assert launch.running(compiled.plan.kernels[0]) == compiled.plan.kernels[0]
        outcome = outcomes[len(ran) - 1]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(race, "_run", run)
    found = weft.explain(softmax_of_norm, torch.randn(512, 64), measure=True)
    assert len(ran) == 2
    text = found.text()
    assert "raced: 10.0 us measured, 5.0 us in Inductor's code for the same nodes" in text
    assert "not raced: RuntimeError: the profiler is busy" in text
    assert found.summary().endswith("; 10 us measured of 1 region, 5 us in Inductor's code")
    assert found.to_dict()["regions"][0]["race"]["inductor_us"] == 5.0


def test_a_machine_that_is_not_at_hand_is_not_measured() -> None:
    with pytest.raises(ValueError, match="only the machine at hand can be measured"):
        weft.explain(softmax_of_norm, torch.randn(512, 64), target="h200", measure=True)
