"""Compiles Triton, on machines without a GPU too: one artefact a source, variant and target, kept in weft's own cache.

An artefact is a zip file with, for every function of the source, Triton's metadata, the binary, and what it uses.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import sys
import zipfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from importlib import resources
from itertools import zip_longest
from pathlib import Path
from typing import Any

from weft.backends.listed import render, supports
from weft.backends.source import Source
from weft.backends.triton import launches as triton_launch
from weft.backends.triton.expressions import SIGNATURE_TYPES
from weft.backends.triton.files import own_cache
from weft.backends.triton.resources import MOST_REGISTERS
from weft.backends.triton.schedule import TritonKernel
from weft.errors import BuildError
from weft.ir.dtypes import itemsize
from weft.ir.interpret import sizes_of
from weft.options import Options
from weft.runtime import compile_workers
from weft.runtime.build import private_folder
from weft.runtime.cache import Cache
from weft.runtime.compile_workers import Tasks, WorkerLostError
from weft.runtime.counters import counters
from weft.runtime.misses import without_miss
from weft.runtime.resource_usage import ResourceUsage, most_of, resource_usage
from weft.target import Target

ALIGNMENT_BYTES = 16
"""Of vector loads and stores. Addresses and numbers that are multiples of it are compiled in as such."""
CONTRACTED = True
"""Whether a multiplication and an addition may become one operation that rounds once. As on the CPU they do not: a
fused kernel rounds where eager rounds."""
FORMAT = 1
"""Of an artefact; part of its key."""

_LOG = logging.getLogger(__name__)
_BEGUN = Tasks()
"""Artefacts that workers were asked for, by key."""
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class GpuTarget:
    """What code is generated for. arch: compute capability, e.g. 90."""

    arch: int
    backend: str = "cuda"
    warp_size: int = 32


@dataclass(frozen=True)
class Variant:
    """What a binary may rely on. aligned: of each tensor, inputs first, whether it starts at a multiple of 16 bytes.
    divisible: of each run-time parameter, whether it is a multiple of 16."""

    aligned: tuple[bool, ...]
    divisible: tuple[bool, ...]

    @staticmethod
    def expected(kernel: TritonKernel, hints: Mapping[str, int]) -> Variant:
        """What most calls are like: with the likely values of parameters and places of inputs, or multiples of 16."""
        program = kernel.program
        begins = (hints.get(b.within or b.name, 0) + b.place * itemsize(b.dtype) for b in program.inputs)
        inputs = (begin % ALIGNMENT_BYTES == 0 for begin in begins)
        divisible = (hints.get(p, 0) % ALIGNMENT_BYTES == 0 for p in program.parameters)
        return Variant((*inputs, *(True for _ in program.outputs)), tuple(divisible))

    def without_alignment(self) -> Variant:
        """The same for tensors anywhere."""
        return Variant((False,) * len(self.aligned), self.divisible)


@dataclass(frozen=True)
class Job:
    """One artefact to be made."""

    kernel: TritonKernel
    source: Source
    variant: Variant
    target: GpuTarget


@dataclass(frozen=True)
class Binary:
    """A compiled function. metadata: what Triton needs to load and start it, as JSON."""

    entry: str
    metadata: str
    content: bytes
    usage: ResourceUsage


def binaries(job: Job, options: Options) -> dict[str, Binary]:
    """The compiled functions of a source by name, from the cache if they are there. Raises BuildError."""
    store, key = Cache(options.cache_dir, options.cache_bytes), _key(job)
    kept = store.get(key, "triton", job.source.name, lambda: _make(job, key))
    _BEGUN.take(key)
    counters.add(cache_hits=int(kept.found), builds=int(not kept.found))
    return read_artefact(kept.content)


def all_binaries(jobs: Sequence[Job], options: Options) -> list[dict[str, Binary]]:
    """The same for several, side by side: by TorchInductor's compile workers, or where there are none, and for one job
    alone, ``options.build_threads`` at a time in this process: Triton's passes and ptxas run outside Python's lock,
    which its front end holds."""
    if not jobs:
        return []
    _triton()
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
            if (key := _key(job)) not in _BEGUN and store.find(key) is None:
                _BEGUN.submit(key, artefacts_in_worker, job, key, target, known)


@cache
def use_torchs_ptxas() -> None:
    """Have Triton assemble with the ptxas that PyTorch has brought along, if it has, from the first kernel on.
    TorchInductor's workers do so from their start. A process that has another release until TorchInductor compiles a
    kernel in it has other keys than they have, and other ones than the next process that finds its graph in a cache."""
    with suppress(Exception):  # other releases may have other names
        from torch._inductor.runtime.compile_tasks import _set_triton_ptxas_path

        _set_triton_ptxas_path()
        if (known := sys.modules.get("triton.backends.nvidia.compiler")) is not None:
            known.get_ptxas_version.cache_clear()


def wake_workers(options: Options) -> None:
    """Have all compile workers import what they need for artefacts, a fifth of a second, while nothing is planned."""
    if options.build_threads > 1:
        for _ in range(compile_workers.count()):
            compile_workers.submit(_triton_is_there)


def artefacts_in_worker(
    job: Job, key: str, target: Target | None = None, hints: Mapping[str, int] | None = None
) -> dict[str, bytes] | str | None:
    """In a worker: the artefact and, where it is a miss of the plan for a target, those of runners-up, by their keys;
    what the compiler said where it refused; or None where this process would make another artefact: its environment or
    its Triton is not that of the process that asks."""
    if _key(job) != key:
        return None
    try:
        made = {key: compile_artefact(job)}
    except BuildError as error:
        return str(error)
    if target is not None:
        _add_runners_up(made, job, target, hints or {})
    return made


def _add_runners_up(made: dict[str, bytes], job: Job, target: Target, hints: Mapping[str, int]) -> None:
    """Artefacts of the kernels that will be tried in place of a job's, whose own is there."""

    def built(kernel: TritonKernel) -> ResourceUsage | None:
        if supports(kernel) is not None:
            return None
        other = replace(job, kernel=kernel, source=render(kernel))
        try:
            content = made[_key(other)] = compile_artefact(other)
        except BuildError:
            return None
        return _usage(content)

    (own,) = made.values()
    without_miss(job.kernel, _usage(own), target, hints, built)


