"""``weft bench``: what it prints and writes, what is not timed, and one line for wrong input."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.bench_cases import QUICK, case_of
from tools import speed
from weft.bench import gpu_peers, measure
from weft.bench.case import Case
from weft.bench.measure import measure_candidates
from weft.bench.peers import eager_call
from weft.bench.reason import Reason
from weft.bench.report import CSV_FIELDS, Figures, Row, not_timed
from weft.options import Options
from weft.runtime.timing import Candidate, Spread

FILE = """
import torch
import torch.nn.functional as F

def block(x, weight):
    return F.rms_norm(x, (64,), weight)

def product(x, weight):
    return torch.softmax(x @ weight, -1)

def number(x):
    return x.sum().item()

def grows(x):
    return x.add_(1).sum(0)
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "benched.py"
    path.write_text(FILE)
    return str(path)


# the command


def test_the_command_prints_a_table_and_writes_files(run: Any, tmp_path: Path) -> None:
    files = {"--csv": tmp_path / "rows.csv", "--plot": tmp_path / "rows.png"}
    given = ("row_column_sum", "--shapes", "32x64,32x128", "--dtype", "bf16,f32", "--against", "eager,liger")
    code, out, err = run("bench", *given, "--rounds", "3", *(str(part) for pair in files.items() for part in pair))
    assert (code, err) == (0, "")
    lines = [line.rstrip() for line in out.splitlines()]
    titles = [line for line in lines if line.startswith("row_column_sum")]
    assert titles == [
        "row_column_sum 32x64 bf16, 0.0 MB, 3 rounds",
        "row_column_sum 32x64 f32, 0.0 MB, 3 rounds",
        "row_column_sum 32x128 bf16, 0.0 MB, 3 rounds",
        "row_column_sum 32x128 f32, 0.0 MB, 3 rounds",
    ]
    heads = [line.split()[0] for line in lines if line.startswith(" ") and line.strip()]
    assert heads == ["candidate", "copy", "weft", "weft", "eager"] * 4
    assert "torch " + torch.__version__ in lines[1]
    assert lines[-3:] == ["not timed: liger: only runs on a GPU", *(f"wrote {path}" for path in files.values())]
    with files["--csv"].open() as opened:
        rows = list(csv.DictReader(opened))
    assert tuple(rows[0]) == CSV_FIELDS
    assert [row["candidate"] for row in rows] == ["copy", "weft kernels", "weft call", "eager call"] * 4
    for row in rows:
        assert float(row["first_quartile_us"]) <= float(row["median_us"]) <= float(row["third_quartile_us"])
        assert (row["correct"], row["graph_us"]) == ("True", "")
    assert files["--plot"].read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_json_has_machine_versions_protocol_and_every_candidate(run: Any, file: str) -> None:
    types = ("bf16[32,64]", "bf16[64]")
    code, out, err = run("bench", f"{file}:block", *types, "--rounds", "3", "--json", "--against", "inductor,quack")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert {"cpu", "cores", "threads", "vectors", "load"} == found["machine"].keys()
    assert found["versions"]["torch"] == torch.__version__
    assert {"weft", "python", "compiler"} <= found["versions"].keys()
    assert found["protocol"] == {"rounds": 3, "least_sample_s": 5e-3, "budget_s": 60.0, "device": "cpu"}
    (row,) = found["rows"]
    assert (row["workload"], row["shape"], row["dtype"]) == ("block", "bf16[32,64] bf16[64]", "bf16")
    assert row["bytes"] == 2 * (2 * 32 * 64 + 64)
    assert row["rounds"] == 3
    names = [candidate["candidate"] for candidate in row["candidates"]]
    assert names == ["copy", "weft kernels", "inductor kernels", "weft call", "inductor call"]
    for candidate in row["candidates"]:
        assert candidate["kernels"] == 1
        assert candidate["correct"]
        assert candidate["quartiles_us"][0] <= candidate["median_us"] <= candidate["quartiles_us"][1]
        assert candidate["fraction_of_copy"] > 0
        assert (candidate["ratio_to_weft"] is None) == (candidate["candidate"] == "copy")
    assert [refusal["message"] for refusal in row["not_timed"]] == ["only runs on a GPU"]


def test_a_function_with_other_work_is_timed_as_a_call_only(run: Any, file: str) -> None:
    given = (f"{file}:product", "f32[16,16]", "f32[16,16]", "--rounds", "3", "--against", "inductor")
    code, out, _ = run("bench", *given)
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines() if line[:1] == " " and " call " in line] == [
        ["weft", "call"],
        ["inductor", "call"],
    ]
    assert out.splitlines()[-2:] == [
        "not timed: weft kernels: aten.mm.default is outside the region; timed as a call only",
        "not timed: inductor kernels: calls ATen or libraries beside its generated kernels; timed as a call only",
    ]


