"""What weft did in this process, countable and resettable."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from threading import Lock
from typing import Any


@dataclass
class Counters:
    """pass_calls: graphs handed to weft. regions, kernels, mixed_order_kernels: taken at compile time. refusals: by
    rule. builds, cache_hits: compiled kernels. launches: kernel calls at run time; launch_bytes: bytes of the tensors
    handed to them, each tensor once a call. fallbacks: calls that ran on ATen instead."""

    pass_calls: int = 0
    regions: int = 0
    kernels: int = 0
    mixed_order_kernels: int = 0
    builds: int = 0
    cache_hits: int = 0
    launches: int = 0
    launch_bytes: int = 0
    fallbacks: int = 0
    refusals: Counter[str] = field(default_factory=Counter[str])
    _lock: Lock = field(default_factory=Lock, repr=False, compare=False)

    def add(self, **amounts: int) -> None:
        with self._lock:
            for name, amount in amounts.items():
                setattr(self, name, getattr(self, name) + amount)

    def count_launch(self, launch_bytes: int) -> None:
        """One kernel call that was handed so many bytes."""
        with self._lock:
            self.launches += 1
            self.launch_bytes += launch_bytes

    def reset(self) -> None:
        """All counters to zero."""
        with self._lock:
            for name in self.to_dict():
                if name == "refusals":
                    self.refusals.clear()
                else:
                    setattr(self, name, 0)

    def to_dict(self) -> dict[str, Any]:
        found = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return found | {"refusals": dict(self.refusals)}


counters = Counters()
