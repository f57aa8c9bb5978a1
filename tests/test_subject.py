"""What commands are about, and one clear line with exit code 2 for everything that is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from weft.bench.models import DEFAULT_SHAPES, MODELS
from weft.bench.workloads import WORKLOADS
from weft.commands import show
from weft.commands.subject import resolve
from weft.explain.inputs import parse_type
from weft.target import TARGETS, Target

FILE = """
import torch
import torch.nn.functional as F

SCALE = 2.0


def block(x, weight):
    return F.rms_norm(x * SCALE, (64,), weight)


class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(64)

    def forward(self, x):
        return self.norm(x)


class Wide(torch.nn.Module):
    def __init__(self, width):
        super().__init__()


norm = Norm()
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "users_model.py"
    path.write_text(FILE)
    return str(path)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_holds_no_data(name: str) -> None:
    subject = resolve(name, shape="64x256", dtype="f32")
    with subject.scope():
        made = subject.function(*subject.inputs)
    outputs = made if isinstance(made, tuple) else (made,)
    assert all(isinstance(t, torch._subclasses.FakeTensor) for t in (*subject.inputs, *outputs))
    assert any(t.numel() == 64 * 256 for t in subject.inputs)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_a_batch_of_its_size(name: str) -> None:
    subject = resolve(name)
    batch, sequence = DEFAULT_SHAPES[name]
    assert subject.inputs[0].shape[0] == batch
    assert all(isinstance(p, torch._subclasses.FakeTensor) for p in subject.function.parameters())  # type: ignore[attr-defined]
    with subject.scope():
        assert torch.is_autocast_enabled("cpu")
    assert sequence > 1


@pytest.mark.parametrize(
    ("text", "parsed"),
    [("bf16[8192,4096]", ("bf16", (8192, 4096))), ("f32[]", ("f32", ())), ("i64[ 3, 4 ]", ("i64", (3, 4)))],
)
def test_types_are_written_as_in_programs(text: str, parsed: tuple[str, tuple[int, ...]]) -> None:
    assert parse_type(text) == parsed


def test_targets_are_those_with_figures() -> None:
    for name in TARGETS:
        assert Target.named(name).name == name
    with pytest.raises(ValueError, match="known: " + ", ".join(sorted(TARGETS))):
        Target.named("other")


# explain


def test_explain_prints_text_and_json(run: Any) -> None:
    code, out, err = run("explain", "softmax_forward", "--shape", "64x256", "--dtype", "f32", "--target", "h200")
    assert (code, err) == (0, "")
    assert out.startswith("softmax_forward on h200: 1 region in 1 kernel of weft's, which moves 131 kB: ")
    code, out, err = run("explain", "softmax_forward", "--shape", "64x256", "--target", "gb200", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["name"], found["target"]["name"], found["target"]["measured"]) == ("softmax_forward", "gb200", False)
    assert [k["bytes_read"] for k in found["kernels"]] == [64 * 256 * 2]


def test_explain_writes_a_page(run: Any, tmp_path: Path) -> None:
    page = tmp_path / "made" / "page.html"
    code, out, _ = run("explain", "softmax_forward", "--shape", "64x256", "--html", str(page))
    assert code == 0
    assert out.splitlines()[-1] == f"wrote {page}"
    assert page.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(("grad", "graphs"), [(False, ["inference"]), (True, ["forward", "backward"])])
def test_explain_takes_a_function_of_a_file(run: Any, file: str, grad: bool, graphs: list[str]) -> None:
    flags = ["--grad"] if grad else []
    code, out, err = run("explain", f"{file}:block", "bf16[32,64]", "bf16[64]", "--json", "--target", "cpu", *flags)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert ([g["kind"] for g in found["graphs"]], found["name"]) == (graphs, "block")
    assert [b["source"] for b in found["kernels"][0]["inputs"]] == ["x", "weight"]
    assert found["regions"][0]["lines"] == ["users_model.py:9: return F.rms_norm(x * SCALE, (64,), weight)"]


@pytest.mark.parametrize("name", ["norm", "Norm"])
def test_explain_takes_a_module_of_a_file(run: Any, file: str, name: str) -> None:
    code, out, _ = run("explain", f"{file}:{name}", "f32[32,64]", "--json", "--target", "cpu")
    assert code == 0
    assert [g["kind"] for g in json.loads(out)["graphs"]] == ["forward", "backward"]  # its parameters need gradients


