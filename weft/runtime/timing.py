"""Interleaved timing: all candidates of one comparison run in turn, so that drifts of the machine meet them alike.

A round runs every candidate once; each round begins with another one, and every second round goes backwards, so that no
candidate always runs behind the same other. Only ratios within a round are worth quoting: a ratio of two candidates is
the median of the ratios of their samples, round by round, in which a drift slower than a round cancels.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

MIN_SAMPLE_S = 2e-3
"""Shortest timed stretch: a thousand times the resolution of the clock and of the loop around it."""
LEAST_ROUNDS = 3
"""Rounds that are run whatever the budget: fewer have no quartiles."""
FLUSH_BYTES = 256 * 2**20
"""Written before each sample on a GPU, whose level-two cache holds less."""
ROUND_SHIFT = 7
"""By how many places later each round of ``samples_us`` begins."""
LEAST_MARGINS = {"cpu": 0.05, "cuda": 0.02}
"""What is called faster has to be faster by this part at the least, by device: the ratio of two candidates moves from
process to process, by some five per cent on a CPU (docs/benchmarking.md); on a GPU kernels' durations move by less."""
NOISE_FACTOR = 2.0


def _nothing() -> None:
    return None


@dataclass(frozen=True)
class Candidate:
    """Something to time.

    peer: who made it. timed: what of it, ``kernels`` that write into memory that exists, or a whole ``call``. prepare:
    runs before every sample and is not timed; a candidate with one is not repeated inside its turn. memory: tensors
    that ``run`` writes into, if they exist; outputs: reads the results from them, and where it is None ``run`` returns
    its results. kernels: how many a call launches, where that is known.
    """

    peer: str
    timed: str
    run: Callable[[], Any]
    prepare: Callable[[], object] = _nothing
    memory: tuple[Tensor, ...] = ()
    outputs: Callable[[], Any] | None = None
    kernels: int | None = None

    @property
    def name(self) -> str:
        return f"{self.peer} {self.timed}".strip()


@dataclass(frozen=True)
class Sample:
    """Of one turn. seconds: a call. graph_seconds: replaying it as a CUDA graph; kernels: seen on the device."""

    seconds: float
    graph_seconds: float | None = None
    kernels: int | None = None


class Clock(Protocol):
    """How samples are taken."""

    def warm_up(self, candidate: Candidate) -> None: ...

    def sample(self, candidate: Candidate) -> Sample: ...


@dataclass
class Timing:
    """The samples of one candidate, one a round."""

    name: str
    samples: list[Sample] = field(default_factory=list[Sample])

    @property
    def seconds(self) -> list[float]:
        return [sample.seconds for sample in self.samples]

    @property
    def median_us(self) -> float:
        return 1e6 * statistics.median(self.seconds)


@dataclass(frozen=True)
class Spread:
    """A median between the first and the third quartile."""

    median: float
    first: float
    third: float

    @staticmethod
    def of(samples: Sequence[float]) -> Spread:
        """Of at least one sample."""
        if len(samples) == 1:
            return Spread(samples[0], samples[0], samples[0])
        first, median, third = statistics.quantiles(samples, n=4, method="inclusive")
        return Spread(median, first, third)


def ratio(one: Timing, other: Timing) -> Spread:
    """One candidate's time over another's: the median of the ratios round by round."""
    return Spread.of([a / b for a, b in zip(one.seconds, other.seconds, strict=True)])


def interleave(
    candidates: Sequence[Candidate], rounds: int, budget_s: float = 60.0, clock: Clock | None = None
) -> dict[str, Timing]:
    """Times of all candidates by name: ``rounds`` rounds after one that warms up, fewer if ``budget_s`` is used up (at
    least three)."""
    chosen = clock or WallClock()
    for candidate in candidates:
        chosen.warm_up(candidate)
    timings = {c.name: Timing(c.name) for c in candidates}
    start = time.perf_counter()
    for number in range(rounds):
        if number >= LEAST_ROUNDS and time.perf_counter() - start > budget_s:
            break
        for candidate in in_turn(candidates, number):
            timings[candidate.name].samples.append(chosen.sample(candidate))
    return timings


