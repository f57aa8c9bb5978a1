"""Compiles C++: one precompiled header a machine, one shared library a kernel, several at a time; and the launcher."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import subprocess
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache, partial
from importlib import resources
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import TypeVar

import torch

from weft.backends.source import Source
from weft.errors import BrokenCompilerError, BuildError
from weft.options import Options
from weft.runtime.cache import Cache
from weft.runtime.counters import counters
from weft.runtime.cxx import compiler_version, complaint, find_compiler, first_lines

# torch.backends.cpu.get_cpu_capability() -> flags; CPU_CAPABILITY must be defined for ATen's vectors
_CAPABILITY_FLAGS = {
    "AVX512": "-DCPU_CAPABILITY=AVX512 -DCPU_CAPABILITY_AVX512 "
    "-mavx512f -mavx512dq -mavx512vl -mavx512bw -mavx2 -mfma -mf16c",
    "AVX2": "-DCPU_CAPABILITY=AVX2 -DCPU_CAPABILITY_AVX2 -mavx2 -mfma -mf16c",
}
_PORTABLE_FLAGS = "-DCPU_CAPABILITY=DEFAULT -DCPU_CAPABILITY_DEFAULT"
HEADER = "weft_cpu.h"
_ROOM_BYTES = 16 * 1024**2
"""Free space that a folder for the compiler's files needs at the least. A library takes some 20 KB, its assembly more;
the precompiled header takes 120 MB, and is done without where that is not there."""


_Library = TypeVar("_Library", bound=ctypes.CDLL)


def flags() -> list[str]:
    """Compiler flags for this machine. Multiplications and additions are not contracted: a fused kernel rounds where
    eager rounds."""
    capability = torch.backends.cpu.get_cpu_capability()
    root = Path(torch.__file__).parent
    return [
        *("-std=c++20", "-O3", "-fPIC", "-fopenmp", "-ffp-contract=off", "-fno-math-errno", "-Wno-unknown-pragmas"),
        *_CAPABILITY_FLAGS.get(capability, _PORTABLE_FLAGS).split(),
        *(f"-I{root / 'include'}", f"-I{root / 'include' / 'torch' / 'csrc' / 'api' / 'include'}"),
    ]


def _compiling(compiler: str) -> list[str]:
    """The start of a command. Where the vector header lies says nothing of what is compiled, and is in no key: another
    checkout of weft finds what this one has compiled."""
    return [compiler, *flags(), f"-I{_header_folder()}"]


def _link_flags() -> list[str]:
    library = Path(torch.__file__).parent / "lib"
    return ["-shared", f"-L{library}", f"-Wl,-rpath,{library}", "-ltorch_cpu", "-lc10"]


def _header_folder() -> Path:
    return Path(str(resources.files("weft.runtime"))) / "include"


class _Headers:
    """The precompiled header of this process, if it works (seconds once a machine; a kernel then takes a third).

    The compiler is given the name that the precompiled form has without its suffix. No file has that name: a form it
    finds invalid is an error then, instead of being passed over for the slow way without a word.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: dict[tuple[Path, str], tuple[Path, tuple[int, int, int]] | None] = {}

    def find(self, store: Cache, compiler: str) -> Path | None:
        """Path of the precompiled form; made if it is not there, None if there can be none. Its digest is compared once
        a process, and again when the file is another or was written to."""
        place = (store.folder, compiler)
        with self._lock:
            known = self._known.get(place)
            if place in self._known and (known is None or _state(known[0]) == known[1]):
                return known and known[0]
            key = _key("header", (_header_folder() / HEADER).read_text(), compiler)
            try:
                path = store.get(key, "header", HEADER.removesuffix(".h"), lambda: _precompile(compiler)).path
                self._known[place] = None if path is None else (path, _state(path))
            except BuildError:  # the kernel's own build says what is wrong
                self._known[place] = None
            known = self._known[place]
            return known and known[0]

    def give_up(self, store: Cache, compiler: str) -> None:
        """Go without for the rest of the process, and let the next one make it anew."""
        with self._lock:
            known = self._known.get((store.folder, compiler))
            self._known[store.folder, compiler] = None
        if known is not None:
            with suppress(OSError):
                known[0].unlink()


_HEADERS = _Headers()


