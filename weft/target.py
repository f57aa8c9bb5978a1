"""Targets as data: a plan for an H200 can be made and read on a laptop."""

from __future__ import annotations

import json
import platform
import re
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import torch

from weft.hashing import hash_once


@hash_once
@dataclass(frozen=True)
class Target:
    """A machine to plan for.

    bandwidth_gbps: attainable copy bandwidth in 10^9 bytes a second. launch_us: host and device time of one more
    launch. vector_op_us_per_mega: time of 2^20 float32 vector adds on data in cache. row_overhead_us: time of one loop
    over the columns of a row beyond its elements. chunk_overhead_us: time of a chunk of rows beyond its rows.
    strided_us_per_mega: extra time of 2^20 element accesses that are not contiguous. registers, shared_bytes: per SM; 0
    on a CPU. cache_bytes: of a core's own cache, of a GPU's level-two cache. resident_bytes: tensors that together are
    larger come from memory, and are read faster one stream at a time than several; 0 where that makes no difference.
    architecture: of NVIDIA's GPUs, as 90 of sm_90; 0 of others. most_warps, most_programs: that a multiprocessor holds
    at a time. instruction_ratio: time of instructions, and of threads that wait for each other, in those of the GPU
    that constants of schedules were fitted on; start_ratio: of starts, and of waiting for memory or for other programs.
    measured: whether the figures come from a measurement; origin: from which. exclusive: whether nobody else's kernels
    keep a GPU's multiprocessors for long, so that programs of a kernel may wait for each other. device: the model of
    the machine at hand, empty for one that is only planned for; it says what measurements are of and decides nothing
    else.
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
    most_warps: int
    most_programs: int
    instruction_ratio: float
    start_ratio: float
    measured: bool
    origin: str
    exclusive: bool = True
    device: str = field(default="", compare=False)

    @staticmethod
    def named(name: str) -> Target:
        """One of ``TARGETS``. Raises ValueError with the known names."""
        table = _table()
        if name not in table:
            raise ValueError(f"no target named {name!r}; known: {', '.join(sorted(table))}")
        return table[name]

    @staticmethod
    def current(device: str | torch.device = "cpu") -> Target:
        """The machine at hand, as far as it is known without a measurement. Raises ValueError for a device that weft
        has no kernels for."""
        device = torch.device(device)
        if device.type == "cpu":
            return replace(Target.named(_BY_VENDOR.get(vendor(), "cpu")), device=cpu_model())
        if device.type == "cuda" and torch.version.hip:
            raise ValueError(f"{torch.cuda.get_device_name(device)} is by AMD; weft has kernels for NVIDIA's GPUs only")
        if device.type == "cuda":
            return of_properties(torch.cuda.get_device_properties(device))
        raise ValueError(f"no figures for {device}; plan for one of {', '.join(sorted(_table()))}")


@dataclass(frozen=True)
class Found:
    """What was measured of a GPU. bandwidth_gbps: of a copy. instruction_ratio, start_ratio: see ``Target``. error:
    the typical factor between predicted and measured times of kernels, with these; kernels: how many there
    were."""

    bandwidth_gbps: float
    instruction_ratio: float
    start_ratio: float
    error: float
    kernels: int


TARGETS = (
    *("cpu", "cpu_amd"),
    *("a100", "rtx3090", "l40s", "rtx4090", "h100", "h200", "b200", "gb200", "rtx5090"),
)
"""Names of all targets."""
LEAST_ARCHITECTURE = 80
"""Of GPUs that weft has kernels for: what is copied into shared memory ahead of use came with it."""
_BY_VENDOR = {"AuthenticAMD": "cpu_amd"}
_CLOCK_GHZ = 1.98
"""Of the GPU that constants of schedules were fitted on, an H200."""
_ATTAINED = 0.87
"""Of the peak bandwidth that a copy has on that GPU."""
_SAME = 0.1
"""By what part of it the bandwidth of a GPU may differ from that of the model: an H100 NVL has 16 % more than others of
as many multiprocessors."""


def of_properties(found: Any, trusted: bool = True) -> Target:
    """A GPU by what PyTorch says of it (``torch.cuda.get_device_properties``): limits are its own; what is not said is
    that of the named target with the same name or the nearest architecture. One whose figures were measured is taken as
    it is, unless a part of it is all there is, it has other memory, or they are not trusted. Raises ValueError below
    compute capability 8.0."""
    architecture = 10 * found.major + found.minor
    if architecture < LEAST_ARCHITECTURE:
        raise ValueError(f"{found.name} has compute capability {found.major}.{found.minor}; weft's kernels need 8.0")
    words = re.findall(r"[a-z0-9]+", found.name.lower())
    phrase = "".join(words)
    gpus = [target for target in _table().values() if target.kind == "gpu"]
    named = next((t for t in gpus if t.name in words or (t.name.startswith("rtx") and t.name in phrase)), None)
    near = named or max((t for t in gpus if t.architecture <= architecture), key=lambda t: (t.architecture, t.measured))
    clock_khz, memory_khz, bus_bits = (
        getattr(found, name, 0)  # newer releases of PyTorch have them, and drivers may say zero
        for name in ("clock_rate", "memory_clock_rate", "memory_bus_width")
    )
    peak_gbps = 2 * memory_khz * bus_bits / 8 / 1e6
    if trusted and named is not None and named.measured and named.units == found.multi_processor_count:
        ratio = _ATTAINED * peak_gbps / named.bandwidth_gbps
        if not ratio or abs(ratio - 1) < _SAME:
            return replace(named, device=found.name)
    bandwidth_gbps = _ATTAINED * peak_gbps or near.bandwidth_gbps * found.multi_processor_count / near.units
    return replace(
        near,
        name="_".join(words) if named is None else named.name,
        units=found.multi_processor_count,
        bandwidth_gbps=bandwidth_gbps,
        registers=found.regs_per_multiprocessor,
        shared_bytes=found.shared_memory_per_block_optin,
        cache_bytes=found.L2_cache_size,
        architecture=architecture,
        most_warps=found.max_threads_per_multi_processor // found.warp_size,
        instruction_ratio=_CLOCK_GHZ * 1e6 / clock_khz if clock_khz else near.instruction_ratio,
        measured=False,
        origin="unmeasured: what the driver says of the device",
        device=found.name,
    )


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
def _table() -> dict[str, Target]:
    folder = resources.files("weft.plan") / "calibration"
    return {name: Target(**json.loads((folder / f"{name}.json").read_text())) for name in TARGETS}
