"""``tools.fusion`` without a GPU: what is drawn and built, which plans are compared, bars, tables, the page."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from rich.console import Console

from tools import fusion
from tools.fusion import PlanRun, Result
from tools.fusion_cells import (
    BEST,
    COUNT,
    REGIONS,
    SEED,
    SIZES,
    SWEPT,
    Cell,
    Drawn,
    case_of,
    cells_of,
    compared,
    drawn,
    grouping,
    plans_of,
    program_of,
)
from weft.bench.correctness import tensors_of
from weft.bench.kernel_run import input_tensors, what_is_wrong
from weft.capture.regions import capture
from weft.capture.trace import trace
from weft.ir.interpret import interpret
from weft.options import MixedOrder, Options
from weft.plan.kernel import Plan
from weft.plan.planner import plan
from weft.target import Target

pytestmark = pytest.mark.where_changed("tools")

H200, CPU = Target.named("h200"), Target.named("cpu")
ROOT = Path(__file__).parent.parent
OVER = Cell("over", "mix_backward_14", 98304, 512, 14)


def small(cell: Cell) -> Cell:
    """The same region with less data."""
    return Cell(cell.part, cell.name, 24, 16, cell.reads, cell.drawn)


@pytest.mark.parametrize("reads", REGIONS)
def test_a_region_reads_as_many_buffers_as_it_is_named_for(reads: int) -> None:
    program = program_of(Cell("over", "region", 98304, 512, reads))
    assert len(program.inputs) == len(REGIONS[reads]) == reads
    found = plan(program, H200)
    assert isinstance(found, Plan)
    assert "mixed-order" in found.kinds
    limited = plan(program, H200, mixed_order=MixedOrder(max_reads=fusion.MAX_READS))
    assert isinstance(limited, Plan)
    assert [cut.rule for cut in limited.cuts] == ["max_reads"] * (reads > fusion.MAX_READS)


def test_the_gradients_of_a_region_are_autograd_s() -> None:
    """Of the region that reads eleven, in float64."""
    draw = torch.Generator().manual_seed(0)
    rows, columns = 6, 8

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=draw, dtype=torch.float64)

    names = REGIONS[11]
    before, embedded, dn, later, branch, weight, mix0, mix1, scale = leaves = [
        *(normal(rows, columns) for _ in range(5)), *(normal(columns) for _ in range(4))
    ]  # fmt: skip
    for leaf in leaves:
        leaf.requires_grad_()
    earlier = (before - scale * branch).detach()
    x = mix0 * (earlier + scale * branch) + mix1 * embedded
    rstd = x.square().mean(-1, keepdim=True).rsqrt()
    loss = (x * rstd * weight * dn.detach()).sum() + (x * later.detach()).sum()
    wanted = torch.autograd.grad(loss, [embedded, branch, weight, mix0, mix1, scale])
    read = {"dn": dn, "x": x, "weight": weight, "rstd": rstd, "dresidual": later, "mix0": mix0, "mix1": mix1}
    read |= {"before": before, "embedded": embedded, "mlp_scale": scale, "mlp_branch": branch}
    inputs = [read[name].detach() for name in names]
    _, d_embedded, d_branch, *sums = case_of(Cell("over", "", rows, columns, 11), "cpu").function(*inputs)
    for mine, right in zip((d_embedded, d_branch, *sums), wanted, strict=True):
        torch.testing.assert_close(mine, right)


def test_what_is_drawn_depends_on_the_seed_alone() -> None:
    found = drawn(SEED)
    assert found == drawn(SEED) != drawn(SEED + 1)
    assert len(found) == COUNT
    assert {each.sums for each in found} == {1, 2, 3, 4}
    assert {each.written for each in found} == {0, 1, 2, 3}
    assert len({each.columns for each in found}) > COUNT // 2


@pytest.mark.parametrize("each", drawn(SEED)[::4], ids=str)
def test_a_drawn_region_is_one_and_computes_its_function(each: Drawn) -> None:
    cell = small(Cell("under", str(each), each.rows, each.columns, 0, each))
    case = case_of(cell, "cpu")
    graph = trace(case.function, case.inputs).graph
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    (last,) = (node for node in graph.nodes if node.op == "output")
    (region,) = capture(graph, "region").regions
    made = interpret(region.program, [case.inputs[placeholders.index(node)] for node in region.inputs])
    outputs = tensors_of(case.function(*case.inputs))
    assert len(outputs) == max(1, each.written) + each.sums
    for mine, node in zip(made, region.outputs, strict=True):
        right = outputs[last.args[0].index(node)].double()
        torch.testing.assert_close(mine.reshape(right.shape), right, rtol=0.02, atol=0.02 * float(right.abs().max()))


def test_cells_of_the_parts() -> None:
    assert [cell.reads for cell in cells_of("over", 0)] == [6, 7, 10, 11, 14, 19]
    assert len(cells_of("under", 1)) == 40
    sweep = cells_of("sweep", 0)
    assert len({(c.name, c.rows, c.columns) for c in sweep}) == len(sweep) == len(SWEPT) * len(SIZES) ** 2
    assert (min(SIZES), max(SIZES)) == (256, 16384)
    assert any(size & (size - 1) for size in SIZES)
    assert [c.reads for c in fusion.some(cells_of("over", 0), 3)] == [6, 10, 14]


@pytest.mark.parametrize(("sums", "count"), [(1, 2), (2, 5), (3, 15)])
def test_few_outputs_are_compared_in_all_partitions(sums: int, count: int) -> None:
    each = Drawn(4096, 512, 3, 1, 1, sums, 5)
    cell = Cell("under", str(each), 4096, 512, 0, each)
    found = plans_of(program_of(cell), H200)
    plans = compared(cell, found)
    assert len(found) == len(plans) == count
    assert list(plans) == list(found)
    assert next(iter(found.values())).predicted_us == min(p.predicted_us for p in found.values())
    chosen = plan(program_of(cell), H200)
    assert isinstance(chosen, Plan)
    assert grouping(chosen, program_of(cell)) == next(iter(plans))


def test_of_many_the_best_are_compared_and_all_together_and_apart() -> None:
    each = Drawn(65536, 512, 2, 1, 2, 4, 3)
    cell = Cell("under", str(each), 65536, 512, 0, each)
    found = plans_of(program_of(cell), H200)
    plans = list(compared(cell, found).values())
    assert len(found) == 16
    assert plans[:BEST] == list(found.values())[:BEST]
    assert BEST <= len(plans) <= BEST + 2
    assert any(len(p.kernels) == 1 for p in plans)
    assert any("mixed-order" not in p.kinds for p in plans)


@pytest.mark.parametrize(("rows", "first"), [(256, "apart"), (16384, "fused")])
def test_the_sweep_compares_both_ways_the_chosen_one_first(rows: int, first: str) -> None:
    cell = Cell("sweep", "rms_norm_backward", rows, 4096)
    plans = compared(cell, plans_of(program_of(cell), H200))
    assert sorted(plans) == ["apart", "fused"]
    assert next(iter(plans)) == first
    assert "mixed-order" in plans["fused"].kinds
    assert "mixed-order" not in plans["apart"].kinds


def test_a_plan_runs_on_tensors_of_its_own() -> None:
    cell = small(OVER)
    program = program_of(cell)
    inputs = input_tensors(program, (), torch.device("cpu"))
    for mixed_order in (MixedOrder(), MixedOrder(allowed=False)):
        chosen = plan(program, CPU, mixed_order=mixed_order)
        assert isinstance(chosen, Plan)
        run = PlanRun(chosen, program, inputs, Options.read())
        run.poison()
        assert what_is_wrong(program, inputs, run.outputs, ())
        run()
        assert not what_is_wrong(program, inputs, run.outputs, ())


def results() -> list[Result]:
    sweep = [Cell("sweep", "row_column_sum", rows, columns) for rows in (256, 512) for columns in (256, 1024)]
    return [
        Result(
            OVER, {"weft": 102.0, "weft_limited": 90.0, "inductor_mixed": 100.0, "inductor_apart": 101.0}, refused=1
        ),
        Result(Cell("over", "mix_backward_19", 98304, 512, 19), {"weft": 103.0, "inductor_apart": 100.0}),
        Result(Cell("under", "a", 64, 64), {"x": 10.0, "y": 9.6, "inductor": 20.0}, {"x": 9.0, "y": 9.5}),
        Result(Cell("under", "b", 64, 64), {"x": 10.0, "y": 9.4, "inductor": 20.0}),
        Result(Cell("under", "c", 64, 64), wrong="x: out0: largest error"),
        Result(sweep[0], {"apart": 3.0, "fused": 6.0}),
        Result(sweep[1], {"fused": 10.0, "apart": 9.0}),
        Result(sweep[2], {"apart": 3.0}),
        Result(sweep[3], {"fused": 5.0, "apart": 6.0}),
    ]


def test_what_misses_a_bar_is_named() -> None:
    """Weft with a limit is no bar for weft."""
    assert fusion.missed(results()) == [
        "over: mix_backward_19 98304x512: 1.030 of the time of inductor_apart; weft 103.0 us, best other 100.0 us",
        "under: b 64x64: 1.064 of the time of y; x 10.0 us, best other 9.4 us",
        "under: c 64x64: x: out0: largest error",
        "sweep: row_column_sum 256x1024: 1.111 of the time of apart; fused 10.0 us, best other 9.0 us",
    ]
    assert fusion.missed(results()[1:2])[-1] == "over: nothing is refused with max_reads"
    assert fusion.missed(results()[2:3]) == []


def test_the_table_has_a_line_a_cell(capsys: pytest.CaptureFixture[str]) -> None:
    found = results()
    Console(width=120).print(fusion.table("under", found[2:5]))
    shown = capsys.readouterr().out
    assert "under, bar 1.05" in shown
    assert "1.042" in shown
    assert "1.064 missed" in shown
    assert "largest error" in shown


def test_a_gpu_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(SystemExit):
        fusion.main([])
    assert "torch sees no GPU here" in capsys.readouterr().err


def page() -> ModuleType:
    """The module that writes this part of the page on performance."""
    spec = importlib.util.spec_from_file_location("performance_fusion", ROOT / "docs" / "performance_fusion.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_the_tables_of_a_record_and_nothing_without_one(tmp_path: Path) -> None:
    fusion_page, path = page().fusion_page, tmp_path / "h200_fusion.json"
    assert fusion_page([path]) == ""
    cells = [asdict(result) for result in results()]
    path.write_text(json.dumps({"command": "the command", "cells": cells, "missed": fusion.missed(results())}))
    text = fusion_page([path, path.with_name("h100_fusion.json")])
    assert text.startswith("## What shares a kernel\n\n### On an H200\n\n`the command`\n\n")
    assert "| 14 | 102.0 | 90.0 | 100.0 | 101.0 |  |\n" in text
    assert "2 regions drawn at random" in text
    assert "1.053 of the time of the best" in text
    assert "1.064 at the most, and 0.50 of TorchInductor's, 0.50 at the most." in text
    assert "| row_column_sum | 256 | 1024 |\n|---|---|---|\n| 256 | 0.50 | **0.90** |\n| 512 |  | 1.20 |" in text
    assert "- under: c 64x64: x: out0: largest error\n" in text


class InThisProcess:
    """An executor that does what it is given at once."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __enter__(self) -> InThisProcess:
        return self

    def __exit__(self, *_: object) -> None: ...

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(function(*arguments))
        return done


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command on this processor, with small cells and times that are counted."""
    cells = {part: [small(cell) for cell in cells_of(part, SEED)[:2]] for part in ("over", "under", "sweep")}
    monkeypatch.setattr(fusion, "DEVICE", "cpu")
    monkeypatch.setattr(fusion, "cells_of", lambda part, seed: cells[part])
    monkeypatch.setattr(fusion, "medians_us", lambda runs, *_: [10.0 + i for i, run in enumerate(runs) if run() or 1])
    monkeypatch.setattr(fusion, "processes", InThisProcess)
    monkeypatch.setattr(fusion, "require_gpu", lambda parser: None)
    monkeypatch.setattr(fusion, "machine", lambda device: {"gpu": "none"})
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)


@pytest.mark.slow
def test_every_part_is_measured_and_written(on_cpu: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a CPU the reads of the first two regions are below the limit, of which the bars say so."""
    path = tmp_path / "fusion.json"
    assert fusion.main(["--json", str(path), "--part", "over", "under", "sweep"]) == 1
    record = json.loads(path.read_text())
    assert [cell["wrong"] for cell in record["cells"]] == [""] * 6, capsys.readouterr().out
    names = [[*cell["us"]] for cell in record["cells"]]
    assert all({"weft", "weft_limited", "inductor_mixed", "inductor_apart"} <= {*own} for own in names[:2])
    assert [own[-1] for own in names[2:4]] == ["inductor"] * 2
    assert names[4:] == [["fused"]] * 2
    assert record["missed"] == ["over: nothing is refused with max_reads"]
    assert fusion.main(["--part", "under", "--seconds", "0"]) == 0


def test_a_wrong_result_is_said(on_cpu: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(PlanRun, "__call__", lambda self: None)
    path = tmp_path / "fusion.json"
    assert fusion.main(["--json", str(path), "--part", "sweep"]) == 1
    (first, *_) = json.loads(path.read_text())["missed"]
    assert first.startswith("sweep: row_column_sum 24x16: fused: out0: elements are not finite, or were never written")
