"""The operator ``weft::launch`` and what stands behind it: kernels by digest, checks, the fallback."""

from __future__ import annotations

import ctypes
import hashlib
import warnings
from collections.abc import Sequence
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from weft.errors import LaunchError, WeftError
from weft.ir.dtypes import TORCH_DTYPES
from weft.ir.interpret import interpret_into, resolve, sizes_of
from weft.ir.program import Buffer, Program
from weft.options import Options
from weft.plan.kernel import Kernel, Plan, parse_kernel
from weft.render import cpp
from weft.render.source import Source
from weft.runtime import build
from weft.runtime.counters import counters

_LIBRARY = torch.library.Library("weft", "DEF")
_LIBRARY.define(
    "launch(str digest, str kernel, Tensor[] inputs, Tensor(a!)[] outputs, SymInt[] sizes) -> ()",
    tags=(torch.Tag.needs_exact_strides,),
)
_KERNELS: dict[str, Executable] = {}
FOUND_BY_TEXT: list[Kernel] = []
"""Kernels that this process knows only from code in Inductor's cache."""
_LOCK = Lock()
_CHECKED_LIMIT = 4096
BYTES_PER_THREAD = 65536
"""Small kernels use fewer threads: one for each 32768 16-bit elements, the grain of ATen's own loops; not measured."""


class Executable:
    """A compiled kernel that checks the tensors it is given. Without a function it evaluates its program on ATen."""

    def __init__(self, kernel: Kernel, function: Any | None) -> None:
        self.kernel = kernel
        self._function = function
        self._checked: set[object] = set()

    def __call__(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], parameters: Sequence[int]) -> None:
        """Run on tensors bound to the buffers in order. Raises LaunchError if they do not fit."""
        tensors = [*inputs, *outputs]
        signature = (*((t.dtype, t.device, t.shape, t.stride()) for t in tensors), *parameters)
        if signature not in self._checked:
            check_tensors(self.kernel, inputs, outputs, parameters)
            if len(self._checked) >= _CHECKED_LIMIT:
                self._checked.clear()
            self._checked.add(signature)
        if self._function is None:
            counters.add(fallbacks=1)
            interpret_into(self.kernel.program, inputs, outputs, parameters)
            return
        launch_bytes = sum({id(t): t.numel() * t.itemsize for t in tensors}.values())
        counters.add(launches=1, launch_bytes=launch_bytes)
        pointers = (ctypes.c_void_p * len(tensors))(*[t.data_ptr() for t in tensors])
        numbers = (ctypes.c_int64 * max(1, len(parameters)))(*parameters)
        threads = min(torch.get_num_threads(), 1 + launch_bytes // BYTES_PER_THREAD)
        self._function(pointers, numbers, threads)


def digest_of(kernel: Kernel) -> str:
    """Short identity of a kernel: a hash of its printed form."""
    return hashlib.sha256(str(kernel).encode()).hexdigest()[:24]


def prepare(kernels: Sequence[Kernel], sources: Sequence[Source], options: Options) -> None:
    """Compile kernels side by side and keep them by digest. Raises CompilerNotFoundError or BuildError."""
    with _LOCK:
        new = {d: (k, s) for k, s in zip(kernels, sources, strict=True) if (d := digest_of(k)) not in _KERNELS}
    libraries = build.build_all([source for _, source in new.values()], options)
    for digest, (kernel, source) in new.items():
        executable = Executable(kernel, build.open_library(libraries[source.digest], source.entry))
        with _LOCK:
            _KERNELS.setdefault(digest, executable)


def find(digest: str, text: str) -> Executable:
    """The kernel of that digest; made from its printed form if this process has not seen it.

    A process that takes its graphs from Inductor's cache never ran the compile stages: the text in the generated code
    is all there is. If it cannot be compiled any more, its program runs on ATen, with one warning.
    """
    with _LOCK:
        found = _KERNELS.get(digest)
    if found is not None:
        return found
    kernel = parse_kernel(text)
    options = Options.read()
    try:
        function = build.load(cpp.render(kernel), options)
    except (WeftError, OSError) as error:
        warnings.warn(f"weft: kernel {kernel.name} runs on ATen, slowly: {error}", stacklevel=2)
        function = None
    with _LOCK:
        FOUND_BY_TEXT.append(kernel)
        return _KERNELS.setdefault(digest, Executable(kernel, function))


def _launch(
    digest: str, kernel: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], sizes: Sequence[int]
) -> None:
    find(digest, kernel)(inputs, outputs, sizes)


