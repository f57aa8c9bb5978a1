"""Triton's binaries on a device: loading a function, and starting it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

from weft.backends.triton import build as triton_build
from weft.backends.triton.build import Binary
from weft.backends.triton.schedule import TritonKernel
from weft.errors import BuildError
from weft.runtime.build import private_folder
from weft.runtime.driver import argument_bytes, programs_per_unit

_LOG = logging.getLogger(__name__)
TRITONS = 2
"""Arguments behind ours that Triton adds: memory it asks for itself, null in kernels that need none."""
_WORD_BYTES = 8
"""Of every argument: addresses, and numbers of 64 bits."""
_ARGUMENTS = 16
"""Triton's launcher of a kernel is C that it compiles for each list of argument types, a fifth of a second each. All of
weft's are words, and a driver reads no more of them than a function has: zeros behind them make lists equal."""


@dataclass(frozen=True)
class Loaded:
    """A function on one device. run: Triton's launcher. per_unit: programs that an SM holds at a time. threads,
    shared_bytes: of a program. cooperative: programs wait for each other. arguments: how many it has, of a word each,
    with those that Triton adds, which are null; 0 if it takes something else to start it. given: arguments that ``run``
    takes, zeros behind the function's own."""

    compiled: Any
    run: Callable[..., None]
    function: int
    packed: Any
    per_unit: int
    threads: int
    shared_bytes: int
    cooperative: bool
    arguments: int
    given: int = 0

    def number(self, parameter: int) -> int:
        """A run-time number as ``run`` takes it: where all arguments are words, a negative one in two's complement."""
        return parameter % 2 ** (8 * _WORD_BYTES) if self.given else parameter


@dataclass(frozen=True)
class Start:
    """A function with the programs it is started with."""

    loaded: Loaded
    grid: tuple[int, int]

    def __call__(self, stream: int, arguments: Sequence[int], hooks: Any) -> None:
        """hooks: Triton's, which its profiler sets; what they are told is made only for them."""
        loaded, (first, second) = self.loaded, self.grid
        enter, leave = hooks.launch_enter_hook, hooks.launch_exit_hook
        told = None
        if not getattr(enter, "calls", enter) and not getattr(leave, "calls", leave):
            enter = leave = None
        else:
            told = loaded.compiled.launch_metadata((first, second, 1), stream, *arguments)
        zeros = (0,) * (loaded.given - len(arguments))
        loaded.run(first, second, 1, stream, loaded.function, loaded.packed, told, enter, leave, *arguments, *zeros)


@cache
def hash_beside() -> None:
    """Have a thread hash all of Triton, which TorchInductor's keys of graphs do, for half a second, when they are first
    needed: by then a model has been traced."""
    with suppress(Exception):
        from torch._inductor.runtime import triton_compat

        if triton_compat.HAS_TRITON:
            Thread(target=triton_compat.triton_key, daemon=True).start()


@cache
def warm_up() -> None:
    """Have Triton compile what it loads and starts functions with, a second of C, before there are any; TorchInductor
    needs none of it. What goes wrong is left for ``load`` to find."""
    try:
        from triton.runtime.driver import driver

        active: Any = driver.active
        names = ("global_scratch_size", "global_scratch_align", "profile_scratch_size", "profile_scratch_align")
        metadata = SimpleNamespace(**dict.fromkeys(names, 0), launch_cooperative_grid=False, launch_pdl=False)
        for given in (_ARGUMENTS, 2 * _ARGUMENTS):
            active.launcher_cls(SimpleNamespace(signature=_words_only(given), constants={}), metadata)
    except Exception as error:
        _LOG.info("nothing is compiled ahead of loading: %s: %s", type(error).__name__, error)


def load(binary: Binary, kernel: TritonKernel) -> Loaded:
    """Load a function on the current device. Raises what the driver and Triton raise, e.g. OutOfResources."""
    compiled = restore(binary, triton_build.signature(kernel))
    metadata = compiled.metadata
    given = 0
    if _is_plain(metadata):
        given = -(-(len(compiled.src.signature) + TRITONS) // _ARGUMENTS) * _ARGUMENTS
        compiled.src.signature = _words_only(given)
    run = compiled.run  # loads the binary
    threads = metadata.num_warps * metadata.target.warp_size
    per_unit = programs_per_unit(compiled.function, threads, metadata.shared)
    _LOG.info("loaded: %s, %s, %d programs an SM", binary.entry, binary.usage, per_unit)
    function, packed, together = compiled.function, compiled.packed_metadata, bool(metadata.launch_cooperative_grid)
    words = _words(function, metadata)
    return Loaded(compiled, run, function, packed, per_unit, threads, metadata.shared, together, words, given)


def _words_only(given: int) -> dict[str, str]:
    """So many arguments, each a word, as the signature of a function."""
    return {str(at): "*i8" for at in range(given)}


def _is_plain(metadata: Any) -> bool:
    """Whether a function is started with nothing but its own words: Triton's own are null."""
    plain = {"num_ctas": 1, "global_scratch_size": 0, "profile_scratch_size": 0, "launch_pdl": False}
    return all(getattr(metadata, name, value) == value for name, value in plain.items())


def _words(function: int, metadata: Any) -> int:
    """Arguments of a function that is started with nothing but words; 0 for others."""
    if not _is_plain(metadata):
        return 0
    try:
        sizes = argument_bytes(function)
    except BuildError as error:
        _LOG.info("started from Python: %s", error)
        return 0
    return len(sizes) if set(sizes) == {_WORD_BYTES} else 0


def restore(binary: Binary, types: Mapping[str, str]) -> Any:
    """Triton's ``CompiledKernel`` of a binary. types: of the arguments, in Triton's words."""
    from triton.compiler import CompiledKernel

    with private_folder() as folder:
        group: dict[str, str] = {}
        for suffix, content in (("json", binary.metadata.encode()), ("cubin", binary.content)):
            path = Path(folder) / f"binary.{suffix}"
            path.write_bytes(content)
            group[f"binary.{suffix}"] = str(path)
        # of its source it asks no more than this once there is a binary
        source = SimpleNamespace(signature=dict(types), constants={})
        return CompiledKernel(source, group, binary.entry)
