"""Where Triton puts the files of one compile: weft keeps what it makes itself."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock, local
from typing import Any


class _Folders(local):
    """Where a thread of weft's has Triton put its files."""

    folder: Path | None = None


class _Routing:
    """Triton asks one setting of the process where its files go. While weft compiles it is ``_manager``, which hands
    the calls of all other threads to what it was before."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.users = 0
        self.before: Any = None
        self.was_set = False


_FOLDERS = _Folders()
_ROUTING = _Routing()


def _manager(key: str, override: bool = False, dump: bool = False) -> Any:
    """A place for the files of one compile, as ``triton.runtime.cache.get_cache_manager`` wants it."""
    from triton.runtime.cache import FileCacheManager

    if _FOLDERS.folder is None or override or dump:
        return (_ROUTING.before or FileCacheManager)(key, override=override, dump=dump)
    own = FileCacheManager.__new__(FileCacheManager)
    own.key = key
    own.cache_dir = str(_FOLDERS.folder / key)
    own.lock_path = str(_FOLDERS.folder / key / "lock")
    (_FOLDERS.folder / key).mkdir(exist_ok=True)
    return own


@contextmanager
def own_cache(folder: Path) -> Generator[None]:
    """Let Triton put the files of this thread into a folder."""
    from triton import knobs as all_knobs

    knobs: Any = all_knobs.cache
    with _ROUTING.lock:
        if _ROUTING.users == 0:
            _ROUTING.was_set = "manager_class" in vars(knobs)
            _ROUTING.before = knobs.manager_class
            knobs.manager_class = _manager
        _ROUTING.users += 1
    _FOLDERS.folder = folder
    try:
        yield
    finally:
        _FOLDERS.folder = None
        with _ROUTING.lock:
            _ROUTING.users -= 1
            if _ROUTING.users == 0:
                if _ROUTING.was_set:
                    knobs.manager_class = _ROUTING.before
                else:
                    del knobs.manager_class
