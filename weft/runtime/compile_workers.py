"""TorchInductor's pool of compile processes, where it is running already.

It imports PyTorch and Triton while a model is traced, and stands idle until TorchInductor has code of its own. What it
runs does not hold this process's lock, which Triton's front end and parts of its passes do.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Lock
from typing import Any

_LOG = logging.getLogger(__name__)
LOOK_S = 1.0
"""How often whoever waits for a task looks whether the pool still runs: one whose process died says nothing."""

MOST_KEPT = 256
"""Tasks that nobody has fetched."""


class WorkerLostError(Exception):
    """Nothing came of a task: its worker died, it did not get there, or it raised. To be done in this process."""


@dataclass(frozen=True)
class Task:
    """What a worker was asked for. pool: of workers."""

    future: Future[Any]
    pool: Any

    def result(self) -> Any:
        """What it returned. Raises WorkerLostError."""
        while True:
            try:
                return self.future.result(timeout=LOOK_S)
            except TimeoutError:
                if self.future.done() or not _runs(self.pool):
                    raise WorkerLostError("the pool of compile workers is gone") from None
            except Exception as error:
                raise WorkerLostError(f"{type(error).__name__}: {error}") from error


def start() -> None:
    """Have TorchInductor start its pool, as it does when it compiles for a GPU, if it would have one."""
    try:
        from torch._inductor.async_compile import maybe_warm_pool

        maybe_warm_pool()
    except Exception as error:
        _LOG.info("compile workers are not started: %s: %s", type(error).__name__, error)


def submit(function: Callable[..., Any], *arguments: Any) -> Task | None:
    """Have a worker call a function that it can import by name; None if there is no pool that is ready."""
    pool = _pool()
    if pool is None or not _runs(pool):
        return None
    try:
        return Task(pool.submit(function, *arguments), pool)
    except Exception as error:  # its pipe is closed
        _LOG.info("no compile worker: %s: %s", type(error).__name__, error)
        return None


class Tasks:
    """Tasks by key, each fetched once. Of those that nobody fetches, because what they are for was given up, the oldest
    are forgotten."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}
        self._lock = Lock()

    def __contains__(self, key: str) -> bool:
        return key in self._tasks

    def submit(self, key: str, function: Callable[..., Any], *arguments: Any) -> None:
        """Ask a worker, if there are any."""
        if (task := submit(function, *arguments)) is not None:
            self._keep(key, task)

    def put(self, key: str, result: Any) -> None:
        """What nobody asked a worker for, but one has found."""
        future = Future[Any]()
        future.set_result(result)
        self._keep(key, Task(future, None))

    def _keep(self, key: str, task: Task) -> None:
        with self._lock:
            self._tasks[key] = task
            while len(self._tasks) > MOST_KEPT:
                del self._tasks[next(iter(self._tasks))]

    def take(self, key: str) -> Task | None:
        with self._lock:
            return self._tasks.pop(key, None)


def count() -> int:
    """Workers of the pool; 0 if there is none that is ready."""
    return 0 if _pool() is None else sys.modules["torch._inductor.async_compile"].get_compile_threads()


def _pool() -> Any | None:
    """The pool, if TorchInductor started it and its first task is done; nothing is started here."""
    module = sys.modules.get("torch._inductor.async_compile")
    try:
        if module is None or not module.AsyncCompile.process_pool.cache_info().currsize:
            return None
        return module.AsyncCompile.process_pool() if module.AsyncCompile.use_process_pool() else None
    except Exception as error:  # other releases may have other names
        _LOG.info("no compile workers: %s: %s", type(error).__name__, error)
        return None


def _runs(pool: Any) -> bool:
    """Whether the process behind a pool lives, as far as that can be seen."""
    process = getattr(pool, "process", None)
    return process is None or process.poll() is None
