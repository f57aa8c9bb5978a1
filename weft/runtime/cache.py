"""A folder of compiled files that one user can trust.

The name of a file says everything about it: ``<key>.<sha256 of its content>.<name>.<suffix of its kind>``. So one
rename publishes a file and its digest together, whatever dies in between, and a file whose content is not what its name
says is damaged, and made again. A file is read once: the bytes that were verified are the bytes that are handed out.

When the folder cannot be trusted or used, what is asked for is made all the same, and not kept.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from errno import ENOTDIR
from pathlib import Path
from threading import Lock
from time import perf_counter

from filelock import FileLock

from weft.runtime.entries import (
    KINDS,
    LOCK_FILE,
    UNFINISHED,
    Entry,
    entries_in,
    files_in,
    is_shard,
    matches,
    verified,
)
from weft.runtime.trust import place_of, reason_against

_LOG = logging.getLogger(__name__)

LOCK_TIMEOUT_S = 120.0
"""How long to wait for another process that makes the same file. The slowest one, the header, takes seconds."""

_UNWRITABLE: dict[Path, str] = {}
"""Folders that could not be written to, with the reason. This process only reads them from then on."""
_IN_USE: set[Path] = set()
"""Files read in place that this process was handed."""
_WARNED: set[Path] = set()
"""Folders that were said not to be used."""
_WARNING_LOCK = Lock()


@dataclass(frozen=True)
class Artefact:
    """content: the bytes that were verified; none of a file that is read in place, if it was there. path: where they
    lie, None if they could not be kept. found: whether they were there."""

    content: bytes
    path: Path | None
    found: bool


@dataclass(frozen=True)
class Cleared:
    """What ``clear`` removed, and the paths it left: not weft's, or being made."""

    removed: tuple[Entry, ...]
    left: tuple[Path, ...]


