"""Building and calling kernels on a GPU, as ``weft.backends.backend.Calls`` wants it, for every backend of it."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from itertools import chain
from threading import Thread

import torch
from torch import Tensor

from weft.backends.binary import Job, Variant
from weft.backends.listed import backends_on, render
from weft.backends.resource_usage import ResourceUsage, most_of
from weft.backends.source import Source
from weft.options import Options
from weft.plan.exact import exact, widths_of
from weft.plan.kernel import Kernel
from weft.plan.tuned import key_of
from weft.runtime import calibration, compile_workers, launcher, tuning
from weft.runtime.gpu import builds
from weft.runtime.gpu.function import GpuFunction, architecture_of
from weft.runtime.layout import Fitting
from weft.target import Target


def build_all(
    kernels: Sequence[Kernel], sources: Sequence[Source], hints: Sequence[Mapping[str, int]], options: Options
) -> list[GpuFunction]:
    """Functions with the variant that is expected, compiled for the current device, and the launcher beside them.
    Raises BuildError."""
    jobs = _jobs(kernels, sources, hints)
    _begin_exact(kernels, hints, options)
    functions = [load_function(job.kernel, job.source, options) for job in jobs]
    with ThreadPoolExecutor(max_workers=1) as beside:
        beside.submit(launcher.load, options)
        built = builds.all_binaries(jobs, options)
    for function, job, made in zip(functions, jobs, built, strict=True):
        function.add(job, made)
    return functions


def begin(
    kernels: Sequence[Kernel],
    sources: Sequence[Source],
    hints: Sequence[Mapping[str, int]],
    options: Options,
    planned: Target | None,
) -> None:
    """Compile workers begin with binaries."""
    builds.begin(_jobs(kernels, sources, hints), options, planned, hints)


def _begin_exact(kernels: Sequence[Kernel], hints: Sequence[Mapping[str, int]], options: Options) -> None:
    """Compile workers begin with what the first calls will ask for of kernels whose rows are of any width."""
    if options.exact_widths == 0:
        return
    with suppress(Exception):
        given = [(kernel, known) for kernel, known in zip(kernels, hints, strict=True) if widths_of(kernel)]
        if not given:
            return
        target = calibration.as_known(torch.device("cuda", torch.cuda.current_device()), options)
        measured = tuning.load(options)
        planned = ((exact(k, target, known), known) for k, known in given if key_of(k, target) not in measured)
        found = [(made, known) for made, known in planned if made is not None]
        likely, sizes = [made for made, _ in found], [known for _, known in found]
        builds.begin(_jobs(likely, list(map(render, likely)), sizes), options, target, sizes)


def _jobs(kernels: Sequence[Kernel], sources: Sequence[Source], hints: Sequence[Mapping[str, int]]) -> list[Job]:
    """What calls are expected to need on the current device."""
    architecture = architecture_of(torch.device("cuda", torch.cuda.current_device()))
    given = zip(kernels, sources, hints, strict=True)
    return [Job(kernel, source, Variant.expected(kernel, known), architecture) for kernel, source, known in given]


@contextmanager
def around_workers() -> Generator[None]:
    for backend in backends_on("cuda"):
        backend.settle()
    yield
    _hash_beside()


@cache
def _hash_beside() -> None:
    """Have a thread hash all of Triton, which TorchInductor's keys of graphs do, for half a second, when they are first
    needed: by then a model has been traced."""
    with suppress(Exception):
        from torch._inductor.runtime import triton_compat

        if triton_compat.HAS_TRITON:
            Thread(target=triton_compat.triton_key, daemon=True).start()


def expect(options: Options) -> None:
    builds.wake_workers(options)


def compile(kernel: Kernel, source: Source, hints: Mapping[str, int], architecture: int, options: Options) -> None:
    builds.binaries(Job(kernel, source, Variant.expected(kernel, hints), architecture), options)


def begins(options: Options) -> bool:
    """If there are compile workers."""
    return options.build_threads > 1 and compile_workers.count() > 0


def usage(function: GpuFunction | None) -> ResourceUsage:
    """The most of any variant that was compiled."""
    built = () if function is None else function.built()
    return most_of(binary.usage for variant in built for binary in variant.values())


def load_function(kernel: Kernel, source: Source, options: Options) -> GpuFunction:
    """A function that is compiled by its first call."""
    return GpuFunction(kernel, source, options)


def bind(inputs: Sequence[Tensor], outputs: Sequence[Tensor], parameters: Sequence[int]) -> None:
    """Nothing depends on how tensors lie that does not depend on their parameters."""


def call(
    function: GpuFunction, fitting: Fitting, inputs: Sequence[Tensor], outputs: Sequence[Tensor], sm_margin: int
) -> bool:
    """Tensors without elements have no address that a kernel could read from: such calls are left to ATen."""
    if fitting.empty:
        return False
    tensors = [t.data_ptr() for t in chain(inputs, outputs)]
    return function(fitting.device, tensors, fitting.parameters, sm_margin)


def repeat(
    function: GpuFunction, fitting: Fitting, inputs: Sequence[Tensor], outputs: Sequence[Tensor], sm_margin: int
) -> list[int]:
    """See ``Call.repeat``."""
    if fitting.empty:
        return []
    tensors = [t.data_ptr() for t in chain(inputs, outputs)]
    return function.repeat(fitting.device, tensors, fitting.parameters, sm_margin)
