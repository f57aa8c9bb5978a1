"""``weft tune``: what it prints and keeps, what is left untuned, and kernels that functions share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.tune_cases import Fake, tuned_with
from tools import gpu_gates
from tools.gpu_bars import Cell
from weft.bench import peers, tune_report
from weft.bench.case import workload_case
from weft.bench.tune_jobs import jobs_of
from weft.bench.workloads import WORKLOADS
from weft.commands import tune as command
from weft.options import Options
from weft.plan.kernel import Plan
from weft.plan.planner import plan
from weft.plan.tuned import Tuned
from weft.target import Target

# what is left untuned


def test_bars_are_measured_untuned(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Options] = []

    def measure(cell: Cell, against: Sequence[str], options: Options, rounds: int) -> Cell:
        seen.append(options)
        return replace(cell, wrong="not measured")

    monkeypatch.setattr(gpu_gates, "measure", measure)
    monkeypatch.setattr(gpu_gates, "require_gpu", lambda parser: None)
    assert gpu_gates.main(["--workload", "rms_norm_forward", "--columns", "256", "--processes", "1"]) == 1
    assert [options.tuned for options in seen] == [False]


def test_a_call_of_a_benchmark_is_tuned_as_its_options_say(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[bool] = []

    def fuse(function: Any, **options: Any) -> Any:
        given.append(options["tuned"])
        return function

    monkeypatch.setattr(peers, "fuse", fuse)
    case = workload_case(WORKLOADS["row_column_sum"], (8, 8), torch.float32)
    for tuned in (True, False):
        peers.weft_call(case, Options.read({"tuned": tuned}, {}))
    assert given == [True, False]


# the command


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A function of the user's, and a cache of its own."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("WEFT_TUNED", raising=False)
    monkeypatch.setenv("COLUMNS", "120")
    path = tmp_path / "tuned.py"
    path.write_text(
        "import torch\n\ndef block(x):\n    return torch.softmax(x, -1)\n\ndef product(x):\n    return x @ x\n"
    )
    return str(path)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """In place of processes; chunks of 16 rows are the best."""
    made = Fake(lambda schedule: 80.0 if schedule.rows_per_chunk == 16 else 130.0, seconds=0.0)

    class Measurer(Fake):
        def __enter__(self) -> Fake:
            return made

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(command, "ProcessMeasurer", lambda _: Measurer(made.us))
    monkeypatch.setattr(command, "machine", lambda _: {"cpu": "a CPU", "threads": 2, "load": 0.0})
    return made


TYPE = "f32[1024,512]"


def test_the_command_prints_a_table_and_keeps_the_best(file: str, fake: Fake, run: Any, tmp_path: Path) -> None:
    code, out, err = run("tune", f"{file}:block", TYPE, "--device", "cpu", "--export", str(tmp_path / "out.json"))
    assert (code, err) == (0, f"wrote 1 schedule to {tmp_path / 'out.json'}\n")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[1] == "kernel timed untuned us best us regret chosen schedule"
    (row,) = (line for line in lines if line.startswith("row_max_exp_row_sum"))
    cells = row.split()
    assert cells[1].split("/")[0] == cells[1].split("/")[1]
    assert cells[2:6] == ["100.0", "80.0", "25.0", "%"]
    assert "rows_per_chunk=16" in row
    assert lines[-3:] == [
        "regret of the untuned choice: 25.0 % of the best time, 1 kernel",
        "another schedule is taken if it is faster by more than 5.0 %, in three of four rounds at least",
        f"kept in {tmp_path / 'cache'}: 1 schedule",
    ]
    code, out, _ = run("explain", f"{file}:block", TYPE)
    assert code == 0
    assert "    tuned: row_max_exp_row_sum: measured 80.0 us, 100.0 us with the predicted schedule\n" in out
    _, out, _ = run("explain", f"{file}:block", TYPE, "--json")
    (kernel,) = json.loads(out)["kernels"]
    assert "rows_per_chunk=16 " in kernel["schedule"]
    assert (kernel["tuned"]["us"], kernel["tuned"]["untuned_us"]) == (80.0, 100.0)
    assert kernel["tuned"]["versions"]["torch"] == torch.__version__


def test_what_is_kept_can_be_taken_to_another_cache(
    file: str, fake: Fake, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "out.json")
    run("tune", f"{file}:block", TYPE, "--device", "cpu", "--export", path)
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "other"))
    assert "  tuned: row" not in run("explain", f"{file}:block", TYPE).out
    code, out, err = run("tune", "--import", path)
    target = Target.current("cpu")
    assert (code, out, err) == (0, "", f"imported 1 schedule from {path}, for {target.name} ({target.device})\n")
    assert "  tuned: row_max_exp_row_sum: measured 80.0 us" in run("explain", f"{file}:block", TYPE).out
    monkeypatch.setenv("WEFT_TUNED", "0")
    assert "  tuned: row" not in run("explain", f"{file}:block", TYPE).out
    monkeypatch.delenv("WEFT_TUNED")
    assert run("tune", f"{file}:block", TYPE, "--forget").err == "forgotten: what was kept of 1 kernels\n"
    assert "  tuned: row" not in run("explain", f"{file}:block", TYPE).out
    run("tune", "--import", path)
    assert run("tune", "--forget").err == "all tuned schedules are forgotten\n"
    assert "  tuned: row" not in run("explain", f"{file}:block", TYPE).out


def test_the_command_for_machines(file: str, fake: Fake, run: Any) -> None:
    code, out, err = run("tune", f"{file}:block", TYPE, "--device", "cpu", "--budget", "30", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["budget_s"], found["device"], found["mean_regret"], found["not_kept"]) == (
        *(30.0, "cpu"),
        *(pytest.approx(0.25), None),
    )
    (kernel,) = found["kernels"]
    assert (kernel["untuned_us"], kernel["best_us"], kernel["taken"], kernel["not_tried"]) == (100.0, 80.0, True, 0)
    assert kernel["subjects"] == [f"{file}:block"]
    assert {attempt["status"] for attempt in kernel["attempts"]} == {"timed"}
    assert "source" in found["versions"]


def test_a_wrong_candidate_is_the_exit_code(file: str, fake: Fake, run: Any) -> None:
    class All:
        def __contains__(self, _: object) -> bool:
            return True

    fake.wrong = All()  # type: ignore[assignment]
    code, out, _ = run("tune", f"{file}:block", TYPE, "--device", "cpu")
    assert code == 1
    assert "WRONG, never taken; the first with" in " ".join(out.split())


def test_where_there_is_nothing_to_tune_the_reason_is_printed(file: str, fake: Fake, run: Any) -> None:
    code, out, _ = run("tune", f"{file}:product", "f32[8,8]", "--device", "cpu")
    assert code == 0
    assert out.splitlines()[1:] == [
        "there is no kernel of weft to tune",
        "left out: 1 x unsupported_op: aten.mm.default is no operation weft fuses",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name what to tune: a workload, a model or FILE.py:FUNCTION TYPE..."),
        (
            ["softmax"],
            "no workload 'softmax', and not FILE.py:FUNCTION; did you mean softmax_forward or softmax_backward?",
        ),
        (["softmax_forward", "--budget", "0"], "--budget is a number of seconds above 0, not 0"),
        (["softmax_forward", "--budget", "inf"], "--budget is a number of seconds above 0, not inf"),
        (["softmax_forward", "--shapes", ","], "--shapes is empty"),
        (["softmax_forward", "--shapes", "8"], "a shape is written 8192x4096, not '8'"),
        (["softmax_forward", "--device", "tpu"], "no device 'tpu'; one of cpu, cuda"),
        (["softmax_forward", "FILE:block"], "FILE.py:FUNCTION is tuned alone, and only its TYPEs follow it"),
        (["FILE:block", "--shapes", "8x8"], "--shapes is for workloads; a function has TYPEs: 'bf16[8192,4096]'"),
        (["--export", "/no/folder/x"], "--export: /no/folder/x cannot be written"),
        (["--import", "/no/file"], "--import: /no/file: No such file or directory"),
        (["--import", "FILE"], "--import: FILE is no JSON: Expecting value: line 1 column 1 (char 0)"),
    ],
)
def test_wrong_input_is_one_line(arguments: list[str], message: str, file: str, run: Any) -> None:
    code, out, err = run("tune", *(text.replace("FILE", file) for text in arguments))
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith(
        f"weft: {message.replace('FILE:', f'{file}:') if 'FILE.py' not in message else message}".replace(
            "FILE is", f"{file} is"
        )
    )


# kernels of functions


def test_kernels_that_several_functions_have_are_tuned_once() -> None:
    def one(x: Tensor) -> Tensor:
        return torch.softmax(x, -1)

    def other(y: Tensor) -> Tensor:
        return torch.softmax(y, -1)

    from weft.bench.tune_jobs import merged

    x = torch.randn(1024, 512)
    found = merged(jobs_of(f.__name__, f, [x], "cpu", False, {}) for f in (one, other))
    (job,) = found.jobs.values()
    assert job.subjects == ("one", "other")


def test_run_time_sizes_are_those_of_the_inputs() -> None:
    found = jobs_of("softmax", lambda x: torch.softmax(x, -1), [torch.randn(1000, 512)], "cpu", True, {})
    (job,) = found.jobs.values()
    assert sorted(job.hints.values()) == [512, 1000]
    tuned = tuned_with(Fake(lambda schedule: 80.0 if schedule.rows_per_chunk == 16 else 130.0), job=job)
    lines = tune_report.lines_of(tune_report.TuneReport({}, {}, "cpu", 60.0, 1.0, (tuned,)))
    assert any("and used for all other run-time sizes as well" in line for line in lines)
    record = tuned.record({})
    assert isinstance(record, Tuned)
    assert sorted(record.sizes.values()) == [512, 1000]


def test_an_untuned_plan_is_what_is_measured() -> None:
    """Whatever was kept before: regret is that of the prediction."""
    found = jobs_of("softmax", lambda x: torch.softmax(x, -1), [torch.randn(1024, 512)], "cpu", False, {})
    (job,) = found.jobs.values()
    predicted = plan(job.kernel.program, Target.current("cpu"))
    assert isinstance(predicted, Plan)
    assert job.kernel == predicted.kernels[0]
