"""Compiles the text of a kernel with Triton, on machines without a GPU too."""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import Any

from weft.backends.abi import Launch
from weft.backends.binary import ALIGNMENT_BYTES, Binary, Job, Variant
from weft.backends.resource_usage import ResourceUsage
from weft.backends.triton.abi import WARP_THREADS
from weft.backends.triton.expressions import SIGNATURE_TYPES
from weft.backends.triton.files import own_cache
from weft.backends.triton.resources import MOST_REGISTERS
from weft.backends.triton.schedule import TritonKernel
from weft.backends.triton.text import abi, types
from weft.backends.triton.usage import resource_usage
from weft.errors import BuildError
from weft.runtime.build import private_folder

CONTRACTED = True
"""Whether a multiplication and an addition may become one operation that rounds once. As on the CPU they do not: a
fused kernel rounds where eager rounds."""
_WORDS_ALONE = {"num_ctas": 1, "global_scratch_size": 0, "profile_scratch_size": 0, "launch_pdl": False}
"""What Triton says of functions that are started with nothing but their words; memory of its own is null there."""


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


def compile_functions(job: Job) -> list[Binary]:
    """The functions of a source. Raises BuildError with what Triton says."""
    _triton()
    from triton.backends.compiler import GPUTarget

    from weft.backends.triton.front_end import SerialSource, functions_of

    target, made = GPUTarget("cuda", job.architecture, WARP_THREADS), list[Binary]()
    told = signature(job.kernel), attributes(job.kernel, job.variant)
    with private_folder() as folder:
        try:
            functions = functions_of(job.source)
            for launch, options in _functions(job.kernel):
                function = functions[launch.entry]
                given = dict(zip(function.arg_names, told[0], strict=True))
                source = partial(SerialSource, function, given, {}, told[1])
                binary = _compiled(source(), launch, target, folder, options)
                if binary.usage.spill_bytes and 0 < options.get("maxnreg", 0) < MOST_REGISTERS:
                    del options["maxnreg"]
                    binary = _compiled(source(), launch, target, folder, options)
                made.append(binary)
        except BuildError:
            raise
        except Exception as error:  # of the front end, of a pass or of ptxas: they have no class in common
            said = " ".join(str(error).split())[:1000]
            raise BuildError(f"Triton refused {job.source.name}: {type(error).__name__}: {said}") from error
    return made


def _compiled(source: Any, launch: Launch, target: Any, folder: Path, options: dict[str, Any]) -> Binary:
    """What Triton makes of a function."""
    with own_cache(folder):
        made = _triton().compile(source, target=target, options=options)
    metadata, content = made.metadata, made.asm["cubin"]
    others = {name: found for name, plain in _WORDS_ALONE.items() if (found := getattr(metadata, name, plain)) != plain}
    if others:
        raise BuildError(f"{launch.entry} is not started with its words alone: {others}")
    usage: ResourceUsage = resource_usage(content, launch.entry, metadata.shared, made.asm.get("ptx"), folder)
    return Binary(launch.entry, content, metadata.shared, usage)


def signature(kernel: TritonKernel) -> list[str]:
    """Types of the arguments of a kernel's functions, in Triton's words."""
    return [_type(text) for _, text in types(kernel)]


def attributes(kernel: TritonKernel, variant: Variant) -> dict[tuple[int, ...], list[list[Any]]]:
    """What Triton is told of the arguments, by position. Memory that weft allocates is always aligned."""
    tensors, words = len(kernel.program.buffers), types(kernel)
    own = len(words) - tensors - len(kernel.program.parameters)
    known = (*variant.aligned, *[True] * own, *variant.divisible)
    return {(at,): [["tt.divisibility", ALIGNMENT_BYTES]] for at, is_known in enumerate(known) if is_known}


def _functions(kernel: TritonKernel) -> list[tuple[Launch, dict[str, Any]]]:
    """The starts of a kernel, with the options that their functions are compiled with."""
    first, *finish = abi(kernel).launches
    made = [(first, kernel.schedule.stages, kernel.schedule.register_cap)]
    # of the finish a multiprocessor seldom has more than one program, whose threads may have all registers
    made += [(launch, 1, MOST_REGISTERS) for launch in finish]
    found: list[tuple[Launch, dict[str, Any]]] = []
    for launch, stages, register_cap in made:
        options = {
            "num_warps": launch.threads // WARP_THREADS,
            "num_stages": stages,
            "launch_cooperative_grid": launch.cooperative,
            "enable_fp_fusion": CONTRACTED,
        }
        found.append((launch, options | ({"maxnreg": register_cap} if register_cap else {})))
    return found


def _type(text: str) -> str:
    return f"*{SIGNATURE_TYPES[text[1:]]}" if text.startswith("*") else SIGNATURE_TYPES[text]


def key(job: Job) -> str:
    """Of everything that binaries depend on. ``hash`` of Triton's backend names ptxas and its release."""
    triton = _triton()
    from triton._C.libtriton import get_cache_invalidating_env_vars
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend

    target = GPUTarget("cuda", job.architecture, WARP_THREADS)
    backend: Any = make_backend(target)
    # with what Triton adds to them, of the environment as well
    functions = [(launch.entry, backend.parse_options(options).hash()) for launch, options in _functions(job.kernel)]
    parts = (
        job.source.digest, _library_text(), triton.__version__, target, backend.hash(), functions,
        triton.knobs.compilation.instrumentation_mode,
        signature(job.kernel), attributes(job.kernel, job.variant), sorted(get_cache_invalidating_env_vars().items()),
    )  # fmt: skip
    return "\0".join(map(str, parts))


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
