"""One small kernel of weft's from its program to its results, in a process of its own: what is broken may crash."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import torch

from weft.backends.listed import render
from weft.bench.worker import Worker, WorkerError
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
    worker = Worker(object)
    try:
        return worker.ask(TIMEOUT_S, _tried)
    except Exception as error:
        return _failed(str(error) if isinstance(error, WorkerError) else _text(error))
    finally:
        worker.close()


def _tried(_: object) -> Trial:
    try:
        return run(Options.read())
    except Exception as error:
        return _failed(_text(error))


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
