"""The cache of compiled files: made once, whole or not at all, and made again when damaged."""

from __future__ import annotations

import multiprocessing
import os
import stat
import time
import tracemalloc
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from multiprocessing.context import ForkServerContext
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest
from filelock import FileLock

from tests.cached_files import (
    CONTENT,
    KEY,
    LIMIT,
    NOBODY,
    OTHER,
    Maker,
    _new_process,  # noqa: F401
    as_root,
    assert_not_kept,
    empty,
    files,
    new,
    one_warning,
    overwrite,
    path_of,
    refuse,
)
from weft.runtime import cache
from weft.runtime.cache import Artefact, Cache

# made once


def test_a_file_is_made_once(tmp_path: Path) -> None:
    make, folder = Maker(), tmp_path / "deep" / "cache"
    made = new(folder).get(KEY, "kernel", "f", make)
    assert (made.content, made.found, make.count) == (CONTENT, False, 1)
    assert path_of(made).read_bytes() == CONTENT
    assert new(folder).get(KEY, "kernel", "f", refuse) == Artefact(CONTENT, made.path, True)
    assert Cache(str(folder), LIMIT).get(KEY, "kernel", "f", refuse).found


def test_the_name_of_a_file_says_what_is_in_it(tmp_path: Path) -> None:
    digest = sha256(CONTENT).hexdigest()
    made = new(tmp_path).get(KEY, "kernel", "f", Maker())
    assert made.path == tmp_path / "5e" / f"{KEY}.{digest}.f.so"
    header = new(tmp_path).get(OTHER, "header", "weft_cpu", Maker())
    assert header.path == tmp_path / "5e" / f"{OTHER}.{digest}.weft_cpu.h.gch"
    assert files(tmp_path) == sorted([path_of(made).name, path_of(header).name])


def test_a_file_that_is_read_in_place_is_verified_piece_by_piece(tmp_path: Path) -> None:
    size_bytes = 2**23
    new(tmp_path).get(KEY, "header", "weft_cpu", Maker(bytes(size_bytes)))
    tracemalloc.start()
    try:
        assert new(tmp_path).get(KEY, "header", "weft_cpu", refuse).found
        assert new(tmp_path).damaged() == []
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < size_bytes // 4


@pytest.mark.parametrize("name", ["", "a b", "../../x", "a/b", "a.b.so", "é", "x" * 300, "\0\n"])
def test_any_name_of_an_entry_makes_a_name_of_a_file(tmp_path: Path, name: str) -> None:
    made = new(tmp_path).get(KEY, "kernel", name, Maker())
    assert path_of(made).parent == tmp_path / "5e"
    assert new(tmp_path).get(KEY, "kernel", name, refuse).found
    assert len(new(tmp_path).entries()) == 1


def test_the_folder_is_for_its_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made = new(tmp_path / "cache").get(KEY, "kernel", "f", Maker())
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "cache", path_of(made).parent, path_of(made))]
    assert modes == [0o700, 0o700, 0o600]


def test_an_empty_file_is_a_file(tmp_path: Path) -> None:
    new(tmp_path).get(KEY, "kernel", "f", Maker(b""))
    assert new(tmp_path).get(KEY, "kernel", "f", refuse).content == b""


def test_a_file_of_the_wrong_kind_or_key_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        new(tmp_path).get(KEY, "cubin", "f", Maker())


# damaged


def truncate(path: Path) -> None:
    path.write_bytes(CONTENT[:-1])


def extend(path: Path) -> None:
    path.write_bytes(CONTENT + b"\0")


def flip_one_bit(path: Path) -> None:
    path.write_bytes(CONTENT[:100] + bytes([CONTENT[100] ^ 1]) + CONTENT[101:])


def remove(path: Path) -> None:
    path.unlink()


def damage_digest(path: Path) -> None:
    path.rename(path.with_name(path.name.replace(sha256(CONTENT).hexdigest(), "0" * 64)))


