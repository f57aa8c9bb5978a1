"""GPUs that are not there: what PyTorch says of their properties."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

_SMALL = {"shared_memory_per_block_optin": 101376, "max_threads_per_multi_processor": 1536}
NAMES: dict[str, dict[str, Any]] = {
    "NVIDIA H200": {"capability": (9, 0), "units": 132, "memory": (3201000, 6144), "L2_cache_size": 62914560},
    "NVIDIA H200 MIG 1g.18gb": {"capability": (9, 0), "units": 16},
    "NVIDIA H100 80GB HBM3": {"capability": (9, 0), "units": 132},
    "NVIDIA H100 NVL": {"capability": (9, 0), "units": 132, "memory": (2619000, 6144)},
    "NVIDIA H100 PCIe": {"capability": (9, 0), "units": 114, "memory": (1593000, 5120)},
    "NVIDIA A100-SXM4-40GB": {"capability": (8, 0), "units": 108, "memory": (1215000, 5120)},
    "NVIDIA L4": {"capability": (8, 9), "units": 58, "memory": (6251000, 192), "clock_rate": 2040000, **_SMALL},
    "NVIDIA GeForce RTX 4090 Laptop GPU": {"capability": (8, 9), "units": 76, "memory": (9001000, 256), **_SMALL},
    "NVIDIA B200": {"capability": (10, 0), "units": 148},
    "NVIDIA GB200": {"capability": (10, 0), "units": 152},
    "NVIDIA B300 SXM6 AC": {"capability": (10, 3), "units": 148},
    "Tesla T4": {"capability": (7, 5), "units": 40},
}
"""By name, where they differ from an H100. memory: clock in kHz, and bits of its bus."""
_LIMITS = {"regs_per_multiprocessor": 65536, "shared_memory_per_block_optin": 232448, "warp_size": 32}
_MEMORY = {"memory": (2619000, 5120), "clock_rate": 1980000, "L2_cache_size": 52428800}


def properties(name: str, **changes: Any) -> Any:
    """As ``torch.cuda.get_device_properties`` has them."""
    found: dict[str, Any] = {**_LIMITS, "max_threads_per_multi_processor": 2048, **_MEMORY, **NAMES[name], **changes}
    found["major"], found["minor"] = found.pop("capability")
    found["memory_clock_rate"], found["memory_bus_width"] = found.pop("memory")
    return SimpleNamespace(name=name, multi_processor_count=found.pop("units"), **found)


def plug_in(patch: pytest.MonkeyPatch, name: str, **changes: Any) -> None:
    """Let a GPU be the one at hand."""
    found = properties(name, **changes)
    patch.setattr(torch.cuda, "is_available", lambda: True)
    patch.setattr(torch.cuda, "is_initialized", lambda: True)
    patch.setattr(torch.cuda, "device_count", lambda: 1)
    patch.setattr(torch.cuda, "current_device", lambda: 0)
    patch.setattr(torch.cuda, "get_device_name", lambda *_: name)
    patch.setattr(torch.cuda, "get_device_properties", lambda *_: found)
