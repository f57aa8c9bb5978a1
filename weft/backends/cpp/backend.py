"""The backend of C++ kernels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from weft.backends.backend import Backend, Calls
from weft.backends.cpp import cost, schedules, text
from weft.backends.cpp.lower import CppLowering
from weft.backends.cpp.schedule import CppSchedule
from weft.backends.source import Source
from weft.errors import Refusal
from weft.lowering.nest import Nest
from weft.plan.cost import estimate
from weft.plan.kernel import Estimate, Kernel
from weft.plan.split import Split
from weft.target import Target


class CppBackend(Backend):
    """Nobody counts registers on a CPU."""

    name, kind, device = "cpp", "cpu", "cpu"

    def parse(self, text: str) -> CppSchedule | None:
        return CppSchedule.parse(text)

    def choose(self, part: Split) -> CppSchedule:
        return schedules.schedule(part)

    def candidates(self, kernel: Kernel, target: Target, hints: Mapping[str, int]) -> Iterable[CppSchedule]:
        return schedules.candidates(kernel, target, hints, lambda each: estimate(each, target, hints).predicted_us)

    def timed(self, kernel: Kernel, counts: Estimate, target: Target, hints: Mapping[str, int], warm: bool) -> Estimate:
        return cost.timed(counts, target)

    def ideal(self, kernel: Kernel, plain: Estimate, target: Target, splits_sums: bool) -> Estimate:
        return cost.ideal(plain, target, splits_sums)

    def least_us(self, moved: int, target: Target) -> float:
        return moved / target.bandwidth_gbps / 1e3

    def supports(self, kernel: Kernel, target: Target | None = None) -> Refusal | None:
        return text.supports(kernel)

    def lower(self, kernel: Kernel) -> tuple[Nest, ...]:
        return (CppLowering(kernel).nest(),)

    def render(self, kernel: Kernel) -> Source:
        return text.render(kernel)

    @property
    def calls(self) -> Calls:
        from weft.backends.cpp import calls as cpu

        return cpu


BACKEND = CppBackend()
