"""A process of its own that calls functions: what they do may crash, hang or take all memory."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

LONGEST_ERROR, LONGEST_REASON = 200, 300
"""Characters of what a process said before it died, and of what a function raised."""
_SPAWN = multiprocessing.get_context("spawn")


class WorkerError(Exception):
    """No answer: the process died, or took too long."""


class OutOfTimeError(WorkerError):
    """The process was at work when its time was over; it was killed."""


class Worker:
    """Started by its first request, and again by the first after it died. make: called in the process with
    ``arguments``; what it makes is given to each function that is asked for."""

    def __init__(self, make: Callable[..., object], *arguments: Any) -> None:
        self._made = make, arguments
        self._process: BaseProcess | None = None

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.is_alive()

    def ask(self, timeout_s: float, function: Callable[..., Any], **given: Any) -> Any:
        """What a function of a module returns, ``{"failed": reason}`` if it raises. Raises WorkerError, and
        OutOfTimeError after ``timeout_s`` seconds; the process is gone then, and if the GPU is of no more use to it."""
        if not self.is_alive:
            self._start()
        try:
            self._connection.send((function, given))
            if not self._connection.poll(max(0.0, timeout_s)):
                self.close()
                raise OutOfTimeError(f"no result after {timeout_s:.0f} s")
            answer, is_lost = self._connection.recv()
        except (EOFError, ConnectionError):
            raise WorkerError(self._last_words()) from None
        if is_lost:
            self.close()
        return answer

    def kill(self) -> None:
        """End the process, whatever it does; a thread that waits for its answer gets an error."""
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """The same, with everything that belongs to it."""
        self.kill()
        if self._process is not None:
            self._process.join()
            self._connection.close()
            self._said.unlink(missing_ok=True)
        self._process = None

    def _start(self) -> None:
        self.close()
        handle, name = tempfile.mkstemp()
        os.close(handle)
        self._said = Path(name)
        self._connection, other = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_serve, args=(other, name, *self._made), daemon=True)
        self._process.start()
        other.close()

    def _last_words(self) -> str:
        """What a process that gave no answer died of."""
        assert self._process is not None
        self._process.join(10)
        code, lines = self._process.exitcode or 0, self._said.read_text(errors="replace").strip().splitlines()
        self.close()
        if code < 0:
            return f"its process died of {signal.Signals(-code).name}"
        return f"its process ended: {lines[-1][:LONGEST_ERROR] if lines else f'exit code {code}'}"


def _serve(connection: Connection, said: str, make: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    """Answer until there are no more requests. What libraries print goes into the file ``said``."""
    handle = os.open(said, os.O_WRONLY | os.O_APPEND)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(handle, stream.fileno())
    made = make(*arguments)
    with suppress(EOFError):
        while True:
            function, given = connection.recv()
            try:
                answer, is_lost = function(made, **given), False
            except Exception as error:
                reason = " ".join(str(error).split())[:LONGEST_REASON]
                answer, is_lost = {"failed": f"{type(error).__name__}: {reason}"}, _is_lost()
            connection.send((answer, is_lost))


def _is_lost() -> bool:
    """Whether an error of a kernel has left the GPU unusable for this process."""
    try:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
    except Exception:
        return True
    return False
