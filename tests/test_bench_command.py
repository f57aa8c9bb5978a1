"""``weft bench``: what it checks, how it times, what it prints, and one line for wrong input."""

from __future__ import annotations

import csv
import json
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
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent

from weft.bench import gpu_peers, measure, speed
from weft.bench.case import Case, function_case, workload_case
from weft.bench.correctness import check_candidate, check_output, reference
from weft.bench.gpu_timing import FLUSH_BYTES, WARM_UP_CALLS, CudaDevice, DeviceClock, clocks_mhz
from weft.bench.measure import Protocol, figures_of, measure_candidates
from weft.bench.peers import copy_candidate, eager_call, inductor_call, inductor_kernels, weft_kernels
from weft.bench.reason import Reason, UntimedError
from weft.bench.report import CSV_FIELDS, Figures, Row, not_timed, table_of
from weft.bench.timing import Candidate, Sample, Spread, Timing, in_turn, interleave, ratio
from weft.bench.workloads import WORKLOADS
from weft.options import Options

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
QUICK = Protocol(rounds=3, least_sample_s=1e-5)


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "benched.py"
    path.write_text(FILE)
    return str(path)


def case_of(name: str, rows: int = 32, columns: int = 64, dtype: torch.dtype = torch.float32) -> Case:
    return workload_case(WORKLOADS[name], (rows, columns), dtype)


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


def test_importing_the_command_imports_no_gpu_package() -> None:
    """Triton aside, which torch imports where it is installed: but none of what weft has for it."""
    names = ("weft.render.weft_triton", "liger_kernel", "quack")
    code = f"import sys, weft.commands.bench; print([n for n in sys.modules if n in {names}])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


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
    "no types": (["FILE:block"], "FILE:block needs the TYPEs of its inputs, as in bf16[8192,4096]"),
    "type": (["FILE:block", "f32(4)"], "a type is written bf16[8192,4096], or f32[] for a scalar, not 'f32(4)'"),
    "f64 type": (["FILE:block", "f64[4,64]", "f64[64]"], "f64[4,64]: results are checked against float64, so data is"),
    "empty type": (["FILE:block", "f32[0,64]", "f32[64]"], "f32[0,64] has no elements to time"),
    "two files": (["FILE:block", "f32[4,64]", "FILE:product"], "FILE.py:FUNCTION is timed alone, and only its TYPEs"),
    "file and workload": (["FILE:block", "row_column_sum"], "FILE.py:FUNCTION is timed alone, and only its TYPEs"),
    "shapes of a file": (["FILE:block", "f32[4]", "--shapes", "4x4"], "--shapes and --dtype are for workloads; a"),
    "inputs": (["FILE:block", "f32[4,60]", "f32[64]"], "block fails on these inputs: RuntimeError: "),
    "no tensor": (["FILE:number", "f32[4]"], "number returns no tensor, so there is nothing to check"),
    "in place": (["FILE:grows", "f32[4]"], "grows changes its inputs, so that no two calls of it do the same"),
    "types of a workload": (["row_column_sum", "f32[4]"], "no workload 'f32[4]', and not FILE.py:FUNCTION; "),
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


# correctness


def test_one_lost_row_of_many_is_found() -> None:
    x = torch.randn(4096, 64)
    exact = x.double() * 3
    eager = (x * 3).bfloat16()
    assert check_output("c", eager.clone(), eager, exact) is None
    lost = eager.clone()
    lost[17] = 0  # the root mean square alone would not show it
    refusal = check_output("c", lost, eager, exact)
    assert refusal is not None
    assert (refusal.kind, refusal.message) == ("wrong_result", "largest error")


@pytest.mark.parametrize(("dtype", "factor"), [(torch.float32, 2.0), (torch.bfloat16, 3.0)])
def test_the_error_is_held_to_a_multiple_of_eagers(dtype: torch.dtype, factor: float) -> None:
    exact = torch.ones(1024, dtype=torch.float64)
    unit = max(torch.finfo(dtype).eps, 1e-5)
    off = 0.125  # exact in both dtypes, far above a unit
    eager = torch.full((1024,), 1 + off, dtype=dtype)
    allowed = torch.full((1024,), 1 + factor * off, dtype=dtype)
    assert check_output("c", allowed, eager, exact) is None
    beyond = torch.full((1024,), 1 + factor * off + 4 * unit, dtype=dtype)
    refusal = check_output("c", beyond, eager, exact)
    assert refusal is not None
    assert refusal.message == "root mean square of the error"
    assert refusal.limit == pytest.approx(factor * off + unit, rel=2e-3)


