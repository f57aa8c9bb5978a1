"""Outcomes of races, which weft's cache keeps: a file each, in JSON, that says what it is of."""

from __future__ import annotations

import hashlib
import json
import logging
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from weft.options import Options
from weft.runtime.cache import Cache
from weft.runtime.timing import margin_over

_LOG = logging.getLogger(__name__)
FORMAT = 1
"""Of the files; those of another format are not found."""


@dataclass(frozen=True)
class Raced:
    """Measured times of a region. us: in weft's kernels; inductor_us: in TorchInductor's code for the same nodes; both
    are medians. ratio: of the latter over the former, median over the rounds; third: its third quartile. margin: by
    what part of the time TorchInductor's code has to be faster."""

    us: float
    inductor_us: float
    ratio: float
    third: float
    margin: float

    @staticmethod
    def of(own: Sequence[float], again: Sequence[float], inductor: Sequence[float], device: str) -> Raced:
        """own, again: microseconds round by round of weft's kernels, which run twice in each; how far they are from
        themselves is the noise. device: its type."""
        both = [(a + b) / 2 for a, b in zip(own, again, strict=True)]
        noise = abs(statistics.median(b / a for a, b in zip(own, again, strict=True)) - 1)
        ratios = sorted(t / u for t, u in zip(inductor, both, strict=True))
        third = ratios[(3 * len(ratios)) // 4]
        found = statistics.median(both), statistics.median(inductor), statistics.median(ratios), third
        return Raced(*(round(figure, 4) for figure in (*found, margin_over(noise, device))))

    @property
    def is_lost(self) -> bool:
        """Whether TorchInductor's code is faster by more than the margin, and in three of four rounds."""
        return self.ratio < 1 - self.margin and self.third < 1

    def __str__(self) -> str:
        return f"{self.us:.1f} us measured, {self.inductor_us:.1f} us in Inductor's code for the same nodes"


def key_of(identity: Mapping[str, Any]) -> str:
    """What an outcome is found by. identity: everything that it depends on, as JSON has it."""
    return hashlib.sha256(json.dumps([FORMAT, identity], sort_keys=True).encode()).hexdigest()[:32]


def find(identity: Mapping[str, Any], options: Options) -> Raced | None:
    """The outcome that was kept of such a race, if there is one."""
    content = _cache(options).find(key_of(identity))
    return None if content is None else _read(content)


def once(name: str, identity: Mapping[str, Any], run: Callable[[], Raced], options: Options) -> Raced:
    """The outcome of a race that is run if none was kept; other processes that ask meanwhile wait for it. Raises what
    ``run`` raises. name: of what is raced, for people who look at the files."""

    def make() -> bytes:
        return (json.dumps({"raced": asdict(run()), "of": identity}, indent=1) + "\n").encode()

    made = _cache(options).get(key_of(identity), "race", name, make)
    return _read(made.content) or run()


def _read(content: bytes) -> Raced | None:
    try:
        return Raced(**json.loads(content)["raced"])
    except (ValueError, KeyError, TypeError) as error:
        _LOG.warning("the outcome of a race cannot be read, and is not used: %s", error)
        return None


def _cache(options: Options) -> Cache:
    return Cache(options.cache_dir, options.cache_bytes)
