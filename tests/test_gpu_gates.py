"""``tools.gpu_gates`` without a GPU: bars, what is marked and what is forced."""

from __future__ import annotations

import argparse
import json
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.cases import make_case
from tools import compile_time, gpu_bars, gpu_gates, gpu_sweep, host_time, training
from tools.gpu_bars import Cell
from weft.backends.cpp.schedule import CppSchedule
from weft.bench.case import workload_case
from weft.bench.workloads import WORKLOADS
from weft.ir.program import Program
from weft.plan.kernel import Kernel, Plan
from weft.plan.planner import plan
from weft.runtime import launch
from weft.runtime.executable import digest_of
from weft.target import Target

pytestmark = pytest.mark.where_changed("tools")

H200 = Target.named("h200")


def program_of(name: str, shape: tuple[int, int], dtype: torch.dtype) -> Program:
    return make_case(name, tuple(WORKLOADS[name].make_inputs(shape, dtype, "cpu"))).program


def test_what_misses_a_bar_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    peers, reason = {"inductor": 9.0, "eager": 9.9, "quack": 8.0}, ("failed: liger: RuntimeError: [a] list",)
    others = {"copy": 9.0, "weft": 10.0, "inductor": 14.0}
    cells = [
        Cell("rms_norm_forward", 2**16, 1024, "bf16", 1, {"copy": 9.5, "weft": 10.0, "inductor": 10.0}),
        Cell("layer_norm_forward", 2**16, 1024, "bf16", 1, {"copy": 9.0, "weft": 10.0} | peers),
        Cell("rms_norm_backward", 2**15, 1024, "bf16", 1, {"copy": 8.8, "weft": 10.0, "inductor": 16.0}),
        Cell("softmax_backward", 2**16, 1024, "bf16", 0, {"copy": 9.5, "weft": 10.0}),
        Cell("softmax_forward", 2**16, 1024, "bf16", wrong="root mean square of the error"),
        Cell("thunder_layer_norm_backward", 2**16, 1024, "bf16", 1, others, untimed=reason),
        Cell("layer_norm_backward_bias", 2**16, 1024, "bf16", 1, others | {"inductor": 15.0}, untimed=reason),
    ]
    assert gpu_bars.report(cells) == [
        "softmax_forward 65536x1024 bf16: root mean square of the error",
        "softmax_backward 65536x1024 bf16: 10.0 us, 0.950 of copy, 0 launch(es)  : left to TorchInductor",
        "layer_norm_forward 1024: 0.900 of copy, bar 0.92",
        "layer_norm_forward 1024: 1.111x of inductor's time",
        "layer_norm_forward 1024: 1.250x of quack's time",
        "forwards in geometric mean",
        "thunder_layer_norm_backward: 1.40x of inductor in geometric mean, bar 1.5",
    ]
    assert "not timed in 2 cell(s): failed: liger: RuntimeError: [a] list\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("workload", "columns", "bar"),
    [
        ("rms_norm_backward", 8192, 0.90),
        ("rms_norm_backward", 8200, 0.92),
        ("layer_norm_backward", 65536, 0.88),
        ("layer_norm_backward", 65544, 0.80),
        ("layer_norm_backward", 53533, 0.87),  # it begins between vectors
        ("softmax_forward", 262144, 0.93),
        ("layer_norm_backward_bias", 32768, 0.84),
    ],
)
def test_wide_rows_have_bars_of_their_own(workload: str, columns: int, bar: float) -> None:
    assert gpu_bars.bar_of(Cell(workload, 2**26 // columns, columns, "bf16")) == bar


def test_bars_of_wide_and_of_few_rows() -> None:
    """Neither has one against a copy; 2 % of a peer's time are allowed."""
    wide = ("softmax_forward", 32768, 50257, "bf16", 1)
    us = {"copy": 1500.0, "weft": 3000.0, "inductor": 3900.0}
    cells = [
        Cell(*wide, us, schedules=("LOOP",)),
        Cell(*wide, us, dynamic=("columns",), schedules=("LOOP",)),
        Cell(*wide, us, dynamic=("rows", "columns"), schedules=("ONE_SHOT",)),
        Cell(*wide, us | {"inductor": 3500.0}, dynamic=("columns",), schedules=("LOOP",)),
        Cell("rms_norm_forward", 64, 4096, "bf16", 1, {"copy": 1.0, "weft": 3.05, "inductor": 3.0}),
        Cell(
            "rms_norm_forward", 1, 4096, "bf16", 1, {"copy": 1.0, "weft": 3.07, "inductor": 3.0}, dynamic=("columns",)
        ),
    ]
    assert gpu_bars.report(cells) == [
        "softmax_forward 32768x50257: 1.30x of inductor, bar 1.4",
        "softmax_forward 32768x50257 run-time rows and columns: ONE_SHOT in place of one LOOP",
        "softmax_forward 32768x50257 run-time columns: 1.17x of inductor, bar 1.2",
        "rms_norm_forward 1x4096 run-time columns: 1.023x of inductor's time",
    ]


def test_rows_between_vectors_and_run_time_sizes_have_others_beside_them() -> None:
    def cell(columns: int, us: float, *dynamic: str) -> Cell:
        rows = 2**26 // columns
        return Cell("layer_norm_backward", rows, columns, "bf16", 1, {"copy": 100.0, "weft": us}, dynamic=dynamic)

    even, odd, slow = cell(5000, 105.0), cell(5001, 112.0), cell(5003, 113.3)
    assert gpu_bars.report([even, odd, slow]) == [
        "layer_norm_backward 5003: 0.883 of copy, 0.952 of 5000 columns",
    ]
    assert gpu_bars.report([odd, slow]) == []
    assert gpu_bars.report([replace(even, rows=2 * even.rows), slow]) == []  # of another size
    dynamic = [cell(5001, 114.9, "rows", "columns"), cell(5003, 113.0, "rows")]
    assert gpu_bars.report([odd, *dynamic]) == []
    assert gpu_bars.report([slow, cell(5003, 116.8, "rows", "columns")]) == [
        "layer_norm_backward 5003 run-time rows and columns: 0.856 of copy, bar 0.87",
        "layer_norm_backward 5003 run-time rows and columns: 1.031x the time of known sizes",
    ]


def test_widths_may_be_drawn_beside_others() -> None:
    words = ["--columns", "4096", "--drawn", "7", "3", "300", "9000", "1", "--even", "--dynamic", "rows", "--known"]
    given = gpu_gates.parser().parse_args(["--workload", "softmax_forward", *words])
    cells = list(gpu_gates.cells_of(given))
    assert cells == list(gpu_gates.cells_of(given))
    widths = list(dict.fromkeys(cell.columns for cell in cells))
    assert widths[0] == 4096
    assert len(widths) == 7
    assert all(300 <= width <= 9000 for width in widths)
    assert [width // 8 * 8 for width in widths[1::2]] == widths[2::2]
    assert [(cell.columns, cell.dynamic) for cell in cells[:4]] == [
        (4096, ("rows",)),
        (4096, ()),
        (widths[1], ("rows",)),
        (widths[1], ()),
    ]


def test_a_cell_says_how_it_was_measured() -> None:
    us = {"copy": 1.0, "weft": 2.0, "inductor": 3.0}
    cell = Cell("softmax_forward", 64, 4096, "bf16", 1, us, dynamic=("columns",), schedules=("LOOP",))
    text = "softmax_forward 64x4096 bf16 run-time columns: 2.0 us, 0.500 of copy, 1 launch(es) LOOP  inductor 1.50x"
    assert gpu_bars.line(cell) == text


def test_rows_are_looped_over_where_that_is_asked_for() -> None:
    program = program_of("softmax_forward", (4096, 1024), torch.bfloat16)
    with gpu_gates.looped():
        looped = plan(program, H200)
    assert isinstance(looped, Plan)
    assert [kernel.schedule.scheme for kernel in looped.kernels] == ["LOOP"]
    found = plan(program, H200)
    assert isinstance(found, Plan)
    assert [kernel.schedule.scheme for kernel in found.kernels] == ["ONE_SHOT"]


def test_sizes_are_marked_for_weft_and_its_peers_alike() -> None:
    def marked(rows: int, columns: int, dynamic: tuple[str, ...]) -> list[set[int]]:
        case = workload_case(WORKLOADS["rms_norm_backward"], (rows, columns), torch.float32)
        assert gpu_gates.with_marks(case, (rows, columns), dynamic).dynamic is (None if dynamic else False)
        return [getattr(t, "_dynamo_dynamic_indices", set()) for t in case.inputs]

    assert marked(6, 8, ()) == [set()] * 4
    assert marked(6, 8, ("columns",)) == [{1}, {1}, {0}, set()]
    assert marked(6, 8, ("rows",)) == [{0}, {0}, set(), {0}]
    assert marked(8, 8, ("rows", "columns")) == [{0, 1}, {0, 1}, {0}, {0}]
    assert marked(1, 8, ("rows",)) == [set()] * 4


def test_kernels_of_a_call_are_seen_with_their_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_KERNELS", {})
    program = replace(program_of("softmax_forward", (64, 128), torch.float32), parameters=("s0",))
    program = replace(program, dims=(replace(program.dims[0], size="s0"), program.dims[1]))
    kernel = Kernel(program, CppSchedule("ONE_SHOT", ("m",), ("n",)))
    x, out = torch.randn(40, 128), torch.empty(40, 128)
    call = partial(launch._launch, digest_of(kernel), str(kernel), [x], [out], [40], "off")
    assert gpu_gates.launched(lambda: [call(), call()]) == ([kernel, kernel], {"s0": 40})
    torch.testing.assert_close(out, x.softmax(1))


def test_a_width_that_leaves_a_rest_has_the_bars_of_its_size() -> None:
    for columns in (1024, 3072, 5120, 12288):
        for elements in (2**25, 2**26):
            cell = Cell("rms_norm_forward", elements // columns, columns, "bf16")
            assert cell.has_copy_bar
    assert not Cell("rms_norm_forward", 2**24 // 5120, 5120, "bf16").has_copy_bar


@pytest.fixture
def handlers() -> Iterator[None]:
    """Python's handlers during a test, and those that were there behind it: a process that a shell started in the
    background ignores interrupts."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_what_was_measured(
    number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(cell: Cell, *rest: object) -> Cell:
        if cell.columns > 1024:
            signal.raise_signal(number)
        return replace(cell, launches=1, us={"copy": 9.5, "weft": 10.0})

    monkeypatch.setattr(gpu_gates, "measure", measure)
    monkeypatch.setattr(gpu_gates, "machine", lambda kind: {"kind": kind})
    monkeypatch.setattr(gpu_gates, "require_gpu", lambda parser: None)
    written = tmp_path / "cells.json"
    given = (
        "--workload",
        "rms_norm_forward",
        "--columns",
        "512",
        "1024",
        "2048",
        "--processes",
        "1",
        "--json",
        str(written),
    )
    assert gpu_gates.main(given) == 130
    assert "interrupted: 2 cells were measured" in capsys.readouterr().out
    found = json.loads(written.read_text())
    assert found["interrupted"]
    assert [(cell["rows"], cell["columns"]) for cell in found["cells"]] == [(2**17, 512), (2**16, 1024)]


def test_a_sweep_says_what_first_choices_lose() -> None:
    """Of three kernels: one whose second schedule is the best, one whose first is wrong, one that was not compiled."""
    lines = list[dict[str, object]]()
    for part, found in (("p", (10.0, 8.0, 9.0)), ("q", (5.0, 6.0)), ("r", ("",))):
        kernel = {"workload": "w", "dtype": "bf16", "rows": 2, "columns": 3, "part": part, "wrong": ""}
        lines += [kernel | {"place": place, "us": us} for place, us in enumerate(found)]
    lines[3]["wrong"] = "out0"
    assert gpu_sweep.regrets(lines) == {("w", "bf16", 2, 3, "p"): 1.25}


def test_cells_of_which_all_schedules_are_taken_have_many_rows() -> None:
    given = argparse.Namespace(gates=True, seed=5, cells=40, sample=12, workload=list(WORKLOADS))
    found = list(gpu_sweep.cells_of(given))
    assert len(set(found)) == 12
    assert all(cell.rows * cell.columns > 2**25 for cell in found)
    assert found == list(gpu_sweep.cells_of(given))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    ("main", "arguments", "said"),
    [
        (gpu_gates.main, [], "torch sees no GPU here, and this times kernels on one"),
        (
            gpu_sweep.main,
            ["--seed", "1", "--csv", "sweep.csv"],
            "torch sees no GPU here, and this times kernels on one",
        ),
        (host_time.main, ["--device", "cuda"], "--device cuda: torch sees no GPU here; use --device cpu"),
        (training.main, ["--device", "cuda"], "--device cuda: torch sees no GPU here; use --device cpu"),
        (compile_time.main, ["--device", "cuda"], "--device cuda: torch sees no GPU here; use --device cpu"),
    ],
)
def test_what_needs_a_gpu_says_so_where_there_is_none(
    main: Callable[[Sequence[str]], int], arguments: Sequence[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(f"error: {said}\n")