def test_integers_shapes_and_dtypes_must_be_eagers() -> None:
    counts = torch.tensor([1, 2, 3])
    assert check_output("c", counts.clone(), counts, counts) is None
    refusal = check_output("c", torch.tensor([1, 2, 4]), counts, counts)
    assert str(refusal) == "wrong_result: c: elements differ from eager's (have 1, limit 0)"
    one = torch.ones(3)
    assert check_output("c", one.double(), one, one.double()) is not None
    assert check_output("c", one[:2], one, one.double()) is not None


def test_memory_that_exists_is_poisoned_before_the_check() -> None:
    case = case_of("row_column_sum")
    expected = reference(case.function, case.inputs)
    rows, columns = (t.clone() for t in expected.eager)  # the right results lie there already

    def forgets_the_columns() -> None:
        rows.copy_(case.inputs[0].sum(1).reshape(rows.shape))

    lazy = Candidate("c", "kernels", forgets_the_columns, memory=(rows, columns), outputs=lambda: (rows, columns))
    refusal = check_candidate(lazy, case.inputs, expected)
    assert str(refusal) == (
        "wrong_result: c kernels, output 1: elements are not finite, or were never written (have 64, limit 0)"
    )


def test_integers_are_poisoned_with_a_pattern_and_inputs_are_not() -> None:
    x = torch.arange(6)
    case = function_case("f", lambda x: (x, x.argmax()), [x])
    expected = reference(case.function, case.inputs)
    where = torch.tensor(5)
    lazy = Candidate("c", "kernels", lambda: None, memory=(x, where), outputs=lambda: (x, where))
    refusal = check_candidate(lazy, case.inputs, expected)
    assert refusal is not None
    assert refusal.subject == "c kernels, output 1"
    assert where.item() == 85
    assert x.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("name", ["qk_norm_backward", "rms_norm_fp8", "batch_norm_forward", "cross_entropy_forward"])
def test_kernels_of_weft_are_checked_where_they_write(name: str) -> None:
    case = case_of(name, 64, 64, torch.bfloat16)
    candidate = weft_kernels(case, Options.read())
    assert candidate.kernels == (2 if name == "batch_norm_forward" else 1)
    assert len(candidate.memory) >= len(reference(case.function, case.inputs).eager)
    assert check_candidate(candidate, case.inputs, reference(case.function, case.inputs)) is None


def test_kernels_of_inductor_write_where_they_are_checked() -> None:
    torch._dynamo.reset()
    case = case_of("row_column_sum")
    called = inductor_call(case)
    kernels = inductor_kernels(called)
    expected = reference(case.function, case.inputs)
    assert called.kernels == kernels.kernels
    assert check_candidate(kernels, case.inputs, expected) is None
    broken = replace(kernels, run=lambda: None)
    assert check_candidate(broken, case.inputs, expected) is not None


def test_a_module_is_a_call() -> None:
    norm = torch.nn.LayerNorm(64)
    with pytest.raises(UntimedError, match="N is a module; timed as a call only"):
        weft_kernels(function_case("N", norm, [torch.randn(8, 64)]), Options.read())
    expected = reference(norm, [torch.randn(8, 64)])
    assert expected.exact[0].dtype == torch.float64
    assert norm.weight.dtype == torch.float32


def test_eager_counts_operations_that_are_no_views() -> None:
    case = function_case("f", lambda x: F.relu(x.t().reshape(4, 8) + 1), [torch.randn(4, 8).t()])
    assert eager_call(case).kernels == 2


# figures


def timing(name: str, *seconds: float) -> Timing:
    return Timing(name, [Sample(s) for s in seconds])


def test_ratios_are_medians_of_ratios_of_rounds() -> None:
    copy, own = timing("copy", 1.0, 2.0, 4.0), timing("weft kernels", 2.0, 4.0, 8.0)  # the machine gets slower
    peer = timing("inductor kernels", 3.0, 6.0, 16.0)
    timings = {t.name: t for t in (copy, own, peer)}
    figures = figures_of(Candidate("inductor", "kernels", lambda: None), timings, None)
    assert figures.to_weft == Spread(1.5, 1.5, 1.75)
    assert figures.of_copy is not None
    assert figures.of_copy.median == pytest.approx(1 / 3)
    assert figures.time_us == Spread(6e6, 4.5e6, 11e6)
    mine = figures_of(Candidate("weft", "kernels", lambda: None), timings, None)
    assert mine.of_copy == Spread(0.5, 0.5, 0.5)
    assert mine.to_weft == Spread(1.0, 1.0, 1.0)
    assert ratio(peer, own) == figures.to_weft


