"""Kernels that failed at run time in this process. They run on ATen; the next compile leaves their regions out."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from threading import Lock

from weft.errors import Refusal

_FAILED: dict[str, str] = {}
_LOCK = Lock()


def record(digest: str, name: str | None, reason: str) -> None:
    """Remember that a kernel failed, with one warning the first time. name: None if the reason is not the kernel's own,
    then there is one warning for all kernels."""
    with _LOCK:
        if digest in _FAILED:
            return
        told = name is None and reason in _FAILED.values()
        _FAILED[digest] = reason
    if not told:
        what = "every kernel that is not built yet" if name is None else f"kernel {name}"
        warnings.warn(f"weft: {what} runs on ATen, slowly: {reason}", stacklevel=2)


def has_failed(digest: str) -> bool:
    return digest in _FAILED


def failed_digests() -> tuple[str, ...]:
    """The digests of all kernels that failed, sorted: they change what a compile does."""
    with _LOCK:
        return tuple(sorted(_FAILED))


def check_run_time_failure(name: str, digests: Iterable[str]) -> Refusal | None:
    """A region with a kernel that failed in this process is not taken again."""
    for digest in digests:
        if digest in _FAILED:
            message = f"a kernel of this region failed in this process: {_FAILED[digest]}"
            return Refusal("run_time_failure", name, message)
    return None


def forget() -> None:
    """Forget all failures: for tests, and after the cause was removed."""
    with _LOCK:
        _FAILED.clear()
