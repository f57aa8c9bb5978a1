"""Kernels that do some calls in place of the one that was planned for a program: those for one width, where rows are of
any, and those for what it has no place for. They are planned and compiled by the first such call."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Generic, Protocol, TypeVar

import torch

from weft.backends.binary import Binary, Variant
from weft.backends.listed import supports
from weft.backends.resource_usage import ResourceUsage, most_of
from weft.errors import BuildError, Refusal
from weft.options import Options
from weft.plan.exact import exact, widths_of
from weft.plan.kernel import Kernel
from weft.plan.schedules import elsewhere
from weft.plan.tuned import key_of
from weft.runtime import calibration, tuning
from weft.runtime.misses import without_miss
from weft.target import Target

_LOG = logging.getLogger(__name__)
_LIMIT = 4
"""Of schedules that are planned for calls that a kernel has no place for."""


class _Function(Protocol):
    """What is asked of ``GpuFunction``."""

    def binaries(self, variant: Variant, architecture: int) -> Mapping[str, Binary]: ...
    def check_sizes(self, parameters: Sequence[int]) -> Refusal | None: ...


F = TypeVar("F", bound=_Function)


@dataclass(frozen=True)
class Like:
    """What a call is like. architecture: compute capability of the device, e.g. 90 of 9.0."""

    device: torch.device
    architecture: int
    variant: Variant
    parameters: tuple[int, ...]


class Others(Generic[F]):
    """Those of one kernel. make: a function of a kernel. exact_widths: by width and distance of rows; None where there
    is no kernel for it. wider: under other schedules, for calls that the kernel has no place for."""

    def __init__(self, kernel: Kernel, options: Options, make: Callable[[Kernel], F]) -> None:
        self._kernel, self._options, self._make = kernel, options, make
        self._widths, self._lock = widths_of(kernel), Lock()
        self.exact_widths, self.wider, self._sought = dict[tuple[int, ...], F | None](), list[F](), 0

    def made(self) -> list[F]:
        """All of them."""
        return [*(each for each in [*self.exact_widths.values()] if each is not None), *self.wider]

    def forget(self, other: F) -> None:
        """One that cannot be built for a call, or loaded, does none from now on."""
        with self._lock:
            self.exact_widths = {width: None if each is other else each for width, each in self.exact_widths.items()}
            self.wider = [each for each in self.wider if each is not other]

    def exact(self, call: Like) -> F | None:
        """The kernel for rows as wide as those of a call, if there is one: the first widths that are met have one, but
        not of a kernel whose schedule was measured."""
        if not self._widths:
            return None
        width = tuple(n for name, n in self._sizes(call).items() if name in self._widths)
        with self._lock:
            is_new = width not in self.exact_widths and len(self.exact_widths) < self._options.exact_widths
            if is_new and not torch.cuda.is_current_stream_capturing():
                self.exact_widths[width] = None
                try:
                    self.exact_widths[width] = self._planned_exact(call)
                except Exception as error:  # the kernel itself is there
                    _LOG.warning("kernel %s: none is made for rows like %s: %s", self._kernel.name, width, error)
            return self.exact_widths.get(width)

    def elsewhere(self, call: Like) -> F | None:
        """A kernel under another schedule that has place for a call, if there is one."""
        with self._lock:
            found = next((each for each in self.wider if each.check_sizes(call.parameters) is None), None)
            if found is None and self._sought < _LIMIT and not torch.cuda.is_current_stream_capturing():
                self._sought += 1
                schedule = elsewhere(self._kernel, self._target(call), self._sizes(call))
                found = None if schedule is None else self._built(replace(self._kernel, schedule=schedule), call)
                self.wider += [] if found is None else [found]
            return found

    def _planned_exact(self, call: Like) -> F | None:
        target = self._target(call)
        if key_of(self._kernel, target) in tuning.load(self._options):
            return None
        kernel = exact(self._kernel, target, self._sizes(call))
        return None if kernel is None else self._built(kernel, call)

    def _built(self, kernel: Kernel, call: Like) -> F | None:
        """A kernel that does a call, or what takes its place if it is a miss of the model, compiled; None if it cannot
        be, or has no place for the call."""
        made, target = dict[Kernel, F](), self._target(call)

        def built(some: Kernel) -> ResourceUsage | None:
            if supports(some) is not None:
                return None
            function = self._make(some)
            if function.check_sizes(call.parameters) is not None:
                return None
            try:
                found = function.binaries(call.variant, call.architecture)
            except BuildError as error:
                _LOG.info("%s", error)
                return None
            made[some] = function
            return most_of(binary.usage for binary in found.values())

        if (used := built(kernel)) is None:
            return None
        kernel = without_miss(kernel, used, target, self._sizes(call), built)[0]
        _LOG.info("kernel %s, for calls like that of %s: %s", kernel.name, self._sizes(call), kernel.schedule)
        return made[kernel]

    def _target(self, call: Like) -> Target:
        return calibration.as_known(call.device, self._options)

    def _sizes(self, call: Like) -> dict[str, int]:
        return dict(zip(self._kernel.program.parameters, call.parameters, strict=True))