def test_a_call_is_only_compared_with_a_call() -> None:
    timings = {t.name: t for t in (timing("copy", 1.0), timing("weft kernels", 2.0), timing("eager call", 6.0))}
    assert figures_of(Candidate("eager", "call", lambda: None), timings, None).to_weft is None


def test_every_round_begins_with_another_candidate_and_every_second_goes_backwards() -> None:
    made = [Candidate(name, "", lambda: None) for name in "abc"]
    orders = ["".join(c.peer for c in in_turn(made, number)) for number in range(4)]
    assert orders == ["abc", "acb", "cab", "cba"]


class Ticks:
    """A clock that counts."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def warm_up(self, candidate: Candidate) -> None:
        self.seen.append(f"warm {candidate.peer}")

    def sample(self, candidate: Candidate) -> Sample:
        self.seen.append(candidate.peer)
        return Sample(float(len(self.seen)))


def test_all_are_warm_before_the_first_round_and_a_budget_leaves_three() -> None:
    ticks = Ticks()
    made = [Candidate(name, "", lambda: None) for name in "ab"]
    timings = interleave(made, 9, budget_s=-1.0, clock=ticks)
    assert ticks.seen == ["warm a", "warm b", "a", "b", "a", "b", "a", "b"]
    assert timings["a"].seconds == [3.0, 5.0, 7.0]


def test_the_copy_moves_the_bytes_of_the_row() -> None:
    target = copy_candidate(1000).run()
    assert 2 * target.numel() * target.itemsize == 1000
    case = case_of("row_column_sum")
    row = measure_candidates(case, [eager_call(case)], QUICK)
    assert row.bytes == 4 * (32 * 64 + 32 + 64)


# a GPU that is not there


class FakeDevice:
    """Writes down what it is asked for; kernels take 3 and 4 us, a replay 5 us."""

    def __init__(self, captures: bool = True, kernels: Sequence[float] = (3.0, 4.0)) -> None:
        self.calls: list[str] = []
        self.captures, self.kernels = captures, kernels

    def flush(self) -> None:
        self.calls.append("flush")

    def synchronise(self) -> None:
        self.calls.append("synchronise")

    def kernel_durations_us(self, run: Callable[[], Any]) -> list[float]:
        self.calls.append("profile")
        run()
        return list(self.kernels)

    def capture(self, run: Callable[[], Any]) -> Callable[[], None]:
        if not self.captures:
            raise RuntimeError("cannot capture\nlong story")
        return lambda: self.calls.append("replay")

    def elapsed_us(self, run: Callable[[], Any]) -> float:
        self.calls.append("events")
        run()
        return 5.0


@pytest.fixture
def fake() -> tuple[FakeDevice, Candidate]:
    device = FakeDevice()
    return device, Candidate("c", "call", lambda: device.calls.append("run"), lambda: device.calls.append("prepare"))


def test_every_timing_on_a_gpu_begins_with_a_flush_and_a_wait(fake: tuple[FakeDevice, Candidate]) -> None:
    device, candidate = fake
    clock = DeviceClock(device)
    clock.warm_up(candidate)
    assert device.calls == ["prepare", "run"] * WARM_UP_CALLS + ["synchronise", "profile", "run"]
    device.calls.clear()
    sample = clock.sample(candidate)
    before_kernels = ["prepare", "flush", "synchronise", "profile", "run"]
    assert device.calls == [*before_kernels, "flush", "synchronise", "events", "replay"]
    assert sample == Sample(pytest.approx(7e-6), pytest.approx(5e-6), 2)  # type: ignore[arg-type]


def test_what_cannot_be_captured_is_timed_without_a_graph(fake: tuple[FakeDevice, Candidate]) -> None:
    device, candidate = fake
    device.captures = False
    clock = DeviceClock(device)
    clock.warm_up(candidate)
    assert clock.uncaptured == {"c call": "cannot capture"}
    assert clock.sample(candidate).graph_seconds is None


def test_kernels_that_the_profiler_does_not_see_are_an_error() -> None:
    clock = DeviceClock(FakeDevice(kernels=()))
    with pytest.raises(RuntimeError, match="the profiler saw no kernel of c call"):
        clock.sample(Candidate("c", "call", lambda: None))


def test_figures_of_a_gpu_have_the_graph_and_the_kernels(fake: tuple[FakeDevice, Candidate]) -> None:
    device, candidate = fake
    copy = Candidate("copy", "", lambda: None)
    timings = interleave([copy, candidate], 3, clock=DeviceClock(device))
    figures = figures_of(candidate, timings, None)
    assert (figures.kernels, figures.of_copy) == (2, Spread(1.0, 1.0, 1.0))
    assert figures.graph_us is not None
    assert figures.graph_us.median == pytest.approx(5.0)
    row = Row("w", "1x1", 1, "f32", 8, 3, (figures,), clocks={"sm_mhz": 1980, "memory_mhz": 2619})
    table = table_of(row)
    assert [str(column.header) for column in table.columns][1:4] == ["us", "IQR", "graph us"]
    assert str(table.title) == "\nw 1x1 f32, 0.0 MB, 3 rounds, at 1980 MHz, memory 2619 MHz"


class FakeEvent:
    """A millisecond apart per event made before."""

    made = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        FakeEvent.made += 1
        self.at = FakeEvent.made

    def record(self) -> None:
        pass

    def elapsed_time(self, other: FakeEvent) -> float:
        return float(other.at - self.at)


class FakeProfile:
    """Two kernels of a GPU, what the host did, and a range of the user's."""

    def __init__(self, activities: Sequence[Any], acc_events: bool) -> None:
        assert (activities, acc_events) == ([torch.profiler.ProfilerActivity.CUDA], True)

    def __enter__(self) -> FakeProfile:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def events(self) -> list[Any]:
        def event(device: DeviceType, start: float, end: float, annotation: bool = False) -> Any:
            return FunctionEvent(0, "", 0, start, end, device_type=device, is_user_annotation=annotation)

        kernels = [event(DeviceType.CUDA, 10.0, 13.5), event(DeviceType.CUDA, 20.0, 21.0)]
        return [*kernels, event(DeviceType.CPU, 0.0, 50.0), event(DeviceType.CUDA, 0.0, 40.0, True)]


