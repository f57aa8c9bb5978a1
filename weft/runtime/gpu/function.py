"""Calls of GPU kernels from Python: which binary fits a call, and starting it. ``launcher/gpu.h`` repeats them.

Nothing here touches a GPU before a kernel is called on it.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from threading import Lock

import torch

from weft.backends.abi import Abi, Launch
from weft.backends.binary import ALIGNMENT_BYTES, Binary, Job, Variant
from weft.backends.listed import backend_of, render
from weft.backends.source import Source
from weft.errors import BuildError, Refusal
from weft.ir.interpret import sizes_of
from weft.options import Options
from weft.plan.kernel import Kernel
from weft.runtime.gpu import builds, driver
from weft.runtime.gpu.others import Like, Others
from weft.runtime.gpu.workspace import Workspace

_LOG = logging.getLogger(__name__)
_CALL_LIMIT = 4096
_VARIANT_LIMIT = 6
"""Binaries of one kernel, after which one for tensors that start anywhere is enough."""
_CAPTURED = (
    "in a CUDA graph: no call like this one was made before the capture. Call the function once with the same sizes "
    "and alignment first."
)

_CallKey = tuple[int | tuple[bool, ...], ...]


@dataclass(frozen=True)
class Loaded:
    """A function on one device. clusters: of its programs, that the GPU holds at a time. shared_bytes: of a program."""

    function: int
    clusters: int
    shared_bytes: int


@dataclass(frozen=True)
class Start:
    """A function with the programs it is started with."""

    launch: Launch
    loaded: Loaded
    grid: tuple[int, int]

    def __call__(self, stream: int, words: Sequence[int]) -> None:
        launch, loaded = self.launch, self.loaded
        shared, together = loaded.shared_bytes, (launch.cooperative, launch.cluster)
        driver.start(loaded.function, self.grid, launch.threads, shared, stream, words, *together)

    def numbers(self) -> list[int]:
        """In the order of ``launcher/gpu.h``."""
        launch, loaded = self.launch, self.loaded
        counts = [*self.grid, launch.threads, loaded.shared_bytes, launch.cluster]
        return [loaded.function, *counts, int(launch.cooperative)]


@dataclass(frozen=True)
class Call:
    """All that calls of one device, variant and parameters have in common."""

    device: torch.device
    workspace: Workspace
    starts: tuple[Start, ...]
    parameters: tuple[int, ...]

    def __call__(self, tensors: Sequence[int]) -> None:
        """Start everything on the current stream of the device. tensors: addresses."""
        driver.ensure_context(self.device.index)
        stream = torch._C._cuda_getCurrentRawStream(self.device.index)
        kept, memory = self.workspace.allocate(self.device, stream)
        words = (*tensors, *memory, *self.parameters)
        for start in self.starts:
            start(stream, words)
        del kept  # the allocator gives it to what comes later on this stream only

    def repeat(self, aligned: Sequence[bool]) -> list[int]:
        """What the launcher needs to make this call again on the stream that is the current one, in the order of
        ``launcher/gpu.h``; nothing where Python is needed. aligned: of each tensor."""
        if torch.cuda.is_current_stream_capturing():
            return []
        counter = stream = 0
        if self.workspace.counters is not None:
            stream = torch._C._cuda_getCurrentRawStream(self.device.index)
            counter = self.workspace.counters.of_stream(self.device, stream)
        slices = self.workspace.offsets_bytes
        words = len(aligned) + self.workspace.words + len(self.parameters) + driver.SPARE_WORDS
        numbers = [self.device.index, ALIGNMENT_BYTES, len(aligned), *map(int, aligned), counter, stream, words]
        numbers += [self.workspace.size_bytes, len(slices), *slices]
        return [*numbers, *(number for start in self.starts for number in start.numbers())]


class GpuFunction:
    """A GPU kernel: its binaries by what they rely on, what is loaded by device, and calls by what they are like.
    others: kernels that do some calls in place of this one."""

    def __init__(self, kernel: Kernel, source: Source, options: Options) -> None:
        self.kernel, self.source, self.options = kernel, source, options
        self._binaries: dict[tuple[Variant, int], dict[str, Binary]] = {}
        self._loaded: dict[tuple[Variant, int], tuple[Loaded, ...]] = {}
        self._calls: dict[_CallKey, Call] = {}
        self._lock = Lock()
        self._told = set[str]()
        alone = replace(options, exact_widths=0)
        self.others = Others(kernel, options, lambda other: GpuFunction(other, render(other), alone))

    @cached_property
    def abi(self) -> Abi:
        """How its functions are called."""
        return backend_of(self.kernel).abi(self.kernel)

    def add(self, job: Job, binaries: dict[str, Binary]) -> None:
        """Take binaries that were built before the first call."""
        self._binaries[job.variant, job.architecture] = binaries

    def built(self) -> list[dict[str, Binary]]:
        """What was compiled so far, others included, of each variant by name of the function."""
        return [*self._binaries.values(), *(each for other in self.others.made() for each in other.built())]

    def binaries(self, variant: Variant, architecture: int) -> dict[str, Binary]:
        """What was compiled for calls of a variant, by name of the function; compiled if it was not. Raises
        BuildError."""
        found = self._binaries.get((variant, architecture))
        if found is None:
            job = Job(self.kernel, self.source, variant, architecture)
            found = self._binaries[variant, architecture] = builds.binaries(job, self.options)
        return found

    def __call__(self, device: torch.device, tensors: Sequence[int], parameters: Sequence[int], sm_margin: int) -> bool:
        """Start the kernel; whether that was possible now. tensors: addresses."""
        like = Variant.of_call(tensors, parameters)
        key = (device.index, like.aligned, sm_margin, *parameters)
        with nullcontext() if torch.cuda.current_device() == device.index else torch.cuda.device(device):
            call = self._calls.get(key)
            if call is None:
                call = self._make_call(device, self._variant(like), parameters, sm_margin)
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
        aligned = Variant.of_call(tensors, parameters).aligned
        call = self._calls.get((device.index, aligned, sm_margin, *parameters))
        return [] if call is None else call.repeat(aligned)

    def _variant(self, like: Variant) -> Variant:
        """What a call relies on: where its tensors start, or of the last of many ways to start nothing."""
        is_new = all(like != variant for variant, _ in [*self._binaries])  # another thread may add one
        return like.without_alignment() if is_new and len(self._binaries) >= _VARIANT_LIMIT else like

    def _make_call(
        self, device: torch.device, variant: Variant, parameters: Sequence[int], sm_margin: int
    ) -> Call | None:
        """None if a function would have to be built or loaded while a CUDA graph is captured, which the driver does not
        allow, or if sizes are beyond what a launch can have, of this kernel and of any that can take its place."""
        call, refusal = Like(device, architecture_of(device), variant, tuple(parameters)), self.check_sizes(parameters)
        other = self.others.exact(call) or (None if refusal is None else self.others.elsewhere(call))
        if other is not None:
            try:
                return other._make_call(device, other._variant(variant), parameters, sm_margin)
            except BuildError as error:
                _LOG.info("%s", error)
                self.others.forget(other)
        if refusal is not None:
            limit = f"with these sizes: it {refusal.message} (have {refusal.have}, limit {refusal.limit})."
            self._tell(_CAPTURED if torch.cuda.is_current_stream_capturing() else limit)
            return None
        with self._lock:
            loaded = self._loaded.get((variant, device.index))
            if loaded is None:
                if torch.cuda.is_current_stream_capturing():
                    self._tell(_CAPTURED)
                    return None
                loaded = self._loaded[variant, device.index] = self._load(variant, device)
        units = _units_of(device)
        numbers = dict(zip(self.abi.parameters, parameters, strict=True))
        starts = [
            Start(launch, one, grid)
            for launch, one in zip(self.abi.launches, loaded, strict=True)
            if 0 not in (grid := self.abi.grid(launch, numbers, launch.resident(one.clusters, units, sm_margin)))
        ]
        return Call(device, Workspace.of(self.abi, numbers), tuple(starts), tuple(parameters))

    def check_sizes(self, parameters: Sequence[int]) -> Refusal | None:
        """A call with these parameters can be made."""
        return backend_of(self.kernel).check_sizes(self.kernel, sizes_of(self.kernel.program, parameters))

    def _load(self, variant: Variant, device: torch.device) -> tuple[Loaded, ...]:
        """Its functions on a device. Raises BuildError."""
        found = self.binaries(variant, architecture_of(device))
        return tuple(_loaded(found[launch.entry], launch, device) for launch in self.abi.launches)

    def _tell(self, reason: str) -> None:
        """Once."""
        if reason not in self._told:
            self._told.add(reason)
            warnings.warn(f"weft: kernel {self.kernel.name} runs on ATen {reason}", stacklevel=2)


def _loaded(binary: Binary, launch: Launch, device: torch.device) -> Loaded:
    shared, cluster = binary.shared_bytes, launch.cluster
    function = driver.load_function(binary.content, binary.entry, shared, device.index, cluster)
    if cluster == 1:
        clusters = driver.programs_per_unit(function, launch.threads, shared) * _units_of(device)
    else:
        clusters = driver.max_clusters(function, cluster, launch.threads, shared)
        if clusters == 0:
            raise BuildError(
                f"{binary.entry}: the GPU holds no cluster of {cluster} programs, each of {launch.threads} threads and "
                f"{shared} bytes of shared memory"
            )
    _LOG.info("loaded: %s, %s, the GPU holds %d programs", binary.entry, binary.usage, clusters * cluster)
    return Loaded(function, clusters, shared)


def _units_of(device: torch.device) -> int:
    """SMs."""
    return torch.cuda.get_device_properties(device).multi_processor_count


def architecture_of(device: torch.device) -> int:
    """Its compute capability, e.g. 90 of 9.0."""
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor
