"""A process that answers requests, one line of JSON each: what it does may crash, hang or take all memory."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import weft

LONGEST_ERROR = 200
"""Characters of what a process said before it died."""


class WorkerError(Exception):
    """No answer: the process died, or took too long."""


class OutOfTimeError(WorkerError):
    """The process was at work when its time was over; it was killed."""


class Worker:
    """Started by its first request, and again by the first after it died. command: of a program that reads requests on
    standard input and writes as many answers on standard output."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._command, self._environment = list(command), dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._unread = b""

    @staticmethod
    def of_module(name: str, environment: Mapping[str, str] | None = None) -> Worker:
        """One that runs a module with this Python, and finds this weft."""
        root = str(Path(weft.__file__).parent.parent)
        path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        return Worker([sys.executable, "-m", name], {"PYTHONPATH": path, **(environment or {})})

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def ask(self, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """The answer. Raises WorkerError, and OutOfTimeError after ``timeout_s`` seconds; the process is gone then."""
        end = time.monotonic() + timeout_s
        if not self.is_alive:
            self._start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            line = self._line(process, end)
        except BrokenPipeError:
            line = b""
        if line is None:
            self.close()
            raise OutOfTimeError(f"no result after {timeout_s:.0f} s")
        if not line:
            raise WorkerError(self._last_words())
        try:
            return json.loads(line)
        except ValueError:
            self.close()
            raise WorkerError(f"its process said {line.decode(errors='replace')[:LONGEST_ERROR]!r}") from None

    def kill(self) -> None:
        """End the process, whatever it does; a thread that waits for its answer gets an error."""
        if (process := self._process) is not None:
            process.kill()

    def close(self) -> None:
        """The same, with everything that belongs to it."""
        self.kill()
        if self._process is not None:
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
        if self._errors is not None:
            self._errors.close()
        self._process = self._errors = None

    def _start(self) -> None:
        self.close()
        self._unread, self._errors = b"", tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,
            env={**os.environ, **self._environment},
        )

    def _line(self, process: subprocess.Popen[bytes], end: float) -> bytes | None:
        """What the process says up to the next line, or all that there is if it died; None if time is over."""
        assert process.stdout is not None
        while b"\n" not in self._unread:
            ready, _, _ = select.select([process.stdout], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                return None
            chunk = os.read(process.stdout.fileno(), 1 << 16)
            if not chunk:
                return b""
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _last_words(self) -> str:
        """What a process that gave no answer died of."""
        process, errors = self._process, self._errors
        assert process is not None
        assert errors is not None
        try:
            code = process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            code = 0
        errors.seek(0)
        lines = errors.read().decode(errors="replace").strip().splitlines()
        self.close()
        if code < 0:
            return f"its process died of {signal.Signals(-code).name}"
        return f"its process ended: {lines[-1][:LONGEST_ERROR] if lines else f'exit code {code}'}"
