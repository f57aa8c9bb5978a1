"""Runs seeds in worker processes: a crash or a hang is a failure of its seed and not the end of the run."""

from __future__ import annotations

import json
import os
import queue
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

CASES_PER_WORKER = 100
"""A worker is replaced now and then: loaded libraries are never unloaded."""

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONFAULTHANDLER": "1"}
"""Several workers share the cores: threads that spin at a barrier would take them from each other. Kernels are told
how many threads to use."""
OF_KINDS = {"triton": {"TRITON_INTERPRET": "1"}}
"""What has to be set before torch is imported."""


@dataclass
class Failure:
    """A seed that failed. script: a file that stands alone, if the case could be made into one."""

    seed: int
    place: str
    message: str
    script: str = ""


@dataclass
class Summary:
    kind: str
    ran: int = 0
    kernels: int = 0
    without_kernels: int = 0
    compared: int = 0
    torchs: int = 0
    seconds: float = 0.0
    failures: list[Failure] = field(default_factory=list[Failure])

    def line(self) -> str:
        return (
            f"{self.kind}: {self.ran} cases in {self.seconds:.0f} s, {self.kernels} kernels, {self.compared} results "
            f"compared, {self.without_kernels} cases without kernels, {len(self.failures)} failures, "
            f"{self.torchs} results that torch has wrong without weft"
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Worker:
    """A process, ``python -m module arguments``, that runs one case at a time: a line comes in, answers go out."""

    def __init__(self, module: str, *arguments: str) -> None:
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, bufsize=1,
            env=os.environ | ENVIRONMENT | OF_KINDS.get(arguments[0] if arguments else "", {}),
        )  # fmt: skip
        self.done = 0

    def run(self, case: object, seconds: float) -> dict[str, Any] | str:
        """The worker's answer, or what became of it instead."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            print(case, file=self.process.stdin, flush=True)
        except BrokenPipeError:
            return f"crash: {self._last_words()}"
        while True:
            ready, _, _ = select.select([self.process.stdout], [], [], seconds)
            if not ready:
                return f"hang: no answer in {seconds:.0f} s"
            line = self.process.stdout.readline()
            if not line:
                return f"crash: exit status {self.process.wait()}\n{self._last_words()}"
            answer = json.loads(line)
            if answer["state"] == "done":
                self.done += 1
                return answer
            seconds = answer["seconds"]  # it makes a failure smaller

    def _last_words(self) -> str:
        self.log.seek(0)
        return self.log.read()[-3000:]

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.log.close()


def run_seeds(
    kind: str,
    seeds: Iterable[int],
    jobs: int = 2,
    minutes: float = 30.0,
    case_seconds: float = 180.0,
    shrink_seconds: float = 90.0,
    folder: Path | None = None,
    progress: bool = True,
) -> Summary:
    """Run seeds until there is none left or the time is over. Scripts of failures go to ``folder``."""
    summary, lock, started = Summary(kind), threading.Lock(), time.monotonic()
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for seed in seeds:
        waiting.put(seed)

    def take() -> int | None:
        if time.monotonic() - started > 60 * minutes:
            return None
        try:
            return waiting.get_nowait()
        except queue.Empty:
            return None

    def work() -> None:
        worker: Worker | None = None
        while (seed := take()) is not None:
            if worker is None:
                worker = Worker("tests.fuzz.worker", kind, str(shrink_seconds))
            answer = worker.run(seed, case_seconds)
            if isinstance(answer, str) or worker.done >= CASES_PER_WORKER:
                worker.end()
                worker = None
            with lock:
                _count(summary, seed, answer, folder)
                summary.seconds = time.monotonic() - started
                if progress:
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
    summary.failures.sort(key=lambda f: f.seed)
    return summary


def _count(summary: Summary, seed: int, answer: dict[str, Any] | str, folder: Path | None) -> None:
    summary.ran += 1
    if isinstance(answer, str):
        summary.failures.append(Failure(seed, answer.partition(":")[0], answer))
        return
    summary.kernels += answer["kernels"]
    summary.compared += answer["compared"]
    summary.torchs += answer["torchs"]
    summary.without_kernels += answer["kernels"] == 0 and answer["failure"] is None
    if answer["failure"] is None:
        return
    path = ""
    if folder is not None and answer["script"]:
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / f"{summary.kind}_{seed}.py"
        target.write_text(answer["script"])
        path = str(target)
    summary.failures.append(Failure(seed, answer["place"], answer["failure"], path))
