"""A kernel to tune, and a measurer that knows how long each of its candidates takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from weft.bench import tune
from weft.bench.tune import Attempt, Job, Tuning
from weft.ir.parser import parse
from weft.plan.kernel import Kernel, Plan
from weft.plan.planner import plan_split
from weft.plan.schedule import Schedule
from weft.target import Target

CPU, H200 = Target.named("cpu"), replace(Target.named("h200"), device="NVIDIA H200")
PROGRAM = parse(
    """
program norm(s)
  dim m = s
  dim n = 48
  input x: f32 [m:48, n:1]
  row: f32{m} = sum[n](x)
  hat: f32{m, n} = mul(x, row)
  column: f32{n} = sum[m](hat)
  output out0: f32 [m:48, n:1] = hat
  output out1: f32 [n:1] = column
end
""".strip()
)
ROWS = 600


def kernel_of(target: Target = CPU) -> Kernel:
    found = plan_split(PROGRAM, ("m",), ("n",), target, {"s": ROWS})
    assert isinstance(found, Plan)
    (kernel,) = found.kernels
    return kernel


def job_of(target: Target = CPU) -> Job:
    return Job(kernel_of(target), target, (ROWS,), None, ("a test",))


@dataclass
class Fake:
    """Kernels that take ``seconds`` to try and microseconds as ``us`` says, on a clock of its own."""

    us: Callable[[Schedule], float]
    seconds: float = 1.0
    now: float = 0.0
    opened: Attempt | None = None
    asked: list[Schedule] = field(default_factory=list)
    wrong: set[Schedule] = field(default_factory=set)
    noise: float = 0.0
    opened_jobs: list[Job] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    def start(self, job: Job, seconds: float) -> None: ...

    def open(self, job: Job, seconds: float) -> Attempt:
        self.opened_jobs.append(job)
        self.now += self.seconds
        return self.opened or Attempt(job.kernel.schedule, "timed")

    def expect(self, kernels: Sequence[Kernel]) -> None:
        self.kernels = kernels

    def attempt(self, kernel: Kernel, seconds: float) -> Attempt:
        if seconds < self.seconds:
            self.now += seconds
            raise TimeoutError
        self.now += self.seconds
        self.asked.append(kernel.schedule)
        if kernel.schedule in self.wrong:
            return Attempt(kernel.schedule, "wrong", reason="a row is missing")
        us = self.us(kernel.schedule)
        return Attempt(kernel.schedule, "timed", us / 100.0, us)

    def final(self, kernels: Sequence[Kernel], rounds: int) -> list[list[float]]:
        own = [100.0] * rounds, [100.0 * (1 + self.noise)] * rounds
        return [*own, *([self.us(kernel.schedule)] * rounds for kernel in kernels)]


def tuned_with(fake: Fake, budget_s: float = 1000.0, job: Job | None = None) -> Tuning:
    (found,) = tune.tune([job or job_of()], budget_s, fake, clock=fake.clock)
    return found
