"""How kernels of a backend are built and called; the one place where the runtime tells backends apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from weft.options import Options
from weft.plan.kernel import Backend, Kernel
from weft.render.source import Source
from weft.runtime import cpu, gpu
from weft.runtime.layout import Fitting
from weft.runtime.resource_usage import ResourceUsage


class Calls(Protocol):
    """A module of the runtime."""

    @staticmethod
    def build_all(
        kernels: Sequence[Kernel], sources: Sequence[Source], hints: Sequence[Mapping[str, int]], options: Options
    ) -> list[Any]:
        """Functions of kernels, compiled side by side. hints: for each kernel, likely values of its parameters."""
        ...

    @staticmethod
    def load_function(kernel: Kernel, source: Source, options: Options) -> Any:
        """The function of one kernel that is about to be called."""
        ...

    @staticmethod
    def usage(function: Any) -> ResourceUsage:
        """The most that any variant of a function uses, as the compiler says; nothing where nobody counts."""
        ...

    @staticmethod
    def bind(inputs: Sequence[Tensor], outputs: Sequence[Tensor], parameters: Sequence[int]) -> Any:
        """What can be worked out once for all calls with tensors like these."""
        ...

    @staticmethod
    def call(
        function: Any, fitting: Fitting, inputs: Sequence[Tensor], outputs: Sequence[Tensor], sm_margin: int
    ) -> bool:
        """Run a function on tensors that fit; False if it cannot be done now, then nothing was written."""
        ...

    @staticmethod
    def repeat(
        function: Any, fitting: Fitting, inputs: Sequence[Tensor], outputs: Sequence[Tensor], sm_margin: int
    ) -> list[int]:
        """What the launcher needs to make the same call on tensors like these; nothing if it cannot."""
        ...


_CALLS: dict[Backend, Calls] = {"cpp": cpu, "triton": gpu}


def calls_of(kernel: Kernel) -> Calls:
    return _CALLS[kernel.schedule.backend]
