"""Kernels in CUDA C++ that run on this machine, against the interpreter."""

from __future__ import annotations

import ctypes
import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.cuda_kernels import kernel_of, with_any_width
from tests.exact_inputs import exact_inputs
from tests.on_host.assembly import with_calls
from weft.backends.abi import count
from weft.backends.binary import Job, Variant
from weft.backends.cuda import build, launches
from weft.backends.cuda.schedule import CudaKernel
from weft.backends.listed import render
from weft.bench.kernel_run import output_tensors
from weft.ir.dtypes import TORCH_DTYPES
from weft.ir.interpret import interpret
from weft.options import Options
from weft.runtime.cxx import find_compiler

FOLDER = Path(__file__).parent
POISON = 0xFF
"""Of a byte: floats of such bytes are NaN."""
LINE = 128
GUARD = 4096
"""Bytes before and behind a tensor, which nobody writes."""
_SHARED = re.compile(r"(extern )?__shared__ __align__\(\d+\) uint8_t memory\[(\d*)\];")
_OPTIONS = (
    *("-std=c++17", "-fPIC", "-w", "-fno-strict-aliasing", "-fwrapv", "-ffp-contract=off"),
    "-U_FORTIFY_SOURCE",  # it knows nothing of fibers
)


class WrongLaunchError(Exception):
    """A kernel whose threads wait forever, do what no thread may, or leave something wrong."""


def whole_text(job: Job, change: Callable[[str], str] = str) -> str:
    """A translation unit for this machine: what CUDA has, the headers, the kernel, and a function of words for each of
    its own. change: what becomes of the headers and the kernel."""
    macros = (build._own_macros() | build.defines(job)).items()
    entries = (launch.entry for launch in launches.abi(job.kernel).launches)
    calls = (
        f'extern "C" void words_of_{entry}(const unsigned long long* words) {{ host_call({entry}, words); }}\n'
        for entry in entries
    )
    text = _with_shared_memory(with_calls(change(build.header() + job.source.text)))
    return "".join([*(f"#define {n} {value}\n" for n, value in macros), (FOLDER / "cuda.h").read_text(), text, *calls])


def _with_shared_memory(text: str) -> str:
    made = _SHARED.sub(lambda found: f"uint8_t* const memory = host_shared_memory({found[2] or 0});", text)
    assert "__shared__" not in made
    return made


def _shared_bytes(text: str) -> int:
    """Of a block, that a text itself says."""
    return max((int(found[2]) for found in _SHARED.finditer(text) if found[2]), default=0)


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="weft-on-host-")


@cache
def _machine() -> list[Path]:
    """What runs launches, compiled once."""
    made = list[Path]()
    for source in sorted(FOLDER.glob("*.cpp")):
        made.append(Path(_folder().name) / f"{source.stem}.o")
        _compile("-O2", "-c", source, "-o", made[-1])
    return made


def _compile(*arguments: str | Path) -> None:
    subprocess.run([find_compiler(Options.read()), *_OPTIONS, *arguments], check=True)


@cache
def _library(text: str) -> ctypes.CDLL:
    folder = Path(tempfile.mkdtemp(dir=_folder().name))
    source, made, library = (folder / name for name in ("kernel.cpp", "kernel.o", "kernel.so"))
    source.write_text(text)
    _compile("-O1", "-fsanitize=alignment", "-fno-sanitize-recover", "-c", source, "-o", made)
    _compile("-shared", made, *_machine(), "-o", library)  # with no library of the sanitizer
    return ctypes.CDLL(str(library))


@cache
def _floats() -> ctypes.CDLL:
    library = Path(_folder().name) / "floats.so"
    _compile("-shared", *(made for made in _machine() if made.stem == "floats"), "-o", library)
    found = ctypes.CDLL(str(library))
    found.host_wide.restype = ctypes.c_double
    return found


def wide(bits: int, kind: int) -> float:
    """The number of a narrow float."""
    return _floats().host_wide(ctypes.c_uint(bits), kind)


def narrow(number: float, kind: int) -> int:
    """The bits of the narrow float that a number is rounded to."""
    return _floats().host_narrow(ctypes.c_double(number), kind)


class Memory:
    """Tensors with poison around them."""

    def __init__(self) -> None:
        self._all: list[tuple[Tensor, int, int]] = []

    def place(self, elements: int, dtype: torch.dtype, early: int = 0) -> Tensor:
        """For so many elements, which begin so many behind the beginning of a line."""
        size, before = elements * dtype.itemsize, early * dtype.itemsize
        around = torch.full((size + before + 2 * GUARD + LINE,), POISON, dtype=torch.uint8)
        begin = -(around.data_ptr() + GUARD) % LINE + GUARD + before
        self._all.append((around, begin, begin + size))
        return around[begin : begin + size].view(dtype)

    def check(self) -> None:
        for around, begin, end in self._all:
            outside = torch.cat([around[:begin], around[end:]])
            if bool((outside != POISON).any()):
                raise WrongLaunchError("something is written before or behind a tensor")


@dataclass(frozen=True)
class Machine:
    """clusters: that are resident at a time, of any function. seed: of the order in which threads go on; with an even
    one transfers are complete when nobody can go on."""

    clusters: int = 3
    seed: int = 0


MACHINES = (Machine(), Machine(seed=1), Machine(1, 2), Machine(2, 3))
MANY = tuple(Machine(clusters, seed) for seed in range(8) for clusters in (3, 1))