def in_turn(candidates: Sequence[Candidate], number: int) -> Iterator[Candidate]:
    """The order of round ``number``."""
    shift = number % len(candidates)
    order = (*candidates[shift:], *candidates[:shift])
    return reversed(order) if number % 2 else iter(order)


class WallClock:
    """Time on the host: what takes less than ``least_sample_s`` seconds is repeated, after a call that is not timed and
    brings back into the caches what the candidate before has driven out."""

    def __init__(self, least_sample_s: float = MIN_SAMPLE_S) -> None:
        self.least_sample_s = least_sample_s
        self._repeats: dict[str, int] = {}

    def warm_up(self, candidate: Candidate) -> None:
        """The first call, which may compile, is not looked at."""
        _stretch(candidate, 1)
        seconds = min(_stretch(candidate, 1) for _ in range(2))
        once = candidate.prepare is not _nothing
        self._repeats[candidate.name] = 1 if once else max(1, round(self.least_sample_s / max(seconds, 1e-9)))

    def sample(self, candidate: Candidate) -> Sample:
        repeats = self._repeats[candidate.name]
        if repeats > 1:
            candidate.run()
        return Sample(_stretch(candidate, repeats))


def _stretch(candidate: Candidate, repeats: int) -> float:
    """Seconds a call."""
    candidate.prepare()
    begin = time.perf_counter()
    for _ in range(repeats):
        candidate.run()
    return (time.perf_counter() - begin) / repeats


def times_us(
    runs: Sequence[Callable[[], Any]], rounds: int, device: torch.device, budget_s: float = 60.0
) -> list[list[float]]:
    """Of each run, round by round, all in turn: durations of kernels on a GPU, time on the host on a CPU, with fewer
    rounds there if ``budget_s`` is used up."""
    if device.type == "cuda":
        return samples_us(runs, rounds, device)
    candidates = [Candidate(str(i), "", run) for i, run in enumerate(runs)]
    found = interleave(candidates, rounds, budget_s, WallClock(MIN_SAMPLE_S))
    return [[1e6 * seconds for seconds in timing.seconds] for timing in found.values()]


def samples_us(runs: Sequence[Callable[[], Any]], rounds: int, device: torch.device) -> list[list[float]]:
    """Of each run, round by round, the sum of its kernels' durations: all in turn, a flush before each. One profile for
    all of them, which takes a small part of the time of one a sample."""
    flush = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device=device)
    for run in runs:
        run()
    torch.cuda.synchronize(device)
    starts = range(0, rounds * ROUND_SHIFT, ROUND_SHIFT)
    orders = [[(i + start) % len(runs) for i in range(len(runs))] for start in starts]

    def turns() -> None:
        for order in orders:
            for i in order:
                flush.bitwise_not_()
                runs[i]()
            torch.cuda.synchronize(device)

    sums: list[float] = []
    for name, duration_us in kernels_of(turns, device):
        if "bitwise_not" in name and not name.startswith("triton"):  # fused ones have such names, too
            sums.append(0.0)
        elif sums:
            sums[-1] += duration_us
    of: list[list[float]] = [[] for _ in runs]
    for i, total in zip((i for order in orders for i in order), sums, strict=True):
        of[i].append(total)
    return of


def medians_us(runs: Sequence[Callable[[], Any]], rounds: int, device: torch.device) -> list[float]:
    """Medians over the rounds of ``samples_us``."""
    return [statistics.median(each) for each in samples_us(runs, rounds, device)]


def kernels_of(run: Callable[[], Any], device: torch.device) -> list[tuple[str, float]]:
    """Name and duration in microseconds of each kernel that ``run`` launches on a GPU, in the order of their starts;
    copies and fills are among them."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as seen:
        run()
        torch.cuda.synchronize(device)
    found = (e for e in seen.events() or () if e.device_type == DeviceType.CUDA)
    events = [e for e in found if not getattr(e, "is_user_annotation", False)]
    events.sort(key=lambda e: e.time_range.start)
    return [(e.name, e.time_range.elapsed_us()) for e in events]


def margin_over(noise: float, device: str) -> float:
    """By what part of its time something has to be faster to be called so: what is known of that type of device, or
    twice what the same thing differed from itself in the same rounds, whichever is more."""
    return max(LEAST_MARGINS[device], NOISE_FACTOR * noise)
