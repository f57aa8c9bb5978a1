"""A folder of compiled kernels. Files appear whole or not at all, and a damaged one is compiled again."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock


class Cache:
    """Files by key, each beside the digest of its content."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def get(self, key: str, suffix: str, make: Callable[[Path], None]) -> tuple[Path, bool]:
        """The file of ``key`` and whether it was there; ``make`` writes it to the path it is given if it was not.

        Several processes may ask at once: one makes it, the others wait.
        """
        path = self.folder / key[:2] / f"{key}{suffix}"
        if self._is_whole(path):
            return path, True
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(str(path) + ".lock"):
            if self._is_whole(path):
                return path, True
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{key}", suffix=suffix)
            os.close(handle)
            fresh = Path(name)
            try:
                make(fresh)
                digest = _digest(fresh)
                _sidecar(path).write_text(digest)
                fresh.replace(path)
            finally:
                fresh.unlink(missing_ok=True)
        return path, False

    @staticmethod
    def _is_whole(path: Path) -> bool:
        try:
            return _sidecar(path).read_bytes() == _digest(path).encode()
        except OSError:
            return False


def _sidecar(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
