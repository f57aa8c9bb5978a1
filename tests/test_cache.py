"""The cache of compiled files: made once, whole or not at all, made again when damaged."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from weft.runtime.cache import Cache

KEY = "5eed0123456789"
CONTENT = b"\x7fELF" + bytes(range(256)) * 4


class Maker:
    """Writes ``content`` and counts how often it was asked to."""

    def __init__(self, content: bytes = CONTENT) -> None:
        self.content = content
        self.count = 0

    def __call__(self, path: Path) -> None:
        self.count += 1
        path.write_bytes(self.content)


def refuse(path: Path) -> None:
    raise AssertionError(f"{path} is there already")


def sidecar(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def files(folder: Path) -> list[str]:
    """Names of all files but locks."""
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")


def test_a_file_is_made_once(tmp_path: Path) -> None:
    cache, make = Cache(tmp_path / "deep" / "cache"), Maker()
    path, found = cache.get(KEY, ".so", make)
    assert (found, make.count, path.read_bytes()) == (False, 1, CONTENT)
    assert cache.get(KEY, ".so", refuse) == (path, True)
    assert Cache(str(tmp_path / "deep" / "cache")).get(KEY, ".so", refuse) == (path, True)


def test_a_file_lies_under_the_start_of_its_key_beside_its_digest(tmp_path: Path) -> None:
    path, _ = Cache(tmp_path).get(KEY, ".so", Maker())
    assert path == tmp_path / "5e" / f"{KEY}.so"
    assert files(tmp_path) == [f"{KEY}.so", f"{KEY}.so.sha256"]


def test_keys_and_suffixes_are_apart(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    contents = {(KEY, ".so"): b"1", (KEY, ".cpp"): b"2", ("5eed", ".so"): b"3", ("f00d", ".so"): b"4"}
    for (key, suffix), content in contents.items():
        assert cache.get(key, suffix, Maker(content))[1] is False
    for (key, suffix), content in contents.items():
        path, found = cache.get(key, suffix, refuse)
        assert (found, path.read_bytes()) == (True, content)


def test_the_path_that_is_written_is_not_yet_the_files(tmp_path: Path) -> None:
    seen: list[Path] = []

    def make(path: Path) -> None:
        seen.append(path)
        assert path.suffix == ".so"
        assert path.parent == tmp_path / "5e"
        assert not (tmp_path / "5e" / f"{KEY}.so").exists()
        path.write_bytes(CONTENT)

    path, _ = Cache(tmp_path).get(KEY, ".so", make)
    assert seen != [path]
    assert not seen[0].exists()


def test_an_empty_file_is_a_file(tmp_path: Path) -> None:
    path, _ = Cache(tmp_path).get(KEY, ".so", lambda fresh: None)
    assert path.read_bytes() == b""
    assert Cache(tmp_path).get(KEY, ".so", refuse) == (path, True)


def overwrite(path: Path) -> None:
    path.write_bytes(b"not a library")


def truncate(path: Path) -> None:
    path.write_bytes(CONTENT[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def extend(path: Path) -> None:
    path.write_bytes(CONTENT + b"\0")


def flip_one_bit(path: Path) -> None:
    path.write_bytes(CONTENT[:100] + bytes([CONTENT[100] ^ 1]) + CONTENT[101:])


def remove(path: Path) -> None:
    path.unlink()


def damage_digest(path: Path) -> None:
    sidecar(path).write_text("0" * 64)


def empty_digest(path: Path) -> None:
    sidecar(path).write_text("")


def spoil_digest(path: Path) -> None:
    sidecar(path).write_bytes(b"\xff\xfe\x80")


def remove_digest(path: Path) -> None:
    sidecar(path).unlink()


DAMAGES = [
    overwrite,
    truncate,
    empty,
    extend,
    flip_one_bit,
    remove,
    damage_digest,
    empty_digest,
    spoil_digest,
    remove_digest,
]


@pytest.mark.parametrize("suffix", [".so", ".cpp"])
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_file_is_made_again(tmp_path: Path, damage: Callable[[Path], None], suffix: str) -> None:
    cache = Cache(tmp_path)
    path, _ = cache.get(KEY, suffix, Maker())
    damage(path)
    make = Maker()
    assert cache.get(KEY, suffix, make) == (path, False)
    assert (make.count, path.read_bytes()) == (1, CONTENT)
    assert cache.get(KEY, suffix, refuse) == (path, True)
    assert files(tmp_path) == [path.name, sidecar(path).name]


def test_damage_to_one_file_leaves_the_others(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    first, _ = cache.get(KEY, ".so", Maker())
    second, _ = cache.get(KEY, ".cpp", Maker())
    overwrite(first)
    assert cache.get(KEY, ".cpp", refuse) == (second, True)


def fail_at_once(path: Path) -> None:
    raise RuntimeError("compiler failed")


def fail_halfway(path: Path) -> None:
    path.write_bytes(CONTENT[:10])
    raise RuntimeError("compiler failed")


def fail_and_remove(path: Path) -> None:
    path.unlink()
    raise RuntimeError("compiler failed")


@pytest.mark.parametrize("make", [fail_at_once, fail_halfway, fail_and_remove], ids=lambda make: make.__name__)
def test_a_failure_leaves_nothing(tmp_path: Path, make: Callable[[Path], None]) -> None:
    cache = Cache(tmp_path)
    with pytest.raises(RuntimeError, match="compiler failed"):
        cache.get(KEY, ".so", make)
    assert files(tmp_path) == []
    path, found = cache.get(KEY, ".so", Maker())
    assert (found, path.read_bytes()) == (False, CONTENT)


def test_an_interruption_leaves_nothing(tmp_path: Path) -> None:
    def interrupted(path: Path) -> None:
        path.write_bytes(CONTENT[:10])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Cache(tmp_path).get(KEY, ".so", interrupted)
    assert files(tmp_path) == []


def test_a_file_that_was_not_written_is_an_error_that_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Cache(tmp_path).get(KEY, ".so", lambda path: path.unlink())
    assert files(tmp_path) == []


def test_a_failure_does_not_bring_a_damaged_file_back(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    path, _ = cache.get(KEY, ".so", Maker())
    overwrite(path)
    with pytest.raises(RuntimeError, match="compiler failed"):
        cache.get(KEY, ".so", fail_halfway)
    make = Maker()
    assert cache.get(KEY, ".so", make) == (path, False)
    assert (make.count, path.read_bytes()) == (1, CONTENT)


class SlowMaker:
    """Appends its process to a log, waits, then writes; ``die`` ends the process before that."""

    def __init__(self, log: Path, die: bool = False) -> None:
        self.log = log
        self.die = die

    def __call__(self, path: Path) -> None:
        with self.log.open("a") as log:
            log.write(f"{os.getpid()}\n")
        if self.die:
            os._exit(3)
        path.write_bytes(CONTENT[:10])
        time.sleep(0.3)
        path.write_bytes(CONTENT)


def ask(folder: Path, barrier: Barrier, results: Queue[tuple[str, bool, bool]]) -> None:
    """Run in a process of its own: ask for the file when the others do."""
    barrier.wait(60)
    path, found = Cache(folder).get(KEY, ".so", SlowMaker(folder / "log"))
    results.put((path.name, found, path.read_bytes() == CONTENT))


def die(folder: Path) -> None:
    Cache(folder).get(KEY, ".so", SlowMaker(folder / "log", die=True))


def test_processes_that_ask_at_once_make_a_file_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    processes = [context.Process(target=ask, args=(tmp_path, barrier, results)) for _ in range(2)]
    for process in processes:
        process.start()
    found = sorted(results.get(timeout=90) for _ in processes)
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert found == [(f"{KEY}.so", False, True), (f"{KEY}.so", True, True)]
    assert len((tmp_path / "log").read_text().splitlines()) == 1
    assert files(tmp_path) == [f"{KEY}.so", f"{KEY}.so.sha256", "log"]


def test_a_process_that_dies_blocks_no_other(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=die, args=(tmp_path,))
    process.start()
    process.join(90)
    assert process.exitcode == 3
    path, found = Cache(tmp_path).get(KEY, ".so", SlowMaker(tmp_path / "log"))
    assert (found, path.read_bytes()) == (False, CONTENT)
    assert len((tmp_path / "log").read_text().splitlines()) == 2
