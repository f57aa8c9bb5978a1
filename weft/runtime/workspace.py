"""Memory that a GPU kernel needs beyond its tensors: partial results, and the counter of a barrier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from threading import Lock

import torch
from torch import Tensor

from weft.ir import dtypes
from weft.plan.kernel import Kernel
from weft.render import triton_launch

COUNTERS, COUNTER_BYTES = 4096, 32
"""Of a block of counters: their number, and how far apart they are, a sector of the cache."""
SLICE_BYTES = 128
"""Slices start at a multiple of it: a line of the cache holds no two of them."""


@dataclass(frozen=True)
class Workspace:
    """One piece of memory with a slice for each of the kernel's partial results. offsets_bytes: of the slices, in the
    order of the arguments. counters: of the programs that arrive at the kernel's barrier, if it has one."""

    size_bytes: int
    offsets_bytes: tuple[int, ...]
    counters: Counters | None

    @staticmethod
    def of(kernel: Kernel, sizes: Mapping[str, int]) -> Workspace:
        """sizes: of dimensions and run-time parameters, by name."""
        offsets: list[int] = []
        end = 0
        for partial in triton_launch.partials(kernel, sizes):
            offsets.append(end)
            end += -(-partial.elements * dtypes.itemsize(partial.dtype) // SLICE_BYTES) * SLICE_BYTES
        return Workspace(end, tuple(offsets), Counters() if kernel.schedule.finish == "same" else None)

    @property
    def words(self) -> int:
        """Arguments of a kernel that are addresses in it."""
        return len(self.offsets_bytes) + (self.counters is not None)

    def allocate(self, device: torch.device, stream: int) -> tuple[Tensor | None, list[int]]:
        """What has to live until the kernel is started, and the addresses that are its arguments. The allocator gives
        memory of the current stream, and inside the capture of a CUDA graph memory of that graph."""
        slices: Tensor | None = None
        addresses: list[int] = []
        if self.offsets_bytes:
            slices = torch.empty(self.size_bytes, dtype=torch.uint8, device=device)
            start = slices.data_ptr()
            addresses = [start + offset for offset in self.offsets_bytes]
        if self.counters is not None:
            addresses.append(self.counters.address(device, stream))
        return slices, addresses


class Counters:
    """Counters of one barrier on one device: how many programs have arrived there.

    The programs of a launch count on from a multiple of their number to the next one, so that a counter is never set
    back, and is only used for launches of one size that cannot overlap: those on one stream, or those of one place in
    a CUDA graph. They lie in memory that is never given back: a graph that was captured keeps addresses.
    """

    def __init__(self) -> None:
        self._of_stream: dict[int, int] = {}

    def address(self, device: torch.device, stream: int) -> int:
        """For a launch on a stream. Raises RuntimeError inside the capture of a graph if no counter is left."""
        if torch.cuda.is_current_stream_capturing():
            return _bank(device).take()
        found = self._of_stream.get(stream)
        if found is None:
            found = self._of_stream[stream] = _bank(device).take()
        return found


class _Bank:
    """Counters that are zero, in blocks."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.lock = Lock()
        self.blocks: list[Tensor] = []
        self.left = 0

    def take(self) -> int:
        """The address of one that nobody has."""
        with self.lock:
            if self.left == 0:
                self._add_block()
            self.left -= 1
            return self.blocks[-1].data_ptr() + COUNTER_BYTES * self.left

    def _add_block(self) -> None:
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError(f"a CUDA graph has more than {COUNTERS} kernels whose programs wait for each other")
        numbers = COUNTERS * COUNTER_BYTES // 8
        self.blocks.append(torch.zeros(numbers, dtype=torch.int64, device=self.device))
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # other streams may count at once
        self.left = COUNTERS


@cache
def _bank(device: torch.device) -> _Bank:
    return _Bank(device)
