"""weft doctor: every check with what it says when something is wrong, and the command in processes of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import torch

from weft import cli, options, target
from weft.commands import doctor
from weft.explain import checks, health, trial
from weft.explain.checks import CHECKS
from weft.explain.health import Finding, Health, examine
from weft.explain.trial import Trial
from weft.options import Options
from weft.runtime import build
from weft.runtime.cache import Cache

ROOT = Path(__file__).parent.parent
GOOD = Trial(compile_s=1.25)
LIMIT = 10**9


def looked_at(name: str, environment: dict[str, str] | None = None, tried: Trial = GOOD) -> Finding:
    (found,) = (f for f in examine(environment or {}, lambda: tried).findings if f.name == name)
    return found


# a machine where all is well


def test_there_is_one_finding_a_check_and_nothing_to_do_for_those_that_are_ok(tmp_path: Path) -> None:
    found = examine({"WEFT_CACHE_DIR": str(tmp_path / "new")}, lambda: GOOD)
    assert [f.name for f in found.findings] == list(CHECKS)
    assert [f for f in found.findings if (f.status == "ok") != (f.remedy == "") or not f.fact] == []
    assert found.can_run
    assert not (tmp_path / "new").exists()


def test_what_was_found_is_data() -> None:
    found = Health((Finding("kernel", "ok", "a"), Finding("gpu", "warning", "b", "c")))
    assert found.to_dict() == {
        "can_run": True,
        "findings": [
            {"name": "kernel", "status": "ok", "fact": "a", "remedy": ""},
            {"name": "gpu", "status": "warning", "fact": "b", "remedy": "c"},
        ],
    }


def test_only_what_is_needed_decides_whether_weft_can_run() -> None:
    assert not Health((Finding("kernel", "problem", "a", "b"), Finding("gpu", "ok", "c"))).can_run
    assert Health((Finding("kernel", "warning", "a", "b"), Finding("gpu", "problem", "c", "d"))).can_run
    assert set(health.NEEDED) <= CHECKS.keys()


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        (["ok", "ok"], "weft can run on this machine; nothing is wrong"),
        (["ok", "warning"], "weft can run on this machine; 1 warning"),
        (["problem", "warning", "warning"], "weft cannot run on this machine; 1 problem, 2 warnings"),
    ],
)
def test_the_last_line_says_it_all(statuses: list[Any], expected: str) -> None:
    assert Health(tuple(Finding("kernel", status, "a") for status in statuses)).summary() == expected


def test_every_package_that_weft_depends_on_is_looked_at() -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {*checks.PACKAGES, "torch"} == set(wanted)


def test_every_variable_that_weft_reads_is_a_known_one() -> None:
    text = Path(options.__file__).read_text().partition("class Options")[2]
    assert set(re.findall(r"[\"'](WEFT_\w+)[\"']", text)) == set(options.VARIABLES)


# what can be wrong


def test_a_check_that_fails_is_a_problem_with_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Any) -> Any:
        raise RuntimeError(f"no {Path.home()}/x")

    for name in CHECKS:
        monkeypatch.setitem(checks.CHECKS, name, fail)
    found = examine({}, lambda: GOOD)
    text = "this check failed: RuntimeError: no ~/x"
    assert found.findings == tuple(Finding(name, "problem", text, "send this page with a report") for name in CHECKS)
    assert not found.can_run


def test_the_users_folder_is_a_tilde_and_only_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.setattr(health, "default_cache_dir", lambda: "/tmp/torchinductor_ann")
    text = "/home/ann /home/ann/x:/home/anna /home/ann-2 '/home/ann' /tmp/torchinductor_ann/weft"
    assert health._without_home(text) == "~ ~/x:/home/anna /home/ann-2 '~' /tmp/torchinductor_USER/weft"
    monkeypatch.setenv("HOME", "/")
    assert health._without_home("/a/b") == "/a/b"


@pytest.mark.parametrize("release", ["2.10.1", "2.16.0"])
def test_another_torch_is_a_warning(monkeypatch: pytest.MonkeyPatch, release: str) -> None:
    monkeypatch.setattr(torch, "__version__", release)
    found = looked_at("torch")
    assert (found.status, found.fact) == ("warning", f"{release}; weft is made for 2.11 to 2.15")
    assert "install a torch in that range" in found.remedy


def test_packages_that_are_not_there_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name in ("jinja2", "matplotlib", "triton", "pytorch-triton"):
            raise PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(checks, "version", version)
    found = looked_at("packages")
    assert (found.status, found.remedy) == ("warning", "pip install jinja2 matplotlib")
    assert found.fact.startswith("not installed: jinja2, matplotlib; installed: numpy 1.0, sympy 1.0")
    assert looked_at("triton").fact == "not installed; only kernels for NVIDIA GPUs need it"


@pytest.mark.parametrize(
    ("capability", "status", "remedy"),
    [(None, "ok", ""), ((8, 0), "ok", ""), ((9, 0), "warning", "`pip install cuda-core`")],
)
def test_kernels_in_cuda_are_missed_where_there_would_be_some(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] | None, status: str, remedy: str
) -> None:
    monkeypatch.setattr(checks, "missing_beside", lambda device: "cuda-core")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: capability is not None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    found = looked_at("nvrtc")
    assert (found.status, found.remedy) == (status, remedy)
    assert found.fact.startswith("cuda-core is not installed; without it there are no kernels in CUDA C++")


def test_variables_that_matter_are_shown_and_secrets_are_not() -> None:
    environment = {
        "WEFT_CHECK": "first",
        "OMP_NUM_THREADS": "2",
        "TORCHINDUCTOR_REDIS_URL": "redis://host",
        "TORCHINDUCTOR_X": "https://ann:word@host/",
        "AWS_SECRET_KEY": "word",
        "PATH": "/bin",
    }
    hidden = "TORCHINDUCTOR_REDIS_URL=(set, not shown), TORCHINDUCTOR_X=(set, not shown)"
    expected = f"OMP_NUM_THREADS=2, {hidden}, WEFT_CHECK=first"
    assert looked_at("settings", environment) == Finding("settings", "ok", expected)
    assert looked_at("settings", {"PATH": "/bin"}).fact == "none set"
    chosen = {"TORCHINDUCTOR_CACHE_DIR": health.default_cache_dir()}  # Inductor writes it into the environment
    assert looked_at("settings", chosen).fact == "none set"


@pytest.mark.parametrize(
    ("environment", "status", "fact", "remedy"),
    [
        (
            {"WEFT_CHECK": "x"},
            "problem",
            "WEFT_CHECK=x: check is 'x'; it can be off, first, always",
            "correct or unset",
        ),
        ({"WEFT_LOG": "x"}, "warning", "WEFT_LOG=x: weft reads no WEFT_LOG", "its variables are WEFT_CACHE_DIR, "),
        ({"WEFT_LOGS": "x"}, "warning", "WEFT_LOGS=x: no log named x", "WEFT_LOGS knows cache, fusion, plan, source"),
    ],
)
def test_wrong_variables_are_said(environment: dict[str, str], status: str, fact: str, remedy: str) -> None:
    found = looked_at("settings", environment)
    assert (found.status, found.fact) == (status, fact)
    assert found.remedy.startswith(remedy)


def test_no_compiler_says_what_to_install() -> None:
    tried = Trial(error="CompilerNotFoundError: no C++ compiler found", launcher_error="CompilerNotFoundError: ...")
    found = {f.name: f for f in examine({"CXX": "/no/such", "WEFT_CHECK": "x"}, lambda: tried).findings}
    assert found["compiler"].fact == "no C++ compiler found (looked for /no/such)"
    assert "apt-get install g++" in found["compiler"].remedy
    assert [found[name].status for name in ("compiler", "kernel", "launcher")] == ["problem", "problem", "warning"]
    assert found["kernel"].remedy == "install a C++ compiler, see above"


def test_a_compiler_that_does_not_answer_is_a_problem() -> None:
    found = looked_at("compiler", {"CXX": "false"})
    assert found.status == "problem"
    assert "/false fails with exit code 1 when it is asked for its version, and says: " in found.fact
    assert "install one, e.g. `apt-get install g++`" in found.remedy


def test_a_kernel_that_is_wrong_and_a_launcher_that_does_not_load_are_said() -> None:
    assert looked_at("kernel").fact == "compiled in 1.2 s; its results are those of the interpreter"
    found = looked_at("kernel", tried=Trial(error="ArithmeticError: 3 of 48 elements", launcher_error="x"))
    assert (found.status, found.fact) == ("problem", "ArithmeticError: 3 of 48 elements")
    found = looked_at("launcher", tried=replace(GOOD, launcher_error="OSError: refused"))
    assert (found.status, found.fact) == ("warning", "does not work: OSError: refused")
    assert looked_at("launcher") == Finding("launcher", "ok", "kernels are called from C++")


def test_more_threads_than_cores_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert looked_at("threads") == Finding("threads", "ok", "2 OpenMP threads, 2 cores for this process")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    found = looked_at("threads")
    assert (found.status, found.fact) == ("warning", "3 OpenMP threads, 2 cores for this process")
    assert found.remedy.startswith("set OMP_NUM_THREADS=2:")
    monkeypatch.setattr(torch.backends.openmp, "is_available", lambda: False)
    assert looked_at("threads").fact == "torch was built without OpenMP"


def test_a_cpu_without_vectors_or_figures_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    monkeypatch.setattr(checks, "cpu_model", lambda: "Some CPU")
    found = looked_at("cpu")
    assert (found.status, found.fact) == ("warning", "Some CPU, DEFAULT")
    for module in (checks, target):
        monkeypatch.setattr(module, "vendor", lambda: "ARM")
    found = looked_at("target")
    assert found.status == "warning"
    assert found.fact.startswith("cpu: fitted by")
    assert found.fact.endswith("; there are no figures for this CPU")


def test_a_gpu_is_a_warning_while_there_is_no_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: f"GPU {i}")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(checks, "supports_cuda", lambda: False)
    expected = "GPU 0, GPU 1; torch is built for CUDA 13.0; there is no Triton, which weft writes code for GPUs in"
    remedy = "`pip install triton`"
    assert looked_at("gpu") == Finding("gpu", "warning", expected, remedy)


def test_the_caches_are_looked_at_and_not_created(tmp_path: Path) -> None:
    place, inductor = tmp_path / "weft", tmp_path / "inductor"
    environment = {"WEFT_CACHE_DIR": str(place), "TORCHINDUCTOR_CACHE_DIR": str(inductor)}
    names = ("weft's cache", "inductor's cache")
    for name, folder in zip(names, (place, inductor), strict=True):
        assert looked_at(name, environment) == Finding(name, "ok", f"{folder}: not there yet, can be created")
    for key in ("ab" * 16, "cd" * 16):
        Cache(place, LIMIT).get(key, "kernel", "norm", lambda: bytes(1500))
    (inductor / "deep").mkdir(parents=True)
    (inductor / "deep" / "file").write_bytes(bytes(700))
    assert looked_at(names[0], environment).fact == f"{place}: 2 files, 3.0 kB of at most 2.1 GB"
    assert looked_at(names[1], environment).fact == f"{inductor}: 1 file, 700 bytes"
    Cache(place, LIMIT).entries()[0].path.write_bytes(bytes(1499))
    found = looked_at(names[0], environment)
    assert (found.status, found.fact) == ("warning", f"{place}: 2 files, 3.0 kB of at most 2.1 GB, 1 damaged")
    assert found.remedy.startswith("`weft cache verify --repair`")
    for folder in (place, inductor):
        folder.chmod(0o777)
    for name, variable in zip(names, ("WEFT_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"), strict=True):
        found = looked_at(name, environment)
        assert found.status == "warning"
        assert found.fact.endswith(", not trusted: other users can write to it (mode 777)")
        assert found.remedy == f"set {variable} to a folder that only you can write to"


def test_a_cache_that_cannot_be_written_to_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"WEFT_CACHE_DIR": str(tmp_path / "a" / "b")}
    monkeypatch.setattr(checks, "LEAST_FREE_BYTES", 2**63)
    found = looked_at("weft's cache", environment)
    assert (found.status, found.fact.endswith(" free on its disk")) == ("warning", True)
    monkeypatch.setattr(os, "access", lambda *_: False)
    found = looked_at("weft's cache", environment)
    assert (found.status, found.fact.endswith(f", {tmp_path} is read only")) == ("warning", True)


# the trial


def test_a_kernel_with_wrong_results_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    def wrong(source: Any, given: Options) -> bytes:
        text = source.text.replace("x * ", "x + ")
        assert text != source.text
        compiled.append(text)
        return original(replace(source, text=text), given)

    original = build.compile_anew
    monkeypatch.setattr(build, "compile_anew", wrong)
    found = trial.run(Options.read())
    assert len(compiled) == 1
    assert found.error.startswith("ArithmeticError: ")
    assert " of 3072 elements of out0 are not what the interpreter finds" in found.error
    assert (found.compile_s, found.launcher_error) == (0.0, "")


def dies(_: object) -> Trial:
    sys.exit("no more memory")


def test_a_process_that_dies_or_takes_too_long_is_a_failed_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_tried", dies)
    expected = "its process ended: no more memory"
    assert trial.run_apart() == Trial(error=expected, launcher_error=expected)
    monkeypatch.setattr(trial, "TIMEOUT_S", 0)
    assert trial.run_apart().error == "no result after 0 s"


def test_wrong_settings_are_a_failed_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CHECK", "sometimes")
    assert trial._tried(None).error.startswith("OptionError: check is 'sometimes'")


# the command


def test_the_page_is_plain_text_without_spaces_at_the_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = Health((Finding("weft", "ok", "[bold] 0.1"), Finding("kernel", "problem", "no", "do [this]")))
    monkeypatch.setattr(doctor, "examine", lambda: found)
    assert cli.run(["doctor"]) == 1
    lines = [
        "ok       weft    [bold] 0.1",
        "problem  kernel  no",
        "                 -> do [this]",
        "weft cannot run on this machine; 1 problem",
    ]
    assert capsys.readouterr().out.splitlines() == lines


def run_doctor(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "weft", "doctor", *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)


def test_the_command_compiles_and_runs_a_kernel() -> None:
    done = run_doctor("--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    by_name = {f["name"]: f for f in found["findings"]}
    assert found["can_run"]
    assert by_name["kernel"]["fact"].endswith("its results are those of the interpreter")
    assert by_name["launcher"]["status"] == "ok"
    assert str(Path.home()) + "/" not in done.stdout


@pytest.mark.slow
def test_the_command_says_no_without_a_compiler(tmp_path: Path) -> None:
    done = run_doctor(CXX=str(tmp_path / "none"), WEFT_CACHE_DIR=str(tmp_path / "cache"))
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines()[-1] == "weft cannot run on this machine; 2 problems, 1 warning"
    assert "apt-get install g++" in done.stdout
