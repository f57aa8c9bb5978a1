"""One small kernel of weft's from its program to its results, in a process of its own: what is broken may crash."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

import torch

import weft
from weft.backends.listed import render
from weft.errors import Refusal, RefusedError
from weft.ir.interpret import interpret
from weft.ir.parser import parse
from weft.options import Options
from weft.plan.planner import plan_split
from weft.runtime import build, launcher
from weft.runtime.executable import Executable
from weft.target import Target

PROGRAM = """
program doctor()
  dim m = 64
  dim n = 48
  input x: f32 [m:48, n:1]
  sum: f32{m} = sum[n](x)
  mul: f32{m,n} = mul(x, sum)
  sum_1: f32{n} = sum[m](mul)
  output out0: f32 [m:48, n:1] = mul
  output out1: f32 [n:1] = sum_1
end
"""
"""A sum along rows, and one along columns of what it is needed for: one mixed-order kernel."""
TIMEOUT_S = 300


@dataclass(frozen=True)
class Trial:
    """error, launcher_error: empty if the kernel, or the launcher in C++, does what it should."""

    compile_s: float = 0.0
    error: str = ""
    launcher_error: str = ""


def run_apart() -> Trial:
    """The trial in a process of its own, with the options of the environment. Raises nothing."""
    env = dict(os.environ)
    root = str(Path(weft.__file__).parent.parent)
    env["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [env.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "weft.explain.trial"]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return _failed(f"no result after {TIMEOUT_S} s")
    except Exception as error:
        return _failed(_text(error))
    try:
        return Trial(**json.loads(done.stdout.splitlines()[-1]))
    except (ValueError, TypeError, IndexError):
        return _failed(_end_of(done))


def run(options: Options) -> Trial:
    """The trial in this process."""
    compile_s, error = 0.0, ""
    try:
        compile_s = _run_kernel(options)
    except Exception as failure:
        error = _text(failure)
    launcher.load(options)
    return Trial(compile_s, error, launcher.reason_against() or "")


def _run_kernel(options: Options) -> float:
    """Seconds that the compiler took. Raises whatever is wrong."""
    program = parse(PROGRAM.strip())
    plan = plan_split(program, ("m",), ("n",), Target.current("cpu"), {})
    if isinstance(plan, Refusal):
        raise RefusedError((plan,))
    (kernel,) = plan.kernels
    source = render(kernel)
    start = perf_counter()
    content = build.compile_anew(source, options)
    compile_s = perf_counter() - start
    x = (torch.arange(64.0 * 48) % 7 - 3).view(64, 48)  # every sum is a float32
    made = [torch.empty(64, 48), torch.empty(48)]
    Executable(kernel, build.open_library(content, source.entry))([x], made, [])
    for buffer, found, expected in zip(("out0", "out1"), made, interpret(program, [x]), strict=True):
        if not torch.equal(found.double(), expected):
            wrong = int((found.double() != expected).sum())
            raise ArithmeticError(f"{wrong} of {found.numel()} elements of {buffer} are not what the interpreter finds")
    return compile_s


def _failed(message: str) -> Trial:
    return Trial(error=message, launcher_error=message)


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _end_of(done: subprocess.CompletedProcess[str]) -> str:
    """What a process that gave no result died of."""
    if done.returncode < 0:
        return f"the process that ran it died of {signal.Signals(-done.returncode).name}"
    lines = done.stderr.strip().splitlines()
    return f"the process that ran it failed: {lines[-1] if lines else f'exit code {done.returncode}'}"


def main(read: Callable[[], Options] = Options.read) -> None:
    """Print the trial as a line of JSON."""
    try:
        found = run(read())
    except Exception as error:
        found = _failed(_text(error))
    print(json.dumps(asdict(found)))


if __name__ == "__main__":
    main()
