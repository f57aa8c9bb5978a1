"""Compilers that are not there or do not work: which one, who named it, what it printed, and the way out."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import weft
from weft.backends.source import Source
from weft.errors import BrokenCompilerError, BuildError, CompilerNotFoundError, warn_once
from weft.options import Options
from weft.runtime import build, cache, cxx, launch, launcher
from weft.runtime.cxx import find_compiler, first_lines

ANSWERS = 'case "$1" in --version) echo "g++ 12"; exit;; esac\n'
UNSET = "The variable CXX names it: unset CXX, and weft takes the first of g++, clang++ and c++ on the path. "
LEAVE_OUT = "The option cxx names it: leave that out, and weft takes the first of g++, clang++ and c++ on the path. "
INSTALL = (
    "nstall one, e.g. `apt-get install g++` on Debian and Ubuntu, `dnf install gcc-c++` on Fedora, "
    "`xcode-select --install` on macOS"
)
DOCTOR = "; `weft doctor` says whether it works."

Script = Callable[[str], str]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """A program that does as told, in the place of a compiler."""

    def make(text: str) -> str:
        path = tmp_path / "compiler"
        path.write_text(f"#!/bin/sh\n{text}")
        path.chmod(0o755)
        return str(path)

    return make


def complaint(compiler: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What is said of the compiler named by ``CXX``, after checking that the option says the same of itself."""
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(CompilerNotFoundError) as of_option:
        find_compiler(Options.read({"cxx": compiler}, {}))
    monkeypatch.setenv("CXX", compiler)
    with pytest.raises(CompilerNotFoundError) as of_variable:
        find_compiler(Options.read())
    said = str(of_option.value)
    said = said.replace("The option cxx", "The variable CXX").replace("leave that out", "unset CXX")
    assert said == str(of_variable.value)
    return said


# one that cannot be asked


@pytest.mark.parametrize("name", ["/nonexistent/g++", "g++-99", "/tmp", "/nonexistent/g++ -O3"])
def test_one_that_is_not_there(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    said = complaint(name, monkeypatch)
    assert said == f"no C++ compiler found (looked for {name}). {UNSET}If there is none, i{INSTALL}{DOCTOR}"


def test_one_with_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    said = complaint("env -march=native", monkeypatch)
    assert "The variable CXX names it, and it has to be one program without flags: unset CXX" in said


def test_none_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CompilerNotFoundError) as raised:
        find_compiler(Options.read({}, {}))
    looked = "no C++ compiler found (looked for g++, clang++, c++)"
    assert str(raised.value) == f"{looked}. I{INSTALL}, or set CXX to its path{DOCTOR}"


def test_a_file_that_is_no_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "compiler").write_text("text")
    (tmp_path / "compiler").chmod(0o755)
    said = complaint(str(tmp_path / "compiler"), monkeypatch)
    assert said.startswith(f"the C++ compiler {tmp_path}/compiler cannot be run: Exec format error. {UNSET}")


@pytest.mark.parametrize(
    ("text", "what", "printed"),
    [
        ("exit 1", "fails with exit code 1", "(nothing)"),
        ("echo no licence >&2; echo; echo call us; exit 3", "fails with exit code 3", "no licence | call us"),
        (r"printf '\377 error' >&2; exit 1", "fails with exit code 1", "\ufffd error"),
    ],
)
def test_one_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, script: Script, text: str, what: str, printed: str
) -> None:
    path = script(text)
    assert complaint(path, monkeypatch) == (
        f"the C++ compiler {path} {what} when it is asked for its version, and says: {printed}. {UNSET}If there is "
        f"none, i{INSTALL}{DOCTOR}"
    )


def test_one_that_says_nothing(monkeypatch: pytest.MonkeyPatch, script: Script) -> None:
    path = script("exit 0")
    said = f"the C++ compiler {path} does not say its version. {UNSET}If there is none, i{INSTALL}{DOCTOR}"
    assert complaint(path, monkeypatch) == said


