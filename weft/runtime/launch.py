"""The operator ``weft::launch`` and what stands behind it: kernels by digest.

This and ``executable.py`` are all of it, from import on. Calls like one that was made here are done in C++ once
``weft.runtime.launcher`` is loaded, which is when the first kernel is prepared or found.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock, local
from typing import Any

import torch
from torch import Tensor

from weft.backends.listed import backend_of, render
from weft.backends.resource_usage import ResourceUsage
from weft.backends.source import Source
from weft.errors import CompilerNotFoundError, LaunchError
from weft.ir.interpret import resolve, sizes_of
from weft.ir.program import Buffer, Program
from weft.logs import log_sources
from weft.options import Options
from weft.plan.kernel import Kernel, Plan, parse_kernel
from weft.runtime import failures, launcher, runners_up
from weft.runtime.executable import Executable, digest_of, reason_of
from weft.runtime.layout import allocate, part_of

_LIBRARY = torch.library.Library("weft", "DEF")
# no argument has a default: Inductor would pass it by keyword, which takes half a microsecond
for _name in ("launch", "_launch_probe"):
    _LIBRARY.define(
        f"{_name}(str digest, str kernel, Tensor[] inputs, Tensor(a!)[] outputs, SymInt[] sizes, str options) -> ()",
        tags=(torch.Tag.needs_exact_strides,),
    )
_LIBRARY.define(
    "_launch_checked(int texts, Tensor[] inputs, Tensor(a!)[] outputs, SymInt[] sizes) -> str",
    tags=(torch.Tag.needs_exact_strides,),
)
_LIBRARY.define("over(Tensor x, SymInt[] size, SymInt[] stride) -> Tensor")
_KERNELS: dict[str, Executable] = {}
FOUND_BY_TEXT: list[Kernel] = []
"""Kernels that this process knows only from code in Inductor's cache."""
_LOCK = Lock()


class _Unbuilt(local):
    """What builds kernels of code that this thread is generating."""

    def __init__(self) -> None:
        self.steps: list[Callable[[], object]] = []


_UNBUILT = _Unbuilt()


@contextmanager
def building_later() -> Generator[list[Callable[[], object]]]:
    """Where code is generated on this thread: steps that are put into the list are done before that code is used, in
    ``ready``; those that are left are forgotten."""
    steps, _UNBUILT.steps = _UNBUILT.steps, []
    try:
        yield _UNBUILT.steps
    finally:
        _UNBUILT.steps = steps


def ready() -> Callable[..., None]:
    """What generated code calls launches by, asked for when it is loaded: after the steps of ``building_later``, whose
    errors are raised."""
    while _UNBUILT.steps:
        _UNBUILT.steps.pop(0)()
    return launcher.direct()


def prepare(
    kernels: Sequence[Kernel],
    sources: Sequence[Source],
    options: Options,
    hints: Sequence[Mapping[str, int]] | None = None,
) -> None:
    """Compile kernels side by side and keep them by digest. hints: for each, likely values of its parameters. Raises
    CompilerNotFoundError or BuildError."""
    known = [{}] * len(kernels) if hints is None else hints
    with _LOCK:
        given = zip(kernels, sources, known, strict=True)
        new = {digest: one for one in given if (digest := digest_of(one[0])) not in _KERNELS}
    log_sources(sources)
    by_backend: dict[str, list[str]] = {}
    for digest, (kernel, _, _) in new.items():
        by_backend.setdefault(kernel.schedule.backend, []).append(digest)
    for digests in by_backend.values():
        of_backend, texts, values = zip(*(new[digest] for digest in digests), strict=True)
        functions = backend_of(of_backend[0]).calls.build_all(of_backend, texts, values, options)
        for digest, kernel, function in zip(digests, of_backend, functions, strict=True):
            with _LOCK:
                _KERNELS.setdefault(digest, Executable(kernel, function))


def usage(kernel: Kernel) -> ResourceUsage:
    """Of a prepared kernel, as its compiler says; nothing of one that is not prepared, and on a CPU."""
    found = _KERNELS.get(digest_of(kernel))
    return ResourceUsage(0, 0, 0, 0) if found is None else backend_of(kernel).calls.usage(found.function)


def running(kernel: Kernel) -> Kernel:
    """What runs where a prepared kernel is launched: itself, or the one that stands in for it."""
    found = _KERNELS.get(digest_of(kernel))
    return kernel if found is None else found.kernel


def stand_in(kernel: Kernel, other: Kernel, options: Options) -> None:
    """Have another kernel of the same program, which is prepared, run where one is launched: here, and in processes
    that know it from generated code."""
    digest = digest_of(kernel)
    with _LOCK:
        _KERNELS[digest] = Executable(other, _KERNELS[digest_of(other)].function, digest)
    runners_up.keep(kernel, other, options)