# show


@pytest.mark.parametrize(
    ("stage", "first"),
    [
        ("program", "program row_max_exp_row_sum()"),
        ("plan", "plan for cpu: 1 kernel(s), "),
        ("nest", "nest row_max_exp_row_sum\n  chunks\n    tiles of=chunk\n"),
        ("source", "// schedule ONE_SHOT rows=(m) columns=(n) "),
    ],
)
def test_show_prints_a_stage(run: Any, stage: str, first: str) -> None:
    given = ("softmax_forward", "--shape", "64x256", "--target", "cpu", "--stage", stage)
    code, out, err = run("show", *given)
    assert (code, err) == (0, "")
    assert out.startswith(first)
    found = json.loads(run("show", *given, "--json")[1])
    assert (found["stage"], found["name"], found["target"]) == (stage, "softmax_forward", "cpu")
    assert [r["texts"] for r in found["regions"]] == [[out[:-1]]]


def test_show_prints_triton_for_a_gpu(run: Any) -> None:
    code, out, err = run("show", "softmax_forward", "--shape", "64x256", "--target", "h200", "--stage", "source")
    assert (code, err) == (0, "")
    assert out.startswith("# schedule ONE_SHOT rows=(m) columns=(n) ")
    assert "@triton.jit\ndef weft_row_max_exp_row_sum(arg0, out0):" in out


def test_show_prints_a_nest_for_a_gpu(run: Any) -> None:
    code, out, err = run("show", "softmax_forward", "--shape", "64x256", "--target", "h200", "--stage", "nest")
    assert (code, err) == (0, "")
    assert out.startswith("nest row_max_exp_row_sum\n")
    assert "    reduce sum\n" in out
    assert "words arg0, out0\nlaunch weft_row_max_exp_row_sum grid=(" in out


def test_show_without_triton_says_what_to_install(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show, "supports_cuda", lambda: False)
    code, _, err = run("show", "softmax_forward", "--target", "h200", "--stage", "source")
    assert code == 2
    assert err.startswith("weft: code for h200 needs Triton, `pip install triton`; or use --target cpu")


def test_show_says_why_there_is_nothing(run: Any, file: str) -> None:
    Path(file).write_text("def product(x, y):\n    return x @ y\n")
    code, out, _ = run("show", f"{file}:product", "f32[4,4]", "f32[4,4]", "--target", "cpu")
    assert code == 0
    assert "left out: 1 x unsupported_op: aten.mm.default is no operation weft fuses" in out


# wrong input

