"""Compiling in other processes while this one plans: no more than a head start for ``weft.runtime.launch.prepare``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from weft.backends.listed import backend_of, backends
from weft.backends.source import Source
from weft.options import Options
from weft.plan.kernel import Kernel
from weft.target import Target


def covers(kernels: Sequence[Kernel], options: Options) -> bool:
    """Whether other processes are at work on all of these kernels, once ``begin`` was told of them."""
    return all(backend_of(kernel).calls.begins(options) for kernel in kernels)


def begin(
    kernels: Sequence[Kernel],
    sources: Sequence[Source],
    hints: Sequence[Mapping[str, int]],
    options: Options,
    planned: Target | None = None,
) -> None:
    """Begin with the kernels that other processes can compile, as ``build_all`` of their backends will ask for them.
    What is to be said of them, that says: nothing is raised. planned: what they are planned for, if others may take
    their place."""
    with suppress(Exception):
        given = list(zip(kernels, sources, hints, strict=True))
        for backend in backends():
            if own := [one for one in given if one[0].schedule.backend == backend.name]:
                of_backend, texts, known = zip(*own, strict=True)
                backend.calls.begin(of_backend, texts, known, options, planned)