def _usage(content: bytes) -> ResourceUsage:
    """Of an artefact's functions."""
    return most_of(binary.usage for binary in read_artefact(content).values())


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
    return compile_artefact(job) if made is None else made[key]


def _triton_is_there() -> None:
    """Whoever finds this function by its name has imported what it stands beside."""
    _triton()


def compile_artefact(job: Job) -> bytes:
    """The artefact of a job, made anew. Raises BuildError with what Triton says."""
    _triton()
    from triton.backends.compiler import GPUTarget

    from weft.backends.triton.front_end import SerialSource, functions_of

    target = GPUTarget(job.target.backend, job.target.arch, job.target.warp_size)
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive, private_folder() as folder:
        try:
            functions = functions_of(job.source)
            for launch in _functions(job.kernel):
                function = functions[launch.entry]
                # by position: the text has other names for arguments that are called as something in Triton
                types = dict(zip(function.arg_names, signature(job.kernel).values(), strict=True))
                source = partial(SerialSource, function, types, {}, attributes(job.kernel, job.variant))
                told = {"maxnreg": launch.register_cap} if launch.register_cap else {}
                compiled, usage = _compiled(source(), launch, target, folder, **told)
                if usage.spill_bytes and 0 < launch.register_cap < MOST_REGISTERS:
                    compiled, usage = _compiled(source(), launch, target, folder)
                metadata = next(Path(p).read_text() for c, p in compiled.metadata_group.items() if c.endswith(".json"))
                _add(archive, f"{launch.entry}.json", metadata.encode())
                _add(archive, f"{launch.entry}.cubin", compiled.asm["cubin"])
                _add(archive, f"{launch.entry}.usage", json.dumps(asdict(usage)).encode())
        except BuildError:
            raise
        except Exception as error:  # of the front end, of a pass or of ptxas: they have no class in common
            said = " ".join(str(error).split())[:1000]
            raise BuildError(f"Triton refused {job.source.name}: {type(error).__name__}: {said}") from error
    return made.getvalue()