WRONG = {
    "no such workload": (
        ["explain", "soft_max_forward"],
        "weft: no workload 'soft_max_forward', and not FILE.py:FUNCTION; did you mean softmax_forward?",
    ),
    "nothing like it": (
        ["show", "zzz"],
        "weft: no workload 'zzz', and not FILE.py:FUNCTION; known are rms_norm_forward",
    ),
    "part of a name": (
        ["show", "rms_norm"],
        "weft: no workload 'rms_norm', and not FILE.py:FUNCTION; did you mean rms_norm_forward or rms_norm_backward or "
        "rms_norm_fp8?",
    ),
    "in capitals": (
        ["show", "SOFTMAX_FORWARD"],
        "weft: no workload 'SOFTMAX_FORWARD', and not FILE.py:FUNCTION; did you ",
    ),
    "no function named": (["show", "FILE"], "weft: a function of a file is written FILE.py:FUNCTION, not 'FILE'"),
    "not Python": (
        ["show", "a.txt:f", "f32[4]"],
        "weft: a function of a file is written FILE.py:FUNCTION, not 'a.txt:f'",
    ),
    "a method": (
        ["show", "FILE:Norm.forward"],
        "weft: a function of a file is written FILE.py:FUNCTION, not 'FILE:Norm",
    ),
    "types alone": (
        ["tune", "softmax_forward", "f32[4]"],
        "weft: the TYPE f32[4] is not behind a function; a workload or model ",
    ),
    "shape": (["explain", "softmax_forward", "--shape", "12"], "weft: a shape is written 8192x4096, not '12'"),
    "dtype": (
        ["explain", "softmax_forward", "--dtype", "int"],
        "weft: unknown dtype 'int'; one of f64, f32, bf16, f16",
    ),
    "target": (
        ["explain", "softmax_forward", "--target", "h300"],
        "weft: no target named 'h300'; known: a100, b200, cpu, cpu_amd, gb200, h100, h200, l40s, rtx3090, rtx4090, ",
    ),
    "stage": (
        ["show", "softmax_forward", "--stage", "ptx"],
        "weft: no stage 'ptx'; one of program, plan, nest, source",
    ),
    "types for a workload": (["explain", "softmax_forward", "f32[4]"], "weft: TYPEs are for functions of a file"),
    "model in f64": (["explain", "gpt2", "--dtype", "f64"], "weft: gpt2 is a model: its dtype is that of autocast"),
    "too long for a model": (
        ["explain", "gpt2", "--shape", "1x4096"],
        "weft: gpt2: a sequence of 4096 is longer than the 1024 positions",
    ),
    "no file": (["explain", "missing.py:f", "f32[4]"], "weft: no file missing.py"),
    "no function": (["explain", "FILE:blok", "f32[4]"], "weft: FILE has no 'blok'; it has block, Norm, Wide"),
    "no number": (["explain", "FILE:SCALE", "f32[4]"], "weft: SCALE in FILE is float, not a function or a module"),
    "arguments": (["explain", "FILE:Wide", "f32[4]"], "weft: Wide cannot be made without arguments: "),
    "type": (
        ["explain", "FILE:block", "f32(4)"],
        "weft: a type is written bf16[8192,4096], or f32[] for a scalar, not 'f32(4)'",
    ),
    "type's dtype": (["explain", "FILE:block", "f23[4]"], "weft: unknown dtype 'f23' in 'f23[4]'; one of f64, f32"),
    "huge": (["explain", "FILE:block", "f32[99999,99999]"], "weft: f32[99999,99999] is more than 8 GiB"),
    "shapes": (["explain", "FILE:block", "f32[4,60]", "f32[64]"], "weft: block fails on these inputs: "),
    "too few": (["explain", "FILE:block", "f32[4,64]"], "weft: block fails on these inputs: "),
    "shape of a function": (["explain", "FILE:block", "--shape", "4x4"], "weft: --shape is for workloads"),
    "page": (["explain", "softmax_forward", "--shape", "8x64", "--html", "FILE/page.html"], "weft: FILE/page.html: "),
    "elsewhere": (
        ["explain", "softmax_forward", "--measure", "--target", "h200"],
        "weft: only the machine at hand",
    ),
    "option": (["explain", "softmax_forward", "--nonsense"], "weft: No such option: --nonsense"),
    "nothing": (["explain"], "weft: Missing argument 'WORKLOAD|FILE.py:FUNCTION'"),
}


@pytest.mark.parametrize("arguments", WRONG.values(), ids=WRONG)
def test_wrong_input_gets_one_line_and_exit_code_2(run: Any, file: str, arguments: tuple[list[str], str]) -> None:
    given, message = arguments
    code, out, err = run(*(argument.replace("FILE", file) for argument in given))
    assert (code, out) == (2, "")
    expected = message.replace("FILE.py:", "\0").replace("FILE", file).replace("\0", "FILE.py:")
    assert err.startswith(expected), err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = 1\ndef f(:\n", "SyntaxError: invalid syntax at users_model.py:2 ("),
        ("def f():\n    return 1 / 0\nf()\n", "ZeroDivisionError: division by zero at users_model.py:2: return 1 / 0"),
        ("raise SystemExit(3)\n", "it exits with 3; put what runs, rather than defines, under `if __name__"),
        ("import no_such_package\n", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("1 / 0\n", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_file_that_cannot_be_imported(run: Any, file: str, text: str, message: str) -> None:
    Path(file).write_text(text)
    code, _, err = run("explain", f"{file}:f", "f32[4]")
    assert code == 2
    assert err.startswith(f"weft: {file} cannot be imported: {message}")
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["explain", "show"])
def test_help_has_examples(run: Any, command: str) -> None:
    code, out, _ = run(command, "--help")
    assert code == 0
    assert f"weft {command} rms_norm_backward" in out
    assert f"weft {command} model.py:block" in out
