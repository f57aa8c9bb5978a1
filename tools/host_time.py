"""Time on the host of compiled calls: ``python -m tools.host_time --device cuda --json FILE``.

On data so small that a GPU is done before the next launch comes: calls of a norm, forward alone and with its backward,
and the forward and backward of the residual-mix model. Eager PyTorch, TorchInductor and weft run in turn; a sample is
the time until so many calls have returned, the device being idle when it begins. Beside it stands how long the device
was waited for behind the calls: where that is a considerable part, the device was the limit, and the line says so.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor

from tools.arguments import require_gpu
from weft.bench.machine import machine, versions
from weft.bench.models import ResidualMix
from weft.integration.fuse import fuse
from weft.options import Options
from weft.runtime.timing import Candidate, Sample, Spread, interleave, ratio

SHAPE = (16, 256)
"""Of the norm's data."""
BATCH = (1, 16)
"""Batch and sequence of the model."""
WARM_UP_CALLS = 3
BUSY = 0.2
"""Of the host's time: who waits longer for the device behind a sample was held up by it."""
PEERS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "eager": lambda function: function,
    "inductor": lambda function: torch.compile(function, fullgraph=True, dynamic=False),
    "weft": lambda function: fuse(function, dynamic=False),
}


@dataclass(frozen=True)
class Line:
    """One comparison. us: on the host, a call; over_weft: a peer's time over weft's; waited_us: for the device behind a
    sample, a call."""

    what: str
    us: dict[str, Spread]
    over_weft: dict[str, Spread]
    waited_us: dict[str, float]

    @property
    def busy(self) -> list[str]:
        """Who was held up by the device."""
        return [peer for peer, waited in self.waited_us.items() if waited > BUSY * self.us[peer].median]

    def text(self) -> str:
        shown = [f"{peer} {spread.median:.1f} us" for peer, spread in self.us.items()]
        shown += [f"{peer} / weft {spread.median:.2f}" for peer, spread in self.over_weft.items()]
        busy = f"  (the device was the limit for {', '.join(self.busy)})" if self.busy else ""
        return f"{self.what}: {'  '.join(shown)}{busy}"

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        us, over = ({p: vars(s) for p, s in found.items()} for found in (self.us, self.over_weft))
        return {"what": self.what, "us": us, "over_weft": over, "waited_us": self.waited_us, "busy": self.busy}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tools.host_time", description=__doc__)
    parser.add_argument("--what", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--blocks", type=int, default=11, help="of the model")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args(arguments)
    require_gpu(parser, given.device)
    lines: list[Line] = []
    for what in given.what:
        torch._dynamo.reset()
        make, calls = CASES[what]
        lines.append(measure(what, make(given.device, given.blocks), calls, given.rounds, given.device))
        Console().print(lines[-1].text(), highlight=False, soft_wrap=True)
    if given.json is not None:
        shown = [given.json.name if word == str(given.json) else word for word in sys.argv[1:]]
        head = {"command": f"python -m tools.host_time {shlex.join(shown)}", "rounds": given.rounds}
        head |= {"machine": machine(given.device), "versions": versions(Options.read())}
        head |= {"lines": [line.to_dict() for line in lines]}
        given.json.write_text(json.dumps(head, indent=1) + "\n")
    return 0


def measure(what: str, runs: dict[str, Callable[[], Any]], calls: int, rounds: int, device: str) -> Line:
    """runs: what a call is, by peer; calls: of a sample."""
    clock = HostClock(calls, torch.cuda.synchronize if device == "cuda" else _nothing)
    candidates = [Candidate(peer, "", run) for peer, run in runs.items()]
    times = interleave(candidates, rounds, clock=clock)
    us = {peer: Spread.of([1e6 * s for s in timing.seconds]) for peer, timing in times.items()}
    over = {peer: ratio(timing, times["weft"]) for peer, timing in times.items() if peer != "weft"}
    waited = {peer: round(1e6 * statistics.median(clock.waits[peer]), 2) for peer in times}
    return Line(what, us, over, waited)


class HostClock:
    """Samples of the time that calls take to return. waits: seconds a call for the device behind each sample, by
    candidate."""

    def __init__(self, calls: int, synchronise: Callable[[], object]) -> None:
        self.calls, self.synchronise = calls, synchronise
        self.waits: dict[str, list[float]] = {}

    def warm_up(self, candidate: Candidate) -> None:
        """Compile, and let guards and allocators settle."""
        for _ in range(WARM_UP_CALLS):
            candidate.run()
        self.synchronise()

    def sample(self, candidate: Candidate) -> Sample:
        candidate.run()  # brings back what the candidate before has driven out of the caches
        self.synchronise()
        begin = time.perf_counter()
        for _ in range(self.calls):
            candidate.run()
        returned = time.perf_counter()
        self.synchronise()
        waited = time.perf_counter() - returned
        self.waits.setdefault(candidate.name, []).append(waited / self.calls)
        return Sample((returned - begin) / self.calls)


def norm_forward(device: str, _: int) -> dict[str, Callable[[], Any]]:
    """An RMS norm without gradients."""
    x, weight = _data(device)

    def run_of(function: Callable[..., Any]) -> Callable[[], Any]:
        def run() -> Any:
            with torch.no_grad():
                return function(x, weight)

        return run

    return {peer: run_of(compiled(_fresh(_norm))) for peer, compiled in PEERS.items()}


def norm_both_ways(device: str, _: int) -> dict[str, Callable[[], Any]]:
    """An RMS norm and its gradients."""
    x, weight = (t.requires_grad_() for t in _data(device))
    dy = torch.randn_like(x)

    def run_of(function: Callable[..., Any]) -> Callable[[], Any]:
        return lambda: torch.autograd.grad(function(x, weight), (x, weight), dy)

    return {peer: run_of(compiled(_fresh(_norm))) for peer, compiled in PEERS.items()}


def model_step(device: str, blocks: int) -> dict[str, Callable[[], Any]]:
    """Forward and backward of the residual-mix model."""

    def run_of(peer: str) -> Callable[[], Any]:
        torch.manual_seed(0)
        model = ResidualMix(blocks=blocks).to(device)
        batch = [t.to(device) for t in model.make_batch(*BATCH, 0)]
        backend = {"inductor": "inductor", "weft": "weft"}.get(peer)
        step = model if backend is None else torch.compile(model, backend=backend, fullgraph=True)

        def run() -> None:
            model.zero_grad()
            with torch.autocast(device, torch.bfloat16):
                loss = step(*batch)
            loss.backward()

        return run

    return {peer: run_of(peer) for peer in PEERS}


Case = Callable[[str, int], dict[str, Callable[[], Any]]]
CASES: dict[str, tuple[Case, int]] = {
    "norm_forward": (norm_forward, 50),
    "norm_both_ways": (norm_both_ways, 20),
    "model_step": (model_step, 1),
}
"""What is measured, and calls of a sample: few, so that the device's queue stays short."""


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight)


def _fresh(function: FunctionType) -> Callable[..., Any]:
    """The same with code of its own: what is compiled for one peer is not looked through for another."""
    return FunctionType(function.__code__.replace(), function.__globals__, function.__name__)


def _data(device: str) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(SHAPE, device=device, dtype=torch.bfloat16), torch.randn(
        SHAPE[1], device=device, dtype=torch.bfloat16
    )


def _nothing() -> None:
    return None


if __name__ == "__main__":
    raise SystemExit(main())
