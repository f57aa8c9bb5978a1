"""What each kernel of a model's forward and backward took, and what was predicted of weft's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from weft.backends.source import entry_of
from weft.options import Options
from weft.plan.cost import estimate
from weft.plan.kernel import Kernel, parse_kernel
from weft.runtime import calibration, launcher

Profile = Sequence[tuple[str, float]]
"""Names and durations of kernels in microseconds, in order."""


@dataclass(frozen=True)
class Line:
    """Launches of one kernel. us: of all of them. predicted_us: of each, of weft's kernels; text: their program and
    schedule, in a line."""

    name: str
    launches: int
    us: float
    predicted_us: float | None = None
    text: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def lines_of(profile: Profile, launched: Sequence[Kernel] = ()) -> list[Line]:
    """A line a kernel, the longest time first. launched: weft's, in order; where the profile has others, or in another
    order, its kernels have no predictions."""
    own, rest = paired(profile, launched)
    of: dict[str, list[float]] = defaultdict(list)
    for name, us in rest:
        of[name].append(us)
    found = [Line(name, len(each), sum(each)) for name, each in of.items()]
    by_kernel: dict[Kernel, list[float]] = defaultdict(list)
    for kernel, us in own:
        by_kernel[kernel].append(us)
    target = calibration.at_hand(torch.device("cuda"), Options.read()) if by_kernel else None
    for kernel, each in by_kernel.items():
        assert target is not None
        predicted = None if kernel.program.parameters else estimate(kernel, target, {}).predicted_us
        found.append(Line(entry_of(kernel.name), len(each), sum(each), predicted, kernel.line))
    return sorted(found, key=lambda line: -line.us)


def paired(profile: Profile, launched: Sequence[Kernel]) -> tuple[list[tuple[Kernel, float]], list[tuple[str, float]]]:
    """Launches with what they took, with the finish where there is one, and the kernels that are of no launch."""
    pending, own, rest = list(reversed(launched)), list[tuple[Kernel, float]](), list[tuple[str, float]]()
    for name, us in profile:
        if own and name == f"{entry_of(own[-1][0].name)}_finish":
            own[-1] = own[-1][0], own[-1][1] + us
        elif pending and name == entry_of(pending[-1].name):
            own.append((pending.pop(), us))
        else:
            rest.append((name, us))
    return ([], list(profile)) if pending else (own, rest)


def launches_of(run: Callable[[], Any]) -> list[Kernel]:
    """weft's kernels in the order in which a call launches them."""
    texts: list[str] = []
    with launcher.heard(texts.append):
        run()
    return [parse_kernel(text) for text in texts]