def _state(path: Path) -> tuple[int, int, int]:
    """What changes when a file is replaced or written to; zeros if it is not there."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0, 0
    return status.st_ino, status.st_size, status.st_mtime_ns


def _key(*parts: str) -> str:
    compiler = parts[-1]
    machine = (platform.machine(), torch.__version__, compiler_version(compiler), " ".join(flags()))
    return hashlib.sha256("\0".join((*parts, *machine)).encode()).hexdigest()[:32]


@contextmanager
def private_folder() -> Generator[Path]:
    """A folder of this user alone that is gone afterwards: in ``TMPDIR``, in ``/tmp``, or in memory if they are full or
    run no programs. Raises BuildError."""
    tried: list[str] = []
    for parent in dict.fromkeys((os.environ.get("TMPDIR") or "/tmp", "/tmp", "/dev/shm")):
        try:
            status = os.statvfs(parent)
            if status.f_flag & getattr(os, "ST_NOEXEC", 0):
                raise OSError(f"{parent} runs no programs")
            if status.f_bavail * status.f_frsize < _ROOM_BYTES:
                raise OSError(f"{parent} is full")
            folder = tempfile.TemporaryDirectory(prefix="weft-", dir=parent, ignore_cleanup_errors=True)
        except OSError as error:
            tried.append(str(error))
            continue
        with folder as name:
            yield Path(name)
        return
    raise BuildError(f"no place for the compiler's files: {'; '.join(tried)}. Set TMPDIR to a folder with room.")


def _compile(arguments: Sequence[str], what: str, files: Mapping[str, str] | None = None) -> bytes:
    """What the compiler makes of a file among its arguments, or of the first of ``files``: texts by name, of which
    it may include the others. Raises BuildError."""
    with private_folder() as folder:
        made = folder / "made"
        for name, text in (files or {}).items():
            (folder / name).write_text(text)
        if files:
            arguments = [*arguments[:1], str(folder / next(iter(files))), *arguments[1:]]
        command = [*arguments, "-o", str(made)]
        env = {**os.environ, "TMPDIR": str(folder)}
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=env)
        if done.returncode == 0 and made.exists():
            return made.read_bytes()
    printed = first_lines(done.stderr + done.stdout)
    raise BuildError(f"the C++ compiler refused {what}:\n{printed}\n{' '.join(command)}", printed)


def _precompile(compiler: str) -> bytes:
    header = str(_header_folder() / HEADER)
    return _compile([*_compiling(compiler), "-x", "c++-header", header], "the vector header")


def _compile_library(compiler: str, what: str, files: Mapping[str, str]) -> bytes:
    """A shared library of a text, without the precompiled header. Raises BuildError, of which the compiler is the
    reason where it refuses an empty kernel as well."""
    try:
        return _compile([*_compiling(compiler), *_link_flags()], what, files)
    except BuildError as error:
        if error.printed:
            _check_works(compiler)
        raise


@cache
def _check_works(compiler: str) -> None:
    """Raises BrokenCompilerError."""
    empty = f'#include "{HEADER}"\n\nextern "C" void weft_empty() {{}}\n'
    try:
        _compile([*_compiling(compiler), *_link_flags()], "an empty kernel", {"empty.cpp": empty})
    except BuildError as error:
        raise BrokenCompilerError(complaint(compiler, "cannot compile an empty kernel", error.printed)) from None


def _compile_kernel(source: Source, compiler: str, store: Cache) -> bytes:
    """The shared library of a source; without the precompiled header if the compiler fails with it."""
    command, files = [*_compiling(compiler), *_link_flags()], {"kernel.cpp": source.text}
    if (header := _HEADERS.find(store, compiler)) is not None:
        with suppress(BuildError):
            return _compile([*command, "-include", str(header).removesuffix(".gch")], source.name, files)
    compiled = _compile_library(compiler, source.name, files)
    if header is not None:
        _HEADERS.give_up(store, compiler)
    return compiled


def compile_anew(source: Source, options: Options) -> bytes:
    """The shared library of a source, whatever the cache holds; not kept, and without the precompiled header."""
    return _compile_library(find_compiler(options), source.name, {"kernel.cpp": source.text})


def library(source: Source, options: Options) -> bytes:
    """The shared library of a source, compiled if it is not in the cache."""
    compiler = find_compiler(options)
    key = _key(source.digest, (_header_folder() / HEADER).read_text(), compiler)
    store = Cache(options.cache_dir, options.cache_bytes)
    kept = store.get(key, "kernel", source.name, lambda: _compile_kernel(source, compiler, store))
    counters.add(cache_hits=int(kept.found), builds=int(not kept.found))
    return kept.content


def warm_up(options: Options) -> None:
    """Precompile the header, which takes seconds once a machine, before the first kernel needs it. What goes wrong is
    left for that kernel to find."""
    with suppress(Exception):
        _HEADERS.find(Cache(options.cache_dir, options.cache_bytes), find_compiler(options))


def load(source: Source, options: Options) -> Callable[..., None]:
    """The compiled function ``(buffers, parameters, threads)``."""
    return open_library(library(source, options), source.entry)


def auxiliary(name: str, files: Mapping[str, str], options: Options) -> bytes:
    """The shared library of a text that is no kernel: it needs none of weft's headers, and is not counted. files: this
    text and then those that it includes, by name."""
    compiler = find_compiler(options)
    store = Cache(options.cache_dir, options.cache_bytes)
    make = partial(_compile_library, compiler, name, files)
    return store.get(_key(name, *chain(*files.items()), compiler), "kernel", name, make).content


def open_library(content: bytes, entry: str) -> Callable[..., None]:
    """The function of that name in a shared library, called without Python's lock."""
    function = getattr(_open(content, entry, ctypes.CDLL), entry)
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
    function.restype = None
    return function


def open_auxiliary(content: bytes, name: str) -> ctypes.PyDLL:
    """A shared library whose functions are called with Python's lock."""
    return _open(content, name, ctypes.PyDLL)


def _open(content: bytes, name: str, opened: Callable[[str], _Library]) -> _Library:
    """Loaded from a file of this process alone, so that the bytes that run are the bytes given, whatever happens to the
    cache."""
    with private_folder() as folder:
        path = folder / f"{name[:80]}.so"
        path.write_bytes(content)
        return opened(str(path))


def build_all(sources: Sequence[Source], options: Options) -> dict[str, bytes]:
    """Libraries of all sources by digest, ``options.build_threads`` compiled at a time, outside Python's lock."""
    unique = {source.digest: source for source in sources}
    if not unique:
        return {}
    with ThreadPoolExecutor(max_workers=max(1, min(len(unique), options.build_threads))) as pool:
        return dict(zip(unique, pool.map(lambda s: library(s, options), unique.values()), strict=True))
