"""How tensors lie in memory: whether they fit the buffers of a kernel, and whether two of them share memory."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch._C._dynamo.guards import assert_size_stride

from weft.backends.listed import device_of
from weft.errors import LaunchError
from weft.ir.dtypes import TORCH_DTYPES
from weft.ir.interpret import resolve, sizes_of
from weft.ir.program import Buffer
from weft.plan.kernel import Kernel


@dataclass(frozen=True)
class Fitting:
    """Layouts and parameters of a call that fit a kernel, and what follows. device: of all tensors. launch_bytes: of
    all tensors, each once. empty: whether a tensor has no elements. bound: what the backend worked out."""

    layouts: tuple[tuple[torch.dtype, tuple[int, ...], tuple[int, ...]], ...]
    device: torch.device
    parameters: list[int]
    launch_bytes: int
    empty: bool
    bound: Any

    @staticmethod
    def of(inputs: Sequence[Tensor], outputs: Sequence[Tensor], parameters: Sequence[int], bound: Any) -> Fitting:
        tensors = [*inputs, *outputs]
        return Fitting(
            tuple((t.dtype, tuple(t.shape), t.stride()) for t in tensors),
            tensors[0].device,
            list(parameters),
            bytes_of(inputs, outputs),
            any(t.numel() == 0 for t in tensors),
            bound,
        )

    def fits(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], parameters: Sequence[int]) -> bool:
        """Whether these tensors are like those, and on the same device."""
        if parameters != self.parameters or len(inputs) + len(outputs) != len(self.layouts):
            return False
        try:
            for (dtype, shape, stride), tensor in zip(self.layouts, chain(inputs, outputs), strict=True):
                if tensor.dtype is not dtype or tensor.device != self.device:
                    return False
                assert_size_stride(tensor, shape, stride)
        except AssertionError:
            return False
        return True


def bytes_of(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """Bytes of all tensors of a call, each once."""
    return sum({id(t): t.numel() * t.itemsize for t in chain(inputs, outputs)}.values())


def check_tensors(
    kernel: Kernel, inputs: Sequence[Tensor], outputs: Sequence[Tensor], parameters: Sequence[int]
) -> None:
    """Raise LaunchError, naming the buffer, if a tensor has another dtype, device or layout than its buffer."""
    program = kernel.program
    sizes = sizes_of(program, parameters)
    buffers = program.buffers
    tensors = [*inputs, *outputs]
    if len(buffers) != len(tensors):
        raise LaunchError(f"{kernel.name} takes {len(buffers)} tensors, got {len(tensors)}")
    wanted, first = device_of(kernel), tensors[0].device
    for buffer, tensor in zip(buffers, tensors, strict=True):
        if tensor.device.type != wanted:
            what = "the CPU" if wanted == "cpu" else "a GPU"
            raise LaunchError(f"{kernel.name}: {buffer.name} is on {tensor.device}, the kernel runs on {what}")
        if tensor.device != first:
            raise LaunchError(f"{kernel.name}: {buffer.name} is on {tensor.device}, {buffers[0].name} on {first}")
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
    return _merged(own) == _merged(wanted) or _makes_up(own, wanted) or _makes_up(wanted, own)


def _makes_up(parts: list[tuple[int, int]], axes: list[tuple[int, int]]) -> bool:
    """Whether every axis consists of some of the parts, each part in one axis. Where strides overlap, an order by
    stride does not say which."""
    if not axes:
        return not parts
    (size, stride), *rest = axes
    for i, (part_size, part_stride) in enumerate(parts):
        if part_stride == stride and part_size > 0 and size % part_size == 0:
            left = [] if size == part_size else [(size // part_size, stride * part_size)]
            if _makes_up([*parts[:i], *parts[i + 1 :]], [*left, *rest]):
                return True
    return False


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


def has_elements(buffer: Buffer, tensor: Tensor, sizes: Mapping[str, int], device: torch.device) -> bool:
    """Whether a tensor on that device has the buffer's elements, axis by axis, however they lie in memory."""
    same = [n for n in tensor.shape if n != 1] == [sizes[d] for d in buffer.dims if sizes[d] != 1]
    dense = buffer.offset == 0 and 0 not in [resolve(s, sizes) for s in buffer.strides]
    writable = all(stride != 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size != 1)
    return same and dense and writable and tensor.device == device and tensor.dtype == TORCH_DTYPES[buffer.dtype]


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


def part_of(whole: Tensor, buffer: Buffer, sizes: dict[str, int]) -> Tensor:
    """What a buffer is of the tensor that it lies within."""
    shape = [sizes[d] for d in buffer.dims]
    strides = [resolve(s, sizes) for s in buffer.strides]
    return whole.as_strided(shape, strides, int(whole.storage_offset()) + buffer.place)


def address_of_empty(tensor: Tensor) -> int:
    """Where the elements are, or would be. ``data_ptr`` of a tensor without elements is null, but a kernel may read an
    expanded one of no rows once, for a result that does not vary over rows; without memory it reads zeros."""
    storage, first = tensor.untyped_storage(), int(tensor.storage_offset()) * tensor.itemsize
    if storage.nbytes() >= first + tensor.itemsize:
        return storage.data_ptr() + first
    return ctypes.addressof(_ZEROS)


_ZEROS = (ctypes.c_char * 64)()


def random_tensor(
    shape: Sequence[int],
    strides: Sequence[int],
    offset: int,
    dtype: torch.dtype,
    generator: torch.Generator,
    largest: int,
    positive: bool = False,
) -> Tensor:
    """A tensor with that layout, on the generator's device. largest: integers are smaller. positive: floats from 0.5 on
    instead of normal ones."""
    reach = offset + 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    device = generator.device
    if not dtype.is_floating_point:
        made = torch.randint(0, 2 if dtype == torch.bool else largest, (reach,), device=device, generator=generator)
    else:
        made = torch.randn(reach, device=device, generator=generator)
        made = made.abs().add_(0.5) if positive else made
    return made.to(dtype).as_strided(shape, strides, offset)
