"""Tensors for the buffers of a program, in storage that is poisoned wherever the buffer has no element."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tests.fuzz.evaluate import Mode
from tests.fuzz.outcome import Mismatch
from weft.ir.dtypes import TORCH_DTYPES
from weft.ir.interpret import resolve
from weft.ir.program import Buffer

GUARD = 67
"""Elements of poison before and after a tensor; odd, so that most tensors are not aligned."""


def numbers(shape: list[int], dtype: torch.dtype, mode: Mode, seed: int) -> Tensor:
    """Small integers, or floats between -2 and 2 where the mode allows."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if mode == "random" and dtype.is_floating_point:
        return (4 * torch.rand(shape, generator=generator, dtype=torch.float64) - 2).to(dtype)
    return torch.randint(-3, 4, shape, generator=generator).to(dtype)


def poison(count: int, dtype: torch.dtype) -> Tensor:
    """NaN, or bytes of 0xFF; True for booleans, which have no third value."""
    if dtype == torch.bool:
        return torch.ones(count, dtype=dtype)
    if dtype.is_floating_point:
        return torch.full((count,), float("nan"), dtype=dtype)
    return torch.full((count,), -1, dtype=dtype)


def input_tensor(buffer: Buffer, sizes: Mapping[str, int], mode: Mode, seed: int) -> Tensor:
    """A tensor that lies as the buffer does, its first element ``buffer.offset`` elements before the buffer's.

    What it holds depends on the seed and the buffer's name: it stays the same when other buffers go.
    """
    seed += sum(buffer.name.encode())
    shape, strides = _layout(buffer, sizes)
    dtype = TORCH_DTYPES[buffer.dtype]
    count = GUARD + buffer.offset + _extent(shape, strides) + GUARD
    if overlaps(shape, strides):
        storage = numbers([count], dtype, mode, seed)
    else:
        storage = poison(count, dtype)
        storage.as_strided(shape, strides, GUARD + buffer.offset).copy_(numbers(shape, dtype, mode, seed))
    return storage.as_strided(shape, strides, GUARD)


def output_tensor(buffer: Buffer, sizes: Mapping[str, int]) -> Tensor:
    """A poisoned tensor that lies as the buffer does."""
    shape, strides = _layout(buffer, sizes)
    count = GUARD + buffer.offset + _extent(shape, strides) + GUARD
    return poison(count, TORCH_DTYPES[buffer.dtype]).as_strided(shape, strides, GUARD)


def written(buffer: Buffer, tensor: Tensor) -> Tensor:
    """The elements of a buffer."""
    return tensor.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset() + buffer.offset)


def check_untouched(buffer: Buffer, tensor: Tensor) -> None:
    """Raise Mismatch if anything but the buffer's elements was written."""
    whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage()).clone()
    at = tensor.storage_offset() + buffer.offset
    expected = poison(whole.numel(), tensor.dtype)
    elements = tensor.as_strided(tensor.shape, tensor.stride(), at)
    expected.as_strided(tensor.shape, tensor.stride(), at).copy_(elements)
    if not torch.equal(whole.view(torch.uint8), expected.view(torch.uint8)):
        raise Mismatch("outside", f"{buffer.name}: memory outside its elements was written")


def _layout(buffer: Buffer, sizes: Mapping[str, int]) -> tuple[list[int], list[int]]:
    return [sizes[d] for d in buffer.dims], [resolve(s, sizes) for s in buffer.strides]


def _extent(shape: list[int], strides: list[int]) -> int:
    return 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) if 0 not in shape else 0


def overlaps(shape: list[int], strides: list[int]) -> bool:
    """Whether two elements may share memory."""
    reach = 0
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size > 1 and stride <= reach:
            return True
        reach += stride * (size - 1)
    return False
