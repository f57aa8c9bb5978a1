"""The backend of CUDA C++ kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weft.backends.abi import Abi
from weft.backends.backend import Backend, Calls
from weft.backends.binary import Binary, Job
from weft.backends.cuda import legality, text
from weft.backends.cuda.schedule import CudaSchedule
from weft.backends.cuda.view import View, in_one_pass
from weft.backends.source import Source
from weft.errors import Refusal
from weft.lowering.nest import Nest
from weft.plan.kernel import Estimate, Kernel
from weft.plan.split import Split
from weft.target import Target


class CudaBackend(Backend):
    """Copies that run ahead, rows that clusters share. Its kernels are not planned yet: nothing was fitted to them."""

    name, kind, device, is_planned = "cuda", "gpu", "cuda", False

    def parse(self, text: str) -> CudaSchedule | None:
        found = CudaSchedule.parse(text)
        return found if found is not None and found.scheme == "CLUSTER" else None

    def choose(self, part: Split) -> CudaSchedule:
        raise NotImplementedError("nothing was fitted to kernels in CUDA C++")

    def timed(self, kernel: Kernel, counts: Estimate, target: Target, hints: Mapping[str, int], warm: bool) -> Estimate:
        us = self.least_us(counts.bytes_read + counts.bytes_written + counts.workspace_bytes, target)
        return replace(counts, memory_us=us, predicted_us=us)

    def least_us(self, moved: int, target: Target) -> float:
        return moved / target.bandwidth_gbps / 1e3

    def supports(self, kernel: Kernel, target: Target | None = None) -> Refusal | None:
        refusal = None if target is None else legality.check_architecture(kernel, target.architecture)
        return refusal or text.supports(kernel)

    def check_sizes(self, kernel: Kernel, sizes: Mapping[str, int]) -> Refusal | None:
        return legality.check_width(View(in_one_pass(kernel)), sizes)

    def lower(self, kernel: Kernel) -> tuple[Nest, ...]:
        return text.lowered(kernel)[1]

    def abi(self, kernel: Kernel) -> Abi:
        return text.abi(kernel)

    def key(self, job: Job) -> str:
        from weft.backends.cuda import build

        return build.key(job, text.launch_bytes(job.kernel))

    def compile(self, job: Job) -> list[Binary]:
        from weft.backends.cuda import build

        return build.compile_functions(job, text.launch_bytes(job.kernel))

    def render(self, kernel: Kernel) -> Source:
        return text.render(kernel)

    @property
    def calls(self) -> Calls:
        from weft.runtime.gpu import calls

        return calls


BACKEND = CudaBackend()
