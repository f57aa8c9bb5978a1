"""Training steps of a model with weft, TorchInductor and eager PyTorch."""

from __future__ import annotations

import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

import weft
from tests.zoo.entries import Entry
from tests.zoo.kernels import Line, Profile, launches_of, lines_of
from tools.training import BACKENDS, Comparison, Run, Setup, Trainee, comparison_of, trained
from weft.bench.models import Model
from weft.runtime.timing import kernels_of

STEPS, WARM_UP = 20, 4
COMPARED = ("inductor", "weft")
LEARNING_RATE = 2e-4
KINDS = {
    "attention": re.compile(r"flash|fmha|attention|flex|sdpa|compute_dot_do_o", re.IGNORECASE),
    "convolution": re.compile(
        r"convol|conv[0-9_]|fprop|wgrad|dgrad|cudnn|implicit|nchwtonhwc|nhwctonchw", re.IGNORECASE
    ),
    "matmul": re.compile(r"gemm|nvjet|cutlass|cublas|xmma|splitk|gemv|dot_kernel|triton_tem", re.IGNORECASE),
}
"""Kernels by what they compute, the first that a name fits; all else is what compilers write."""


@dataclass(frozen=True)
class Trained:
    """Steps by each backend in turn, from the same weights and on the same batches.

    comparison: losses, times of steps and the most bytes held, as ``tools.training`` has them. wrong: what is
    beyond its rule, and warnings of weft's. device_us: on a GPU, of a forward and backward by each backend, by kind of
    kernel. kernels: of the kind "other", by backend.
    """

    comparison: dict[str, Any]
    wrong: list[str]
    device_us: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    kernels: dict[str, list[Line]] = field(default_factory=dict[str, list[Line]])

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def train(entry: Entry, device: str) -> Trained:
    """Steps without dropout, of a small model on a CPU and at full size on a GPU."""
    make, setup = setup_of(entry, device, STEPS)
    weft.counters.reset()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainees = trained(make, setup)
    found = comparison_of([trainee.run for trainee in trainees])
    wrong = wrong_of(found, [str(w.message) for w in caught])
    if device == "cpu":
        return Trained(found.to_dict(), wrong)
    tensors = [t.to(device) for t in trainees[0].model.make_batch(setup.batch, setup.sequence, STEPS)]
    profiles = {t.run.backend: profiled(t, tensors) for t in trainees if t.run.backend in BACKENDS}
    (mine,) = (t for t in trainees if t.run.backend == "weft")
    launched = {"weft": launches_of(lambda: differentiate_anew(mine, tensors))}
    kernels = {
        backend: lines_of([each for each in profile if kind_of(each[0]) == "other"], launched.get(backend, ()))
        for backend, profile in profiles.items()
    }
    return Trained(found.to_dict(), wrong, {backend: by_kind(each) for backend, each in profiles.items()}, kernels)


def time_steps(entry: Entry, device: str) -> dict[str, Any]:
    """The median of as many steps, without eager PyTorch, in ms by backend."""
    make, setup = setup_of(entry, device, STEPS)
    weft.counters.reset()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        runs = [trainee.run for trainee in trained(make, setup, COMPARED)]
    told = [str(w.message) for w in caught if "weft" in str(w.message)]
    return {"median_ms": {run.backend: run.median_ms for run in runs}, "wrong": [*told, *wrong_with_weft(runs)]}


def setup_of(entry: Entry, device: str, steps: int) -> tuple[Callable[[], Model], Setup]:
    """How to make a model that is trained, and what with: a small one on a CPU."""
    small = device == "cpu"
    make, batch = (entry.make_small, entry.small_batch) if small else (entry.make_full, entry.full_batch)
    setup = Setup(device, *batch, steps, min(WARM_UP, steps - 1), LEARNING_RATE, "adamw", entry.fullgraph)
    return lambda: make().train(), setup


def wrong_of(found: Comparison, messages: list[str]) -> list[str]:
    """What is wrong with a comparison, a line each."""
    mine = found.differences["weft"]
    apart = f"losses differ from eager's by {mine:.3g}, allowed {found.tolerance:.3g}"
    told = [message for message in messages if "weft" in message]
    return [*told, *([] if found.agrees else [apart]), *wrong_with_weft(found.runs)]


def wrong_with_weft(runs: Iterable[Run]) -> list[str]:
    """What is wrong with weft's run, whatever others' are."""
    wrong = list[str]()
    (run,) = (run for run in runs if run.backend == "weft")
    if not all(map(math.isfinite, run.losses)):
        wrong.append("a loss is no number")
    if not run.launches:
        wrong.append("weft launched no kernel")
    if weft.counters.fallbacks:
        wrong.append(f"{weft.counters.fallbacks} calls ran on ATen")
    return wrong


def profiled(trainee: Trainee, batch: list[Tensor]) -> Profile:
    """Kernels of one forward and backward: of three the one with the least device time."""
    found = [kernels_of(lambda: differentiate_anew(trainee, batch), torch.device("cuda")) for _ in range(3)]
    return min(found, key=lambda kernels: sum(us for _, us in kernels))


def differentiate_anew(trainee: Trainee, batch: list[Tensor]) -> None:
    """A forward and a backward whose gradients are not added to others."""
    trainee.model.zero_grad()
    trainee.differentiate(batch)


def by_kind(kernels: Profile) -> dict[str, float]:
    """Durations summed by kind."""
    sums: Counter[str] = Counter()
    for name, duration_us in kernels:
        sums[kind_of(name)] += duration_us  # type: ignore[assignment]
    return dict(sums)


def kind_of(name: str) -> str:
    """Of a kernel: one of ``KINDS`` or "other". Kernels of TorchInductor have names of the nodes they are made from."""
    if name.startswith(("triton_", "weft_")) and not name.startswith("triton_tem"):
        return "other"
    return next((kind for kind, pattern in KINDS.items() if pattern.search(name)), "other")
