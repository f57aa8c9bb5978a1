"""Several processes that work for a tool, each with an interpreter of its own."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Generator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager


@contextmanager
def processes(count: int) -> Generator[ProcessPoolExecutor]:
    """A pool of processes. Interrupts are for the process that has it: whatever is raised there ends all others at
    once, where they may wait for a lock, a GPU or a compiler."""
    pool = ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"), initializer=_ignore_interrupts)
    try:
        yield pool
    except BaseException:
        for child in multiprocessing.active_children():
            child.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
