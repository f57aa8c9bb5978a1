"""Memory that a GPU kernel needs beyond its tensors: partial results, and a counter."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock

import torch
from torch import Tensor

from weft.backends.abi import Abi

COUNTERS, COUNTER_BYTES = 4096, 32
"""Of a block of counters: their number, and how far apart they are, a sector of the cache."""


@dataclass(frozen=True)
class Workspace:
    """One piece of memory with a slice for each of the kernel's partial results. offsets_bytes: of the slices, in the
    order of the arguments. counters: what the programs of a launch count together, if they do."""

    size_bytes: int
    offsets_bytes: tuple[int, ...]
    counters: Counters | None

    @staticmethod
    def of(abi: Abi, sizes: Mapping[str, int]) -> Workspace:
        """sizes: of run-time parameters, by name."""
        return Workspace(*abi.workspace(sizes), Counters() if abi.counter else None)

    @property
    def words(self) -> int:
        """Arguments of a kernel that are addresses in it."""
        return len(self.offsets_bytes) + (self.counters is not None)

    def allocate(self, device: torch.device, stream: int) -> tuple[list[Tensor], list[int]]:
        """What has to live until the kernel is started, and the addresses that are its arguments. The allocator gives
        memory of the current stream, and inside the capture of a CUDA graph memory of that graph."""
        kept: list[Tensor] = []
        addresses: list[int] = []
        if self.offsets_bytes:
            kept.append(torch.empty(self.size_bytes, dtype=torch.uint8, device=device))
            start = kept[0].data_ptr()
            addresses = [start + offset for offset in self.offsets_bytes]
        if self.counters is not None:
            if not torch.cuda.is_current_stream_capturing():
                found = self.counters.of_stream(device, stream)
            elif (found := self.counters.of_graph(device)) is None:
                kept.append(torch.zeros(COUNTER_BYTES // 8, dtype=torch.int64, device=device))
                found = kept[-1].data_ptr()
            addresses.append(found)
        return kept, addresses


class Counters:
    """Counters of one kernel on one device: how many programs have arrived at its barrier, or how many row tiles they
    have taken from its queue.

    The programs of a launch count on from a multiple of what they count to the next one, so that a counter is never set
    back, and is only used for launches of one size that cannot overlap: those on one stream, or those of one place in
    a CUDA graph. They lie in memory that is never given back: a graph that was captured keeps addresses.
    """

    def __init__(self) -> None:
        self._of_stream: dict[int, int] = {}

    @staticmethod
    def of_graph(device: torch.device) -> int | None:
        """For a launch that is captured. None if no counter is left: one more cannot be made then, but memory of the
        graph will do, which it sets to zero itself, at the cost of one more node."""
        return _bank(device).take_left()

    def of_stream(self, device: torch.device, stream: int) -> int:
        """For a launch on a stream."""
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
            return self._next()

    def take_left(self) -> int | None:
        """The same, if there is one."""
        with self.lock:
            return self._next() if self.left else None

    def _next(self) -> int:
        self.left -= 1
        return self.blocks[-1].data_ptr() + COUNTER_BYTES * self.left

    def _add_block(self) -> None:
        """By another thread: what this one allocates may be memory of a graph that is captured later, and is given back
        then, as in TorchInductor's first calls with ``mode="reduce-overhead"``."""
        with ThreadPoolExecutor(max_workers=1) as beside:
            self.blocks.append(beside.submit(self._make_block).result())
        self.left = COUNTERS

    def _make_block(self) -> Tensor:
        block = torch.zeros(COUNTERS * COUNTER_BYTES // 8, dtype=torch.int64, device=self.device)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # other streams may count at once
        return block


_BANKS: dict[torch.device, _Bank] = {}
_BANKS_LOCK = Lock()


def _bank(device: torch.device) -> _Bank:
    with _BANKS_LOCK:
        return _BANKS.setdefault(device, _Bank(device))
