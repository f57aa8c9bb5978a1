"""Calls of Triton kernels from Python: which binary fits a call, and starting it. ``launcher/gpu.h`` repeats them.

Nothing here touches a GPU before a kernel is built for it.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain
from threading import Lock, Thread
from typing import Any

import torch
from torch import Tensor

from weft.backends.source import Source
from weft.backends.triton import build as triton_build
from weft.backends.triton import launches as triton_launch
from weft.backends.triton import load as triton_load
from weft.backends.triton.build import ALIGNMENT_BYTES, Binary, GpuTarget, Job, Variant
from weft.backends.triton.load import TRITONS, Loaded, Start
from weft.backends.triton.occupancy import grid_of
from weft.backends.triton.schedule import TritonKernel
from weft.backends.triton.text import check_sizes
from weft.backends.triton.workspace import Workspace
from weft.ir.interpret import sizes_of
from weft.options import Options
from weft.runtime import compile_workers, launcher
from weft.runtime.layout import Fitting
from weft.runtime.resource_usage import ResourceUsage, most_of
from weft.target import Target

_CALL_LIMIT = 4096
_VARIANT_LIMIT = 6
"""Binaries of one kernel, after which one for tensors that start anywhere is enough."""

_CallKey = tuple[int | tuple[bool, ...], ...]


@dataclass(frozen=True)
class Call:
    """All that calls of one device, variant and parameters have in common."""

    device: torch.device
    workspace: Workspace
    starts: tuple[Start, ...]
    parameters: tuple[int, ...]
    hooks: Any

    def __call__(self, tensors: Sequence[int]) -> None:
        """Start everything on the current stream of the device. tensors: addresses."""
        stream = torch._C._cuda_getCurrentRawStream(self.device.index)
        kept, memory = self.workspace.allocate(self.device, stream)
        arguments = (*tensors, *memory, *self.parameters)
        for start in self.starts:
            start(stream, arguments, self.hooks)
        del kept  # the allocator gives it to what comes later on this stream only

    def repeat(self, aligned: Sequence[bool]) -> list[int]:
        """What the launcher needs to make this call again on the stream that is the current one, in the order of
        ``launcher/gpu.h``; nothing where Python is needed. aligned: of each tensor."""
        known = len(aligned) + self.workspace.words + len(self.parameters) + TRITONS
        listened_to = any(getattr(h, "calls", h) for h in (self.hooks.launch_enter_hook, self.hooks.launch_exit_hook))
        words = {start.loaded.arguments for start in self.starts}
        if listened_to or words != {known} or torch.cuda.is_current_stream_capturing():
            return []
        counter = stream = 0
        if self.workspace.counters is not None:
            stream = torch._C._cuda_getCurrentRawStream(self.device.index)
            counter = self.workspace.counters.of_stream(self.device, stream)
        slices = self.workspace.offsets_bytes
        places = [len(aligned), *map(int, aligned)]
        numbers = [self.device.index, ALIGNMENT_BYTES, *places, counter, stream, *words]
        numbers += [self.workspace.size_bytes, len(slices), *slices]
        for start in self.starts:
            loaded = start.loaded
            numbers += [loaded.function, *start.grid, loaded.threads, loaded.shared_bytes, int(loaded.cooperative)]
        return numbers


class GpuFunction:
    """A Triton kernel: its binaries by what they rely on, what is loaded by device, and calls by what they are like."""

    def __init__(self, kernel: TritonKernel, source: Source, options: Options) -> None:
        self.kernel, self.source, self.options = kernel, source, options
        self._binaries: dict[tuple[Variant, GpuTarget], dict[str, Binary]] = {}
        self._loaded: dict[tuple[Variant, int], dict[str, Loaded]] = {}
        self._calls: dict[_CallKey, Call] = {}
        self._lock = Lock()
        self._told = set[str]()

    def add(self, variant: Variant, target: GpuTarget, binaries: dict[str, Binary]) -> None:
        """Take binaries that were built before the first call."""
        self._binaries[variant, target] = binaries

    def built(self) -> list[dict[str, Binary]]:
        """What was compiled so far, of each variant by name of the function."""
        return list(self._binaries.values())

    def binaries(self, variant: Variant, target: GpuTarget) -> dict[str, Binary]:
        """What was compiled for calls of a variant, by name of the function; compiled if it was not. Raises
        BuildError."""
        found = self._binaries.get((variant, target))
        if found is None:
            job = Job(self.kernel, self.source, variant, target)
            found = self._binaries[variant, target] = triton_build.binaries(job, self.options)
        return found

    def __call__(self, device: torch.device, tensors: Sequence[int], parameters: Sequence[int], sm_margin: int) -> bool:
        """Start the kernel; whether that was possible now. tensors: addresses."""
        aligned = _aligned(tensors)
        key = (device.index, aligned, sm_margin, *parameters)
        with nullcontext() if torch.cuda.current_device() == device.index else torch.cuda.device(device):
            call = self._calls.get(key)
            if call is None:
                variant = self._variant(aligned, tuple(p % ALIGNMENT_BYTES == 0 for p in parameters))
                call = self._make_call(device, variant, parameters, sm_margin)
                if call is None:
                    return False
                if len(self._calls) >= _CALL_LIMIT:
                    self._calls.clear()
                self._calls[key] = call
            call(tensors)
        return True

    def repeat(
        self, device: torch.device, tensors: Sequence[int], parameters: Sequence[int], sm_margin: int
    ) -> list[int]:
        """How the launcher makes a call again that was made; nothing if it cannot."""
        aligned = _aligned(tensors)
        call = self._calls.get((device.index, aligned, sm_margin, *parameters))
        return [] if call is None else call.repeat(aligned)

    def _variant(self, aligned: tuple[bool, ...], divisible: tuple[bool, ...]) -> Variant:
        """What calls rely on: where their tensors start, or of the last of many ways to start nothing."""
        exact = Variant(aligned, divisible)
        is_new = all(exact != variant for variant, _ in [*self._binaries])  # another thread may add one
        return exact.without_alignment() if is_new and len(self._binaries) >= _VARIANT_LIMIT else exact

    def _make_call(
        self, device: torch.device, variant: Variant, parameters: Sequence[int], sm_margin: int
    ) -> Call | None:
        """None if a function would have to be built or loaded while a CUDA graph is captured, which the driver does not
        allow, or if sizes are beyond what a launch can have."""
        sizes = sizes_of(self.kernel.program, parameters)
        if (refusal := check_sizes(self.kernel, sizes)) is not None:
            self._tell(f"with these sizes: it {refusal.message} (have {refusal.have}, limit {refusal.limit}).")
            return None
        with self._lock:
            loaded = self._loaded.get((variant, device.index))
            if loaded is None:
                if torch.cuda.is_current_stream_capturing():
                    self._tell(
                        "in a CUDA graph: no call like this one was made before the capture. Call the function once "
                        "with the same sizes and alignment first."
                    )
                    return None
                binaries = self.binaries(variant, target_of(device))
                loaded = {entry: triton_load.load(binary, self.kernel) for entry, binary in binaries.items()}
                self._loaded[variant, device.index] = loaded
        from triton import knobs

        units = torch.cuda.get_device_properties(device).multi_processor_count
        starts = [
            Start(loaded[launch.entry], grid)
            for launch in triton_launch.launches(self.kernel, sizes)
            if 0 not in (grid := grid_of(launch, loaded[launch.entry].per_unit, units, sm_margin))
        ]
        numbers = tuple(next(iter(loaded.values())).number(p) for p in parameters)
        return Call(device, Workspace.of(self.kernel, sizes), tuple(starts), numbers, knobs.runtime)

    def _tell(self, reason: str) -> None:
        """Once."""
        if reason not in self._told:
            self._told.add(reason)
            warnings.warn(f"weft: kernel {self.kernel.name} runs on ATen {reason}", stacklevel=2)


def _aligned(tensors: Sequence[int]) -> tuple[bool, ...]:
    return tuple(address % ALIGNMENT_BYTES == 0 for address in tensors)


def target_of(device: torch.device) -> GpuTarget:
    major, minor = torch.cuda.get_device_capability(device)
    return GpuTarget(10 * major + minor)


# as ``weft.backends.backend.Calls`` wants it


def build_all(
    kernels: Sequence[TritonKernel], sources: Sequence[Source], hints: Sequence[Mapping[str, int]], options: Options
) -> list[GpuFunction]:
    """Functions with the variant that is expected, compiled for the current device, and the launcher beside them.
    Raises BuildError."""
    if not kernels:
        return []
    target = target_of(torch.device("cuda", torch.cuda.current_device()))
    jobs = [
        Job(kernel, source, Variant.expected(kernel, known), target)
        for kernel, source, known in zip(kernels, sources, hints, strict=True)
    ]
    functions = [load_function(job.kernel, job.source, options) for job in jobs]
    with ThreadPoolExecutor(max_workers=1) as beside:
        beside.submit(launcher.load, options)
        built = triton_build.all_binaries(jobs, options)
    for function, job, made in zip(functions, jobs, built, strict=True):
        function.add(job.variant, job.target, made)
    return functions


def begin(
    kernels: Sequence[TritonKernel],
    sources: Sequence[Source],
    hints: Sequence[Mapping[str, int]],
    options: Options,
    planned: Target | None,
) -> None:
    """Compile workers begin with binaries."""
    target = target_of(torch.device("cuda", torch.cuda.current_device()))
    given = zip(kernels, sources, hints, strict=True)
    jobs = [Job(kernel, source, Variant.expected(kernel, known), target) for kernel, source, known in given]
    triton_build.begin(jobs, options, planned, hints)


@contextmanager
def around_workers() -> Generator[None]:
    triton_build.use_torchs_ptxas()  # before they look which one there is
    yield
    triton_load.hash_beside()


def warm_up() -> None:
    Thread(target=triton_load.warm_up, daemon=True).start()


def expect(options: Options) -> None:
    triton_build.wake_workers(options)


def compile(
    kernel: TritonKernel, source: Source, hints: Mapping[str, int], architecture: int, options: Options
) -> None:
    triton_build.binaries(Job(kernel, source, Variant.expected(kernel, hints), GpuTarget(architecture)), options)


def begins(options: Options) -> bool:
    """If there are compile workers."""
    return options.build_threads > 1 and compile_workers.count() > 0


def usage(function: GpuFunction | None) -> ResourceUsage:
    """The most of any variant that was compiled."""
    built = () if function is None else function.built()
    return most_of(binary.usage for variant in built for binary in variant.values())


def load_function(kernel: TritonKernel, source: Source, options: Options) -> GpuFunction:
    """A function that is compiled by its first call."""
    return GpuFunction(kernel, source, options)


def bind(inputs: Sequence[Tensor], outputs: Sequence[Tensor], parameters: Sequence[int]) -> None:
    """Nothing depends on how tensors lie that does not depend on their parameters."""


def call(function: Any, fitting: Fitting, inputs: Sequence[Tensor], outputs: Sequence[Tensor], sm_margin: int) -> bool:
    """Tensors without elements have no address that a kernel could read from: such calls are left to ATen."""
    if fitting.empty:
        return False
    tensors = [t.data_ptr() for t in chain(inputs, outputs)]
    return function(fitting.device, tensors, fitting.parameters, sm_margin)


def repeat(
    function: Any, fitting: Fitting, inputs: Sequence[Tensor], outputs: Sequence[Tensor], sm_margin: int
) -> list[int]:
    """See ``Call.repeat``."""
    if fitting.empty:
        return []
    tensors = [t.data_ptr() for t in chain(inputs, outputs)]
    return function.repeat(fitting.device, tensors, fitting.parameters, sm_margin)