def link_elsewhere(path: Path) -> None:
    path.rename(path.with_name("content"))
    path.symlink_to("content")


def make_unreadable_as_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES = [overwrite, truncate, empty, extend, flip_one_bit, remove, damage_digest, link_elsewhere]


@pytest.mark.parametrize("kind", ["kernel", "header"])
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_file_is_made_again_without_a_word(tmp_path: Path, damage: Callable[[Path], None], kind: str) -> None:
    path = path_of(new(tmp_path).get(KEY, kind, "f", Maker()))
    damage(path)
    make = Maker()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert new(tmp_path).get(KEY, kind, "f", make) == Artefact(CONTENT, path, False)
        read = b"" if kind == "header" else CONTENT
        assert new(tmp_path).get(KEY, kind, "f", refuse) == Artefact(read, path, True)
    assert path.read_bytes() == CONTENT
    assert make.count == 1
    assert not path.is_symlink()
    assert [entry.path for entry in new(tmp_path).entries()] == [path]
    assert new(tmp_path).damaged() == []


def test_a_name_without_its_digest_is_not_trusted(tmp_path: Path) -> None:
    path = path_of(new(tmp_path).get(KEY, "kernel", "f", Maker()))
    path.rename(path.with_name(f"{KEY}.f.so"))
    assert not new(tmp_path).get(KEY, "kernel", "f", Maker()).found


def test_a_folder_in_the_place_of_a_file_makes_the_file_not_kept(tmp_path: Path) -> None:
    path = path_of(new(tmp_path).get(KEY, "kernel", "f", Maker()))
    make_unreadable_as_a_folder(path)
    with one_warning(str(tmp_path), "Is a directory"):
        assert new(tmp_path).get(KEY, "kernel", "f", Maker()) == Artefact(CONTENT, None, False)
    assert files(tmp_path) == []


def test_a_file_that_is_made_anew_with_other_content_takes_the_place_of_the_damaged_one(tmp_path: Path) -> None:
    overwrite(path_of(new(tmp_path).get(KEY, "kernel", "f", Maker())))
    path = path_of(new(tmp_path).get(KEY, "kernel", "f", Maker(b"built again, not the same bytes")))
    assert files(tmp_path) == [path.name]


def test_damage_to_one_file_leaves_the_others(tmp_path: Path) -> None:
    overwrite(path_of(new(tmp_path).get(KEY, "kernel", "f", Maker())))
    other = new(tmp_path).get(OTHER, "kernel", "f", Maker(b"other"))
    new(tmp_path).get(KEY, "kernel", "f", Maker())
    assert new(tmp_path).get(OTHER, "kernel", "f", refuse) == Artefact(b"other", other.path, True)


def test_the_bytes_handed_out_are_those_that_were_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file changes right after its content was compared with its digest."""
    path = path_of(new(tmp_path).get(KEY, "kernel", "f", Maker()))
    monkeypatch.setattr(cache.os, "utime", lambda changed: overwrite(changed))
    assert new(tmp_path).get(KEY, "kernel", "f", refuse).content == CONTENT
    assert path.read_bytes() != CONTENT


@as_root
def test_a_file_of_another_user_is_made_again(tmp_path: Path) -> None:
    path = path_of(new(tmp_path).get(KEY, "kernel", "f", Maker()))
    os.chown(path, NOBODY, NOBODY)
    assert new(tmp_path).get(KEY, "kernel", "f", Maker()) == Artefact(CONTENT, path, False)
    assert path.stat().st_uid == 0


# failures and deaths


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, OSError])
def test_a_failure_to_make_is_raised_and_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    def fail() -> bytes:
        raise error("compiler failed")

    with pytest.raises(error, match="compiler failed"):
        new(tmp_path).get(KEY, "kernel", "f", fail)
    assert files(tmp_path) == []
    assert new(tmp_path).get(KEY, "kernel", "f", Maker()).path is not None


def test_a_failure_does_not_bring_a_damaged_file_back(tmp_path: Path) -> None:
    overwrite(path_of(new(tmp_path).get(KEY, "kernel", "f", Maker())))
    with pytest.raises(ZeroDivisionError):
        new(tmp_path).get(KEY, "kernel", "f", lambda: bytes(1 // 0))
    assert not new(tmp_path).get(KEY, "kernel", "f", Maker()).found


@pytest.fixture(scope="module")
def processes() -> ForkServerContext:
    """Makes processes that have imported these tests, of which the first takes seconds to start."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def die_making() -> bytes:
    os._exit(3)