def test_the_layer_over_cuda_adds_up_what_ran_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[Any] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waits.append)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.profiler, "profile", FakeProfile)
    monkeypatch.setattr("weft.bench.gpu_timing.FLUSH_BYTES", 1024)
    device = CudaDevice(torch.device("cpu"))
    ran: list[str] = []
    assert device.kernel_durations_us(lambda: ran.append("profiled")) == [3.5, 1.0]
    assert device.elapsed_us(lambda: ran.append("replayed")) == 1000.0
    assert (ran, len(waits)) == (["profiled", "replayed"], 2)
    device._buffer.fill_(1)
    device.flush()
    assert not device._buffer.any()


def test_the_flush_is_larger_than_any_cache() -> None:
    assert FLUSH_BYTES == 268_435_456


def test_clocks_come_from_nvidia_smi_where_there_is_one() -> None:
    asked: list[list[str]] = []

    def answer(command: list[str], **_: Any) -> Any:
        asked.append(command)
        return subprocess.CompletedProcess(command, 0, stdout="1980, 2619\n")

    assert clocks_mhz("GPU-1", answer) == {"sm_mhz": 1980, "memory_mhz": 2619}
    assert asked[0][-1] == "--id=GPU-1"
    assert clocks_mhz(None, lambda *_, **__: subprocess.CompletedProcess([], 0, stdout="[N/A], 2619\n")) is None

    def missing(*_: Any, **__: Any) -> Any:
        raise FileNotFoundError("nvidia-smi")

    assert clocks_mhz(None, missing) is None


def test_the_pipelined_peer_takes_the_options_that_the_release_has(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(gpu_peers, "inductor_call", lambda *given: asked.append(given[1:]))
    gpu_peers.inductor_pipelined(case_of("row_column_sum"))
    names = [name for name in gpu_peers.PIPELINED if hasattr(torch._inductor.config.triton, name)]
    assert asked == [("inductor_pipelined", {f"triton.{name}": True for name in names})]
    monkeypatch.setattr(gpu_peers, "PIPELINED", ("an_option_of_no_release",))
    refusal = gpu_peers.inductor_pipelined(case_of("row_column_sum"))
    assert str(refusal) == f"no_option: inductor_pipelined: torch {torch.__version__} has none of its options"
