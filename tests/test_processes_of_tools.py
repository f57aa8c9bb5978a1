"""Processes that work for a tool end when it is interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tools.processes import processes

ROOT = Path(__file__).parents[1]
TOOL = """
import signal
import time
from tools.processes import processes

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell runs in the background ignores interrupts
    with processes(2) as pool:
        for _ in pool.map(time.sleep, [0.0, 600.0, 600.0]):
            print("slept", flush=True)
"""


def test_an_interrupt_of_a_tool_and_all_its_processes_ends_them_at_once(tmp_path: Path) -> None:
    script = tmp_path / "tool.py"
    script.write_text(TOOL)
    command, environment = [sys.executable, str(script)], os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as tool:
        assert tool.stdout is not None
        assert tool.stdout.readline() == "slept\n"
        os.killpg(tool.pid, signal.SIGINT)
        _, errors = tool.communicate(timeout=60)  # to the end of what all processes may write to
    assert errors.count("KeyboardInterrupt") == 1


def test_interrupts_of_a_process_wait_from_its_start_on_and_those_of_whoever_starts_it_do_not() -> None:
    """One that came while a process started was written about by that as well."""
    with processes(1) as pool:
        assert signal.SIGINT in pool.submit(signal.pthread_sigmask, signal.SIG_BLOCK, ()).result()
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
