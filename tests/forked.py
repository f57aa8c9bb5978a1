"""Scripts in processes that are new but for their imports: torch, weft and TorchInductor, which take seconds.

They are imported once, in a process that is forked for each script. What a variable of the environment says when one of
these is imported is that process's; whatever is read later is the script's own. All scripts have strings hash alike:
where keys of two processes are compared, the other one is to be started anew.
"""

from __future__ import annotations

import functools
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent.parent
TIMEOUT_S = 400


def run_forked(code: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """As ``python -c code`` in that environment."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        order = {"code": code, "environment": dict(environment), "out": str(out), "err": str(err)}
        status = _server().order(json.dumps(order))
        return subprocess.CompletedProcess([code], status, out.read_text(), err.read_text())


class Server:
    """The process with the imports. It ends with the one that started it, which closes the pipe between them."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.forked"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def order(self, line: str) -> int:
        """The exit status of a script."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(line, file=self.process.stdin, flush=True)
        ready, _, _ = select.select([self.process.stdout], [], [], TIMEOUT_S)
        if not ready:
            self.process.kill()
            raise TimeoutError(f"a script has not ended after {TIMEOUT_S} s")
        return int(self.process.stdout.readline())


@functools.cache
def _server() -> Server:
    return Server()


def main() -> None:
    import torch._inductor.compile_fx
    import torch._inductor.cpp_builder  # noqa: F401

    import weft  # noqa: F401

    assert threading.active_count() == 1, "a thread is not there after a fork"
    while line := sys.stdin.readline():
        process = os.fork()
        if process == 0:
            return _run(**json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)


def _run(code: str, environment: dict[str, str], out: str, err: str) -> None:
    """To the end of this process, as for a script: what is registered for it is done."""
    for path, descriptor in ((os.devnull, 0), (out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), descriptor)
    os.environ.clear()
    os.environ.update(environment)
    script = sys.modules["__main__"] = ModuleType("__main__")
    exec(compile(code, "<string>", "exec"), script.__dict__)


if __name__ == "__main__":
    main()
