"""Memory that a GPU kernel needs beyond its tensors: partial results, and the counter of a barrier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.ir import dtypes
from weft.plan.kernel import Kernel
from weft.render import triton_launch

SLICE_BYTES = 128
"""Slices start at a multiple of it: a line of the cache holds no two of them."""


@dataclass(frozen=True)
class Workspace:
    """One piece of memory with a slice for each of the kernel's partial results. offsets_bytes: of the slices, in the
    order of the arguments. counter: whether the kernel counts the programs that arrive at a barrier."""

    size_bytes: int
    offsets_bytes: tuple[int, ...]
    counter: bool

    @staticmethod
    def of(kernel: Kernel, sizes: Mapping[str, int]) -> Workspace:
        """sizes: of dimensions and run-time parameters, by name."""
        offsets: list[int] = []
        end = 0
        for partial in triton_launch.partials(kernel, sizes):
            offsets.append(end)
            end += -(-partial.elements * dtypes.itemsize(partial.dtype) // SLICE_BYTES) * SLICE_BYTES
        return Workspace(end, tuple(offsets), kernel.schedule.finish == "same")

    def allocate(self, device: torch.device) -> tuple[list[Tensor], list[int]]:
        """What has to live until the kernel is started, and the addresses that are its arguments. The allocator gives
        memory of the current stream, and inside the capture of a CUDA graph memory of that graph."""
        kept: list[Tensor] = []
        addresses: list[int] = []
        if self.offsets_bytes:
            slices = torch.empty(self.size_bytes, dtype=torch.uint8, device=device)
            start = slices.data_ptr()
            kept.append(slices)
            addresses += [start + offset for offset in self.offsets_bytes]
        if self.counter:
            arrived = counter(device)
            kept.append(arrived)
            addresses.append(arrived.data_ptr())
        return kept, addresses


def counter(device: torch.device) -> Tensor:
    """How many programs have arrived, zero at first; one a launch, so that launches on two streams do not meet."""
    return torch.zeros(1, dtype=torch.int32, device=device)
