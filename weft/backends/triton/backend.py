"""The backend of Triton kernels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace

import torch

from weft.backends.abi import Abi
from weft.backends.backend import Backend, Calls
from weft.backends.binary import Binary, Job
from weft.backends.resource_usage import ResourceUsage
from weft.backends.source import Source
from weft.backends.triton import candidates as gpu_candidates
from weft.backends.triton import choice as gpu_schedules
from weft.backends.triton import resources, text
from weft.backends.triton.beginnings import early_rows_of
from weft.backends.triton.constants import FITTED, constants, fitted_constants
from weft.backends.triton.cost import times_us
from weft.backends.triton.demand import Demand
from weft.backends.triton.schedule import TritonSchedule
from weft.errors import Refusal
from weft.ir.structure import is_outer
from weft.lowering.nest import Nest
from weft.options import Options
from weft.plan.kernel import Estimate, Kernel, Resources
from weft.plan.schedule import Schedule
from weft.plan.split import Split
from weft.target import Found, Target

SLACK = 1.5
"""Of kernels whose registers are predicted to be up to so many times what there is are measured as well: the model
expects more of some kernels than the compiler finds."""

OPTIMISM, MORE_OPTIMISM = 1.045, 1.075
"""The second of loops over columns, and of rows in one shot that begin between vectors. Of 249 kernels that move more
than the second cache holds, and were timed as both backends choose them, choices between these lose 0.38 % of the
shorter time with them, 0.65 with the first for all, 1.67 without; programs that have several tiles of rows that begin
between vectors, 74 of them, gain nothing by it."""


class TritonBackend(Backend):
    """Registers and time are those of ptxas and of a model that was fitted to sweeps."""

    name, kind, device, needs, compares_parts = "triton", "gpu", "cuda", "triton", True

    def parse(self, text: str) -> TritonSchedule | None:
        return TritonSchedule.parse(text)

    def check_row(self, part: Split) -> Refusal | None:
        types = part.program.types()
        operands = [v.args[0] for v in part.program.values if is_outer(v, part.rows)]
        sums_columns = any(set(types[name][1]) & set(part.columns) for name in operands)
        if not (sums_columns and part.has_inner) or gpu_candidates.fits_registers(part):
            return None
        need, most = gpu_candidates.registers_of_widest(part)
        message = "a row and all of its column sums take more registers than the threads of a multiprocessor have"
        return Refusal("row_registers", part.program.name, message, need, most)

    def check_fits(self, part: Split, slack: float = 1.0) -> Refusal | None:
        if gpu_schedules.fits(part, slack):
            return None
        schedule = self.choose(part)
        need, most = resources.demanded(Demand.of(part.program, schedule), schedule, part.target)
        message = "what a thread has to hold at a time takes more registers than it can have"
        return Refusal("registers", part.program.name, message, math.ceil(need), int(most))

    def choose(self, part: Split) -> TritonSchedule:
        return gpu_schedules.gpu_schedule(part)

    def candidates(self, kernel: Kernel, target: Target, hints: Mapping[str, int]) -> Iterator[TritonSchedule]:
        """What the planner considers, then what it takes to spill registers."""
        split = Split.of_kernel(kernel, target, hints)
        for slack in (1.0, SLACK):
            yield from gpu_schedules.ranked(split, gpu_candidates.candidates(split, slack))

    def resources(self, kernel: Kernel, target: Target) -> Resources:
        return resources.resources(kernel, target)

    def timed(self, kernel: Kernel, counts: Estimate, target: Target, hints: Mapping[str, int], warm: bool) -> Estimate:
        found = times_us(Split.of_kernel(kernel, target, hints), kernel.schedule, warm=warm)
        own = {"start_us": found.start, "memory_us": found.memory, "compute_us": found.tiles}
        return replace(counts, predicted_us=found.all, **own)

    def optimism(self, part: Split, schedule: Schedule) -> float:
        """Not where the second cache has all of it, nor where programs have several tiles of rows that begin between
        vectors: these take what is predicted."""
        assert isinstance(schedule, TritonSchedule)
        if sum(map(part.sizes.bytes, part.program.buffers)) < part.target.cache_bytes:
            return 1.0
        early = early_rows_of(Kernel(part.program, schedule))
        splits_vectors = early is not None and early.splits_vectors
        if schedule.chunks:
            return 1.0 if splits_vectors else OPTIMISM
        return MORE_OPTIMISM if splits_vectors or schedule.scheme == "LOOP" else OPTIMISM

    def least_us(self, moved: int, target: Target) -> float:
        """A kernel starts, and moves its bytes. A copy's bandwidth was fitted beside what else kernels do, so that some
        ways to take rows have more."""
        every = constants(target).values()
        start, share = min(known.start_us for known in every), max(known.bandwidth for known in every)
        return moved / (target.bandwidth_gbps * share) / 1e3 + start

    def is_missed(self, kernel: Kernel, used: ResourceUsage, target: Target) -> bool:
        """It spills, or fewer programs fit a multiprocessor."""
        spills = used.spill_bytes > 0
        return spills or (used.registers > 0 and gpu_schedules.holds_fewer(kernel, target, used.registers))

    def runner_up(
        self, kernel: Kernel, target: Target, hints: Mapping[str, int], registers: int, tried: Sequence[Schedule]
    ) -> Schedule | None:
        return gpu_schedules.runner_up(kernel, target, hints, registers, tried)

    def us_with(self, part: Split, schedule: Schedule, registers: int) -> float:
        assert isinstance(schedule, TritonSchedule)
        return gpu_schedules.predicted_us(part, schedule, registers)

    @property
    def compiler(self) -> str:
        import triton

        return f"triton {triton.__version__}"

    def measure(self, target: Target, device: torch.device, options: Options) -> Found:
        from weft.backends.triton import probes

        return probes.measure(target, device, options)

    @property
    def fitted(self) -> tuple[str, str]:
        return FITTED, str({way: asdict(own) for way, own in fitted_constants().items()})

    def loads_apart(self, kernel: Kernel) -> bool:
        """A tile may have fewer elements than a program has threads, and a row's first and last vectors columns of the
        rows beside it."""
        schedule, early = kernel.schedule, early_rows_of(kernel)
        enough = schedule.rows_per_tile * schedule.piece_columns >= 32 * schedule.warps
        return enough and (early is None or not early.splits_vectors)

    def supports(self, kernel: Kernel, target: Target | None = None) -> Refusal | None:
        refusal = text.supports(kernel)
        return (
            refusal if refusal is not None or target is None else text.check_architecture(kernel, target.architecture)
        )

    def lower(self, kernel: Kernel) -> tuple[Nest, ...]:
        return text.lowered(kernel)[1]

    def abi(self, kernel: Kernel) -> Abi:
        return text.abi(kernel)

    def check_sizes(self, kernel: Kernel, sizes: Mapping[str, int]) -> Refusal | None:
        return text.check_sizes(kernel, sizes)

    def settle(self) -> None:
        from weft.backends.triton import build

        build.use_torchs_ptxas()

    def key(self, job: Job) -> str:
        from weft.backends.triton import build

        return build.key(job)

    def compile(self, job: Job) -> list[Binary]:
        from weft.backends.triton import build

        return build.compile_functions(job)

    def render(self, kernel: Kernel) -> Source:
        return text.render(kernel)

    @property
    def calls(self) -> Calls:
        from weft.runtime.gpu import calls

        return calls


BACKEND = TritonBackend()
