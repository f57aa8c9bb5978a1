"""Measures candidate schedules in other processes: one that times, and on a GPU several that compile ahead of it."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import torch

from weft.backends.listed import backend_of, device_of, render
from weft.bench.tune import ROUNDS, Attempt, Job
from weft.bench.tune_worker import Bench
from weft.bench.worker import OutOfTimeError, Worker, WorkerError
from weft.errors import WeftError
from weft.options import Options
from weft.plan.kernel import Kernel

CANDIDATE_TIMEOUT_S = 30.0
"""A candidate that takes longer, to compile or to run, hangs."""
MOST_COMPILERS = 16


class ProcessMeasurer:
    """Compiles, checks and times where a kernel that crashes does no harm. Raises TimeoutError where the time that is
    left does not suffice. bench: what the processes are made with; timeout_s: of one candidate."""

    def __init__(
        self, options: Options, bench: Callable[[Options], Bench] = Bench, timeout_s: float = CANDIDATE_TIMEOUT_S
    ) -> None:
        self._options, self._timeout_s, self._bench = options, timeout_s, bench
        self._worker = self._make()
        self._compilers: SimpleQueue[Worker] = SimpleQueue()
        self._all = [self._worker]
        self._pool: ThreadPoolExecutor | None = None
        self._job: Job | None = None
        self._is_open = False
        self._expected: list[Kernel] = []
        self._compiled: dict[Kernel, Future[str]] = {}

    def __enter__(self) -> ProcessMeasurer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            for worker in self._all:
                worker.kill()
            self._pool.shutdown(wait=True)
        for worker in self._all:
            worker.close()

    def start(self, job: Job, seconds: float) -> None:
        """Get ready for the first kernel, which is this one. All processes at once: each imports PyTorch, which takes
        as long as many kernels."""
        self._job = job
        if device_of(job.kernel) == "cuda":
            pool = self._compile_pool()
            for _ in range(self._compilers.qsize()):
                pool.submit(self._with_compiler, Bench.start)
        self._worker.ask(seconds, Bench.start)

    def open(self, job: Job, seconds: float) -> Attempt:
        """Run the untuned choice and compare it with the reference, which takes many times as long as the kernel, and
        has all the time that is left."""
        self._drop()
        self._job, self._is_open = job, False
        try:
            answer = self._open(seconds, verified=False)
        except OutOfTimeError:
            raise TimeoutError from None
        except WorkerError as error:
            answer = {"failed": str(error)}
        if "wrong" in answer or "failed" in answer:
            return _refused(job.kernel, answer)
        return Attempt(job.kernel.schedule, "timed")

    def expect(self, kernels: Sequence[Kernel]) -> None:
        """These will be asked for, in this order."""
        self._expected = list(kernels)
        if kernels and device_of(kernels[0]) == "cuda":  # compilers have the host to themselves
            self._submit(self._expected)

    def attempt(self, kernel: Kernel, seconds: float) -> Attempt:
        """Compiled before, so that nothing else runs while it is timed on a CPU."""
        if kernel not in self._compiled:
            at = self._expected.index(kernel) if kernel in self._expected else 0
            self._submit((self._expected or [kernel])[at : at + self._threads()])
            for future in self._compiled.values():
                future.result(timeout=seconds)
        if reason := self._compiled[kernel].result(timeout=seconds):
            return Attempt(kernel.schedule, "failed", reason=reason)
        answer: dict[str, Any]
        try:
            answer = self._ask_open(seconds, Bench.attempt, kernel=kernel, rounds=ROUNDS)
        except OutOfTimeError as error:
            if seconds < self._timeout_s:
                raise TimeoutError from None
            answer = {"failed": f"{error}; it was stopped"}
        except WorkerError as error:
            answer = {"failed": str(error)}
        if "us" not in answer:
            return _refused(kernel, answer)
        untuned, own = answer["us"]
        ratio = statistics.median(b / a for a, b in zip(untuned, own, strict=True))
        return Attempt(kernel.schedule, "timed", ratio, statistics.median(own))

    def final(self, kernels: Sequence[Kernel], rounds: int) -> list[list[float]]:
        """Microseconds, round by round, of the untuned choice, the untuned choice again, and these. Raises WorkerError
        where that fails."""
        answer = self._ask_open(self._timeout_s, Bench.final, kernels=kernels, rounds=rounds)
        if "us" not in answer:
            raise WorkerError(answer["failed"])
        return answer["us"]

    def _make(self) -> Worker:
        return Worker(self._bench, replace(self._options, logs=()))

    def _ask_open(self, seconds: float, function: Callable[..., Any], **given: Any) -> dict[str, Any]:
        """Ask the process that times, which is started again if it died. Raises WorkerError."""
        if not (self._is_open and self._worker.is_alive):
            answer = self._open(seconds, verified=True)
            if "failed" in answer:
                raise WorkerError(answer["failed"])
        return self._worker.ask(min(seconds, self._timeout_s), function, **given)

    def _open(self, seconds: float, verified: bool) -> dict[str, Any]:
        assert self._job is not None
        answer = self._worker.ask(
            seconds,
            Bench.open,
            kernel=self._job.kernel,
            parameters=self._job.parameters,
            device=device_of(self._job.kernel),
            threads=torch.get_num_threads(),
            verified=verified,
        )
        self._is_open = "failed" not in answer
        return answer

    def _compile_pool(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads())
        return self._pool

    def _submit(self, kernels: Sequence[Kernel]) -> None:
        pool = self._compile_pool()
        for kernel in kernels:
            if kernel not in self._compiled:
                self._compiled[kernel] = pool.submit(self._compile, kernel)

    def _compile(self, kernel: Kernel) -> str:
        """Into the cache; why not, if that fails. The C++ compiler is a process of its own, Triton needs one."""
        if device_of(kernel) == "cpu":
            try:
                backend_of(kernel).calls.compile(kernel, render(kernel), {}, 0, self._options)
            except WeftError as error:
                return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            return ""
        assert self._job is not None
        major, minor = torch.cuda.get_device_capability()
        arch, hints = 10 * major + minor, self._job.hints
        return self._with_compiler(Bench.compile, kernel=kernel, arch=arch, hints=hints)

    def _with_compiler(self, function: Callable[..., Any], **given: Any) -> str:
        """Have one of the processes that compile answer; why it could not."""
        worker = self._compilers.get()
        try:
            return worker.ask(self._timeout_s, function, **given).get("failed", "")
        except WorkerError as error:
            return str(error)
        finally:
            self._compilers.put(worker)

    def _threads(self) -> int:
        """Kernels that are compiled side by side; on a GPU each by a process, made when it is first needed."""
        count = max(1, min(MOST_COMPILERS, os.cpu_count() or 1))
        assert self._job is not None
        if device_of(self._job.kernel) == "cuda" and len(self._all) == 1:
            made = [self._make() for _ in range(count)]
            self._all += made
            for worker in made:
                self._compilers.put(worker)
        return count

    def _drop(self) -> None:
        """Forget what is not compiled yet."""
        for future in self._compiled.values():
            future.cancel()
        self._compiled, self._expected = {}, []


def _refused(kernel: Kernel, answer: dict[str, Any]) -> Attempt:
    wrong = answer.get("wrong")
    return Attempt(kernel.schedule, "wrong" if wrong else "failed", reason=wrong or answer.get("failed", "no answer"))
