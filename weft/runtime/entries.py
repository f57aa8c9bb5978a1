"""Files of a cache: the kinds of them, what their names say, and which of them are what they say.

They lie in folders named after the start of their keys, shards: ``5e/<key>.<sha256 of its content>.<name>.<suffix>``.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Kind:
    """read_in_place: other programs read the file where it lies. It is not evicted by a process that uses it, and not
    made when it cannot be kept. made_again: whether it is made anew when it is gone; others are never evicted."""

    suffix: str
    read_in_place: bool = False
    made_again: bool = True


KINDS = {
    "kernel": Kind("so"),
    "triton": Kind("triton.zip"),
    "cuda": Kind("cuda.zip"),
    "tuning": Kind("tuning.json", made_again=False),
    "race": Kind("race.json"),
    "runner_up": Kind("schedule"),
    "calibration": Kind("calibration.json", made_again=False),
    "header": Kind("h.gch", read_in_place=True),
}
_KIND_OF_SUFFIX = {kind.suffix: name for name, kind in KINDS.items()}
_KEY = "[0-9a-f]{32}"
_ENTRY = re.compile(rf"({_KEY})\.([0-9a-f]{{64}})\.(\w{{1,80}})\.({'|'.join(map(re.escape, _KIND_OF_SUFFIX))})")
UNFINISHED = re.compile(rf"\.({_KEY})\.\w+\.new")
LOCK_FILE = re.compile(rf"({_KEY})\.lock")


@dataclass(frozen=True)
class Entry:
    """One file of a cache. last_used: seconds since the epoch. key, digest: in hexadecimal."""

    path: Path
    key: str
    digest: str
    name: str
    kind: str
    size_bytes: int
    last_used: float


def verified(entry: Entry) -> bytes | None:
    """The content of a file if it is the one its name speaks of; nothing but that of one read in place, which
    may be of a hundred megabytes."""
    try:
        handle = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            if os.fstat(handle).st_uid != os.geteuid():
                return None  # from a time when others could write here
            if KINDS[entry.kind].read_in_place:
                content, digest = b"", hashlib.file_digest(file, "sha256")
            else:
                content = file.read()
                digest = hashlib.sha256(content)
    except OSError:
        return None
    return content if digest.hexdigest() == entry.digest else None


def entries_in(shard: Path) -> list[Entry]:
    entries: list[Entry] = []
    for path, found in matches(shard, _ENTRY):
        with suppress(OSError):  # it went in the meantime
            status = path.lstat()
            if stat.S_ISREG(status.st_mode):
                key, digest, name, suffix = found.groups()
                kind = _KIND_OF_SUFFIX[suffix]
                entries.append(Entry(path, key, digest, name, kind, status.st_size, status.st_mtime))
    return entries


def matches(shard: Path, *patterns: re.Pattern[str]) -> Generator[tuple[Path, re.Match[str]]]:
    """Files named as weft names them, under the start of their key; their first group is the key."""
    for path in files_in(shard) if is_shard(shard) else ():
        for pattern in patterns:
            if (found := pattern.fullmatch(path.name)) and found[1].startswith(shard.name):
                yield path, found


def files_in(folder: Path) -> list[Path]:
    """Everything in a folder, in the order of names; nothing if it cannot be read."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def is_shard(path: Path) -> bool:
    return re.fullmatch("[0-9a-f]{2}", path.name) is not None and path.is_dir() and not path.is_symlink()
