"""Binaries of GPU kernels: from the cache, from compile workers that have begun with them, or made here.

One artefact a source, variant and architecture is kept in weft's own cache, whichever backend compiles it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import zip_longest

from weft.backends.binary import Binary, Job, pack, unpack
from weft.backends.listed import backend_of, backends_on, render, supports
from weft.backends.resource_usage import ResourceUsage, most_of
from weft.errors import BuildError
from weft.options import Options
from weft.plan.kernel import Kernel
from weft.runtime import compile_workers
from weft.runtime.cache import Cache
from weft.runtime.compile_workers import Tasks, WorkerLostError
from weft.runtime.counters import counters
from weft.runtime.misses import without_miss
from weft.target import Target

FORMAT = 2
"""Of an artefact; part of its key."""

_LOG = logging.getLogger(__name__)
_BEGUN = Tasks()
"""Artefacts that workers were asked for, by key."""


def key_of(job: Job) -> str:
    """Of everything that an artefact depends on."""
    return hashlib.sha256(f"{FORMAT}\0{backend_of(job.kernel).key(job)}".encode()).hexdigest()[:32]


def artefact(job: Job) -> bytes:
    """Made anew. Raises BuildError with what the compiler says."""
    return pack(backend_of(job.kernel).compile(job))


def binaries(job: Job, options: Options) -> dict[str, Binary]:
    """The compiled functions of a source by name, from the cache if they are there. Raises BuildError."""
    store, key = Cache(options.cache_dir, options.cache_bytes), key_of(job)
    kept = store.get(key, job.source.language, job.source.name, lambda: _make(job, key))
    _BEGUN.take(key)
    counters.add(cache_hits=int(kept.found), builds=int(not kept.found))
    return unpack(kept.content)


def all_binaries(jobs: Sequence[Job], options: Options) -> list[dict[str, Binary]]:
    """The same for several, side by side: by TorchInductor's compile workers, or where there are none, and for one job
    alone, ``options.build_threads`` at a time in this process: passes and ptxas run outside Python's lock."""
    if not jobs:
        return []
    if len(jobs) > 1:
        begin(jobs, options)
    with ThreadPoolExecutor(max_workers=max(1, min(len(jobs), options.build_threads))) as pool:
        return list(pool.map(partial(binaries, options=options), jobs))


def begin(
    jobs: Sequence[Job], options: Options, target: Target | None = None, hints: Sequence[Mapping[str, int]] = ()
) -> None:
    """Have compile workers, if there are any, start with artefacts that will be asked for; not with ``build_threads``
    of 1. Whatever goes wrong is left for ``binaries`` to find. target: that the kernels are planned for, with these
    likely values of parameters: runners-up of what turns out to be a miss will be asked for as well."""
    if options.build_threads <= 1 or not compile_workers.count():
        return
    store = Cache(options.cache_dir, options.cache_bytes)
    with suppress(Exception):
        for job, known in zip_longest(jobs, hints):
            if (key := key_of(job)) not in _BEGUN and store.find(key) is None:
                _BEGUN.submit(key, artefacts_in_worker, job, key, target, known)


def wake_workers(options: Options) -> None:
    """Have all compile workers import what they need for artefacts, a fifth of a second, while nothing is planned."""
    if options.build_threads > 1:
        for _ in range(compile_workers.count()):
            compile_workers.submit(compilers)


def compilers() -> list[str]:
    """Those of GPU kernels, which this process has imported then."""
    return [backend.compiler for backend in backends_on("cuda")]


def artefacts_in_worker(
    job: Job, key: str, target: Target | None = None, hints: Mapping[str, int] | None = None
) -> dict[str, bytes] | str | None:
    """In a worker: the artefact and, where it is a miss of the plan for a target, those of runners-up, by their keys;
    what the compiler said where it refused; or None where this process would make another artefact: its environment or
    its compiler is not that of the process that asks."""
    if key_of(job) != key:
        return None
    try:
        made = {key: artefact(job)}
    except BuildError as error:
        return str(error)
    if target is not None:
        _add_runners_up(made, job, target, hints or {})
    return made


def _add_runners_up(made: dict[str, bytes], job: Job, target: Target, hints: Mapping[str, int]) -> None:
    """Artefacts of the kernels that will be tried in place of a job's, whose own is there."""

    def built(kernel: Kernel) -> ResourceUsage | None:
        if supports(kernel) is not None:
            return None
        other = replace(job, kernel=kernel, source=render(kernel))
        try:
            content = made[key_of(other)] = artefact(other)
        except BuildError:
            return None
        return _usage(content)

    (own,) = made.values()
    without_miss(job.kernel, _usage(own), target, hints, built)


def _usage(content: bytes) -> ResourceUsage:
    """Of an artefact's functions."""
    return most_of(binary.usage for binary in unpack(content).values())


def _make(job: Job, key: str) -> bytes:
    """An artefact that a worker has begun with, or else made here. Raises BuildError."""
    task = _BEGUN.take(key)
    try:
        made = None if task is None else task.result()
    except WorkerLostError as error:
        _LOG.info("compiled again in this process: %s: %s", job.source.name, error)
        made = None
    if isinstance(made, str):
        raise BuildError(made)
    for other, content in ({} if made is None else made).items():
        if other != key:
            _BEGUN.put(other, {other: content})
    return artefact(job) if made is None else made[key]
