"""Building kernels: the precompiled header, places for the compiler's files, and caches that cannot be used."""

from __future__ import annotations

import ctypes
import inspect
import os
import shutil
import stat
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.forked import run_forked
from weft.backends.source import Source
from weft.errors import BuildError
from weft.options import Options
from weft.runtime import build, cache
from weft.runtime.cache import Cache
from weft.runtime.counters import counters

LIMIT = 2**31
ROOT = Path(__file__).parent.parent
REAL_FOLDER = build._header_folder


SMALL_HEADER = "#pragma once\n#include <cstdint>\n\nconstexpr float unit = 1.0f;\n"
"""In the place of the real one, whose precompiled form takes seconds and 100 MB."""


def source(value: int = 42, name: str = "answer", unit: str = "unit") -> Source:
    """A kernel that writes a number, with something of the header."""
    text = (
        f'#include "weft_cpu.h"\n\nextern "C" void weft_{name}(void** buffers, const int64_t* sizes, int threads) {{\n'
        f"  static_cast<float*>(buffers[0])[0] = {value} * {unit};\n}}\n"
    )
    return Source("cpp", name, text)


def result(function: Callable[..., None]) -> float:
    """What the kernel writes into memory that holds something else."""
    floats = (ctypes.c_float * 64)(*([-1.0] * 64))
    pointers = (ctypes.c_void_p * 1)(ctypes.addressof(floats))
    function(pointers, None, 1)
    return floats[0]


def options(folder: Path, **others: Any) -> Options:
    return Options.read({"cache_dir": str(folder), **others}, {})


def run(folder: Path, value: int = 42, **others: Any) -> float:
    return result(build.load(source(value), options(folder, **others)))


def header_in(folder: Path) -> Path:
    (entry,) = (entry for entry in Cache(folder, LIMIT).entries() if entry.kind == "header")
    return entry.path


def new_process(patch: pytest.MonkeyPatch) -> None:
    """What the modules remember of a process is forgotten."""
    patch.setattr(cache, "_UNWRITABLE", {})
    patch.setattr(cache, "_IN_USE", set())
    patch.setattr(cache, "_WARNED", set())
    patch.setattr(build, "_HEADERS", build._Headers())
    patch.setattr(build, "_precompile", inspect.unwrap(build._precompile))  # anew in each folder
    counters.reset()


@pytest.fixture(scope="module")
def header_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("header")
    (folder / build.HEADER).write_text(SMALL_HEADER)
    return folder