def test_a_wrong_candidate_is_named_and_not_timed(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[str] = []

    def lying(case: Case, options: Options) -> Candidate:
        def call() -> Tensor:
            timed.append("lie")
            return torch.softmax(case.inputs[0], -1).index_fill_(0, torch.tensor(3), 0.0)

        return Candidate("weft", "call", call)

    monkeypatch.setattr(measure, "weft_call", lying)
    code, out, _ = run("bench", "softmax_forward", "--shapes", "32x64", "--against", "eager", "--rounds", "3")
    assert code == 1
    assert timed == ["lie"]  # the check alone called it
    (line,) = (line for line in out.splitlines() if line.startswith(" weft call"))
    assert line.split() == ["weft", "call", "WRONG"]
    assert out.splitlines()[-1].startswith("wrong: weft call, output 0: root mean square of the error: 0.00")
    eager = next(line for line in out.splitlines() if line.startswith(" eager call"))
    assert eager.split()[-3:] == ["-", "-", "1"]  # no ratio to what is wrong
    found = json.loads(run("bench", "softmax_forward", "--shapes", "32x64", "--against", "eager", "--json")[1])
    wrong = next(c for c in found["rows"][0]["candidates"] if c["candidate"] == "weft call")
    assert (wrong["correct"], wrong["median_us"], wrong["fraction_of_copy"]) == (False, None, None)


def test_a_peer_that_fails_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(case: Case) -> Candidate:
        raise RuntimeError("no luck\nwith this")

    monkeypatch.setattr(measure, "eager_call", fail)
    row = measure.measure(case_of("row_column_sum"), ["eager"], Options.read(), QUICK)
    assert not_timed([row]) == ["not timed: eager call: RuntimeError: no luck"]


def test_a_peer_that_fails_when_it_is_called_is_named_and_the_others_are_timed() -> None:
    case = case_of("row_column_sum")

    def run() -> None:
        raise ValueError("N must be a multiple of 8")

    row = measure_candidates(case, [eager_call(case), Candidate("quack", "call", run)], QUICK)
    assert not_timed([row]) == ["not timed: quack call: ValueError: N must be a multiple of 8"]
    assert [figures.name for figures in row.candidates] == ["copy", "eager call"]


def test_the_bars_of_speed_are_held_against_ratios_of_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    def row(table: str, **ratios: float) -> Row:
        figures = [Figures(peer, "call", to_weft=Spread(r, r, r)) for peer, r in ratios.items()]
        return Row("w", "1x1", 1, "bf16", 8, 3, tuple(figures), table=table)

    rows = [row("kernels", inductor=1.0, weft=1.0), row("kernels", inductor=2.25), row("autograd", inductor=1.3)]
    missed = speed.report([*rows, row("calls", eager=0.8, inductor=3.0), row("calls", eager=0.97)])
    assert missed == [
        "kernels: 1.50x of TorchInductor in geometric mean, bar 2.0",
        "w 1x1: 1.25x the fastest peer's time",
    ]
    assert "autograd: 1.30x of TorchInductor in geometric mean, bar 1.3" in capsys.readouterr().out
    lie = Reason("wrong_result", "weft call", "largest error", 1.0, 0.5)
    bad = Row("w", "1x1", 1, "bf16", 8, 3, (Figures("weft", "call", wrong=lie),), table="calls")
    assert speed.report([bad]) == ["w 1x1: weft call is wrong"]


def test_no_gpu_package_is_looked_for_on_a_machine_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(name: str) -> Any:
        raise AssertionError(name)

    monkeypatch.setattr(gpu_peers, "import_module", never)
    monkeypatch.setattr(gpu_peers, "find_spec", never)
    found = measure.candidates(case_of("row_column_sum"), ["inductor_pipelined", "liger", "quack"], Options.read())
    names = [refusal.subject for refusal in found if isinstance(refusal, Reason)]
    assert names == ["inductor_pipelined", "liger", "quack"]


def test_what_is_missing_is_one_line_a_reason() -> None:
    first = Reason("not_installed", "liger", "liger_kernel is not installed")
    other = Reason("not_done", "quack", "no call of quack is known for b")
    rows = [Row("a", "1x1", 1, "f32", 8, 3, (), (first,)), Row("b", "1x1", 1, "f32", 8, 3, (), (first, other))]
    assert not_timed(rows) == [
        "not timed: liger: liger_kernel is not installed",
        "not timed: quack: no call of quack is known for b [b 1x1 f32]",
    ]


def test_packages_that_are_absent_or_do_not_do_it_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_peers, "find_spec", lambda name: None if name == "quack" else object())
    missing, other = (gpu_peers.package_candidate(peer, case_of("row_column_sum")) for peer in ("quack", "liger"))
    assert str(missing) == "not_installed: quack: quack is not installed"
    assert str(other) == "not_done: liger: no call of liger_kernel is known for row_column_sum"


