"""The cache of compiled files: made once, whole or not at all, made again when damaged, kept only where it is safe."""

from __future__ import annotations

import errno
import multiprocessing
import os
import resource
import shutil
import stat
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import sha256
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest
from filelock import FileLock

from weft.runtime import cache
from weft.runtime.cache import Artefact, Cache
from weft.runtime.trust import check_folder

KEY = "5eed" * 8
OTHER = "5e0d" * 8
CONTENT = b"\x7fELF" + bytes(range(256)) * 4
LIMIT = 2**30
NOBODY = 65534

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user, which only root can")


@pytest.fixture(autouse=True)
def _new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the module remembers of a process is forgotten."""
    monkeypatch.setattr(cache, "_UNWRITABLE", {})
    monkeypatch.setattr(cache, "_IN_USE", set())
    monkeypatch.setattr(cache, "_WARNED", set())


class Maker:
    """Returns ``content`` and counts how often it was asked to."""

    def __init__(self, content: bytes = CONTENT) -> None:
        self.content = content
        self.count = 0

    def __call__(self) -> bytes:
        self.count += 1
        return self.content


def refuse() -> bytes:
    raise AssertionError("it is there already")


def new(folder: Path, limit_bytes: int = LIMIT) -> Cache:
    return Cache(folder, limit_bytes)


def path_of(found: Artefact) -> Path:
    assert found.path is not None
    return found.path


def files(folder: Path) -> list[str]:
    """Names of all files but locks."""
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")


@contextmanager
def one_warning(*parts: str) -> Iterator[None]:
    """Exactly one warning, which has all parts in it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    shown = [str(w.message) for w in caught]
    assert len(shown) == 1
    assert [part for part in (*parts, "WEFT_CACHE_DIR") if part not in shown[0]] == []


def assert_not_kept(folder: Path, *reasons: str) -> None:
    """Two files are asked for: both are made, neither is kept, and one warning names the folder and the reason."""
    make = Maker()
    with one_warning(str(folder), *reasons):
        assert new(folder).get(KEY, "kernel", "f", make) == Artefact(CONTENT, None, False)
        assert new(folder).get(OTHER, "kernel", "f", make) == Artefact(CONTENT, None, False)
    assert make.count == 2


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
        assert new(tmp_path).get(KEY, kind, "f", refuse) == Artefact(CONTENT, path, True)
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
def test_a_process_that_dies_at_any_moment_leaves_a_whole_file_or_none(tmp_path: Path, moment: str) -> None:
    process = multiprocessing.get_context("spawn").Process(target=die, args=(tmp_path, moment))
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


def test_processes_that_ask_at_once_make_a_file_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(3), context.Queue()
    processes = [context.Process(target=ask, args=(tmp_path, barrier, results)) for _ in range(3)]
    for process in processes:
        process.start()
    found = sorted(results.get(timeout=90) for _ in processes)
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
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


# folders that cannot be used


@as_root
def test_a_folder_of_another_user_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    new(folder).get(KEY, "kernel", "f", Maker(b"not to be trusted"))
    os.chown(folder, NOBODY, NOBODY)
    assert_not_kept(folder, "belongs to another user", f"owner {NOBODY}")


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777])
def test_a_folder_that_others_can_write_to_is_not_used(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "cache"
    new(folder).get(KEY, "kernel", "f", Maker(b"not to be trusted"))
    folder.chmod(mode)
    assert_not_kept(folder, "other users can write to it", f"mode {mode:o}")


@pytest.mark.parametrize(("mode", "trusted"), [(0o777, False), (0o1777, True), (0o755, True)])
def test_a_folder_that_others_can_replace_is_not_used(tmp_path: Path, mode: int, trusted: bool) -> None:
    parent = tmp_path / "parent"
    parent.mkdir()
    parent.chmod(mode)
    if trusted:
        assert new(parent / "cache").get(KEY, "kernel", "f", Maker()).path is not None
    else:
        assert_not_kept(parent / "cache", "put another folder in its place", str(parent))


def test_a_link_of_the_user_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    assert new(tmp_path / "link").get(KEY, "kernel", "f", Maker()).path is not None
    assert [entry.key for entry in new(tmp_path / "real").entries()] == [KEY]
    assert [entry.key for entry in new(tmp_path / "link").entries()] == [KEY]


@as_root
def test_a_link_of_another_user_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    os.chown(tmp_path / "link", NOBODY, NOBODY, follow_symlinks=False)
    assert_not_kept(tmp_path / "link", "is a link of another user")
    assert files(tmp_path / "real") == []


def test_a_link_inside_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(mode=0o700)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "cache" / "5e").symlink_to(tmp_path / "elsewhere")
    assert_not_kept(tmp_path / "cache", "not a folder of its own")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_folder_that_cannot_be_created_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert_not_kept(tmp_path / "file" / "cache", "Not a directory")


