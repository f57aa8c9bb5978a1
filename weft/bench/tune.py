"""Finds the best schedule of kernels by measurement, in a given time.

The candidates of a kernel are tried in the order of their predicted times, each checked and then timed beside the
untuned choice; the few best go through a final with more rounds, in which the untuned choice runs twice. How far those
two are apart is the noise of the machine. The untuned choice stays unless another is faster by more than a margin
(``weft.runtime.timing.margin_over``).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from weft.backends.listed import device_of, supports
from weft.bench.worker import WorkerError
from weft.plan.cost import estimate
from weft.plan.kernel import Kernel
from weft.plan.schedule import Schedule
from weft.plan.schedules import candidates
from weft.plan.tuned import Tuned, plain, schedule_under_names
from weft.runtime.timing import margin_over
from weft.target import Target

if TYPE_CHECKING:
    from weft.bench.tune_measurer import ProcessMeasurer

ROUNDS = 5
FINAL_ROUNDS = (7, 21)
"""At the least and at the most, as many as there is time for."""
SAMPLE_S = 4e-3
"""Of a sample of a short kernel on a CPU, with what is run before it."""
FINALISTS = 4
LEAST_SHARE_S = 10.0
"""Of a kernel: with less there is no time for more than the reference."""
FINAL_SHARE = 0.2
"""Of the time of a kernel, kept for the final."""
Status = Literal["timed", "wrong", "failed"]


@dataclass(frozen=True)
class Job:
    """A kernel to tune. kernel: as planned, untuned. parameters: values of its run-time parameters. known: what was
    measured before, tried first. subjects: what it is a kernel of."""

    kernel: Kernel
    target: Target
    parameters: tuple[int, ...] = ()
    known: Tuned | None = None
    subjects: tuple[str, ...] = ()

    @property
    def hints(self) -> dict[str, int]:
        return dict(zip(self.kernel.program.parameters, self.parameters, strict=True))


@dataclass(frozen=True)
class Attempt:
    """ratio: the median over the rounds of a schedule's time over the untuned one's; us: its median. reason: why it
    was not timed."""

    schedule: Schedule
    status: Status
    ratio: float | None = None
    us: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class Final:
    """ratio: of the best schedule over the mean of the two runs of the untuned one, median over the rounds; third: its
    third quartile. noise: how far the untuned choice is from itself."""

    schedule: Schedule
    untuned_us: float
    ratio: float
    third: float
    noise: float


@dataclass(frozen=True)
class Tuning:
    """What tuning a kernel came to. candidates: the untuned choice and all others. problem: why nothing was measured,
    empty if something was; wrong: whether that is a wrong result of the untuned choice."""

    job: Job
    candidates: int
    attempts: tuple[Attempt, ...] = ()
    final: Final | None = None
    margin: float | None = None
    problem: str = ""
    wrong: bool = False

    @property
    def is_taken(self) -> bool:
        """Whether another than the untuned choice is taken: faster by more than the margin, and in three of four
        rounds."""
        final, margin = self.final, self.margin
        return final is not None and margin is not None and final.ratio < 1 - margin and final.third < 1

    @property
    def chosen(self) -> Schedule:
        return self.final.schedule if self.final is not None and self.is_taken else self.job.kernel.schedule

    @property
    def untuned_us(self) -> float | None:
        return None if self.final is None else self.final.untuned_us

    @property
    def best_us(self) -> float | None:
        """Of the best schedule found, taken or not."""
        return None if self.final is None else self.final.untuned_us * min(1.0, self.final.ratio)

    @property
    def regret(self) -> float | None:
        """Time of the untuned choice over the best found, less one."""
        return None if self.final is None else 1 / min(1.0, self.final.ratio) - 1

    @property
    def timed(self) -> int:
        """Schedules that were timed, the untuned choice among them."""
        others = sum(attempt.status == "timed" for attempt in self.attempts)
        return others + (others > 0 or self.final is not None)

    @property
    def not_tried(self) -> int:
        return self.candidates - 1 - len(self.attempts)

    def record(self, versions: dict[str, str]) -> Tuned | None:
        """What is kept of it."""
        if self.final is None:
            return None
        kernel, untuned = self.job.kernel, self.final.untuned_us
        names, target = plain(kernel), self.job.target
        us = untuned * self.final.ratio if self.is_taken else untuned
        return Tuned(
            str(plain(replace(kernel, schedule=self.chosen))),
            target.name,
            target.device,
            str(names.schedule),
            round(us, 3),
            round(untuned, 3),
            self.timed,
            self.candidates,
            dict(zip(names.program.parameters, self.job.parameters, strict=True)),
            versions,
        )


def tune(
    jobs: Sequence[Job],
    budget_s: float,
    measurer: ProcessMeasurer,
    tell: Callable[[Job, int, int], None] = lambda *_: None,
    clock: Callable[[], float] = time.monotonic,
) -> list[Tuning]:
    """In the order of ``jobs``, of which those with the longest predicted time are tuned first: each gets an equal
    share of the time that is left, and ``LEAST_SHARE_S`` if there is so much. tell: of the job, how many candidates
    were tried and how many there are."""
    end = clock() + budget_s
    found: dict[int, Tuning] = {}
    order = sorted(range(len(jobs)), key=lambda i: -_predicted_us(jobs[i]))
    with suppress(TimeoutError, WorkerError):  # what is wrong with it is said of the first kernel
        if order:
            measurer.start(jobs[order[0]], budget_s)
    for done, at in enumerate(order):
        left = max(0.0, end - clock())
        share = min(left, max(LEAST_SHARE_S, left / (len(jobs) - done)))
        found[at] = tune_kernel(jobs[at], share, measurer, tell, clock)
    return [found[at] for at in range(len(jobs))]


def _predicted_us(job: Job) -> float:
    return estimate(job.kernel, job.target, job.hints).predicted_us


def tune_kernel(
    job: Job,
    seconds: float,
    measurer: ProcessMeasurer,
    tell: Callable[[Job, int, int], None],
    clock: Callable[[], float],
) -> Tuning:
    """The candidates of one kernel in so many seconds."""
    start = clock()
    others = _others(job)
    nothing = Tuning(job, 1 + len(others))
    tell(job, 0, len(others))
    if seconds <= 0:
        return replace(nothing, problem="the time was over")
    try:
        opened = measurer.open(job, seconds)
    except TimeoutError:
        return replace(nothing, problem="the time was over before the untuned choice was checked")
    if opened.status != "timed":
        return replace(nothing, problem=opened.reason, wrong=opened.status == "wrong")
    measurer.expect([replace(job.kernel, schedule=schedule) for schedule in others])
    attempts: list[Attempt] = []
    for schedule in others:
        left = start + (1 - FINAL_SHARE) * seconds - clock()
        if left <= 0:
            break
        try:
            attempts.append(measurer.attempt(replace(job.kernel, schedule=schedule), left))
        except TimeoutError:
            break
        tell(job, len(attempts), len(others))
    done = replace(nothing, attempts=tuple(attempts))
    return _with_final(done, measurer, max(0.0, start + seconds - clock()))


def _others(job: Job) -> list[Schedule]:
    """All candidates but the untuned choice, what was the best before in front."""
    found = [s for s in candidates(job.kernel, job.target, job.hints) if s != job.kernel.schedule]
    found = [s for s in found if supports(replace(job.kernel, schedule=s)) is None]
    if job.known is None:
        return found
    best = schedule_under_names(job.known, job.kernel.program)
    return sorted(found, key=lambda schedule: schedule != best)


def _with_final(done: Tuning, measurer: ProcessMeasurer, seconds: float) -> Tuning:
    if done.candidates > 1 and not done.timed:
        return replace(done, problem="no candidate was timed")
    timed = sorted((a for a in done.attempts if a.ratio is not None), key=lambda a: a.ratio or 0.0)[:FINALISTS]
    kernels = [replace(done.job.kernel, schedule=attempt.schedule) for attempt in timed]
    round_s = sum(max(SAMPLE_S, 2e-6 * (attempt.us or 0.0)) for attempt in (*timed, *timed[:2]))
    least, most = FINAL_ROUNDS
    rounds = max(least, min(most, int(seconds / round_s))) if timed else least
    try:
        times = measurer.final(kernels, rounds)
    except WorkerError as error:
        return replace(done, problem=f"the best could not be timed again: {error}")
    found = final_of([done.job.kernel.schedule, *(attempt.schedule for attempt in timed)], times)
    return replace(done, final=found, margin=margin_over(found.noise, device_of(done.job.kernel)))


def final_of(schedules: Sequence[Schedule], times: Sequence[Sequence[float]]) -> Final:
    """schedules: the untuned choice, then the others. times: of the untuned choice, of it again, of the others."""
    first, again, *others = times
    both = [(a + b) / 2 for a, b in zip(first, again, strict=True)]
    noise = abs(statistics.median(b / a for a, b in zip(first, again, strict=True)) - 1)
    ratios = [sorted(t / u for t, u in zip(each, both, strict=True)) for each in (both, *others)]
    best = min(range(len(ratios)), key=lambda i: statistics.median(ratios[i]))
    third = ratios[best][(3 * len(both)) // 4]
    return Final(schedules[best], statistics.median(both), statistics.median(ratios[best]), third, noise)


def mean_regret(found: Sequence[Tuning]) -> float | None:
    """Geometric mean over the kernels that were measured; None if there is none."""
    ratios = [1 + tuning.regret for tuning in found if tuning.regret is not None]
    return statistics.geometric_mean(ratios) - 1 if ratios else None
