"""The worker of ``weft tune`` with defects, by what a schedule says."""

from __future__ import annotations

import os
import signal
import threading
from functools import partial

from weft.bench.kernel_run import KernelRun
from weft.bench.tune_worker import Bench

CRASHES, HANGS, RAISES, IS_WRONG, IS_UNWRITTEN = 8, 16, 32, 128, 256
"""Rows of a chunk of schedules whose kernels do that."""


class Faulty(KernelRun):
    def __call__(self) -> None:
        print("what a library says on standard output is no answer", flush=True)
        fault = self.kernel.schedule.rows_per_chunk
        if fault == CRASHES:
            os.kill(os.getpid(), signal.SIGSEGV)
        if fault == HANGS:
            threading.Event().wait()
        if fault == RAISES:
            raise MemoryError("no memory left for this one")
        if fault == IS_UNWRITTEN:
            return
        super().__call__()
        if fault == IS_WRONG:
            self.outputs[-1].reshape(-1)[0] += 1.0


FAULTY = partial(Bench, run=Faulty)
