"""Interleaved timing: all candidates of one comparison run in turn, so that drifts of the machine meet them alike.

Only ratios of medians from one run are worth quoting. A round runs every candidate once, each round in another order;
a candidate that takes less than ``MIN_SAMPLE_S`` is repeated inside its turn.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

MIN_SAMPLE_S = 2e-3
"""Shortest timed stretch: a thousand times the resolution of the clock and of the loop around it."""


def _nothing() -> None:
    return None


@dataclass(frozen=True)
class Candidate:
    """Something to time. ``prepare`` runs before every call and is not timed; a candidate with one is not repeated
    inside its turn."""

    name: str
    run: Callable[[], object]
    prepare: Callable[[], object] = _nothing


@dataclass
class Timing:
    """Seconds a call, one sample a round."""

    name: str
    seconds: list[float] = field(default_factory=list[float])

    @property
    def median_us(self) -> float:
        return 1e6 * statistics.median(self.seconds)


def interleave(candidates: Sequence[Candidate], rounds: int, budget_s: float = 60.0) -> dict[str, Timing]:
    """Times of all candidates by name: ``rounds`` rounds after one that warms up, fewer if ``budget_s`` is used up (at
    least three)."""
    repeats = {c.name: _repeats(c) for c in candidates}
    timings = {c.name: Timing(c.name) for c in candidates}
    start = time.perf_counter()
    for number in range(rounds):
        if number >= 3 and time.perf_counter() - start > budget_s:
            break
        shift = number % len(candidates)
        for candidate in (*candidates[shift:], *candidates[:shift]):
            timings[candidate.name].seconds.append(_sample(candidate, repeats[candidate.name]))
    return timings


def _repeats(candidate: Candidate) -> int:
    """Calls in one turn. The first call, which may compile, is not looked at."""
    _sample(candidate, 1)
    seconds = _sample(candidate, 1)
    return 1 if candidate.prepare is not _nothing else max(1, round(MIN_SAMPLE_S / max(seconds, 1e-9)))


def _sample(candidate: Candidate, repeats: int) -> float:
    candidate.prepare()
    begin = time.perf_counter()
    for _ in range(repeats):
        candidate.run()
    return (time.perf_counter() - begin) / repeats
