"""Compiles C++ kernels: one precompiled header a machine, one shared library a kernel, several at a time."""

from __future__ import annotations

import ctypes
import hashlib
import platform
import shutil
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import resources
from pathlib import Path

import torch

from weft.errors import BuildError, CompilerNotFoundError
from weft.options import Options
from weft.render.source import Source
from weft.runtime.cache import Cache
from weft.runtime.counters import counters

# torch.backends.cpu.get_cpu_capability() -> flags; CPU_CAPABILITY must be defined for ATen's vectors
_CAPABILITY_FLAGS = {
    "AVX512": "-DCPU_CAPABILITY=AVX512 -DCPU_CAPABILITY_AVX512 "
    "-mavx512f -mavx512dq -mavx512vl -mavx512bw -mavx2 -mfma -mf16c",
    "AVX2": "-DCPU_CAPABILITY=AVX2 -DCPU_CAPABILITY_AVX2 -mavx2 -mfma -mf16c",
}
_PORTABLE_FLAGS = "-DCPU_CAPABILITY=DEFAULT -DCPU_CAPABILITY_DEFAULT"
HEADER = "weft_cpu.h"


def find_compiler(options: Options) -> str:
    """Path of the C++ compiler. Raises CompilerNotFoundError saying what to install."""
    for name in (options.cxx,) if options.cxx else ("g++", "clang++", "c++"):
        if (path := shutil.which(name)) is not None:
            return path
    looked = options.cxx or "g++, clang++, c++"
    raise CompilerNotFoundError(
        f"no C++ compiler found (looked for {looked}). Install one, e.g. `apt-get install g++` on Debian and Ubuntu, "
        "`dnf install gcc-c++` on Fedora, `xcode-select --install` on macOS, or set CXX to its path."
    )


@cache
def compiler_version(path: str) -> str:
    return subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout


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


def _link_flags() -> list[str]:
    library = Path(torch.__file__).parent / "lib"
    return ["-shared", f"-L{library}", f"-Wl,-rpath,{library}", "-ltorch_cpu", "-lc10"]


def _header_text() -> str:
    return (resources.files("weft.render") / HEADER).read_text()


def _precompiled_header(compiler: str, options: Options) -> Path:
    """Path of a copy of the header with its precompiled form beside it (seconds once; a kernel then takes 0.4)."""
    text = _header_text()
    key = _key("header", text, compiler)
    store = Cache(options.cache_dir)

    def write(path: Path) -> None:
        path.write_text(text)

    header, _ = store.get(key, ".h", write)

    def precompile(path: Path) -> None:
        _run([compiler, *flags(), "-x", "c++-header", str(header), "-o", str(path)], "the vector header")

    store.get(key, ".h.gch", precompile)
    return header


def _key(*parts: str) -> str:
    compiler = parts[-1]
    machine = (platform.machine(), torch.__version__, compiler_version(compiler), " ".join(flags()))
    return hashlib.sha256("\0".join((*parts, *machine)).encode()).hexdigest()[:32]


def _run(command: Sequence[str], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if "error" in line][:5] or done.stderr.splitlines()[-5:]
        raise BuildError(f"the C++ compiler refused {what}:\n" + "\n".join(errors) + f"\n{' '.join(command)}")


def library(source: Source, options: Options) -> Path:
    """Path of the shared library of a source, compiled if it is not in the cache."""
    compiler = find_compiler(options)
    header = _precompiled_header(compiler, options)

    def compile_to(path: Path) -> None:
        text = path.with_suffix(".cpp")
        text.write_text(source.text.replace(f'#include "{HEADER}"', f'#include "{header}"'))
        try:
            _run(
                [compiler, *flags(), "-include", str(header), str(text), "-o", str(path), *_link_flags()], source.entry
            )
        finally:
            text.unlink(missing_ok=True)

    path, found = Cache(options.cache_dir).get(_key(source.digest, _header_text(), compiler), ".so", compile_to)
    counters.add(cache_hits=int(found), builds=int(not found))
    return path


def load(source: Source, options: Options) -> Callable[..., None]:
    """The compiled function ``(buffers, parameters, threads)``."""
    return open_library(library(source, options), source.entry)


def open_library(path: Path, entry: str) -> Callable[..., None]:
    """The function of that name in a shared library."""
    function = getattr(ctypes.CDLL(str(path)), entry)
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
    function.restype = None
    return function


def build_all(sources: Sequence[Source], options: Options) -> dict[str, Path]:
    """Libraries of all sources by digest, ``options.build_threads`` compiled at a time, outside Python's lock."""
    unique = {source.digest: source for source in sources}
    if not unique:
        return {}
    _precompiled_header(find_compiler(options), options)
    with ThreadPoolExecutor(max_workers=max(1, min(len(unique), options.build_threads))) as pool:
        return dict(zip(unique, pool.map(lambda s: library(s, options), unique.values()), strict=True))