def test_on_a_gpu_without_triton_weft_says_that_it_has_no_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "supports_cuda", lambda: False)
    makers = measure._on_gpu(case_of("row_column_sum"), Options.read())
    assert str(makers["weft"][""]()) == (
        "no_backend: weft: no Triton is installed; weft leaves this to TorchInductor: 0 kernels of weft"
    )
    assert makers.keys() == {"weft", *measure.PEERS}


# wrong input

WRONG = {
    "no such workload": (
        ["soft_max_forward"],
        "no workload 'soft_max_forward', and not FILE.py:FUNCTION; did you mean",
    ),
    "model": (["gpt2", "--shapes", "1x8"], "gpt2 is a model; weft bench times workloads and functions of a file"),
    "shape": (["row_column_sum", "--shapes", "8x8,12"], "a shape is written 8192x4096, not '12'"),
    "no shapes": (["row_column_sum", "--shapes", ","], "--shapes is empty"),
    "empty": (["row_column_sum", "--shapes", "0x64"], "row_column_sum 0x64 has no elements to time"),
    "huge": (["row_column_sum", "--shapes", "999999x99999"], "row_column_sum 999999x99999 needs about 4470 GiB to be"),
    "dtype": (["row_column_sum", "--dtype", "bf16,int"], "--dtype: no dtype 'int'; any of bf16, f16, f32"),
    "double": (["row_column_sum", "--dtype", "f64"], "--dtype: no dtype 'f64'; any of bf16, f16, f32; results are"),
    "peer": (["row_column_sum", "--against", "tvm"], "--against: no peer 'tvm'; any of eager, inductor, inductor_pi"),
    "rounds": (["row_column_sum", "--rounds", "2"], "--rounds is at least 3, not 2; fewer have no quartiles"),
    "no number": (["row_column_sum", "--rounds", "many"], "Invalid value for '--rounds': "),
    "device": (["row_column_sum", "--device", "tpu"], "no device 'tpu'; one of cpu, cuda"),
    "csv": (["row_column_sum", "--csv", "/nowhere/a.csv"], "--csv: /nowhere/a.csv cannot be written"),
    "plot": (["row_column_sum", "--plot", "a.svg"], "--plot: a.svg does not end in .png"),
    "plot's folder": (["row_column_sum", "--plot", "/nowhere/a.png"], "--plot: /nowhere/a.png cannot be written"),
    "no file": (["missing.py:f", "f32[4]"], "no file missing.py"),
    "no function": (["FILE:blok", "f32[4]"], "FILE has no 'blok'; it has block, product, number, grows"),
    "no types": (["FILE:block"], "FILE:block needs the TYPEs of its inputs, as in 'bf16[8192,4096]'"),
    "type": (["FILE:block", "f32(4)"], "a type is written bf16[8192,4096], or f32[] for a scalar, not 'f32(4)'"),
    "f64 type": (["FILE:block", "f64[4,64]", "f64[64]"], "f64[4,64]: results are checked against float64, so data is"),
    "empty type": (["FILE:block", "f32[0,64]", "f32[64]"], "f32[0,64] has no elements to time"),
    "two files": (["FILE:block", "f32[4,64]", "FILE:product"], "FILE.py:FUNCTION is timed alone, and only its TYPEs"),
    "file and workload": (["FILE:block", "row_column_sum"], "FILE.py:FUNCTION is timed alone, and only its TYPEs"),
    "shapes of a file": (["FILE:block", "f32[4]", "--shapes", "4x4"], "--shapes and --dtype are for workloads; a"),
    "inputs": (["FILE:block", "f32[4,60]", "f32[64]"], "block fails on these inputs: RuntimeError: "),
    "no tensor": (["FILE:number", "f32[4]"], "number returns no tensor, so there is nothing to check"),
    "in place": (["FILE:grows", "f32[4]"], "grows changes its inputs, so that no two calls of it do the same"),
    "types of a workload": (["row_column_sum", "f32[4]"], "the TYPE f32[4] is not behind a function; a workload or "),
    "option": (["row_column_sum", "--nonsense"], "No such option: --nonsense"),
}


@pytest.mark.parametrize("arguments", WRONG.values(), ids=WRONG)
def test_wrong_input_gets_one_line_and_exit_code_2(run: Any, file: str, arguments: tuple[list[str], str]) -> None:
    given, message = arguments
    code, out, err = run("bench", *(argument.replace("FILE", file) for argument in given))
    assert (code, out) == (2, "")
    shown = message if message.startswith("FILE.py:") else message.replace("FILE", file, 1)
    assert err.startswith(f"weft: {shown}" if "not FILE.py" not in message else f"weft: {message}"), err
    assert err.count("\n") == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_wrong_input(run: Any) -> None:
    code, out, err = run("bench", "row_column_sum", "--device", "cuda")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("weft: --device cuda: torch sees no GPU here; use --device cpu")
