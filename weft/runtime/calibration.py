"""The GPU at hand: what is known of its model, or what was measured on it, which is kept in weft's cache, in JSON.

A GPU that no constants were fitted on is measured once, when it is first planned for; ``weft calibrate`` repeats that.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import torch

from weft.backends.backend import Backend
from weft.backends.listed import backends_of
from weft.errors import BuildError
from weft.options import Options
from weft.runtime.cache import Cache
from weft.target import Found, Target

_LOG = logging.getLogger(__name__)
FORMAT = 1
"""Of the file; part of its key."""
_KIND = "calibration"
_FAILED: dict[str, RuntimeError] = {}
"""Why a GPU could not be measured, by key: it is not tried again in this process."""


@dataclass(frozen=True)
class Calibration:
    """found: what was measured of a device, by its name, on a date."""

    device: str
    date: str
    found: Found

    def __str__(self) -> str:
        """One line for whoever asks."""
        own, machine = self.found, _backend().fitted[0].upper()
        return (
            f"copies at {own.bandwidth_gbps:.0f} GB/s, instructions {own.instruction_ratio:.2f} and starts "
            f"{own.start_ratio:.2f} times those of an {machine}; {own.kernels} kernels predicted within a "
            f"factor of {own.error:.2f}, measured {self.date}"
        )


def at_hand(device: torch.device, options: Options) -> Target:
    """The machine that a device is, as far as it is known; a GPU of a model without fitted constants is measured now if
    it never was. Raises ValueError for a device that weft has no kernels for, and BuildError for a GPU that Triton
    cannot compile for."""
    known = as_known(device, options)
    if known.kind == "cpu" or known.measured:
        return known
    found = _measured_once(Target.current(device), device, options)
    return known if found is None else applied(known, found)


def as_known(device: torch.device, options: Options) -> Target:
    """The same, but nothing is measured. Raises ValueError."""
    known = Target.current(device)
    if known.kind == "cpu":
        return known
    found, known = kept(known, options), replace(known, exclusive=not is_distributed())
    return known if found is None else applied(known, found)


def is_distributed() -> bool:
    """Whether kernels that communicate may run beside ours: waiting for such a kernel would wait for another rank."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def applied(known: Target, found: Calibration) -> Target:
    """A GPU with what was measured of it."""
    own = found.found
    ratios = {"instruction_ratio": own.instruction_ratio, "start_ratio": own.start_ratio}
    return replace(known, bandwidth_gbps=own.bandwidth_gbps, measured=True, origin=f"calibrated: {found}", **ratios)


def kept(known: Target, options: Options) -> Calibration | None:
    """What was measured of a GPU like this before."""
    return _read(_cache(options).find(_key(known)))


def measure_again(device: torch.device, options: Options) -> tuple[Calibration, str | None]:
    """Measure a GPU and keep that in place of what there is; and why it cannot be kept, if so. Raises what ``at_hand``
    and ``Backend.measure`` raise."""
    known = Target.current(device)
    found = _measure(known, device, options)
    _FAILED.pop(_key(known), None)
    return found, _cache(options).change(_key(known), _KIND, known.name, lambda _: _written(found))


def digest(options: Options) -> str:
    """Of what was measured of the current GPU; empty if that is nothing. Part of the keys of graphs in Inductor's
    cache."""
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return ""
    try:
        content = _cache(options).find(_key(Target.current("cuda")))
    except ValueError:
        return ""
    return "" if content is None else hashlib.sha256(content).hexdigest()


def _measured_once(known: Target, device: torch.device, options: Options) -> Calibration | None:
    """By the first process that asks: others wait for it. None if there is no memory for it, which is said."""
    key = _key(known)
    if key not in _FAILED:
        _LOG.info("measuring %s, which there are no fitted constants for", known.device)
        try:
            made = _cache(options).get(key, _KIND, known.name, lambda: _written(_measure(known, device, options)))
            return _read(made.content)
        except RuntimeError as error:
            _FAILED[key] = error
            if not isinstance(error, BuildError):
                _LOG.warning("%s could not be measured, and is planned for as it says it is: %s", known.device, error)
    if isinstance(_FAILED[key], BuildError):
        raise _FAILED[key]
    return None


def _measure(known: Target, device: torch.device, options: Options) -> Calibration:
    found = _backend().measure(known, device, options)
    return Calibration(known.device, datetime.now(UTC).date().isoformat(), found)


def _written(found: Calibration) -> bytes:
    return (json.dumps(asdict(found), indent=1) + "\n").encode()


@lru_cache(maxsize=4)
def _read(content: bytes | None) -> Calibration | None:
    """Nothing, if that is what there is, or what another release wrote."""
    if content is None:
        return None
    try:
        data: dict[str, Any] = json.loads(content)
        return Calibration(data["device"], data["date"], Found(**data["found"]))
    except (ValueError, KeyError, TypeError) as error:
        _LOG.warning("what was measured of the GPU cannot be read, and is not used: %s", error)
        return None


def _cache(options: Options) -> Cache:
    return Cache(options.cache_dir, options.cache_bytes)


@lru_cache(maxsize=16)
def _key(known: Target) -> str:
    """Of a model of GPU, with what its ratios are of."""
    return hashlib.sha256(f"{_KIND} {FORMAT} {asdict(known)} {_backend().fitted[1]}".encode()).hexdigest()[:32]


def _backend() -> Backend:
    """That whose constants a GPU's ratios are of."""
    return backends_of("gpu")[0]
