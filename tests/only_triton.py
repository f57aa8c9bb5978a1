"""Plans for GPUs as they are without NVRTC: of Triton's kernels only."""

from __future__ import annotations

from weft.backends import listed
from weft.backends.backend import Backend


def backends() -> tuple[Backend, ...]:
    """In place of ``listed.backends``."""
    return tuple(listed.backend_named(name) for name in listed.BACKENDS if name != "cuda")


def for_good() -> None:
    """In this process."""
    listed.backends = backends
