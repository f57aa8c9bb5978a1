"""The folder of the cache: when it is not used, when its disk is full, which files go first, and what is cleared."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from filelock import FileLock

from tests.cached_files import (
    CONTENT,
    KEY,
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
from weft.runtime.trust import check_folder

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


@pytest.mark.parametrize("folder", ["", "cache", "one/two"])
def test_a_relative_folder_is_not_used_when_the_working_directory_is_gone(tmp_path: Path, folder: str) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    before = Path.cwd()
    os.chdir(gone)
    try:
        gone.rmdir()
        assert_not_kept(Path(folder), "it is relative, and the working directory is gone")
        assert new(Path(folder)).find(KEY) is None
        assert new(Path(folder)).entries() == []
        assert str(new(Path(folder)).change(KEY, "tuning", "f", lambda _: b"")).startswith("it is relative")
        assert new(tmp_path / "cache").get(KEY, "kernel", "f", Maker()).path is not None  # others are
    finally:
        os.chdir(before)


def test_a_folder_of_a_user_without_home_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert_not_kept(Path("~no-such-user/cache"), "its user has no home folder")
    assert list(tmp_path.iterdir()) == []


def test_every_folder_that_is_not_used_is_named(tmp_path: Path) -> None:
    """A process may have been given several; which one is wrong, and why, is not the same for all."""
    (tmp_path / "file").write_text("mine")
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    assert_not_kept(tmp_path / "file" / "cache", "Not a directory")
    assert_not_kept(tmp_path / "shared", "other users can write to it")


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
