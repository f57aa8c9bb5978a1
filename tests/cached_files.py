"""Files for a cache of a test's own: what makes them, what damages them, and what is said when they are not kept."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from weft.runtime import cache
from weft.runtime.cache import Artefact, Cache

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


def overwrite(path: Path) -> None:
    path.write_bytes(b"not a library")


def empty(path: Path) -> None:
    path.write_bytes(b"")
