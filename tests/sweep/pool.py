"""Runs cases in worker processes: a crash or a hang is a finding and not the end of the run."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.fuzz.pool import Worker
from tests.sweep.cases import SweepCase

CASES_PER_WORKER = 200
"""A worker is replaced now and then: loaded libraries are never unloaded."""
CASE_SECONDS = 400.0
PROGRESS_CASES = 10


@dataclass
class Finding:
    """A case in which something is wrong, and how to run it again."""

    case: str
    message: str
    trace: str = ""
    command: str = ""

    def __post_init__(self) -> None:
        self.command = f"python -m tests.sweep --case {self.case}"


@dataclass
class Summary:
    """What became of the cases. refused: reasons without the names in them, counted, each with a case."""

    cases: int
    ran: int = 0
    kernels: int = 0
    compared: int = 0
    seconds: float = 0.0
    by_mode: dict[str, int] = field(default_factory=dict[str, int])
    refused: dict[str, int] = field(default_factory=dict[str, int])
    refused_case: dict[str, str] = field(default_factory=dict[str, str])
    findings: list[Finding] = field(default_factory=list[Finding])

    def add(self, case: SweepCase, answer: dict[str, Any] | str) -> None:
        self.ran += 1
        self.by_mode[case.mode] = self.by_mode.get(case.mode, 0) + 1
        if isinstance(answer, str):
            self.findings.append(Finding(str(case), answer))
            return
        if answer["finding"] is not None:
            self.findings.append(Finding(str(case), answer["finding"], answer["trace"]))
            return
        self.kernels += answer["kernels"]
        self.compared += answer["compared"]
        for reason in answer["refused"]:
            short = f"{case.mode}: {reason.partition(' at ')[0].partition(' (have')[0]}"
            self.refused[short] = self.refused.get(short, 0) + 1
            self.refused_case.setdefault(short, str(case))

    def line(self) -> str:
        return (
            f"{self.ran} of {self.cases} cases in {self.seconds:.0f} s, {self.kernels} kernels, {self.compared} "
            f"outputs compared, {sum(self.refused.values())} refusals, {len(self.findings)} findings"
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def run_cases(cases: Iterable[SweepCase], jobs: int, minutes: float, progress: bool = True) -> Summary:
    """Run cases until there is none left or the time is over."""
    waiting: queue.SimpleQueue[SweepCase] = queue.SimpleQueue()
    for case in cases:
        waiting.put(case)
    summary, lock, started = Summary(waiting.qsize()), threading.Lock(), time.monotonic()

    def take() -> SweepCase | None:
        if time.monotonic() - started > 60 * minutes:
            return None
        try:
            return waiting.get_nowait()
        except queue.Empty:
            return None

    def work() -> None:
        worker: Worker | None = None
        while (case := take()) is not None:
            worker = worker or Worker("tests.sweep.worker")
            answer = worker.run(case, CASE_SECONDS)
            if isinstance(answer, str) or worker.done >= CASES_PER_WORKER:
                worker.end()
                worker = None
            with lock:
                summary.add(case, answer)
                summary.seconds = time.monotonic() - started
                if progress and summary.ran % PROGRESS_CASES == 0:
                    print(f"\r{summary.line()}", end="", file=sys.stderr, flush=True)
        if worker is not None:
            worker.end()

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if progress:
        print(file=sys.stderr)
    summary.findings.sort(key=lambda f: f.case)
    return summary