def find(digest: str, text: str) -> Executable:
    """The kernel of that digest; made from its printed form if this process has not seen it.

    A process that takes its graphs from Inductor's cache never ran the compile stages: the text in the generated code
    is all there is. If it cannot be compiled any more, its program runs on ATen, with one warning.
    """
    found = _KERNELS.get(digest)
    if found is not None:
        return found
    options = Options.read()
    kernel = runners_up.known(parse_kernel(text), options)
    launcher.load(options)
    function = None
    if not failures.has_failed(digest):
        try:
            source = render(kernel)
            log_sources([source])
            function = backend_of(kernel).calls.load_function(kernel, source, options)
        except CompilerNotFoundError as error:
            failures.record(digest, None, reason_of(error))
        except Exception as error:
            failures.record(digest, kernel.name, reason_of(error))
    with _LOCK:
        FOUND_BY_TEXT.append(kernel)
        return _KERNELS.setdefault(digest, Executable(kernel, function, digest))


def _launch(
    digest: str, kernel: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], sizes: Sequence[int], options: str
) -> None:
    find(digest, kernel)(inputs, outputs, sizes, options)


def _launch_checked(texts: int, inputs: Sequence[Tensor], outputs: Sequence[Tensor], sizes: Sequence[int]) -> str:
    """As ``_launch``, for the launcher in C++, to which PyTorch's C interface passes no exceptions.

    texts: the address of three C strings, digest, kernel and options.
    Returns what ``Executable.repeatable`` says of calls like this one, "done" if that is nothing, "error" or "memory"
    (none is left on a GPU) and a message, or "interrupt".
    """
    try:
        digest, kernel, options = (c.decode() for c in (ctypes.c_char_p * 3).from_address(texts))
        executable = find(digest, kernel)
        executable(inputs, outputs, sizes, options)
        return executable.repeatable(inputs, outputs, sizes, options) or "done"
    except LaunchError as error:
        return f"error {error}"
    except torch.OutOfMemoryError as error:
        return f"memory {error}"
    except KeyboardInterrupt:
        return "interrupt"
    except BaseException as error:
        return f"error {reason_of(error)}"


def _launch_meta(*_: Any, **__: Any) -> None:
    """Nothing is computed on meta and fake tensors, and nothing is checked."""


def _over(x: Tensor, size: Sequence[int], stride: Sequence[int]) -> Tensor:
    """Memory for a result, not initialised, of the dtype of ``x``. A compiled graph takes that of ``x``, whose elements
    then last until the result is written; memory of its own is as good."""
    return x.new_empty_strided(size, stride)


# the launcher takes the keys CPU and CUDA of ``launch`` when it is loaded
_LIBRARY.impl("launch", _launch, "CompositeExplicitAutograd")
_LIBRARY.impl("launch", _launch_meta, "Meta")
_LIBRARY.impl("over", _over, "CompositeExplicitAutograd")
_LIBRARY.impl("_launch_checked", _launch_checked, "CompositeExplicitAutograd")


def run_plan(
    plan: Plan,
    program: Program,
    inputs: Sequence[Tensor],
    parameters: Sequence[int],
    options: Options,
    allocate: Callable[[Buffer, dict[str, int], torch.device], Tensor] = allocate,
) -> list[Tensor]:
    """Build and launch the kernels of a plan.

    inputs are bound to the buffers of ``program`` in order. allocate: makes the memory of each output and intermediate;
    outputs are dense or strided as their buffers say.
    """
    prepare(plan.kernels, [render(kernel) for kernel in plan.kernels], options, [plan.hints] * len(plan.kernels))
    return launch_plan(plan, program, inputs, parameters, options, allocate)


def launch_plan(
    plan: Plan,
    program: Program,
    inputs: Sequence[Tensor],
    parameters: Sequence[int],
    options: Options,
    allocate: Callable[[Buffer, dict[str, int], torch.device], Tensor] = allocate,
) -> list[Tensor]:
    """As ``run_plan``, of kernels that were prepared; others are made of their text, as in a new process."""
    sizes = sizes_of(program, parameters)
    for name, factors in plan.products.items():
        sizes[name] = 1
        for factor in factors:
            sizes[name] *= resolve(factor, sizes)
    tensors = {b.name: t for b, t in zip(program.inputs, inputs, strict=True)}
    device = inputs[0].device if inputs else torch.device("cpu")
    whole = {o.buffer.name: o.buffer for o in program.outputs}
    for kernel in plan.kernels:
        for buffer in (o.buffer for o in kernel.program.outputs):
            if buffer.within and buffer.within not in tensors:
                tensors[buffer.within] = allocate(whole[buffer.within], sizes, device)
            elif not buffer.within:
                tensors[buffer.name] = allocate(buffer, sizes, device)
        for buffer in kernel.program.buffers:
            if buffer.name not in tensors:
                tensors[buffer.name] = part_of(tensors[buffer.within], buffer, sizes)
        find(digest_of(kernel), kernel.line)(
            [tensors[b.name] for b in kernel.program.inputs],
            [tensors[o.buffer.name] for o in kernel.program.outputs],
            [sizes[p] for p in kernel.program.parameters],
            str(options.of_launch(device.type)),
        )
    return [tensors[o.buffer.name] for o in program.outputs]
