"""The backend of C++ kernels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import torch

from weft.backends.backend import Calls
from weft.backends.cpp import cost, schedules, text
from weft.backends.cpp.schedule import CppSchedule
from weft.backends.source import Source
from weft.errors import Refusal
from weft.options import Options
from weft.plan.cost import estimate
from weft.plan.kernel import Estimate, Kernel, Resources
from weft.plan.schedule import Schedule
from weft.plan.split import Split
from weft.runtime.resource_usage import ResourceUsage
from weft.target import Found, Target


class CppBackend:
    """See ``Backend``. Nobody counts registers on a CPU."""

    name = "cpp"
    kind: Literal["cpu"] = "cpu"
    device = "cpu"
    needs = ""

    def parse(self, text: str) -> CppSchedule | None:
        return CppSchedule.parse(text)

    def check_row(self, part: Split) -> Refusal | None:
        return None

    def check_fits(self, part: Split, slack: float = 1.0) -> Refusal | None:
        return None

    def choose(self, part: Split) -> CppSchedule:
        return schedules.schedule(part)

    def candidates(self, kernel: Kernel, target: Target, hints: Mapping[str, int]) -> Iterable[CppSchedule]:
        return schedules.candidates(kernel, target, hints, lambda each: estimate(each, target, hints).predicted_us)

    def resources(self, kernel: Kernel, target: Target) -> Resources:
        return Resources(None, None, None, "model")

    def timed(self, kernel: Kernel, counts: Estimate, target: Target, hints: Mapping[str, int], warm: bool) -> Estimate:
        return cost.timed(counts, target)

    def ideal(self, kernel: Kernel, plain: Estimate, target: Target, splits_sums: bool) -> Estimate:
        return cost.ideal(plain, target, splits_sums)

    def least_us(self, moved: int, target: Target) -> float:
        return moved / target.bandwidth_gbps / 1e3

    def is_missed(self, kernel: Kernel, used: ResourceUsage, target: Target) -> bool:
        return False

    def runner_up(
        self, kernel: Kernel, target: Target, hints: Mapping[str, int], registers: int, tried: Sequence[Schedule]
    ) -> Schedule | None:
        return None

    def us_with(self, part: Split, schedule: Schedule, registers: int) -> float:
        return estimate(Kernel(part.program, schedule), part.target, dict(part.hints)).predicted_us

    @property
    def compiler(self) -> str:
        return ""

    def measure(self, target: Target, device: torch.device, options: Options) -> Found:
        raise NotImplementedError("constants of CPUs are those of their vendors")

    @property
    def fitted(self) -> tuple[str, str]:
        return "", ""

    def loads_apart(self, kernel: Kernel) -> bool:
        return True

    def supports(self, kernel: Kernel, target: Target | None = None) -> Refusal | None:
        return text.supports(kernel)

    def render(self, kernel: Kernel) -> Source:
        return text.render(kernel)

    @property
    def calls(self) -> Calls:
        from weft.backends.cpp import calls as cpu

        return cpu


BACKEND = CppBackend()