@pytest.fixture(autouse=True)
def _small_header(header_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new_process(monkeypatch)
    monkeypatch.setattr(build, "_header_folder", lambda: header_folder)


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands of the compiler that were run, with its version left out."""
    seen: list[list[str]] = []
    real = subprocess.run

    def spy(command: list[str], **others: Any) -> Any:
        seen.append([*map(str, command)])
        return real(command, **others)

    build.compiler_version(build.find_compiler(Options.read({}, {})))
    monkeypatch.setattr(build.subprocess, "run", spy)
    return seen


@pytest.fixture(scope="module")
def prepared(header_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the precompiled header and one kernel; to be copied, not to be used."""
    folder = tmp_path_factory.mktemp("prepared") / "cache"
    with pytest.MonkeyPatch.context() as patch:
        new_process(patch)
        patch.setattr(build, "_header_folder", lambda: header_folder)
        assert run(folder) == 42
    return folder


@pytest.fixture
def warm(prepared: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(prepared, tmp_path / "warm", copy_function=shutil.copy2))


def uses_header(command: list[str]) -> bool:
    return "-include" in command


# the precompiled header


def test_kernels_are_built_with_one_precompiled_header(tmp_path: Path, commands: list[list[str]]) -> None:
    built = build.build_all([source(1), source(2), source(3), source(1)], options(tmp_path))
    values = {result(build.open_library(content, "weft_answer")) for content in built.values()}
    assert values == {1, 2, 3}
    assert [c for c in commands if "c++-header" in c] == commands[:1]
    assert [uses_header(c) for c in commands[1:]] == [True] * 3


def test_the_real_header_is_precompiled_and_used(
    tmp_path: Path, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_header_folder", REAL_FOLDER)
    real = source(42, unit="(w::W > 0)")
    assert result(build.load(real, options(tmp_path))) == 42
    assert ["c++-header" in c for c in commands] == [True, False]
    assert uses_header(commands[1])
    flip_one_bit(header_in(tmp_path))
    assert [entry.kind for entry in Cache(tmp_path, LIMIT).damaged()] == ["header"]
    shutil.rmtree(tmp_path)  # it is large


def test_nothing_is_compiled_or_asked_of_the_header_when_the_kernel_is_there(
    warm: Path, commands: list[list[str]]
) -> None:
    header_in(warm).unlink()
    assert run(warm) == 42
    assert commands == []
    assert (counters.cache_hits, counters.builds) == (1, 0)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def spoil_the_head(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"not for you")


def flip_one_bit(path: Path) -> None:
    """In the middle: g++ itself takes such a file without a word."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


def remove(path: Path) -> None:
    path.unlink()


DAMAGES = [truncate, empty, spoil_the_head, flip_one_bit, remove]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_header_is_made_again_in_the_next_process(
    warm: Path, commands: list[list[str]], damage: Callable[[Path], None]
) -> None:
    damage(header_in(warm))
    assert run(warm, 43) == 43
    assert ["c++-header" in c for c in commands] == [True, False]
    assert uses_header(commands[1])
    assert Cache(warm, LIMIT).damaged() == []


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_header_that_is_damaged_between_two_builds_is_made_again(
    warm: Path, commands: list[list[str]], damage: Callable[[Path], None]
) -> None:
    assert run(warm, 43) == 43
    damage(header_in(warm))
    assert run(warm, 44) == 44
    assert ["c++-header" in c for c in commands] == [False, True, False]
    assert [uses_header(c) for c in commands] == [True, False, True]


@pytest.mark.parametrize("damage", [truncate, empty, spoil_the_head, remove], ids=lambda damage: damage.__name__)
def test_a_header_that_the_compiler_refuses_after_all_is_done_without(
    warm: Path, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], None]
) -> None:
    """It is damaged, or evicted by another process, after its digest was compared and before the compiler reads it."""
    header = header_in(warm)
    find = build._Headers.find

    def find_and_damage(self: Any, store: Cache, compiler: str) -> Path | None:
        found = find(self, store, compiler)
        if found is not None:
            damage(found)
        return found

    monkeypatch.setattr(build._Headers, "find", find_and_damage)
    assert run(warm, 43) == 43
    assert [uses_header(c) for c in commands] == [True, False]
    assert not header.exists()
    assert run(warm, 44) == 44
    assert [uses_header(c) for c in commands] == [True, False, False]


def test_a_header_that_cannot_be_precompiled_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(compiler: str) -> bytes:
        raise BuildError("the C++ compiler refused the vector header")

    monkeypatch.setattr(build, "_precompile", fail)
    assert run(tmp_path) == 42


def test_a_kernel_that_does_not_compile_names_its_error(warm: Path) -> None:
    broken = Source("cpp", "broken", '#include "weft_cpu.h"\nint broken() { return no_such_name; }\n')
    with pytest.raises(BuildError, match=r"refused broken:\n.*'?no_such_name'?"):
        build.load(broken, options(warm))
    assert not [entry for entry in Cache(warm, LIMIT).entries() if entry.name == "broken"]
    assert header_in(warm).exists()  # not the header's fault


# what is no kernel

SUM = {
    "sum.cpp": '#include "first.h"\n\nextern "C" int sum() { return first + second; }\n',
    "first.h": '#pragma once\n\n#include "second.h"\n\nconstexpr int first = 40;\n',
    "second.h": "#pragma once\n\nconstexpr int second = 2;\n",
}


def sum_of(files: dict[str, str], folder: Path) -> int:
    return build.open_auxiliary(build.auxiliary("sum", files, options(folder)), "sum").sum()


def test_a_change_of_any_file_of_a_library_compiles_it_anew(tmp_path: Path, commands: list[list[str]]) -> None:
    changes = [("sum.cpp", "+", "-", 38), ("first.h", "40", "50", 52), ("second.h", "2", "3", 43)]
    for _ in range(2):
        assert sum_of(SUM, tmp_path) == 42
        for name, before, after, expected in changes:
            assert sum_of({**SUM, name: SUM[name].replace(before, after)}, tmp_path) == expected
        assert len(commands) == 4
    assert (counters.builds, counters.cache_hits) == (0, 0)


def test_an_error_names_the_file_that_it_is_in(tmp_path: Path) -> None:
    broken = {**SUM, "second.h": SUM["second.h"].replace("2", "no_such_name")}
    with pytest.raises(BuildError, match=r"refused sum:\n\S+/second\.h:3:\d+: error: .*no_such_name"):
        sum_of(broken, tmp_path)


# what is loaded


def test_the_library_that_runs_is_the_one_that_was_verified(warm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is replaced by another kernel between the comparison of its digest and the loading."""
    evil = build.library(source(666), options(warm))
    (entry,) = (
        e
        for e in Cache(warm, LIMIT).entries()
        if e.digest != cache.hashlib.sha256(evil).hexdigest() and e.kind == "kernel"
    )
    open_library = build.open_library

    def replace_and_open(content: bytes, name: str) -> Callable[..., None]:
        entry.path.write_bytes(evil)
        return open_library(content, name)

    monkeypatch.setattr(build, "open_library", replace_and_open)
    assert run(warm) == 42
    assert entry.path.read_bytes() == evil
    assert run(warm) == 42  # found damaged, compiled again


def test_a_loaded_kernel_outlives_its_file(warm: Path) -> None:
    function = build.load(source(), options(warm))
    Cache(warm, LIMIT).clear()
    assert result(function) == 42


def test_every_library_is_its_own_though_names_are_the_same(warm: Path) -> None:
    functions = [build.load(source(value), options(warm)) for value in range(5)]
    assert [result(f) for f in functions] == [0, 1, 2, 3, 4]


# places for the compiler's files


def test_the_compilers_files_are_private_and_gone_afterwards(
    warm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    modes: list[int] = []
    real = subprocess.run

    def spy(command: list[str], **others: Any) -> Any:
        modes.extend(stat.S_IMODE(path.stat().st_mode) for path in place.iterdir())
        assert Path(others["env"]["TMPDIR"]).parent == place
        return real(command, **others)

    monkeypatch.setattr(build.subprocess, "run", spy)
    assert run(warm, 43) == 43
    assert modes == [0o700]
    assert list(place.iterdir()) == []


class Filesystem:
    """What statvfs says of a place."""

    def __init__(self, flags: int, free_bytes: int) -> None:
        self.f_flag, self.f_bavail, self.f_frsize = flags, free_bytes, 1


@pytest.mark.parametrize("said", [Filesystem(os.ST_NOEXEC, 2**40), Filesystem(0, 2**20)], ids=["no programs", "full"])
def test_a_place_that_is_full_or_runs_no_programs_is_passed_over(
    warm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Filesystem
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    real = os.statvfs
    monkeypatch.setattr(build.os, "statvfs", lambda place: said if place == str(tmp_path) else real(place))
    with build.private_folder() as folder:
        assert folder.parent == Path("/tmp")
    assert run(warm, 43) == 43


def test_no_place_at_all_is_an_error_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/no/such/place")
    monkeypatch.setattr(build, "_ROOM_BYTES", 2**80)
    with pytest.raises(BuildError, match=r"/no/such/place.*/tmp is full.*Set TMPDIR"), build.private_folder():
        pass


# caches that cannot be used: the kernel is compiled in a private folder and works


def a_file(folder: Path) -> Path:
    folder.write_text("")
    return folder / "cache"


def writable_by_others(folder: Path) -> Path:
    folder.mkdir()
    folder.chmod(0o777)
    return folder


def owned_by_another(folder: Path) -> Path:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    folder.mkdir(mode=0o700)
    os.chown(folder, 65534, 65534)
    return folder


UNUSABLE = [
    (a_file, "Not a directory"),
    (writable_by_others, "other users can write to it"),
    (owned_by_another, "belongs to another user"),
]


@pytest.mark.parametrize(("prepare", "reason"), UNUSABLE, ids=lambda value: getattr(value, "__name__", ""))
def test_a_kernel_works_without_a_cache(
    tmp_path: Path, commands: list[list[str]], prepare: Callable[[Path], Path], reason: str
) -> None:
    folder = prepare(tmp_path / "place")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert [run(folder, value) for value in (1, 2, 3)] == [1, 2, 3]
    shown = [str(w.message) for w in caught]
    assert len(shown) == 1
    assert [part for part in (str(folder), reason, "set WEFT_CACHE_DIR") if part not in shown[0]] == []
    assert [c for c in commands if "c++-header" in c or uses_header(c)] == []
    assert len(commands) == counters.builds == 3
    assert not folder.exists() or list(folder.iterdir()) == []


def test_a_kernel_works_when_the_disk_is_full(
    tmp_path: Path, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache.tempfile, "mkstemp", full)
    with pytest.warns(UserWarning, match=r"are not kept in .*: \[Errno 28\] No space left on device"):
        assert [run(tmp_path, value) for value in (1, 2)] == [1, 2]
    assert [c for c in commands if uses_header(c)] == []


def test_a_small_limit_costs_time_only(warm: Path, commands: list[list[str]]) -> None:
    assert [run(warm, value, cache_bytes=0) for value in (1, 2, 3)] == [1, 2, 3]
    assert [uses_header(c) for c in commands] == [True] * 3
    kept = Cache(warm, LIMIT).entries()
    assert sorted(entry.kind for entry in kept) == ["header", "kernel"]  # in use, and the newest


SCRIPT = """
import warnings
import torch
import torch.nn.functional as F
import weft

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    x = torch.randn(64, 128, requires_grad=True)
    w = torch.randn(128, requires_grad=True)
    y = weft.fuse(lambda x, w: F.rms_norm(x, (128,), w))(x, w)
    dy = torch.randn_like(y)
    found = torch.autograd.grad(y, (x, w), dy)
    wanted = torch.autograd.grad(F.rms_norm(x, (128,), w), (x, w), dy)
torch.testing.assert_close(y, F.rms_norm(x, (128,), w))
torch.testing.assert_close(found, wanted)
assert weft.counters.launches >= 2 and weft.counters.fallbacks == 0, weft.counters
print([str(c.message) for c in caught if str(c.message).startswith("weft")])
"""


def test_a_function_is_fused_in_a_process_whose_cache_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    env = os.environ | {
        "WEFT_CACHE_DIR": str(tmp_path / "file" / "cache"),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        "PYTHONPATH": str(ROOT),
    }
    done = run_forked(SCRIPT, env)
    assert done.returncode == 0, done.stderr
    shown = done.stdout.splitlines()[-1]
    assert shown.count("weft:") == 1
    assert f"not kept in {tmp_path / 'file' / 'cache'}: " in shown
