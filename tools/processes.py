"""Several processes that work for a tool, each with an interpreter of its own."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Generator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.context import SpawnContext, SpawnProcess


@contextmanager
def processes(count: int) -> Generator[ProcessPoolExecutor]:
    """A pool of processes. Interrupts are for the process that has it: whatever is raised there ends all others at
    once, where they may wait for a lock, a GPU or a compiler."""
    pool = ProcessPoolExecutor(count, mp_context=_Context())
    try:
        yield pool
    except BaseException:
        for child in multiprocessing.active_children():
            child.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


class _Uninterrupted(SpawnProcess):
    """Interrupts wait from its first instruction on, as what is blocked when a process is started stays so."""

    def start(self) -> None:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Context(SpawnContext):
    Process = _Uninterrupted
