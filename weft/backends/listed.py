"""The list of backends. Nothing else outside their folders names one."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.backends.backend import Backend, Calls
    from weft.backends.source import Source
    from weft.errors import Refusal
    from weft.plan.kernel import Kernel
    from weft.target import Target

BACKENDS = {name: f"weft.backends.{name}.backend" for name in ("cpp", "triton", "cuda")}
"""Modules by name, each with a ``BACKEND``."""


@cache
def _backend_in(module: str) -> Backend:
    """That of a module, which is imported when it is first asked for."""
    return import_module(module).BACKEND


def backend_named(name: str) -> Backend:
    """One of ``BACKENDS``."""
    return _backend_in(BACKENDS[name])


def backends() -> tuple[Backend, ...]:
    """All of them."""
    return tuple(map(_backend_in, BACKENDS.values()))


def backends_of(kind: str) -> tuple[Backend, ...]:
    """Those that plan kernels for a kind of target."""
    return tuple(backend for backend in backends() if backend.kind == kind)


def backends_on(device: str) -> tuple[Backend, ...]:
    """Those whose kernels run on a type of device."""
    return tuple(backend for backend in backends() if backend.device == device)


def calls_on(device: str) -> tuple[Calls, ...]:
    """How kernels are built and called on a type of device: backends of one have that in common."""
    return tuple(dict.fromkeys(backend.calls for backend in backends_on(device)))


def backend_of(kernel: Kernel) -> Backend:
    """That of its schedule."""
    return backend_named(kernel.schedule.backend)


def render(kernel: Kernel) -> Source:
    """The text of a kernel that its backend supports."""
    return backend_of(kernel).render(kernel)


def supports(kernel: Kernel, target: Target | None = None) -> Refusal | None:
    """Why the backend of a kernel cannot write it, or cannot write it for a target."""
    return backend_of(kernel).supports(kernel, target)


def device_of(kernel: Kernel) -> str:
    """The type of the device that a kernel runs on."""
    return backend_of(kernel).device


def devices() -> tuple[str, ...]:
    """Types of devices that kernels can be written for, and compiled as far as packages are concerned."""
    return tuple(dict.fromkeys(b.device for b in backends() if b.serves_all and not b.missing()))


def missing_for(device: str) -> str:
    """The package that kernels for a type of device need and that is not installed; empty if nothing is missing."""
    found = (b.missing() for b in backends_on(device) if b.serves_all)
    return next(filter(None, found), "")


def missing_beside(device: str) -> str:
    """The package without which some kernels for a type of device are not there, and others take their place."""
    found = (b.missing() for b in backends_on(device) if not b.serves_all)
    return next(filter(None, found), "")
