"""Which machine a region is planned for, and whether kernels for it run where its tensors are."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from weft.backends.listed import backends_of, device_of, devices, missing_for
from weft.capture.regions import Region
from weft.errors import BuildError, Refusal, warn_once
from weft.options import Options
from weft.plan.kernel import Plan
from weft.runtime import calibration
from weft.target import Target


@dataclass(frozen=True)
class Machines:
    """What regions of a graph are planned for: target, or else the machine at hand."""

    target: Target | None
    options: Options

    def of(self, region: Region) -> Target | Refusal:
        return self.target or target_of(region.outputs[0].meta["val"].device, region.program.name, self.options)


def target_of(device: torch.device, subject: str, options: Options | None = None) -> Target | Refusal:
    """The machine at hand, or why nothing is planned for it; of a GPU that is said once. A GPU of a model that there
    are no figures of is measured when it is first asked for."""
    if device.type not in devices():
        return _no_backend(subject, device.type)
    try:
        return calibration.at_hand(device, options or Options.read())
    except (ValueError, BuildError) as error:
        message = " ".join(str(error).split())
        warn_once(f"weft: the model is left to TorchInductor: {message}")
        return Refusal("no_backend", subject, message, torch.cuda.get_device_name(device), "NVIDIA GPUs from 8.0")


def check_device(planned: Plan, machine: Target) -> Refusal | None:
    """Kernels run on another kind of device than their plan is for: there is no backend for that one."""
    wanted = {backend.device for backend in backends_of(machine.kind)}
    if all(device_of(kernel) in wanted for kernel in planned.kernels):
        return None
    return _no_backend(planned.kernels[0].name, *wanted)


def _no_backend(subject: str, device: str) -> Refusal:
    usable = [known for known in devices() if known != device]
    missing = missing_for(device)
    message = f"{missing}, which kernels for {device} need, is not installed" if missing else f"no backend for {device}"
    return Refusal("no_backend", subject, message, device, " or ".join(usable))