def test_a_file_in_the_place_of_the_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert_not_kept(tmp_path / "file", "File exists")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder of a user whom permissions stop: root becomes nobody meanwhile."""
    folder = Path(tempfile.mkdtemp(prefix="weft-test-"))
    root = os.geteuid() == 0
    if root:
        os.chown(folder, NOBODY, NOBODY)
        os.seteuid(NOBODY)
    try:
        yield folder
    finally:
        if root:
            os.seteuid(0)
        for path in (folder, *folder.rglob("*")):
            if path.is_dir():
                path.chmod(0o700)
        shutil.rmtree(folder)


def test_a_read_only_folder_is_read_without_a_word(home: Path) -> None:
    made = new(home).get(KEY, "kernel", "f", Maker())
    (home / "5e").chmod(0o500)
    home.chmod(0o500)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert new(home).get(KEY, "kernel", "f", refuse) == Artefact(CONTENT, made.path, True)
        assert [entry.key for entry in new(home).entries()] == [KEY]


def test_a_read_only_folder_keeps_nothing_new(home: Path) -> None:
    new(home).get("ab" * 16, "kernel", "f", Maker())
    home.chmod(0o500)
    assert_not_kept(home, "Permission denied")


def test_a_read_only_folder_with_a_damaged_file(home: Path) -> None:
    path = path_of(new(home).get(KEY, "kernel", "f", Maker()))
    overwrite(path)
    (home / "5e").chmod(0o500)
    assert_not_kept(home, "Permission denied")
    assert path.read_bytes() == b"not a library"


def test_a_parent_that_cannot_be_written_to(home: Path) -> None:
    home.chmod(0o500)
    assert_not_kept(home / "cache", "Permission denied")


def test_what_is_read_in_place_is_not_made_when_it_cannot_be_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with one_warning("Not a directory"):
        found = new(tmp_path / "file" / "cache").get(KEY, "header", "weft_cpu", refuse)
    assert found == Artefact(b"", None, False)


# full disks


def full(*_: object, **__: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("step", ["mkdir", "mkstemp", "replace"])
def test_a_full_disk_keeps_nothing_at_any_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    modules = {"mkdir": cache.os, "mkstemp": cache.tempfile, "replace": cache.os}
    monkeypatch.setattr(modules[step], step, full)
    assert_not_kept(tmp_path, "No space left on device")
    monkeypatch.undo()
    assert files(tmp_path) == []


def test_a_write_that_stops_in_the_middle_keeps_nothing(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        assert_not_kept(tmp_path, "File too large")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert files(tmp_path) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "weft-test", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mounted, capture_output=True).returncode != 0:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_really_full(small_disk: Path) -> None:
    big = Maker(bytes(10**6))
    with one_warning(str(small_disk), "No space left on device"):
        assert new(small_disk).get(KEY, "kernel", "f", big).content == big.content
        assert new(small_disk).get(OTHER, "kernel", "f", Maker()) == Artefact(CONTENT, None, False)
    assert files(small_disk) == []


# size


def fill(store: Cache, count: int, size_bytes: int = 1000) -> list[Path]:
    """Files of that size, the first one least recently used."""
    paths: list[Path] = []
    for number in range(count):
        path = path_of(store.get(f"{number:032x}", "kernel", "f", Maker(bytes([number]) * size_bytes)))
        os.utime(path, (1000 + number, 1000 + number))
        paths.append(path)
    return paths


def test_the_least_recently_used_files_go_first(tmp_path: Path) -> None:
    paths = fill(new(tmp_path, 4000), 4)
    assert [p.exists() for p in paths] == [True] * 4
    new(tmp_path, 4000).get(f"{0:032x}", "kernel", "f", refuse)
    new(tmp_path, 4000).get(f"{9:032x}", "kernel", "f", Maker(bytes(1001)))
    assert [p.exists() for p in paths] == [True, False, False, True]
    assert sum(entry.size_bytes for entry in new(tmp_path).entries()) == 3001
    assert not (tmp_path / "00" / f"{1:032x}.lock").exists()


def test_exactly_the_limit_may_be_kept(tmp_path: Path) -> None:
    paths = fill(new(tmp_path, 3000), 3)
    assert all(p.exists() for p in paths)
    fill(new(tmp_path, 2999), 1)
    assert new(tmp_path, 2999).evict(keep=paths[0])[0].path == paths[1]


def test_the_file_just_made_stays_whatever_the_limit(tmp_path: Path) -> None:
    fill(new(tmp_path), 3)
    made = new(tmp_path, 0).get(KEY, "kernel", "f", Maker())
    assert [entry.path for entry in new(tmp_path).entries()] == [made.path]


def test_a_header_in_use_stays_whatever_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = path_of(new(tmp_path).get(KEY, "header", "weft_cpu", Maker()))
    os.utime(header, (1, 1))
    new(tmp_path, 0).get(OTHER, "kernel", "f", Maker())
    assert header.exists()
    monkeypatch.setattr(cache, "_IN_USE", set())
    new(tmp_path, 0).get("ab" * 16, "kernel", "f", Maker())
    assert not header.exists()


def test_what_is_being_made_is_not_removed(tmp_path: Path) -> None:
    """A file that is half written, with its lock held, outlives eviction and clearing; without the lock it goes."""
    paths = fill(new(tmp_path), 2)
    shard = tmp_path / OTHER[:2]
    shard.mkdir()
    unfinished = shard / f".{OTHER}.abcdefgh.new"
    unfinished.write_bytes(CONTENT)
    other = shard / f"{OTHER}.lock"
    left_behind = [shard / f".{KEY}.abcdefgh.new", shard / f"{KEY}.lock"]  # by a process that died
    for path in left_behind:
        path.touch()
    with FileLock(other):
        assert len(new(tmp_path, 0).evict(keep=paths[1])) == 1
        cleared = new(tmp_path).clear()
        assert unfinished.exists()
        assert set(cleared.left) == {unfinished, other}
        assert not any(path.exists() for path in left_behind)
    assert new(tmp_path).clear().left == ()
    assert not shard.exists()


# list, verify, clear


def test_entries_say_what_there_is(tmp_path: Path) -> None:
    assert new(tmp_path / "none").entries() == []
    paths = fill(new(tmp_path), 3, size_bytes=7)
    found = new(tmp_path).entries()
    assert [entry.path for entry in found] == paths[::-1]
    first = found[-1]
    assert (first.key, first.digest, first.name, first.kind) == ("0" * 32, sha256(bytes(7)).hexdigest(), "f", "kernel")
    assert (first.size_bytes, first.last_used) == (7, 1000)


def test_damaged_files_are_found(tmp_path: Path) -> None:
    paths = fill(new(tmp_path), 4)
    overwrite(paths[1])
    damage_digest_to = paths[2].with_name(paths[2].name.replace(".f.", ".g."))
    paths[2].rename(damage_digest_to)  # the name of an entry is not part of what is verified
    empty(paths[3])
    assert {entry.path for entry in new(tmp_path).damaged()} == {paths[1], paths[3]}


def test_clearing_removes_what_is_wefts_and_nothing_else(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "cache", tmp_path / "elsewhere"
    paths = fill(new(folder), 3)
    fill(new(elsewhere), 1)
    shard = paths[0].parent
    (shard / f".{'0' * 32}.abcdefgh.new").write_text("a process died here")
    digest = sha256(b"mine").hexdigest()
    in_shard = ["notes.txt", f"{'0' * 32}.so", f"{KEY}.{digest}.f.so", f".{KEY}.abcdefgh.new", f"{KEY}.lock"]
    mine = [folder / "notes.txt", folder / paths[0].name, *(shard / name for name in in_shard), folder / "x" / "y"]
    (folder / "x").mkdir()
    for path in mine:
        path.write_text("mine")
    links = [folder / "link", folder / "ab", shard / "link", shard / f"{9:032x}.{digest}.f.so"]
    for link in links:
        link.symlink_to(elsewhere / "00" if link.name != links[3].name else mine[0])
    cleared = new(folder).clear()
    assert {entry.path for entry in cleared.removed} == set(paths)
    assert all(path.read_text() == "mine" for path in mine)
    assert all(link.is_symlink() for link in links)
    assert set(cleared.left) == {*mine[:-1], *links, folder / "x"}
    assert len(new(elsewhere).entries()) == 1
    assert [path for path in folder.rglob("*") if path.suffix in (".lock", ".new")] == [mine[5], mine[6]]


def test_a_refusal_has_its_figures(tmp_path: Path) -> None:
    assert check_folder(tmp_path) is None
    tmp_path.chmod(0o775)
    refusal = check_folder(tmp_path)
    assert refusal is not None
    assert (refusal.rule, refusal.subject) == ("cache_folder", str(tmp_path))
    assert (refusal.have, refusal.limit) == ("mode 775", "mode 755")