def die(folder: Path, moment: str) -> None:
    """Run in a process of its own, which ends at some moment of making a file."""
    replace = os.replace

    def replace_and_die(source: str, target: str) -> None:
        if moment == "after the rename":
            replace(source, target)
        os._exit(3)

    if moment != "making":
        cache.os.replace = replace_and_die  # type: ignore[assignment]
    new(folder).get(KEY, "kernel", "f", die_making if moment == "making" else Maker())


@pytest.mark.parametrize("moment", ["making", "before the rename", "after the rename"])
def test_a_process_that_dies_at_any_moment_leaves_a_whole_file_or_none(
    tmp_path: Path, moment: str, processes: ForkServerContext
) -> None:
    process = processes.Process(target=die, args=(tmp_path, moment))
    process.start()
    process.join(90)
    assert process.exitcode == 3
    whole = moment == "after the rename"
    assert new(tmp_path).get(KEY, "kernel", "f", Maker()).found == whole
    assert [entry.key for entry in new(tmp_path).entries()] == [KEY]
    new(tmp_path).get(OTHER, "kernel", "f", Maker())
    assert len(files(tmp_path)) == 2  # what the dead process had not finished is gone


class SlowMaker:
    """Appends its process to a log, waits, then returns the content."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def __call__(self) -> bytes:
        with self.log.open("a") as log:
            log.write(f"{os.getpid()}\n")
        time.sleep(0.3)
        return CONTENT


def ask(folder: Path, barrier: Barrier, results: Queue[tuple[bool, bool]]) -> None:
    """Run in a process of its own: ask for the file when the others do."""
    barrier.wait(60)
    found = new(folder).get(KEY, "kernel", "f", SlowMaker(folder / "log"))
    results.put((found.found, found.content == CONTENT))


def test_processes_that_ask_at_once_make_a_file_once(tmp_path: Path, processes: ForkServerContext) -> None:
    barrier, results = processes.Barrier(3), processes.Queue()
    asking = [processes.Process(target=ask, args=(tmp_path, barrier, results)) for _ in range(3)]
    for process in asking:
        process.start()
    found = sorted(results.get(timeout=90) for _ in asking)
    for process in asking:
        process.join(60)
    assert [process.exitcode for process in asking] == [0, 0, 0]
    assert found == [(False, True), (True, True), (True, True)]
    assert len((tmp_path / "log").read_text().splitlines()) == 1


def test_threads_that_ask_at_once_make_a_file_once(tmp_path: Path) -> None:
    make = SlowMaker(tmp_path / "log")
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: new(tmp_path).get(KEY, "kernel", "f", make), range(8)))
    assert sorted(f.found for f in found) == [False] + [True] * 7
    assert {f.content for f in found} == {CONTENT}
    assert len((tmp_path / "log").read_text().splitlines()) == 1


def test_a_lock_that_is_never_released_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "LOCK_TIMEOUT_S", 0.3)
    (tmp_path / "5e").mkdir(mode=0o700)
    started = time.monotonic()
    with FileLock(tmp_path / "5e" / f"{KEY}.lock"), FileLock(tmp_path / "5e" / f"{OTHER}.lock"):
        assert_not_kept(tmp_path, "another process has kept a lock")
    assert 0.3 <= time.monotonic() - started < 0.6
    assert files(tmp_path) == []
