"""What a code generator is to the rest of weft."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from weft.lowering.lower import Lowering
from weft.plan.kernel import Resources

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from weft.backends.abi import Abi
    from weft.backends.binary import Binary, Job
    from weft.backends.resource_usage import ResourceUsage
    from weft.backends.source import Source
    from weft.errors import Refusal
    from weft.lowering.nest import Nest
    from weft.options import Options
    from weft.plan.kernel import Estimate, Kernel
    from weft.plan.schedule import Schedule
    from weft.plan.split import Split
    from weft.runtime.layout import Fitting
    from weft.target import Found, Target


class Backend(ABC):
    """A code generator. What a method does by default is right where nobody counts what kernels use.

    kind: of the targets that it writes kernels for. device: the type of torch's devices that these run on. needs: a
    package without which their text cannot be compiled, if there is one. compares_parts: whether its times were fitted
    to kernels of parts of a pass as well, so that a pass is cut where that is predicted to be faster. serves_all:
    whether it has a kernel for whatever is planned; others stand beside one that has. Times are in microseconds.
    """

    name: ClassVar[str]
    kind: ClassVar[Literal["cpu", "gpu"]]
    device: ClassVar[str]
    needs: ClassVar[str] = ""
    compares_parts: ClassVar[bool] = False
    serves_all: ClassVar[bool] = True

    @abstractmethod
    def parse(self, text: str) -> Schedule | None:
        """The schedule of this backend that prints as ``text``, if one does."""

    def missing(self) -> str:
        """The package that is to be installed before its kernels can be compiled; empty if nothing is missing."""
        return self.needs if self.needs and not find_spec(self.needs) else ""

    # plan

    def check_row(self, part: Split) -> Refusal | None:
        """A row and all of its column sums have to fit a program, under some schedule."""
        return None

    def check_fits(self, part: Split, slack: float = 1.0) -> Refusal | None:
        """What a thread has at a time has to fit its registers under the schedule that a kernel would have. slack: by
        how much it may exceed them."""
        return None

    @abstractmethod
    def choose(self, part: Split) -> Schedule | None:
        """The schedule with the shortest predicted time; None if this backend has no kernel for it: some other one of
        the target has."""

    def candidates(self, kernel: Kernel, target: Target, hints: Mapping[str, int]) -> Iterable[Schedule]:
        """Schedules that the kernel of a split can have, the likeliest first: those that tuning measures, and a stored
        schedule must be one of."""
        return ()

    def resources(self, kernel: Kernel, target: Target) -> Resources:
        """What a kernel is predicted to hold."""
        return Resources(None, None, None, "model")

    @abstractmethod
    def timed(self, kernel: Kernel, counts: Estimate, target: Target, hints: Mapping[str, int], warm: bool) -> Estimate:
        """The estimate of a kernel with its times. counts: bytes, workspace and launches. warm: whether caches have
        what it reads."""

    def optimism(self, part: Split, schedule: Schedule) -> float:
        """By how much longer than predicted the schedule that is chosen takes, as what is chosen is the least of many
        predictions."""
        return 1.0

    def ideal(self, kernel: Kernel, plain: Estimate, target: Target, splits_sums: bool) -> Estimate:
        """As a well-made kernel does the same work. plain: the kernel's own estimate. splits_sums: whether several
        chunks of rows add to a column sum, so that one more start adds them up."""
        again = target.launch_us if splits_sums and self.kind == "gpu" else 0.0
        return replace(plain, start_us=plain.start_us + again, predicted_us=plain.predicted_us + again)

    @abstractmethod
    def least_us(self, moved: int, target: Target) -> float:
        """What no kernel that moves so many bytes is predicted to undercut, under any schedule."""

    def loads_apart(self, kernel: Kernel) -> bool:
        """Whether each element is loaded by the thread that computes what becomes of it, and by no other: an output may
        lie where an input lies then."""
        return True

    @property
    def fitted(self) -> tuple[str, str]:
        """The machine that constants of the model of time were fitted on, and these, as text."""
        return "", ""

    def measure(self, target: Target, device: torch.device, options: Options) -> Found:
        """Time copies and a few kernels on a device that there are no constants of. target: what is known of it. Raises
        BuildError if kernels cannot be compiled for it, and what PyTorch raises without memory for that."""
        raise NotImplementedError(f"{self.name} has no constants to measure")

    # what was compiled

    @property
    def compiler(self) -> str:
        """What decides what a kernel uses, and its release; empty if nobody says what it uses."""
        return ""

    def is_missed(self, kernel: Kernel, used: ResourceUsage, target: Target) -> bool:
        """Whether a compiled kernel is not what was planned. used: by it, as its compiler says."""
        return False

    def runner_up(
        self, kernel: Kernel, target: Target, hints: Mapping[str, int], registers: int, tried: Sequence[Schedule]
    ) -> Schedule | None:
        """What to take in place of a schedule whose kernel was missed, if there is anything. registers: of a thread, 0
        if it spills. tried: what is not to be taken either."""
        return None

    def us_with(self, part: Split, schedule: Schedule, registers: int) -> float:
        """Predicted time under a schedule of a kernel whose threads were given so many registers."""
        raise NotImplementedError(f"{self.name} has no kernels that are missed")

    # text

    def supports(self, kernel: Kernel, target: Target | None = None) -> Refusal | None:
        """Why this backend cannot write a kernel, or cannot write it for a target."""
        return None

    def lower(self, kernel: Kernel) -> tuple[Nest, ...]:
        """What a kernel that it supports does, function by function; as it stands, one program does everything."""
        return (Lowering(kernel).nest(),)

    @abstractmethod
    def render(self, kernel: Kernel) -> Source:
        """The text of a kernel that it supports."""

    # binaries, of backends for GPUs

    def abi(self, kernel: Kernel) -> Abi:
        """How the functions of a kernel are called."""
        raise NotImplementedError(f"{self.name} has no binaries")

    def check_sizes(self, kernel: Kernel, sizes: Mapping[str, int]) -> Refusal | None:
        """A launch can have what these sizes ask for. sizes: of dimensions and parameters, by name."""
        return None

    def settle(self) -> None:
        """Settle, before compile processes are started, what its compiler looks at in them."""
        return None

    def key(self, job: Job) -> str:
        """Everything that binaries depend on."""
        raise NotImplementedError(f"{self.name} has no binaries")

    def compile(self, job: Job) -> Sequence[Binary]:
        """The functions of a source, in the order of the launches of its ``Abi``; no GPU is needed. Raises
        BuildError with what the compiler says."""
        raise NotImplementedError(f"{self.name} has no binaries")

    @property
    @abstractmethod
    def calls(self) -> Calls:
        """How kernels are built and called on its device: for all backends of GPUs ``weft.runtime.gpu.calls``."""


class Calls(Protocol):
    """How kernels are built and called on a device: a module."""

    @staticmethod
    def build_all(
        kernels: Sequence[Kernel], sources: Sequence[Source], hints: Sequence[Mapping[str, int]], options: Options
    ) -> list[Any]:
        """Functions of kernels, compiled side by side. hints: for each kernel, likely values of its parameters."""
        ...

    @staticmethod
    def begin(
        kernels: Sequence[Kernel],
        sources: Sequence[Source],
        hints: Sequence[Mapping[str, int]],
        options: Options,
        planned: Target | None,
    ) -> None:
        """Have other processes, if there are any, begin with what ``build_all`` will be asked for. planned: what the
        kernels are planned for, if others may take their place."""
        ...

    @staticmethod
    def around_workers() -> AbstractContextManager[None]:
        """While compile processes are started: before, what they look at is settled, and then what takes long and
        depends on no graph is begun with."""
        ...

    @staticmethod
    def expect(options: Options) -> None:
        """Begin with what kernels of a graph will need that is about to be planned."""
        ...

    @staticmethod
    def compile(kernel: Kernel, source: Source, hints: Mapping[str, int], architecture: int, options: Options) -> None:
        """Compile for a device's architecture, without a device, into the cache."""
        ...

    @staticmethod
    def begins(options: Options) -> bool:
        """Whether other processes begin with what they are told of."""
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
