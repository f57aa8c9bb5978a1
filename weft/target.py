"""Targets as data: a plan for an H200 can be made and read on a laptop."""

from __future__ import annotations

import json
import platform
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import torch


@dataclass(frozen=True)
class Target:
    """A machine to plan for.

    bandwidth_gbps: attainable copy bandwidth in 10^9 bytes a second. launch_us: host and device time of one more
    launch. vector_op_us_per_mega: time of 2^20 float32 vector adds on data in cache. row_overhead_us: time of one loop
    over the columns of a row beyond its elements. chunk_overhead_us: time of a chunk of rows beyond its rows.
    strided_us_per_mega: extra time of 2^20 element accesses that are not contiguous. registers, shared_bytes: per SM; 0
    on a CPU. cache_bytes: of a core's own cache, of a GPU's level-two cache. resident_bytes: tensors that together are
    larger come from memory, and are read faster one stream at a time than several; 0 where that makes no difference.
    architecture: of NVIDIA's GPUs, as 90 of sm_90; 0 of others. measured: whether the figures come from a measurement;
    origin: from which. exclusive: whether nobody else's kernels keep a GPU's multiprocessors for long, so that programs
    of a kernel may wait for each other. device: the model of the machine at hand, empty for one that is only planned
    for; it says what measurements are of and decides nothing else.
    """

    name: str
    kind: Literal["cpu", "gpu"]
    units: int
    lanes: int
    bandwidth_gbps: float
    launch_us: float
    vector_op_us_per_mega: float
    row_overhead_us: float
    chunk_overhead_us: float
    strided_us_per_mega: float
    registers: int
    shared_bytes: int
    cache_bytes: int
    resident_bytes: int
    architecture: int
    measured: bool
    origin: str
    exclusive: bool = True
    device: str = field(default="", compare=False)

    @staticmethod
    def named(name: str) -> Target:
        """``cpu``, ``cpu_amd``, ``h100``, ``h200`` or ``gb200``. Raises ValueError with the known names."""
        table = _table()
        if name not in table:
            raise ValueError(f"no target named {name!r}; known: {', '.join(sorted(table))}")
        return Target(**table[name])

    @staticmethod
    def current(device: str | torch.device = "cpu") -> Target:
        """The machine at hand. Raises ValueError for a device there are no figures for."""
        device = torch.device(device)
        if device.type == "cpu":
            return replace(Target.named(_BY_VENDOR.get(vendor(), "cpu")), device=cpu_model())
        if device.type == "cuda":
            model = torch.cuda.get_device_name(device)
            for part, name in _BY_MODEL.items():
                if part in model.lower():
                    return replace(Target.named(name), device=model)
        raise ValueError(f"no figures for {device}; plan for one of {', '.join(sorted(_table()))}")


_BY_VENDOR = {"AuthenticAMD": "cpu_amd"}
_BY_MODEL = {"b200": "gb200", "h200": "h200", "h100": "h100"}
"""Names of targets by what a GPU's name has in it: a B200 is one of the two of a GB200."""
TARGETS = ("cpu", "cpu_amd", "h100", "h200", "gb200")
"""Names of all targets."""


def vendor() -> str:
    """Who made the CPU, as Linux says it; empty where it does not."""
    return cpu_fact("vendor_id")


def cpu_model() -> str:
    """As Linux calls it; where it does not, what Python knows of it."""
    return cpu_fact("model name") or platform.processor() or platform.machine()


@cache
def cpu_fact(name: str) -> str:
    """What Linux says of the first CPU under that name, e.g. ``model name``; empty where it says nothing."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(name):
                return line.partition(":")[2].strip()
    return ""


@cache
def _table() -> dict[str, dict[str, Any]]:
    folder = resources.files("weft.plan") / "calibration"
    found: dict[str, dict[str, Any]] = {}
    for entry in folder.iterdir():
        if entry.name.endswith(".json"):
            data = json.loads(entry.read_text())
            found[data["name"]] = data
    return found
