"""The command line: what it prints for people and for machines, exit codes, wrong input in one line."""

from __future__ import annotations

import builtins
import io
import json
import os
import subprocess
import sys
import textwrap
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import weft
from weft import cli
from weft.runtime.cache import Cache

ROOT = Path(__file__).parent.parent
LIMIT = 2**30
KEYS = ["a1" * 16, "b2" * 16, "c3" * 16]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with two kernels and a header, used at 1000, 2000 and 3000 s; the configured one."""
    place = tmp_path / "cache"
    store = Cache(place, LIMIT)
    kinds = [("norm", "kernel", 1500), ("softmax", "kernel", 2500), ("weft_cpu", "header", 2_000_000)]
    for number, (key, (name, kind, size_bytes)) in enumerate(zip(KEYS, kinds, strict=True), 1):
        path = store.get(key, kind, name, lambda size_bytes=size_bytes: bytes(size_bytes)).path
        assert path is not None
        os.utime(path, (number * 1000, number * 1000))
    monkeypatch.setenv("WEFT_CACHE_DIR", str(place))
    monkeypatch.delenv("WEFT_CACHE_BYTES", raising=False)
    monkeypatch.setenv("COLUMNS", "120")
    return place


def damage(folder: Path, name: str) -> Path:
    (entry,) = (entry for entry in Cache(folder, LIMIT).entries() if entry.name == name)
    entry.path.write_bytes(b"damaged")
    return entry.path


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in Cache(folder, LIMIT).entries())


# list


def test_list_shows_every_file_and_totals(folder: Path, run: Any) -> None:
    found = run("cache", "list")
    assert (found.code, found.err) == (0, "")
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in found.out.splitlines() if line.startswith("│")]
    day = datetime.fromtimestamp(3000).strftime("%Y-%m-%d %H:%M")
    assert rows[0] == ["weft_cpu", "header", day, KEYS[2][:12], "2.0 MB"]
    assert [row[0] for row in rows] == ["weft_cpu", "softmax", "norm"]
    assert found.out.splitlines()[-1] == f"3 files, 2.0 MB of at most 2.1 GB, in {folder}"


def test_list_for_machines(folder: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE_BYTES", "5000000")
    found = run("cache", "list", "--json").json()
    assert (found["folder"], found["limit_bytes"], found["size_bytes"]) == (str(folder), 5000000, 2_004_000)
    last = found["entries"][-1]
    assert {key: last[key] for key in ("key", "kind", "name", "size_bytes")} == {
        "key": KEYS[0],
        "kind": "kernel",
        "name": "norm",
        "size_bytes": 1500,
    }
    assert datetime.fromisoformat(last["last_used"]) == datetime.fromtimestamp(1000, UTC)
    assert Path(last["path"]).read_bytes() == bytes(1500)


@pytest.mark.parametrize("command", [["list"], ["verify"], ["clear"], ["clear", "--yes"]])
def test_a_cache_that_was_never_used_is_empty(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "none"))
    found = run("cache", *command)
    assert (found.code, found.err) == (0, "")
    assert found.out.startswith("0 files")
    assert found.out.endswith(f"{tmp_path / 'none'}\n")
    assert not (tmp_path / "none").exists()


def test_a_folder_with_brackets_and_a_long_name_is_shown_as_it_is(run: Any, tmp_path: Path) -> None:
    place = tmp_path / "[bold]x" / ("long " * 30)
    Cache(place, LIMIT).get(KEYS[0], "kernel", "f", lambda: b"")
    assert run("cache", "list", "--cache-dir", str(place)).out.endswith(f"in {place}\n")


# verify


def test_verify_says_that_all_is_well(folder: Path, run: Any) -> None:
    found = run("cache", "verify")
    assert (found.code, found.out) == (0, f"3 files compared with digests, 0 damaged, in {folder}\n")
    assert run("cache", "verify", "--json").json() == {"folder": str(folder), "checked": 3, "damaged": []}


def test_verify_reports_what_is_damaged_and_removes_nothing(folder: Path, run: Any) -> None:
    path = damage(folder, "softmax")
    found = run("cache", "verify")
    assert found.code == 1
    assert "softmax" in found.out
    assert "norm" not in found.out
    assert f"3 files compared with digests, 1 damaged, not removed, in {folder}" in found.out
    assert "--repair" in found.out
    as_json = run("cache", "verify", "--json")
    assert as_json.code == 1
    (shown,) = as_json.json()["damaged"]
    assert (shown["key"], shown["path"], shown["removed"]) == (KEYS[1], str(path), False)
    assert path.exists()


def test_repair_removes_what_is_damaged_and_nothing_else(folder: Path, run: Any) -> None:
    damage(folder, "softmax")
    damage(folder, "weft_cpu")
    found = run("cache", "verify", "--repair", "--json")
    assert found.code == 0
    assert {(shown["name"], shown["removed"]) for shown in found.json()["damaged"]} == {
        ("softmax", True),
        ("weft_cpu", True),
    }
    assert names(folder) == ["norm"]
    assert run("cache", "verify").code == 0


def test_repair_that_cannot_remove_is_no_repair(folder: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    damage(folder, "softmax")
    monkeypatch.setattr(Cache, "remove", lambda self, entry: False)
    found = run("cache", "verify", "--repair")
    assert found.code == 1
    assert "1 damaged, not removed" in found.out


# clear


@pytest.mark.parametrize(("answer", "left"), [("y\n", 0), ("n\n", 3), ("\n", 3), ("", 3)])
def test_clear_asks(folder: Path, run: Any, monkeypatch: pytest.MonkeyPatch, answer: str, left: int) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
    found = run("cache", "clear")
    assert f"Remove 3 files from {folder}?" in found.out
    assert found.code == (1 if left else 0)
    assert ("nothing was done" in found.err) == bool(left)
    assert len(names(folder)) == left


def test_clear_removes_only_what_is_wefts(folder: Path, run: Any) -> None:
    (folder / "notes.txt").write_text("mine")
    found = run("cache", "clear", "--yes")
    assert found.code == 0
    assert f"3 files removed, 2.0 MB, from {folder}" in found.out
    assert "Left alone, not weft's or in use: notes.txt" in found.out
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_clear_for_machines(folder: Path, run: Any) -> None:
    (folder / "notes.txt").write_text("mine")
    assert run("cache", "clear", "--json").code == 2
    assert len(names(folder)) == 3
    assert run("cache", "clear", "--json", "--yes").json() == {
        "folder": str(folder),
        "removed": 3,
        "removed_bytes": 2_004_000,
        "left": [str(folder / "notes.txt")],
    }


# another folder, wrong input


@pytest.mark.parametrize("command", [["list"], ["verify"], ["clear", "--yes"]])
def test_a_folder_can_be_given(folder: Path, run: Any, tmp_path: Path, command: list[str]) -> None:
    other = tmp_path / "other"
    Cache(other, LIMIT).get(KEYS[0], "kernel", "f", lambda: b"1")
    assert "1 file" in run("cache", *command, "--cache-dir", str(other)).out
    assert len(names(folder)) == 3


def writable(place: Path) -> str:
    place.mkdir()
    place.chmod(0o777)
    return str(place)


def a_file(place: Path) -> str:
    place.write_text("mine")
    return str(place)


@pytest.mark.parametrize("command", [["list"], ["verify", "--repair"], ["clear", "--yes"]])
@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (writable, "other users can write to it"),
        (a_file, "it is no folder"),
        (str, "No such file or directory"),
        (lambda place: "", "--cache-dir is empty"),
        (lambda place: a_file(place) + "/below", "Not a directory"),
    ],
)
def test_a_folder_that_is_not_a_cache_is_one_line(
    run: Any, tmp_path: Path, prepare: Any, message: str, command: list[str]
) -> None:
    found = run("cache", *command, "--cache-dir", prepare(tmp_path / "place"))
    assert (found.code, found.out) == (2, "")
    assert found.err.startswith("weft: ")
    assert found.err.count("\n") == 1
    assert message in found.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["frobnicate"], "No such command 'frobnicate'"),
        (["cache", "lost"], "No such command 'lost'"),
        (["cache", "list", "--colour"], "No such option: --colour"),
        (["cache", "list", "more"], "unexpected extra argument"),
        (["cache", "list", "--cache-dir"], "requires an argument"),
    ],
)
def test_wrong_input_is_one_line(folder: Path, run: Any, arguments: list[str], message: str) -> None:
    found = run(*arguments)
    assert (found.code, found.out) == (2, "")
    assert found.err.startswith("weft: ")
    assert found.err.count("\n") == 1
    assert message in found.err


def test_a_wrong_variable_is_one_line(folder: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE_BYTES", "much")
    found = run("cache", "list")
    assert found.code == 2
    assert found.err.startswith("weft: the size of the cache (cache_bytes, WEFT_CACHE_BYTES) is a number of bytes, not")
    assert found.err.count("\n") == 1


@pytest.mark.parametrize(
    "command", [["explain", "softmax_forward", "--shape", "8x64"], ["tune", "--forget"], ["bench", "softmax_forward"]]
)
def test_a_wrong_variable_is_one_line_for_every_command(
    run: Any, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setenv("WEFT_TUNED", "yes")
    found = run(*command)
    assert (found.code, found.out) == (2, "")
    assert found.err == "weft: tuned schedules are used (tuned, WEFT_TUNED) or not, 1 or 0, not 'yes'\n"


def test_the_version(run: Any) -> None:
    found = run("--version")
    assert (found.code, found.out, found.err) == (0, f"weft {weft.__version__}\n", "")


def test_a_defect_is_not_hidden(run: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cache, "entries", lambda self: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        cli.main(["cache", "list"])


@pytest.mark.parametrize("arguments", [[], ["cache"]])
def test_no_command_is_the_help(run: Any, arguments: list[str]) -> None:
    found = run(*arguments)
    assert found.code == 2
    assert found.err.startswith("Usage: ")
    assert "Commands:\n" in found.err
    assert run(*arguments, "--help").out.strip() == found.err.strip()


# installation


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_a_missing_library_is_named_with_the_way_to_install_it(
    run: Any, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    real = builtins.__import__

    def without(name: str, *others: Any) -> Any:
        if name.partition(".")[0] == missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *others)

    for module in [m for m in sys.modules if m.partition(".")[0] == missing or m.startswith("weft.commands")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(builtins, "__import__", without)
    found = run("cache", "list")
    monkeypatch.undo()
    assert found.code == 2
    assert found.err == f"weft: the command line needs {missing}; install it with `pip install {missing}`\n"


def test_importing_weft_imports_no_command_line_and_a_command_no_gpu_package() -> None:
    """Triton aside, which torch imports where it is installed: but none of what weft has for it."""
    code = """
        import sys, weft
        print([m for m in ("typer", "click", "weft.cli", "weft.commands") if m in sys.modules])
        import weft.commands.bench
        print([m for m in ("weft.backends.triton.weft_triton", "liger_kernel", "quack") if m in sys.modules])
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "[]\n[]\n"


def test_weft_runs_as_a_module_and_as_a_script(folder: Path) -> None:
    module = [sys.executable, "-m", "weft", "cache", "list", "--json"]
    done = subprocess.run(module, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["size_bytes"] == 2_004_000
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"weft": "weft.cli:main"}
