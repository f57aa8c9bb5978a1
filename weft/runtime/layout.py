"""How tensors lie in memory: whether they fit the buffers of a kernel, and whether two of them share memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from weft.errors import LaunchError
from weft.ir.dtypes import TORCH_DTYPES
from weft.ir.interpret import resolve, sizes_of
from weft.ir.program import Buffer
from weft.plan.kernel import Kernel


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


def has_elements(buffer: Buffer, tensor: Tensor, sizes: Mapping[str, int]) -> bool:
    """Whether a tensor has the buffer's elements, axis by axis, however they lie in memory."""
    same = [n for n in tensor.shape if n != 1] == [sizes[d] for d in buffer.dims if sizes[d] != 1]
    dense = buffer.offset == 0 and 0 not in [resolve(s, sizes) for s in buffer.strides]
    writable = all(stride != 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size != 1)
    on_cpu = tensor.device.type == "cpu"
    return same and dense and writable and on_cpu and tensor.dtype == TORCH_DTYPES[buffer.dtype]


def overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors may share memory: their spans of one storage meet."""
    if a.numel() == 0 or b.numel() == 0 or a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr():
        return False
    first, last = _span(a)
    other_first, other_last = _span(b)
    return first <= other_last and other_first <= last


def _span(tensor: Tensor) -> tuple[int, int]:
    """Addresses of the first and the last element."""
    steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + steps * tensor.itemsize


def allocate(buffer: Buffer, sizes: dict[str, int], device: torch.device) -> Tensor:
    """A tensor for an output buffer, not initialised."""
    shape = [sizes[d] for d in buffer.dims]
    strides = [resolve(s, sizes) for s in buffer.strides]
    return torch.empty_strided(shape, strides, dtype=TORCH_DTYPES[buffer.dtype], device=device)