def _launch_meta(
    digest: str, kernel: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], sizes: Sequence[int]
) -> None:
    del digest, kernel, inputs, outputs, sizes


_LIBRARY.impl("launch", _launch, "CPU")
_LIBRARY.impl("launch", _launch_meta, "Meta")


def check_tensors(
    kernel: Kernel, inputs: Sequence[Tensor], outputs: Sequence[Tensor], parameters: Sequence[int]
) -> None:
    """Raise LaunchError, naming the buffer, if a tensor has another dtype, device or layout than its buffer."""
    program = kernel.program
    sizes = sizes_of(program, parameters)
    buffers = [*program.inputs, *(o.buffer for o in program.outputs)]
    tensors = [*inputs, *outputs]
    if len(buffers) != len(tensors):
        raise LaunchError(f"{kernel.name} takes {len(buffers)} tensors, got {len(tensors)}")
    for buffer, tensor in zip(buffers, tensors, strict=True):
        if tensor.device.type != "cpu":
            raise LaunchError(f"{kernel.name}: {buffer.name} is on {tensor.device}, the kernel runs on the CPU")
        if tensor.dtype != TORCH_DTYPES[buffer.dtype]:
            raise LaunchError(f"{kernel.name}: {buffer.name} is {tensor.dtype}, compiled for {buffer.dtype}")
        shape = [sizes[d] for d in buffer.dims]
        strides = [resolve(s, sizes) for s in buffer.strides]
        empty = tensor.numel() == 0 and 0 in shape
        if not empty and not _lies_as(tensor, shape, strides):
            raise LaunchError(
                f"{kernel.name}: {buffer.name} has shape {tuple(tensor.shape)} and strides {tensor.stride()}, "
                f"compiled for {_shown(buffer, sizes)}"
            )


def _lies_as(tensor: Tensor, sizes: list[int], strides: list[int]) -> bool:
    """Whether a tensor lies in memory as a buffer does. Where its axes are the buffer's dimensions one by one, their
    strides are compared one by one; where axes were split or merged, what they make up together."""
    own = [(si, st) for si, st in zip(tensor.shape, tensor.stride(), strict=True) if si != 1 and st != 0]
    wanted = [(si, st) for si, st in zip(sizes, strides, strict=True) if si != 1 and st != 0]
    if [size for size, _ in own] == [size for size, _ in wanted]:
        return own == wanted
    return _merged(own) == _merged(wanted)


def _merged(axes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """(size, stride) of axes, largest stride first, contiguous ones merged."""
    merged: list[tuple[int, int]] = []
    for size, stride in sorted(axes, key=lambda axis: -axis[1]):
        if merged and merged[-1][1] == stride * size:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    return merged


def _shown(buffer: Buffer, sizes: dict[str, int]) -> str:
    axes = zip(buffer.dims, buffer.strides, strict=True)
    return ", ".join(f"{d} of size {sizes[d]} and stride {resolve(s, sizes)}" for d, s in axes)


def run_plan(
    plan: Plan, program: Program, inputs: Sequence[Tensor], parameters: Sequence[int], options: Options
) -> list[Tensor]:
    """Build and launch the kernels of a plan; outputs and intermediates are allocated here.

    inputs are bound to the buffers of ``program`` in order. Outputs are dense or strided as their buffers say.
    """
    prepare(plan.kernels, [cpp.render(kernel) for kernel in plan.kernels], options)
    sizes = sizes_of(program, parameters)
    for name, factors in plan.products.items():
        sizes[name] = 1
        for factor in factors:
            sizes[name] *= resolve(factor, sizes)
    tensors = {b.name: t for b, t in zip(program.inputs, inputs, strict=True)}
    device = inputs[0].device if inputs else torch.device("cpu")
    for kernel in plan.kernels:
        for output in kernel.program.outputs:
            tensors[output.buffer.name] = allocate(output.buffer, sizes, device)
        find(digest_of(kernel), str(kernel))(
            [tensors[b.name] for b in kernel.program.inputs],
            [tensors[o.buffer.name] for o in kernel.program.outputs],
            [sizes[p] for p in kernel.program.parameters],
        )
    return [tensors[o.buffer.name] for o in program.outputs]


def allocate(buffer: Buffer, sizes: dict[str, int], device: torch.device) -> Tensor:
    """A tensor for an output buffer, not initialised."""
    shape = [sizes[d] for d in buffer.dims]
    strides = [resolve(s, sizes) for s in buffer.strides]
    return torch.empty_strided(shape, strides, dtype=TORCH_DTYPES[buffer.dtype], device=device)
