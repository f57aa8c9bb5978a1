"""Calls of C++ kernels from Python: ``function(pointers, parameters, threads)``. ``launcher/cpu.h`` repeats them."""

from __future__ import annotations

import ctypes
from _ctypes import CFuncPtr
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Thread
from typing import Any

import torch
from torch import Tensor

from weft.backends.cpp.pages import LEAST_BYTES, large_page_bytes, prefer_large_pages
from weft.backends.cpp.schedule import CppKernel
from weft.backends.resource_usage import ResourceUsage
from weft.backends.source import Source
from weft.options import Options
from weft.runtime import build, launcher
from weft.runtime.layout import Fitting, address_of_empty, bytes_of
from weft.target import Target

BYTES_PER_THREAD = 65536
"""Small kernels use fewer threads: one for each 32768 16-bit elements, the grain of ATen's own loops; not measured."""


@dataclass(frozen=True)
class Bound:
    """threads: at most so many are worth it. large: whether an output is worth large pages."""

    numbers: Any
    pointers: Any
    threads: int
    large: bool


def build_all(
    kernels: Sequence[CppKernel], sources: Sequence[Source], hints: Sequence[Mapping[str, int]], options: Options
) -> list[Any]:
    """Compiled functions, and the launcher beside them. Raises CompilerNotFoundError or BuildError."""
    with ThreadPoolExecutor(max_workers=1) as beside:
        beside.submit(launcher.load, options)
        libraries = build.build_all(sources, options)
    return [build.open_library(libraries[source.digest], source.entry) for source in sources]


def begin(
    kernels: Sequence[CppKernel],
    sources: Sequence[Source],
    hints: Sequence[Mapping[str, int]],
    options: Options,
    planned: Target | None,
) -> None:
    """Nothing is compiled in other processes."""


@contextmanager
def around_workers() -> Generator[None]:
    yield


def expect(options: Options) -> None:
    """The header is precompiled beside capture and plan."""
    Thread(target=build.warm_up, args=(options,), daemon=True).start()


def compile(kernel: CppKernel, source: Source, hints: Mapping[str, int], architecture: int, options: Options) -> None:
    build.library(source, options)


def begins(options: Options) -> bool:
    return False


def load_function(kernel: CppKernel, source: Source, options: Options) -> Any:
    """A compiled function. Raises CompilerNotFoundError or BuildError."""
    return build.load(source, options)


def bind(inputs: Sequence[Tensor], outputs: Sequence[Tensor], parameters: Sequence[int]) -> Bound:
    return Bound(
        (ctypes.c_int64 * max(1, len(parameters)))(*parameters),
        ctypes.c_void_p * (len(inputs) + len(outputs)),
        1 + bytes_of(inputs, outputs) // BYTES_PER_THREAD,
        any(t.numel() * t.itemsize >= LEAST_BYTES for t in outputs),
    )


def call(function: Any, fitting: Fitting, inputs: Sequence[Tensor], outputs: Sequence[Tensor], sm_margin: int) -> bool:
    bound: Bound = fitting.bound
    address = address_of_empty if fitting.empty else Tensor.data_ptr
    pointers = bound.pointers(*[address(t) for t in inputs], *[address(t) for t in outputs])
    if bound.large:
        prefer_large_pages(outputs)
    function(pointers, bound.numbers, min(torch.get_num_threads(), bound.threads))
    return True


def repeat(
    function: Any, fitting: Fitting, inputs: Sequence[Tensor], outputs: Sequence[Tensor], sm_margin: int
) -> list[int]:
    """The function's address, the threads worth it, and for each output the bytes worth large pages. Nothing for
    tensors without elements, and for what is no C function."""
    if fitting.empty or not isinstance(function, CFuncPtr):
        return []
    address = ctypes.cast(function, ctypes.c_void_p).value or 0
    return [address, fitting.bound.threads, *(large_page_bytes(t) for t in outputs)]


def usage(function: Any) -> ResourceUsage:
    """Nobody counts on a CPU."""
    return ResourceUsage(0, 0, 0, 0)
