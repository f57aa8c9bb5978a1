"""Compiling in other processes while this one plans: no more than a head start for ``weft.runtime.launch.prepare``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import torch

from weft.options import Options
from weft.plan.kernel import Kernel
from weft.render.source import Source
from weft.runtime import compile_workers, gpu, triton_build
from weft.runtime.triton_build import Job, Variant
from weft.target import Target


def covers(kernels: Sequence[Kernel], options: Options) -> bool:
    """Whether other processes are at work on all of these kernels, once ``begin`` was told of them."""
    in_workers = options.build_threads > 1 and compile_workers.count() > 0
    return in_workers and all(kernel.schedule.backend == "triton" for kernel in kernels)


def begin(
    kernels: Sequence[Kernel],
    sources: Sequence[Source],
    hints: Sequence[Mapping[str, int]],
    options: Options,
    planned: Target | None = None,
) -> None:
    """Begin with the kernels that workers can compile, as ``gpu.build_all`` will ask for them. What is to be said of
    them, it says: nothing is raised. planned: what they are planned for, if others may take their place."""
    with suppress(Exception):
        given = [one for one in zip(kernels, sources, hints, strict=True) if one[0].schedule.backend == "triton"]
        if given:
            target = gpu.target_of(torch.device("cuda", torch.cuda.current_device()))
            jobs = [Job(kernel, source, Variant.expected(kernel, known), target) for kernel, source, known in given]
            triton_build.begin(jobs, options, planned, [known for *_, known in given])
