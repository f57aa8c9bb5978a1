"""What writes the text of kernels, by the backend that their schedule names, and the device such kernels run on."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from weft.errors import Refusal
from weft.plan.kernel import Backend, Kernel
from weft.render.source import Source
from weft.target import Target


@dataclass(frozen=True)
class Renderer:
    """module: has ``supports(kernel)`` and ``render(kernel)``. device: a device type of torch. needs: a package without
    which the text cannot be compiled."""

    module: str
    device: str
    needs: str = ""


RENDERERS: dict[Backend, Renderer] = {
    "cpp": Renderer("weft.render.cpp", "cpu"),
    "triton": Renderer("weft.render.triton", "cuda", needs="triton"),
}


def render(kernel: Kernel) -> Source:
    """The text of a kernel that its backend supports."""
    return _module(kernel.schedule.backend).render(kernel)


def supports(kernel: Kernel, target: Target | None = None) -> Refusal | None:
    """Why the backend of a kernel cannot write it, or cannot write it for a target."""
    module = _module(kernel.schedule.backend)
    if (refusal := module.supports(kernel)) is not None or target is None or target.kind == "cpu":
        return refusal
    return module.check_architecture(kernel, target.architecture)


def device_of(kernel: Kernel) -> str:
    """The type of the device that a kernel runs on."""
    return RENDERERS[kernel.schedule.backend].device


def devices() -> tuple[str, ...]:
    """Types of devices that kernels can be written for, and compiled as far as packages are concerned."""
    found = [r for r in RENDERERS.values() if find_spec(r.module) and (not r.needs or find_spec(r.needs))]
    return tuple(r.device for r in found)


def missing_for(device: str) -> str:
    """The package that kernels for a type of device need and that is not installed; empty if nothing is missing."""
    return next((r.needs for r in RENDERERS.values() if r.device == device and r.needs and not find_spec(r.needs)), "")


def _module(backend: Backend) -> Any:
    return import_module(RENDERERS[backend].module)