def test_the_first_lines_that_say_what_is_wrong() -> None:
    assert first_lines("In file included from a\n\na.h:1: error: b\n") == "a.h:1: error: b"
    assert first_lines("ld: cannot find -lgomp\ncollect2: error: ld failed") == (
        "ld: cannot find -lgomp\ncollect2: error: ld failed"
    )
    assert first_lines("".join(f"{n}\n" for n in range(9))) == "0\n1\n2\n3\n4"
    assert first_lines("\n") == "(nothing)"


# one that compiles nothing


def norm(x: Tensor) -> Tensor:
    return x.softmax(-1) * x.sum(0)


@pytest.fixture
def _new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    warn_once.cache_clear()
    weft.counters.reset()
    monkeypatch.setattr(launch, "_KERNELS", {})
    monkeypatch.setattr(launcher, "_LAUNCHER", launcher._Launcher())  # it is compiled as well, and would fail for all
    monkeypatch.setattr(build, "_HEADERS", build._Headers())
    monkeypatch.setattr(cache, "_WARNED", set())


@pytest.mark.usefixtures("_new_process")
@pytest.mark.parametrize(
    ("text", "what", "printed"),
    [
        ("exit 1", "fails with exit code 1 when it is asked", "(nothing)"),
        (f"{ANSWERS}echo a.h:1: error: b >&2; exit 1", "cannot compile an empty kernel", "a.h:1: error: b"),
        (f"{ANSWERS}exit 0", "cannot compile an empty kernel", "(nothing)"),
    ],
)
def test_a_function_runs_without_it_and_one_warning_says_what_to_do(
    tmp_path: Path, script: Script, text: str, what: str, printed: str
) -> None:
    x = torch.randn(64, 32)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fused = weft.fuse(norm, cxx=script(text), cache_dir=str(tmp_path / "cache"))
        torch.testing.assert_close(fused(x), norm(x))
    (message,) = [str(w.message) for w in caught if str(w.message).startswith("weft: ")]
    assert [part for part in (f"{tmp_path}/compiler {what}", LEAVE_OUT, INSTALL, printed) if part not in message] == []
    assert "internal_error" not in message
    assert "CalledProcessError" not in message
    assert weft.counters.launches == weft.counters.refusals["internal_error"] == 0


@pytest.mark.usefixtures("_new_process")
def test_strict_mode_names_it(tmp_path: Path, script: Script) -> None:
    fused = weft.fuse(norm, strict=True, cxx=script(f"{ANSWERS}exit 1"), cache_dir=str(tmp_path / "cache"))
    with pytest.raises(weft.RefusedError, match=r"no_compiler: .*/compiler cannot compile an empty kernel"):
        fused(torch.randn(64, 32))


# others


@pytest.fixture
def _small_header(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / build.HEADER).write_text("#pragma once\n")
    monkeypatch.setattr(build, "_header_folder", lambda: tmp_path)
    build._check_works.cache_clear()


@pytest.mark.usefixtures("_small_header")
def test_a_kernel_that_a_working_compiler_refuses_is_not_its_fault(tmp_path: Path) -> None:
    options = Options.read({"cache_dir": str(tmp_path / "cache")}, {})
    for _ in range(2):
        with pytest.raises(BuildError, match=r"^the C\+\+ compiler refused wrong:\n.*error: .*\n/\S+ ") as raised:
            build.load(Source("cpp", "wrong", "int wrong() { return nothing; }\n"), options)
        assert not isinstance(raised.value, BrokenCompilerError)


def test_no_room_for_its_files_is_not_its_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_ROOM_BYTES", 2**80)
    with pytest.raises(BuildError, match=r"^no place for the compiler's files: "):
        build.compile_anew(Source("cpp", "right", ""), Options.read({}, {}))


@pytest.mark.usefixtures("_small_header")
def test_a_compiler_that_was_mended_is_taken(tmp_path: Path, script: Script) -> None:
    options = Options.read({"cxx": script(f"{ANSWERS}exit 1"), "cache_dir": str(tmp_path / "cache")}, {})
    source = Source("cpp", "f", 'extern "C" void weft_f(void**, void*, int) {}\n')
    with pytest.raises(BrokenCompilerError, match="The option cxx names it"):
        build.load(source, options)
    real = cxx.find_compiler(Options.read({}, {}))
    script(f'exec {real} "$@"')
    build.load(source, options)
