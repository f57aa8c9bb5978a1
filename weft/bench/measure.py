"""One row of a benchmark: make the candidates, check each, time those that are right."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial

import torch

from weft.bench.case import Case, traffic_bytes
from weft.bench.correctness import WRONG, check_candidate, reference
from weft.bench.gpu_peers import GPU_PEERS
from weft.bench.gpu_timing import CudaDevice, DeviceClock, clocks_mhz
from weft.bench.machine import gpu_uuid
from weft.bench.peers import copy_candidate, eager_call, inductor_call, inductor_kernels, weft_call, weft_kernels
from weft.bench.reason import Reason, attempt
from weft.bench.report import Figures, Row
from weft.integration.backend import supports_cuda
from weft.options import Options
from weft.runtime.timing import Candidate, Clock, Spread, Timing, WallClock, interleave, ratio

PEERS = tuple(GPU_PEERS)
ROUNDS = 21
LEAST_SAMPLE_S = 5e-3
BUDGET_S = 60.0
Found = Sequence[Candidate | Reason]
Maker = Callable[[], Candidate | Reason]


@dataclass(frozen=True)
class Protocol:
    """rounds: of every candidate, fewer (at least three) where ``budget_s`` seconds a row are used up. least_sample_s:
    shortest timed stretch on a CPU."""

    rounds: int = ROUNDS
    least_sample_s: float = LEAST_SAMPLE_S
    budget_s: float = BUDGET_S


def measure(case: Case, against: Sequence[str], options: Options, protocol: Protocol) -> Row:
    """A row of weft and the peers in ``against``."""
    torch._dynamo.reset()
    return measure_candidates(case, candidates(case, against, options), protocol)


def candidates(case: Case, against: Sequence[str], options: Options) -> Found:
    """weft and its peers; a refusal for each that is not there, does not do this, or fails."""
    makers = _on_gpu(case, options) if case.device.type == "cuda" else _on_cpu(case, options)
    found: list[Candidate | Reason] = []
    for peer in ("weft", *against):
        found += [attempt(f"{peer} {what}".strip(), make) for what, make in makers[peer].items()]
    return found


def measure_candidates(case: Case, found: Found, protocol: Protocol, table: str = "") -> Row:
    """Check, then time what is right beside a copy of the same bytes."""
    made = sorted((c for c in found if isinstance(c, Candidate)), key=lambda c: c.timed != "kernels")
    bytes_moved, answers = _check_all(case, made)
    copied = copy_candidate(bytes_moved, case.device)
    right = [copied, *(c for c in made if c.name not in answers)]
    clock, clocks = _clock(case, protocol), None
    timings = interleave(right, protocol.rounds, protocol.budget_s, clock)
    failed = [answer for answer in answers.values() if answer.kind != WRONG]
    refusals = [*(r for r in found if isinstance(r, Reason)), *failed]
    if isinstance(clock, DeviceClock):
        clocks = clocks_mhz(gpu_uuid())
        refusals += [Reason("not_captured", name, f"no CUDA graph: {why}") for name, why in clock.uncaptured.items()]
    shown = [c for c in (copied, *made) if c.name not in answers or answers[c.name].kind == WRONG]
    figures = tuple(figures_of(c, timings, answers.get(c.name)) for c in shown)
    rounds = len(timings[copied.name].samples)
    about = (case.workload, case.shape, case.columns, case.dtype, bytes_moved, rounds)
    return Row(*about, figures, tuple(refusals), table, clocks)


def figures_of(candidate: Candidate, timings: dict[str, Timing], wrong: Reason | None) -> Figures:
    """Ratios are with weft timed in the same way, and with the copy."""
    timing, own = timings.get(candidate.name), timings.get(f"weft {candidate.timed}")
    if timing is None:
        return Figures(candidate.peer, candidate.timed, kernels=candidate.kernels, wrong=wrong)
    graph = [s.graph_seconds for s in timing.samples if s.graph_seconds is not None]
    seen = timing.samples[-1].kernels
    return Figures(
        candidate.peer,
        candidate.timed,
        time_us=Spread.of([1e6 * s for s in timing.seconds]),
        of_copy=ratio(timings["copy"], timing),
        to_weft=None if own is None else ratio(timing, own),
        graph_us=Spread.of([1e6 * s for s in graph]) if graph else None,
        kernels=candidate.kernels if seen is None else seen,
    )


def _clock(case: Case, protocol: Protocol) -> Clock:
    return DeviceClock(CudaDevice(case.device)) if case.device.type == "cuda" else WallClock(protocol.least_sample_s)


def _on_cpu(case: Case, options: Options) -> dict[str, dict[str, Maker]]:
    """Kernels on outputs that exist, and calls."""
    absent: dict[str, dict[str, Maker]] = {
        peer: {"": partial(_only_on_gpu, peer)} for peer in PEERS if peer not in ("eager", "inductor")
    }
    called = cache(lambda: inductor_call(case))
    return {
        "weft": {"kernels": lambda: weft_kernels(case, options), "call": lambda: weft_call(case, options)},
        "inductor": {"kernels": lambda: inductor_kernels(called()), "call": called},
        "eager": {"call": lambda: eager_call(case)},
        **absent,
    }


def _on_gpu(case: Case, options: Options) -> dict[str, dict[str, Maker]]:
    """Calls, of which the kernels are timed."""
    return {
        "weft": {"": lambda: weft_call(case, options) if supports_cuda() else _no_backend()},
        **{peer: {"": partial(make, case)} for peer, make in GPU_PEERS.items()},
    }


def _check_all(case: Case, made: Sequence[Candidate]) -> tuple[int, dict[str, Reason]]:
    """The bytes that the function has to move, and by name why a candidate is wrong or fails."""
    expected = reference(case.function, case.inputs)
    answers: dict[str, Reason] = {}
    for candidate in made:

        def check(candidate: Candidate = candidate) -> Candidate | Reason:
            return check_candidate(candidate, case.inputs, expected) or candidate

        answer = attempt(candidate.name, check)
        if isinstance(answer, Reason):
            answers[candidate.name] = answer
    gc.collect()
    return traffic_bytes((*case.inputs, *expected.eager)), answers


def _only_on_gpu(peer: str) -> Reason:
    return Reason("no_gpu", peer, "only runs on a GPU")


def _no_backend() -> Reason:
    return Reason("no_backend", "weft", "no Triton is installed; weft leaves this to TorchInductor: 0 kernels of weft")
