"""The CUDA driver: loading functions of binaries, starting them, and what it says of them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

from weft.errors import BuildError

SPARE_WORDS = 16
"""Null arguments behind ours. A driver reads no more of them than a function has, which may have some of its
compiler's own."""
_STATIC_SHARED_BYTES = 48 * 1024
"""What a function may be started with before it is told that it may have more."""
_PORTABLE_CLUSTER = 8
"""Programs of a cluster that every GPU with clusters can have; a function is told that it may be started with more."""
# of CUfunc_cache, CUfunction_attribute, CUdevice_attribute and CUlaunchAttributeID in cuda.h
_PREFER_SHARED = 1
_STATIC_SHARED, _MOST_DYNAMIC_SHARED, _LARGE_CLUSTER = 1, 8, 14
_MOST_SHARED = 97
_COOPERATIVE, _CLUSTER = 2, 4


class _Value(ctypes.Union):
    """CUlaunchAttributeValue: one of these, by the attribute. cluster: programs along three axes."""

    _fields_ = (("cooperative", ctypes.c_int), ("cluster", ctypes.c_uint * 3), ("whole", ctypes.c_uint64 * 8))


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = (("kind", ctypes.c_int), ("value", _Value))


class _Config(ctypes.Structure):
    """CUlaunchConfig. grid: programs along three axes. block: threads of a program."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    )


def load_function(content: bytes, entry: str, shared_bytes: int, device: int, cluster: int = 1) -> int:
    """A function of a binary on a device, which stays loaded. shared_bytes: that a program is started with. cluster:
    programs of a cluster. Raises BuildError."""
    ensure_context(device)
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    _call("cuModuleLoadData", ctypes.byref(module), content)
    _call("cuModuleGetFunction", ctypes.byref(function), module, entry.encode())
    if shared_bytes > _STATIC_SHARED_BYTES:
        most, own = ctypes.c_int(), ctypes.c_int()
        _call("cuDeviceGetAttribute", ctypes.byref(most), _MOST_SHARED, device)
        _call("cuFuncGetAttribute", ctypes.byref(own), _STATIC_SHARED, function)
        if shared_bytes > most.value - own.value:
            raise BuildError(f"{entry} takes {shared_bytes} bytes of shared memory, the GPU has {most.value}")
        _call("cuFuncSetCacheConfig", function, _PREFER_SHARED)
        _call("cuFuncSetAttribute", function, _MOST_DYNAMIC_SHARED, ctypes.c_int(most.value - own.value))
    if cluster > _PORTABLE_CLUSTER:
        _call("cuFuncSetAttribute", function, _LARGE_CLUSTER, ctypes.c_int(1))
    return function.value or 0


def programs_per_unit(function: int, threads: int, shared_bytes: int) -> int:
    """Programs of a loaded function that one SM holds. threads, shared_bytes: of a program. Raises BuildError."""
    found, given = ctypes.c_int(0), (ctypes.c_void_p(function), ctypes.c_int(threads), ctypes.c_size_t(shared_bytes))
    _call("cuOccupancyMaxActiveBlocksPerMultiprocessor", ctypes.byref(found), *given)
    return found.value


def max_clusters(function: int, cluster: int, threads: int, shared_bytes: int) -> int:
    """Clusters of a loaded function that the GPU holds. cluster: programs of one. threads, shared_bytes: of a program.
    Raises BuildError."""
    found, config = ctypes.c_int(0), _config((cluster, 1), threads, shared_bytes, 0, False, cluster)
    _call("cuOccupancyMaxActiveClusters", ctypes.byref(found), ctypes.c_void_p(function), ctypes.byref(config))
    return found.value


def start(
    function: int,
    grid: tuple[int, int],
    threads: int,
    shared_bytes: int,
    stream: int,
    words: Sequence[int],
    cooperative: bool,
    cluster: int = 1,
) -> None:
    """Start a loaded function. words: its arguments, of 64 bits each. cooperative: its programs wait for each other.
    cluster: programs of a cluster, along the first axis of the grid. Raises BuildError."""
    values = (ctypes.c_uint64 * (len(words) + SPARE_WORDS))(*(word % 2**64 for word in words))
    places = (ctypes.c_void_p * len(values))(
        *(ctypes.addressof(values) + at * ctypes.sizeof(ctypes.c_uint64) for at in range(len(values)))
    )
    config = _config(grid, threads, shared_bytes, stream, cooperative, cluster)
    _call("cuLaunchKernelEx", ctypes.byref(config), ctypes.c_void_p(function), places, None)


def _config(
    grid: tuple[int, int], threads: int, shared_bytes: int, stream: int, cooperative: bool, cluster: int
) -> _Config:
    """What a function is started with besides its arguments, as of ``start``."""
    attributes = list[_Attribute]()
    if cooperative:
        attributes.append(_Attribute(_COOPERATIVE, _Value(cooperative=1)))
    if cluster > 1:
        attributes.append(_Attribute(_CLUSTER, _Value(cluster=(cluster, 1, 1))))
    listed = (_Attribute * len(attributes))(*attributes) if attributes else None
    return _Config((*grid, 1), (threads, 1, 1), shared_bytes, stream, listed, len(attributes))


def ensure_context(device: int) -> None:
    """Have this thread use PyTorch's context of a device, if it has used none yet."""
    context = ctypes.c_void_p()
    _call("cuInit", 0)
    _call("cuCtxGetCurrent", ctypes.byref(context))
    if not context:
        _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        _call("cuCtxSetCurrent", context)


def _call(name: str, *given: Any) -> None:
    """Raises BuildError with the driver's word for what went wrong."""
    driver = _driver()
    if failed := getattr(driver, name)(*given):
        text = ctypes.c_char_p()
        driver.cuGetErrorString(failed, ctypes.byref(text))
        raise BuildError(f"{name}: {(text.value or b'unknown').decode()} (error {failed} of the CUDA driver)")


@cache
def _driver() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise BuildError(f"no CUDA driver: {error}") from error
