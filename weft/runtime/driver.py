"""What the CUDA driver says of functions that were loaded."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from weft.errors import BuildError

MOST_ARGUMENTS = 4096
"""Of a function; there are at most 32764 bytes of them."""


def programs_per_unit(function: int, threads: int, shared_bytes: int) -> int:
    """Programs of a loaded function that one SM holds. threads, shared_bytes: of a program. Raises BuildError."""
    found = ctypes.c_int(0)
    failed = _driver().cuOccupancyMaxActiveBlocksPerMultiprocessor(
        ctypes.byref(found), ctypes.c_void_p(function), ctypes.c_int(threads), ctypes.c_size_t(shared_bytes)
    )
    if failed:
        raise BuildError(f"the CUDA driver does not say how many programs fit (error {failed})")
    return found.value


def argument_bytes(function: int) -> tuple[int, ...]:
    """Of each argument of a loaded function. Raises BuildError, also for a driver older than CUDA 12.4."""
    ask = getattr(_driver(), "cuFuncGetParamInfo", None)
    if ask is None:
        raise BuildError("the CUDA driver does not say what arguments a function has: it is older than CUDA 12.4")
    sizes: list[int] = []
    for at in range(MOST_ARGUMENTS):
        offset, size = ctypes.c_size_t(0), ctypes.c_size_t(0)
        if ask(ctypes.c_void_p(function), ctypes.c_size_t(at), ctypes.byref(offset), ctypes.byref(size)):
            break  # the index is none of an argument
        sizes.append(size.value)
    return tuple(sizes)


@cache
def _driver() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise BuildError(f"no CUDA driver: {error}") from error
