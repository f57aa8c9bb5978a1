"""What weft did in this process, countable and resettable."""

from __future__ import annotations

import ctypes
from collections import Counter
from dataclasses import dataclass, field
from threading import Lock
from typing import Any


@dataclass(repr=False)
class Counters:
    """pass_calls: graphs handed to weft. regions, kernels, mixed_order_kernels: taken at compile time. model_misses:
    kernels for which the compiler reported spills that the model of resources did not foresee, so that the runner-up
    schedule stepped in; 0 on CPUs, where no compiler reports them. builds, cache_hits: compiled kernels. launches:
    kernel calls at run time; launch_bytes: bytes of the tensors handed to them, each tensor once a call. fallbacks:
    calls that ran on ATen instead. refusals: operations and regions left to TorchInductor, by rule. cuts: fusions
    refused inside the regions that were taken, by rule; a region with one is several kernels. mixed_order_refused:
    those of them that would have made a mixed-order kernel."""

    pass_calls: int = 0
    regions: int = 0
    kernels: int = 0
    mixed_order_kernels: int = 0
    model_misses: int = 0
    builds: int = 0
    cache_hits: int = 0
    fallbacks: int = 0
    refusals: Counter[str] = field(default_factory=Counter[str])
    cuts: Counter[str] = field(default_factory=Counter[str])
    launched_without_python: Any = field(default_factory=lambda: (ctypes.c_int64 * 2)(), compare=False)
    """Launches and their bytes, counted by the launcher in C++."""
    _launched: list[int] = field(default_factory=lambda: [0, 0])
    _lock: Lock = field(default_factory=Lock, compare=False)

    def __repr__(self) -> str:
        return f"Counters({self.to_dict()})"

    @property
    def launches(self) -> int:
        return self._launched[0] + self.launched_without_python[0]

    @property
    def launch_bytes(self) -> int:
        return self._launched[1] + self.launched_without_python[1]

    @property
    def mixed_order_refused(self) -> int:
        return sum(self.cuts[rule] for rule in MIXED_ORDER)

    def add(self, **amounts: int) -> None:
        """Add to counters other than those of launches."""
        with self._lock:
            for name, amount in amounts.items():
                setattr(self, name, getattr(self, name) + amount)

    def count_launch(self, launch_bytes: int) -> None:
        """One kernel call from Python that was handed so many bytes."""
        with self._lock:
            self._launched[0] += 1
            self._launched[1] += launch_bytes

    def reset(self) -> None:
        """All counters to zero."""
        with self._lock:
            for name in _PLAIN:
                setattr(self, name, 0)
            self.refusals.clear()
            self.cuts.clear()
            for counts in (self._launched, self.launched_without_python):
                counts[0] = counts[1] = 0

    def to_dict(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in _PLAIN}
        launched = {"launches": self.launches, "launch_bytes": self.launch_bytes}
        launched["mixed_order_refused"] = self.mixed_order_refused
        return plain | launched | {"refusals": dict(self.refusals), "cuts": dict(self.cuts)}


_PLAIN = (
    "pass_calls", "regions", "kernels", "mixed_order_kernels", "model_misses", "builds", "cache_hits", "fallbacks",
)  # fmt: skip

MIXED_ORDER = ("row_registers", "max_reads", "mix_order", "apart")
"""Rules by which rows and columns do not share a kernel."""

counters = Counters()
