"""Where figures come from: the machine, and the versions of everything that made the code."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

import weft
from weft.errors import CompilerNotFoundError
from weft.options import Options
from weft.runtime.build import compiler_version, find_compiler
from weft.target import cpu_model


def machine(device: str) -> dict[str, Any]:
    """The processor, the threads that torch uses, and the GPU if figures are of one."""
    found: dict[str, Any] = {
        "cpu": cpu_model(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0,
        "vectors": torch.backends.cpu.get_cpu_capability(),
    }
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        found["gpu"] = properties.name
        found["gpu_memory_bytes"] = properties.total_memory
    return found


def versions(options: Options) -> dict[str, str]:
    """Of weft, torch, Python and the C++ compiler, and of Triton and the peers' packages where they are installed."""
    found = {"weft": weft.__version__, "torch": torch.__version__, "python": platform.python_version()}
    with suppress(CompilerNotFoundError):
        found["compiler"] = compiler_version(find_compiler(options)).splitlines()[0]
    for name in ("triton", "liger-kernel", "quack-kernels"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def gpu_uuid() -> str | None:
    """The first GPU's, as nvidia-smi takes it."""
    found = getattr(torch.cuda.get_device_properties(0), "uuid", None)
    return None if found is None else f"GPU-{found}"


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
