"""Compiles the text of a kernel with NVRTC, on machines without a GPU too.

NVRTC compiles one text at a time in a process, however many threads ask: several go through compile workers.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from functools import cache
from importlib import import_module, resources
from importlib.util import find_spec
from typing import Any

import torch

from weft.backends.binary import Binary, Job
from weft.backends.cuda.usage import VERBOSE, resource_usage
from weft.errors import BuildError
from weft.runtime.cxx import first_lines

CONTRACTED = True
"""Whether a multiplication and an addition may become one operation that rounds once, as in kernels of Triton."""
HEADERS = (
    *("weft.cuh", "exponentials.cuh", "vectors.cuh", "planes.cuh", "copies.cuh", "queue.cuh", "reductions.cuh"),
    "finish.cuh",
)
"""In the order in which they stand before the text of a kernel: each is made of those before it."""
LEAST_SPECIFIC = 90
"""From this compute capability on, instructions that later architectures do not have are part of a target of its
own: ``sm_90a``."""


def compile_functions(job: Job, shared_bytes: Mapping[str, int]) -> list[Binary]:
    """The functions of a source. shared_bytes: of dynamic shared memory that each function is started with, in the
    order of the launches. Raises BuildError with what NVRTC says."""
    content, log = compiled(job.source.text, job.source.name, job.architecture, defines(job))
    usages = {entry: resource_usage(log, entry, dynamic) for entry, dynamic in shared_bytes.items()}
    return [Binary(entry, content, dynamic, usages[entry]) for entry, dynamic in shared_bytes.items()]


def compiled(text: str, name: str, architecture: int, macros: Mapping[str, str]) -> tuple[bytes, str]:
    """The binary of a text behind the header, and the log. name: of the kernel, which errors are said to be in.
    macros: what they stand for, by name. Raises BuildError."""
    core, target = _core(), arch_of(architecture)
    options = core.ProgramOptions(
        name=f"{name}.cu",
        arch=target,
        define_macro=sorted((_own_macros() | dict(macros)).items()),
        ptxas_options=VERBOSE,
        fma=CONTRACTED,
        std="c++17",
        device_as_default_execution_space=True,
        minimal=True,
        no_source_include=True,
        no_cache=_has_cache(),
    )
    log = io.StringIO()
    try:
        program = core.Program(_whole(text, name), "c++", options)
        content = bytes(program.compile("cubin", logs=log).code)
    except Exception as error:  # of NVRTC, or of a library that is not there
        printed = str(error).strip("\0 \n")
        raise BuildError(f"NVRTC refused {name} for {target}:\n{first_lines(printed)}", printed) from error
    return content, log.getvalue().strip("\0 \n")


def defines(job: Job) -> dict[str, str]:
    """What the text is told of the arguments of a call by macros: ``WEFT_ALIGNED_x``, whether a tensor starts at a
    multiple of 16 bytes, and ``WEFT_DIVISIBLE_s0``, whether a parameter is a multiple of 16. Those that the text does
    not name are left out, so that variants which make no difference are one."""
    program, variant = job.kernel.program, job.variant
    aligned = zip((f"WEFT_ALIGNED_{buffer.name}" for buffer in program.buffers), variant.aligned, strict=True)
    divisible = zip((f"WEFT_DIVISIBLE_{name}" for name in program.parameters), variant.divisible, strict=True)
    named = set(re.findall(r"\bWEFT_\w+", job.source.text))
    return {name: str(int(known)) for name, known in (*aligned, *divisible) if name in named}


def key(job: Job, shared_bytes: Mapping[str, int]) -> str:
    """Of everything that binaries depend on."""
    parts = (
        job.source.digest, header(), release(), arch_of(job.architecture), CONTRACTED,
        sorted((_own_macros() | defines(job)).items()), list(shared_bytes.items()),
    )  # fmt: skip
    return "\0".join(map(str, parts))


def arch_of(architecture: int) -> str:
    """The target of a compute capability in NVRTC's words, with the instructions that are this architecture's own."""
    return f"sm_{architecture}{'a' if architecture >= LEAST_SPECIFIC else ''}"


@cache
def header() -> str:
    """What stands before the text of every kernel."""
    folder = resources.files("weft.backends.cuda")
    return "".join(f'#line 1 "{name}"\n{folder.joinpath(name).read_text()}' for name in HEADERS)


@cache
def release() -> str:
    """NVRTC's, with its build, e.g. ``V13.0.88``, as a text in PTX names it. Raises BuildError."""
    _core()
    nvrtc: Any = import_module("cuda.bindings.nvrtc")
    failed, program = nvrtc.nvrtcCreateProgram(b"", b"", 0, [], [])
    try:
        if failed or any(nvrtc.nvrtcCompileProgram(program, 0, [])):
            raise BuildError("NVRTC cannot compile an empty text")
        ptx = bytes(nvrtc.nvrtcGetPTXSize(program)[1])
        nvrtc.nvrtcGetPTX(program, ptx)  # writes there
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    found = re.search(rb"Cuda compilation tools, release [\d.]+, (V[\d.]+)", ptx)
    return found[1].decode() if found else str(nvrtc.nvrtcVersion()[1:])


@cache
def missing() -> str:
    """The package that is to be installed before kernels can be compiled; empty if nothing is missing. Loads NVRTC, and
    looks for no GPU."""
    if find_spec("cuda") is None or find_spec("cuda.core") is None:
        return "cuda-core"
    if find_spec("cuda.bindings") is None:
        return "cuda-bindings"
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        load_nvidia_dynamic_lib("nvrtc")
    except Exception:  # it is not there, or something that it needs is not
        return "nvidia-cuda-nvrtc"
    return ""


def _core() -> Any:
    if package := missing():
        raise BuildError(f"no NVRTC: {package} is missing. Install it, e.g. `pip install {package}`.")
    return import_module("cuda.core")


def _whole(text: str, name: str) -> str:
    """The header and a text, of which each line keeps its number."""
    return f'{header()}#line 1 "{name}.cu"\n{text}'


@cache
def _has_cache() -> bool:
    """Whether NVRTC has a cache of its own, which it has from 12.9 on. What comes from there says nothing of registers
    (NVIDIA/cuda-python issue 1124), and binaries are kept by weft."""
    return import_module("cuda.bindings.nvrtc").nvrtcVersion()[1:] >= (12, 9)


@cache
def _own_macros() -> dict[str, str]:
    """What is too large for f8e4m3 is the largest number to torch since 2.13, and NaN before."""
    beyond = torch.tensor(1e9).to(torch.float8_e4m3fn).float()
    return {"WEFT_F8E4M3_SATURATES": str(int(not beyond.isnan()))}