def _compiled(
    source: Any, launch: triton_launch.Launch, target: Any, folder: Path, **options: Any
) -> tuple[Any, ResourceUsage]:
    """What Triton makes of a function, and what that uses."""
    with own_cache(folder):
        made = _triton().compile(source, target=target, options=compile_options(launch) | options)
    shared, ptx = made.metadata.shared, made.asm.get("ptx")
    return made, resource_usage(made.asm["cubin"], launch.entry, shared, ptx, folder)


def read_artefact(content: bytes) -> dict[str, Binary]:
    """The functions of an artefact by name."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    entries = [name.removesuffix(".cubin") for name in found if name.endswith(".cubin")]
    return {
        entry: Binary(
            entry,
            found[f"{entry}.json"].decode(),
            found[f"{entry}.cubin"],
            ResourceUsage(**json.loads(found[f"{entry}.usage"])),
        )
        for entry in entries
    }


def signature(kernel: TritonKernel) -> dict[str, str]:
    """Names and types of a kernel's arguments, in Triton's words."""
    return {name: _type(text) for name, text in triton_launch.arguments(kernel)}


def attributes(kernel: TritonKernel, variant: Variant) -> dict[tuple[int, ...], list[list[Any]]]:
    """What Triton is told of the arguments, by position. Memory that weft allocates is always aligned."""
    arguments = triton_launch.arguments(kernel)
    divisible = dict(zip(kernel.program.parameters, variant.divisible, strict=True))
    aligned = dict(enumerate(variant.aligned))
    told: list[int] = []
    for at, (name, text) in enumerate(arguments):
        known = aligned.get(at, True) if text.startswith("*") else divisible[name]
        told += [at] if known else []
    return {(at,): [["tt.divisibility", ALIGNMENT_BYTES]] for at in told}


def compile_options(launch: triton_launch.Launch) -> dict[str, Any]:
    return {
        "num_warps": launch.warps,
        "num_stages": launch.stages,
        "launch_cooperative_grid": launch.cooperative,
        "enable_fp_fusion": CONTRACTED,
    }


def _functions(kernel: TritonKernel) -> tuple[triton_launch.Launch, ...]:
    """The starts of a kernel with all its run-time sizes 1: the functions and their options depend on none of them."""
    return triton_launch.launches(kernel, sizes_of(kernel.program, [1] * len(kernel.program.parameters)))


def _type(text: str) -> str:
    return f"*{SIGNATURE_TYPES[text[1:]]}" if text.startswith("*") else SIGNATURE_TYPES[text]


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    archive.writestr(zipfile.ZipInfo(name, _EPOCH), content, zipfile.ZIP_DEFLATED)


def _key(job: Job) -> str:
    """Of everything that the artefact depends on. ``hash`` of Triton's backend names ptxas and its release."""
    triton = _triton()
    from triton._C.libtriton import get_cache_invalidating_env_vars
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend

    target = GPUTarget(job.target.backend, job.target.arch, job.target.warp_size)
    backend: Any = make_backend(target)
    # with what Triton adds to them, of the environment as well
    functions = [
        (launch.entry, backend.parse_options(compile_options(launch)).hash()) for launch in _functions(job.kernel)
    ]
    parts = (
        FORMAT, job.source.digest, _library_text(), triton.__version__, target, backend.hash(), functions,
        triton.knobs.compilation.instrumentation_mode,
        signature(job.kernel), attributes(job.kernel, job.variant), sorted(get_cache_invalidating_env_vars().items()),
    )  # fmt: skip
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:32]


@cache
def _library_text() -> str:
    """What the texts of sources import from weft."""
    files = [resources.files("weft.backends.triton").joinpath(name) for name in ("weft_triton.py", "weft_casts.py")]
    return "".join(file.read_text() for file in files if file.is_file())


def _triton() -> Any:
    use_torchs_ptxas()
    try:
        import triton
    except ImportError as error:
        raise BuildError(f"no Triton: {error}. Install it, e.g. `pip install triton`.") from error
    return triton
