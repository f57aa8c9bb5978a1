"""A kernel that keeps multiprocessors to itself until the host lets go of them, as kernels of communication do."""

from __future__ import annotations

import time
from types import TracebackType

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

WARPS = 32
WHOLE_REGISTERS = 57
"""Registers a thread from which on 32 warps take all 65536 of a multiprocessor: they are given out by eights."""
LIMIT_S = 20
"""Programs end by themselves after that."""


@triton.jit
def hold(data, release, begun, sums, limit_ns, FIRST: tl.constexpr, SECOND: tl.constexpr, THIRD: tl.constexpr):
    """Spins until ``release`` is not zero. What is loaded in front of the loop and used behind it takes the registers:
    as many blocks of memory as there are sizes."""
    begin = globaltimer()
    program = tl.program_id(0)
    first = tl.load(data + tl.arange(0, FIRST), volatile=True)
    second = tl.load(data + tl.arange(0, SECOND), volatile=True)
    third = tl.load(data + tl.arange(0, THIRD), volatile=True)
    tl.store(begun + program, 1)
    released = tl.load(release, volatile=True)
    while (released == 0) & (globaltimer() - begin < limit_ns):
        released = tl.load(release, volatile=True)
    tl.store(sums + program, tl.sum(first) + tl.sum(second) + tl.sum(third))


SIZES = {"FIRST": 32 * 1024, "SECOND": 8 * 1024, "THIRD": 4 * 1024}


class Holder:
    """Holds ``units`` multiprocessors of the current device inside a ``with`` block: all of them when the block is
    entered. registers: of a thread, known then."""

    def __init__(self, units: int) -> None:
        self.units, self.registers = units, 0
        self.ended = torch.cuda.Event()
        self._stream = torch.cuda.Stream()
        self._data = torch.ones(SIZES["FIRST"], dtype=torch.int32, device="cuda")
        self._sums = torch.zeros(units, dtype=torch.int32, device="cuda")
        # memory of the host that the kernel reads and writes: no work on the GPU is needed to let go
        self._release = torch.zeros(1, dtype=torch.int32, pin_memory=True)
        self._begun = torch.zeros(units, dtype=torch.int32, pin_memory=True)
        torch.cuda.synchronize()

    def __enter__(self) -> Holder:
        self._release.zero_()
        self._begun.zero_()
        with torch.cuda.stream(self._stream):
            made = hold[self.units,](
                self._data, self._release, self._begun, self._sums, int(LIMIT_S * 1e9), **SIZES, num_warps=WARPS
            )
            self.ended.record()
        self.registers = made.n_regs
        deadline = time.monotonic() + LIMIT_S
        while int(self._begun.sum()) < self.units:
            if time.monotonic() > deadline:
                self.release()
                raise TimeoutError(f"{int(self._begun.sum())} of {self.units} programs began in {LIMIT_S} s")
        return self

    @property
    def holds(self) -> bool:
        """Whether the programs are still there."""
        return not self.ended.query()

    def release(self) -> None:
        self._release.fill_(1)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
        self._stream.synchronize()


def happened(event: torch.cuda.Event, limit_s: float) -> bool:
    """Whether the GPU reaches an event within that time."""
    deadline = time.monotonic() + limit_s
    while not event.query():
        if time.monotonic() > deadline:
            return False
    return True