class Cache:
    """Files by key in ``folder``; the least recently used ones go when they take more than ``limit_bytes`` together."""

    def __init__(self, folder: str | Path, limit_bytes: int) -> None:
        self.folder = place_of(folder)
        self.limit_bytes = limit_bytes

    def get(self, key: str, kind: str, name: str, make: Callable[[], bytes]) -> Artefact:
        """The file of ``key``, 32 hexadecimal digits; ``make`` returns its content if it is not there or damaged.

        Several processes and threads may ask at once: one makes it, the others wait. Whatever ``make`` raises is
        raised; whatever is wrong with the folder is one warning a process, and what is made is not kept.
        """
        reason = reason_against(self.folder)
        if reason is None:
            if (found := self._read(key)) is not None:
                return found
            _LOG.info("miss: %s %s (%s)", kind, name, key[:12])
            reason = _UNWRITABLE.get(self.folder)
        if reason is None:
            made = self._make_once(key, kind, name, make)
            if isinstance(made, Artefact):
                return made
            reason = _UNWRITABLE[self.folder] = made
        _LOG.info("not kept: %s %s: %s", kind, name, reason)
        _warn_once(self.folder, reason)
        return Artefact(b"" if KINDS[kind].read_in_place else _make(kind, name, make), None, False)

    def find(self, key: str) -> bytes | None:
        """The content of a key, if it is there and whole; nothing is made, not even the folder."""
        if not self.folder.exists() or reason_against(self.folder) is not None:
            return None
        found = self._read(key)
        return None if found is None else found.content

    def change(self, key: str, kind: str, name: str, changed: Callable[[bytes | None], bytes]) -> str | None:
        """Put another content in the place of a key's, or why that cannot be. changed: what it becomes, of what it is;
        None if it is not there or damaged. Other processes that change it wait."""
        if (reason := reason_against(self.folder)) is not None:
            return reason
        try:
            self._shard(key).mkdir(mode=0o700, exist_ok=True)
            with FileLock(self._shard(key) / f"{key}.lock", timeout=LOCK_TIMEOUT_S):
                found = self._read(key)
                self._write(key, kind, name, changed(None if found is None else found.content))
        except TimeoutError:
            return f"another process has kept a lock in it for {LOCK_TIMEOUT_S:.0f} s"
        except OSError as error:
            return str(error)
        return None

    def _make_once(self, key: str, kind: str, name: str, make: Callable[[], bytes]) -> Artefact | str:
        """Make and keep the file while no other process does, or a reason why nothing can be kept here."""
        lock = FileLock(self._shard(key) / f"{key}.lock", timeout=LOCK_TIMEOUT_S)
        try:
            self._shard(key).mkdir(mode=0o700, exist_ok=True)
            if not is_shard(self._shard(key)):
                raise NotADirectoryError(ENOTDIR, "not a folder of its own", str(self._shard(key)))
            lock.acquire()
        except TimeoutError:
            return f"another process has kept a lock in it for {LOCK_TIMEOUT_S:.0f} s"
        except OSError as error:
            return str(error)
        try:
            if (found := self._read(key, again=True)) is not None:
                return found
            content = _make(kind, name, make)
            try:
                path = self._write(key, kind, name, content)
            except OSError as error:
                _UNWRITABLE[self.folder] = str(error)
                _LOG.info("not kept: %s %s: %s", kind, name, error)
                _warn_once(self.folder, str(error))
                return Artefact(content, None, False)
        finally:
            lock.release()
        self.evict(keep=path)
        return Artefact(content, path, False)

    def _shard(self, key: str) -> Path:
        return self.folder / key[:2]

    def _read(self, key: str, again: bool = False) -> Artefact | None:
        """The whole file of a key, or None. Damaged ones stay until another is made or ``remove`` takes them.
        again: what is wrong was said before."""
        for entry in entries_in(self._shard(key)):
            if entry.key != key:
                continue
            if (content := verified(entry)) is None:
                if not again:
                    _LOG.info("damaged: %s %s (%s)", entry.kind, entry.name, key[:12])
            else:
                _LOG.info("hit: %s %s (%s)", entry.kind, entry.name, key[:12])
                with suppress(OSError):  # a folder that is read only has no order of use
                    os.utime(entry.path)
                if KINDS[entry.kind].read_in_place:
                    _IN_USE.add(entry.path)
                return Artefact(content, entry.path, True)
        return None

    def _write(self, key: str, kind: str, name: str, content: bytes) -> Path:
        """Publish a file by one rename; then remove what there was of the key. Raises OSError and leaves nothing."""
        shard = self._shard(key)
        digest = hashlib.sha256(content).hexdigest()
        shown = re.sub(r"\W", "_", name, flags=re.ASCII)[:80] or "_"
        path = shard / f"{key}.{digest}.{shown}.{KINDS[kind].suffix}"
        handle, fresh = tempfile.mkstemp(dir=shard, prefix=f".{key}.", suffix=".new")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.replace(fresh, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(fresh)
            raise
        if KINDS[kind].read_in_place:
            _IN_USE.add(path)
        for entry in entries_in(shard):
            if entry.key == key and entry.path != path:
                self.remove(entry)
        return path

    def entries(self) -> list[Entry]:
        """All files, the most recently used first."""
        found = [entry for shard in self._shards() for entry in entries_in(shard)]
        return sorted(found, key=lambda entry: (-entry.last_used, entry.path))

    def damaged(self) -> list[Entry]:
        """The files whose content is not what their name says, or cannot be read."""
        return [entry for entry in self.entries() if verified(entry) is None]

    def remove(self, entry: Entry) -> bool:
        """Remove one file; whether it is gone. A process that has loaded it keeps what it has."""
        with suppress(OSError):
            entry.path.unlink()
        return not entry.path.exists()

    def evict(self, keep: Path) -> list[Entry]:
        """Remove the least recently used files beyond the limit, but not ``keep`` and what this process uses in place,
        nor anything that is being made; and what processes that died left behind."""
        entries = self.entries()
        size_bytes = sum(entry.size_bytes for entry in entries)
        evicted: list[Entry] = []
        for entry in reversed(entries):
            if size_bytes <= self.limit_bytes:
                break
            spared = entry.path == keep or entry.path in _IN_USE or not KINDS[entry.kind].made_again
            if not spared and self.remove(entry):
                _LOG.info("evicted: %s %s (%s), %d bytes", entry.kind, entry.name, entry.key[:12], entry.size_bytes)
                size_bytes -= entry.size_bytes
                evicted.append(entry)
        self._sweep({entry.key for entry in evicted} | self._keys(UNFINISHED))
        return evicted

    def clear(self) -> Cleared:
        """Remove every file of weft's and nothing else; links are not followed."""
        removed = tuple(entry for entry in self.entries() if self.remove(entry))
        self._sweep(self._keys(UNFINISHED, LOCK_FILE))
        for shard in self._shards():
            with suppress(OSError):  # somebody's file is in it, or it is being written to
                shard.rmdir()
        left = (path for place in (self.folder, *self._shards()) for path in files_in(place) if not is_shard(path))
        return Cleared(removed, tuple(left))

    def _sweep(self, keys: Iterable[str]) -> None:
        """Remove locks and unfinished files of keys that nobody makes at the moment.

        A process that waits for a lock file that goes may make what another makes, too; the last rename stays.
        """
        for key in keys:
            lock = FileLock(self._shard(key) / f"{key}.lock")
            with suppress(OSError), lock.acquire(timeout=0):
                for path, found in matches(self._shard(key), UNFINISHED, LOCK_FILE):
                    if found[1] == key:
                        path.unlink(missing_ok=True)

    def _shards(self) -> list[Path]:
        return [path for path in files_in(self.folder) if is_shard(path)]

    def _keys(self, *patterns: re.Pattern[str]) -> set[str]:
        return {found[1] for shard in self._shards() for _, found in matches(shard, *patterns)}


def _make(kind: str, name: str, make: Callable[[], bytes]) -> bytes:
    start = perf_counter()
    try:
        content = make()
    except Exception as error:
        _LOG.info("failed: %s %s: %s", kind, name, error)
        raise
    _LOG.info("built: %s %s, %d bytes in %.1f s", kind, name, len(content), perf_counter() - start)
    return content


def _warn_once(folder: Path, reason: str) -> None:
    """The one warning of a process about a folder."""
    with _WARNING_LOCK:
        if folder in _WARNED:
            return
        _WARNED.add(folder)
    warnings.warn(
        f"weft: compiled kernels are not kept in {folder}: {reason}. They are compiled anew in every process; "
        "to keep them, set WEFT_CACHE_DIR to a folder that only you can write to.",
        stacklevel=2,
    )
