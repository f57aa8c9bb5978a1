"""The worker of ``weft tune`` with defects, by what a schedule says: ``python -m tests.tune_faults``."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

from weft.bench import tune_worker
from weft.bench.kernel_run import KernelRun

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


def main() -> None:
    patched: Any = tune_worker
    patched.KernelRun = Faulty
    tune_worker.main()


if __name__ == "__main__":
    main()