def run(
    kernel: CudaKernel,
    inputs: Sequence[Tensor],
    parameters: tuple[int, ...] = (),
    *,
    early: int = 0,
    machines: Sequence[Machine] = (Machine(),),
    change: Callable[[str], str] = str,
) -> list[list[Tensor]]:
    """The outputs of a kernel, of each of some launches, of which those of as many clusters have a counter in common.
    Raises WrongLaunchError. early: elements that inputs begin behind a multiple of 16 bytes, and outputs twice as many.
    change: what becomes of the headers and the text."""
    memory, abi = Memory(), launches.abi(kernel)
    program = kernel.program
    given = [_moved(memory, t, early) for t in inputs]
    outputs = [_moved(memory, t, 2 * early) for t in output_tensors(program, parameters, torch.device("cpu"))]
    tensors = [t.data_ptr() for t in (*given, *outputs)]
    source = render(kernel)
    library = _library(whole_text(Job(kernel, source, Variant.of_call(tensors, parameters), 90), change))
    numbers = dict(zip(abi.parameters, parameters, strict=True))
    partials = [memory.place(count(p.elements, numbers), TORCH_DTYPES[p.dtype]) for p in abi.partials]
    counters = {machine.clusters: torch.zeros(1, dtype=torch.int64) for machine in machines}
    dynamic, static = launches.launch_bytes(kernel), _shared_bytes(source.text)
    found = list[list[Tensor]]()
    for machine in machines:
        for tensor in (*outputs, *partials):
            _whole(tensor).view(torch.uint8).fill_(POISON)
        counter = [counters[machine.clusters].data_ptr()] * abi.counter
        words = [*tensors, *(t.data_ptr() for t in partials), *counter, *parameters]
        for launch in abi.launches:
            grid = abi.grid(launch, numbers, machine.clusters * launch.cluster)
            shared = dynamic[launch.entry] or static
            _launch(library, launch.entry, words, (*grid, launch.threads, launch.cluster, shared), machine.seed)
        memory.check()
        found.append([t.clone() for t in outputs])
    return found


def _launch(library: ctypes.CDLL, entry: str, words: Sequence[int], counts: Sequence[int], seed: int) -> None:
    start = library.host_launch
    start.restype = ctypes.c_char_p
    array = (ctypes.c_uint64 * len(words))(*words)
    function = ctypes.cast(getattr(library, f"words_of_{entry}"), ctypes.c_void_p)
    if (wrong := start(function, array, *map(ctypes.c_uint, counts), ctypes.c_uint64(seed))) is not None:
        raise WrongLaunchError(f"{entry}, seed {seed}: {wrong.decode()}")


def _moved(memory: Memory, tensor: Tensor, early: int) -> Tensor:
    """The same numbers as far apart elsewhere."""
    place = memory.place(_extent(tensor), tensor.dtype, early)
    return place.as_strided(tensor.shape, tensor.stride()).copy_(tensor)


def _extent(tensor: Tensor) -> int:
    """Elements from the first to the last one in memory."""
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0


def _whole(tensor: Tensor) -> Tensor:
    """All elements from the first to the last one in memory."""
    return tensor.as_strided((_extent(tensor),), (1,))


def check(
    name: str,
    shape: tuple[int, int],
    dtype: torch.dtype = torch.bfloat16,
    *,
    early: int = 0,
    machines: Sequence[Machine] = MACHINES,
    dynamic: bool = False,
    any_width: bool = False,
    change: Callable[[str], str] = str,
    **fields: Any,
) -> None:
    """All of a workload has the bits of the interpreter, whichever thread goes on first. Raises WrongLaunchError.
    dynamic: the number of rows is known at run time only; any_width: the width is."""
    case, kernel = kernel_of(name, shape, dtype, dynamic=dynamic, **fields)
    given = exact_inputs(name, shape, dtype, "cpu", 3)
    parameters = tuple(case.parameters_for(given))
    if any_width:
        kernel, parameters = with_any_width(kernel), (shape[1],)
    bound = dict(zip((b.name for b in case.program.inputs), case.bind(given), strict=True))
    inputs = [bound[b.name] for b in kernel.program.inputs]
    right = interpret(kernel.program, inputs, parameters)
    for outputs in run(kernel, inputs, parameters, early=early, machines=machines, change=change):
        for mine, exact in zip(outputs, right, strict=True):
            different = mine.double() != exact.to(mine.dtype).reshape(mine.shape).double()
            if bool(different.any()):
                first = different.nonzero()[0].tolist()
                raise WrongLaunchError(f"{name}: {int(different.sum())} elements are wrong, the first one at {first}")


def is_right(
    kernel: CudaKernel,
    inputs: list[Tensor],
    parameters: tuple[int, ...] = (),
    *,
    close: tuple[float, float] = (1e-12, 0.0),
    machines: Sequence[Machine] = MACHINES,
) -> None:
    """close: how far results may be off, of a number and at all."""
    right = interpret(kernel.program, inputs, parameters)
    for outputs in run(kernel, inputs, parameters, machines=machines):
        for mine, exact in zip(outputs, right, strict=True):
            right_one = exact.to(mine.dtype).reshape(mine.shape)
            torch.testing.assert_close(mine, right_one, rtol=close[0], atol=close[1], equal_nan=True)
