"""The backend of CUDA C++ kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from weft.backends.abi import Abi
from weft.backends.backend import Backend, Calls
from weft.backends.binary import Binary, Job
from weft.backends.cuda import choice, cost, launches, legality, text
from weft.backends.cuda.inputs import in_one_pass
from weft.backends.cuda.schedule import CudaSchedule
from weft.backends.cuda.view import View
from weft.backends.resource_usage import ResourceUsage
from weft.backends.source import Source
from weft.errors import Refusal
from weft.lowering.nest import Nest
from weft.plan.kernel import Estimate, Kernel, Resources
from weft.plan.schedule import Schedule
from weft.plan.split import Split
from weft.target import Target


class CudaBackend(Backend):
    """Copies that run ahead, rows that clusters share. Time is that of a model that was fitted to sweeps."""

    name, kind, device, compares_parts, serves_all = "cuda", "gpu", "cuda", True, False

    def missing(self) -> str:
        from weft.backends.cuda import build

        return build.missing()

    def parse(self, text: str) -> CudaSchedule | None:
        found = CudaSchedule.parse(text)
        return found if found is not None and found.scheme == "CLUSTER" else None

    def check_row(self, part: Split) -> Refusal | None:
        return choice.refusal(part)

    def check_fits(self, part: Split, slack: float = 1.0) -> Refusal | None:
        return choice.refusal(part)

    def choose(self, part: Split) -> CudaSchedule | None:
        return choice.chosen(part)

    def candidates(self, kernel: Kernel, target: Target, hints: Mapping[str, int]) -> Iterator[CudaSchedule]:
        yield from choice.ranked(Split.of_kernel(kernel, target, hints))

    def resources(self, kernel: Kernel, target: Target) -> Resources:
        return choice.resources_of(Split.of_kernel(kernel, target, {}), kernel.schedule)

    def timed(self, kernel: Kernel, counts: Estimate, target: Target, hints: Mapping[str, int], warm: bool) -> Estimate:
        found = choice.times_of(Split.of_kernel(kernel, target, hints), kernel.schedule, warm=warm)
        own = {"start_us": found.start, "memory_us": found.memory, "compute_us": found.tiles}
        return replace(counts, predicted_us=found.all, **own)

    def least_us(self, moved: int, target: Target) -> float:
        known, per_us = cost.constants(target), 1e3 * target.bandwidth_gbps
        return (moved / known.bandwidth + known.cold * min(moved, target.cache_bytes)) / per_us + known.start_us

    @property
    def fitted(self) -> tuple[str, str]:
        return cost.FITTED, str(cost.fitted_constants())

    @property
    def compiler(self) -> str:
        from weft.backends.cuda import build

        return "" if build.missing() else f"nvrtc {build.release()}"

    def is_missed(self, kernel: Kernel, used: ResourceUsage, target: Target) -> bool:
        """It spills: the compiler is told how many blocks a multiprocessor is to have place for."""
        return used.spill_bytes > 0

    def runner_up(
        self, kernel: Kernel, target: Target, hints: Mapping[str, int], registers: int, tried: Sequence[Schedule]
    ) -> Schedule | None:
        return choice.runner_up(Split.of_kernel(kernel, target, hints), (kernel.schedule, *tried))

    def us_with(self, part: Split, schedule: Schedule, registers: int) -> float:
        """As many blocks as planned, whatever their registers: the compiler keeps to what lets them."""
        assert isinstance(schedule, CudaSchedule)
        return choice.times_of(part, schedule).all

    def supports(self, kernel: Kernel, target: Target | None = None) -> Refusal | None:
        refusal = None if target is None else legality.check_architecture(kernel, target.architecture)
        return refusal or launches.supports(kernel)

    def check_sizes(self, kernel: Kernel, sizes: Mapping[str, int]) -> Refusal | None:
        view = View(in_one_pass(kernel))
        return legality.check_width(view, sizes) or legality.check_counts(view, sizes)

    def lower(self, kernel: Kernel) -> tuple[Nest, ...]:
        return launches.lowered(kernel)[1]

    def abi(self, kernel: Kernel) -> Abi:
        return launches.abi(kernel)

    def key(self, job: Job) -> str:
        from weft.backends.cuda import build

        return build.key(job, launches.launch_bytes(job.kernel))

    def compile(self, job: Job) -> list[Binary]:
        from weft.backends.cuda import build

        return build.compile_functions(job, launches.launch_bytes(job.kernel))

    def render(self, kernel: Kernel) -> Source:
        return text.render(kernel)

    @property
    def calls(self) -> Calls:
        from weft.runtime.gpu import calls

        return calls


BACKEND = CudaBackend()
