"""Checks the models of the zoo: ``python -m tests.zoo``, or ``make zoo`` on a machine with a GPU.

Each check of a model is a process of its own. Gradients of all parameters are compared with float64, in float32 and
in bfloat16 autocast, and losses of twenty steps with eager's; the first step is timed with empty and with full
caches. On a GPU models have sizes that people train. The twenty steps come last, one model at a time and with full
caches, and are timed, by weft, TorchInductor and eager PyTorch in turn. Asked for, ``compile`` fills the caches for
them, several models at a time. The exit status is 1 if something is wrong; no time is.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from itertools import zip_longest
from pathlib import Path
from threading import Thread
from typing import IO, Any

import torch
from rich.console import Console
from rich.table import Table

from tests.zoo.entries import ENTRIES
from tests.zoo.one import CHECKS, STEPS
from tests.zoo.start import STARTS, caches_in
from tests.zoo.training import COMPARED
from tools.arguments import require_gpu
from tools.training import BACKENDS, RACED
from weft.bench.machine import machine, versions
from weft.options import Options

WORTH_KNOWING = 0.01
"""Of the time of weft's kernels and of what TorchInductor wrote beside them."""
LIBRARIES = ("transformers", "timm", "diffusers")
TIMED = ("race", "training")
"""Checks that have the GPU alone."""
Result = Mapping[str, Any]
Results = dict[str, dict[str, Result]]
"""By model and check."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, print, and write what was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.zoo", description=__doc__)
    here = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--model", nargs="+", choices=list(ENTRIES), default=list(ENTRIES), metavar="MODEL")
    parser.add_argument(
        "--check", nargs="+", choices=CHECKS, help="all but compile by default; start and race are of a GPU"
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default=here)
    parser.add_argument("--jobs", type=int, help="processes at a time; of checks that are timed there is one")
    parser.add_argument("--repeat", type=int, default=0, help="further processes that time the twenty steps, on a GPU")
    parser.add_argument("--cache", type=Path, help="folder of the compilers' caches; by default one that is deleted")
    parser.add_argument("--patience", type=float, default=900, help="seconds that a check of a model may take")
    parser.add_argument("--json", type=Path, help="write what was found to this file, after each check")
    given = parser.parse_args(arguments)
    require_gpu(parser, given.device)
    left_out = ("compile",) if given.device == "cuda" else ("compile", "start", "race")
    checks = given.check or [check for check in CHECKS if check not in left_out]
    jobs = given.jobs or max(1, (os.cpu_count() or 1) // 2)
    console, found = Console(), Results()
    with tempfile.TemporaryDirectory(prefix="weft-zoo-") as folder:
        run = Runner(given.device, jobs, given.cache or Path(folder), given.patience)
        for name, check, result in results(given.model, checks, run, jobs, given.repeat):
            found.setdefault(name, {})[check] = result
            console.print(line(name, check, result), highlight=False, markup=False, soft_wrap=True)
            if given.json is not None:
                record = described(given.device, given.json, sys.argv[1:]) | {"models": found}
                given.json.write_text(json.dumps(record, indent=1) + "\n")
    console.print(table(found, given.model))
    for text in (*races_lost(found), *slower_than_predicted(found)):
        console.print(text, highlight=False, markup=False, soft_wrap=True)
    return 1 if any(wrong_in(checked) for checked in found.values()) else 0


def results(
    names: Sequence[str],
    checks: Sequence[str],
    run: Callable[[str, Sequence[str]], Iterator[Result]],
    jobs: int,
    repeat: int = 0,
) -> Iterator[tuple[str, str, Result]]:
    """What each check of each model came to, as they end; those that are timed come last, each in one process.

    run: makes a process for a check of several models, and yields what it says of each. repeat: processes that time the
    steps of all models once more.
    """
    half = (len(names) + 1) // 2
    mixed = [name for pair in zip_longest(names[:half], names[half:]) for name in pair if name is not None]
    beside = [(name, check) for check in checks for name in mixed if check not in TIMED]  # large models not at once
    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(lambda n, c: list(run(c, [n])), *each): each for each in beside}
        for future in as_completed(futures):
            yield *futures[future], future.result()[0]
    for check in (*(each for each in TIMED if each in checks), *(f"{STEPS} {number + 1}" for number in range(repeat))):
        pending = list(names)
        while pending:  # a process that ends has said something of one model at least
            for result in run(check.split()[0], list(pending)):
                yield pending.pop(0), check, result


class Runner:
    """Makes processes for checks, whose caches are in ``folder``. patience_s: what a model may take."""

    def __init__(self, device: str, jobs: int, folder: Path, patience_s: float) -> None:
        self.env = os.environ | caches_in(folder)
        if device == "cpu":
            self.env["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // jobs))
        self.device, self.patience_s = device, patience_s

    def __call__(self, check: str, names: Sequence[str]) -> Iterator[Result]:
        """What a process says of each model, and, if it ends too early, why, of the one that it was at."""
        command = [sys.executable, "-m", "tests.zoo.one", check, self.device, str(self.patience_s), *names]
        said = 0
        with (
            tempfile.TemporaryFile("w+") as errors,
            self.started(command, errors) as process,
        ):
            assert process.stdout is not None
            for text in process.stdout:
                if text.startswith("{"):
                    said += 1
                    yield json.loads(text)
            status = process.wait()
            errors.seek(0)
            tail = errors.read()[-6000:]
        if said < len(names):
            yield {"wrong": [f"the process ended with {status}"], "stderr": tail}

    @contextmanager
    def started(self, command: Sequence[str], errors: IO[str]) -> Generator[subprocess.Popen[str]]:
        """A process in a group of its own, which ends with it: what it started would hold its output open otherwise."""
        process = subprocess.Popen(
            command, env=self.env, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        )

        def end() -> None:
            process.wait()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

        watcher = Thread(target=end)
        watcher.start()
        try:
            yield process
        finally:
            process.kill()
            watcher.join()
            assert process.stdout is not None
            process.stdout.close()


def described(device: str, path: Path, arguments: Iterable[str]) -> dict[str, Any]:
    """Command, machine and versions."""
    found = versions(Options.read())
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    shown = [path.name if word == str(path) else word for word in arguments]
    return {"command": f"python -m tests.zoo {shlex.join(shown)}", "machine": machine(device), "versions": found}


def wrong_in(checked: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """All that is wrong with a model."""
    return [f"{check}: {text}" for check, result in checked.items() for text in result.get("wrong", ())]


def line(name: str, check: str, result: Mapping[str, Any]) -> str:
    """What a check came to."""
    wrong = result.get("wrong", ())
    text = "; ".join(wrong[:4]) if wrong else "right"
    tail = "".join(f"\n    {row}" for row in result.get("stderr", "").splitlines()[-12:])
    return f"{name} {check} ({result.get('seconds', 0):.0f} s): {text}{tail}"


def table(found: Results, names: Iterable[str]) -> Table:
    """A line a model; of gradients the largest error over what is allowed, of losses the largest difference from
    eager's, in brackets TorchInductor's; of a step weft's time over TorchInductor's, the median over all processes that
    timed it; the same of the device time outside matrix products, attention, convolutions and the optimizer, and of the
    first step."""
    made = Table()
    made.add_column("model")
    headings = ("gradients f32", "bf16", "losses apart", "step, ms: eager", "Inductor", "weft", "weft / Inductor")
    for heading in (*headings, "other device time", "first step", "warm start"):
        made.add_column(heading, justify="right")
    for name in names:
        checked = found.get(name, {})
        cells = [gradient_cell(checked.get(dtype)) for dtype in ("f32", "bf16")]
        trained = checked.get("training")
        cells.append(loss_cell(trained))
        if trained is not None and "comparison" in trained:
            steps = {backend: run["median_ms"] for backend, run in trained["comparison"]["runs"].items()}
            cells += [f"{steps[b]:.2f}" for b in BACKENDS]
        cells += [""] * (len(headings) - 1 - len(cells))
        cells.append(f"{statistics.median(ratios):.3f}" if (ratios := step_ratios(checked)) else "")
        if device := (trained or {}).get("device_us"):
            cells.append(f"{device['weft']['other'] / device['inductor']['other']:.3f}")
        cells += [""] * (len(headings) + 1 - len(cells)) + start_cells(checked.get("start", {}).get("first_step_s", {}))
        made.add_row(name, *cells)
    return made


def races_lost(found: Results) -> Iterator[str]:
    """How many regions of each model were raced, those that TorchInductor's code won, and the time of a step with races
    over that of one without."""
    for name, checked in found.items():
        if (raced := checked.get("race")) is not None and "lost" in raced:
            lost = raced["lost"]
            ratio = raced["median_ms"][RACED] / raced["median_ms"]["weft"]
            yield f"{name}: {len(lost)} of {raced['won'] + len(lost)} regions lost their race; steps take {ratio:.3f}"
            texts = Counter(f"{r['subject']} {r['have']:.1f} us, TorchInductor's {r['limit']:.1f}" for r in lost)
            yield from (f"  {times} x {text}" for text, times in texts.items())


def start_cells(seconds: Mapping[str, Mapping[str, float]]) -> list[str]:
    """weft's first step over TorchInductor's, with empty caches and with full ones."""
    there = [state for state in STARTS if all(state in seconds.get(backend, ()) for backend in COMPARED)]
    return [f"{seconds['weft'][state] / seconds['inductor'][state]:.2f}" for state in there]


def slower_than_predicted(found: Results) -> Iterator[str]:
    """weft's kernels that take much longer than was predicted, where that is a part of a step worth knowing."""
    for name, checked in found.items():
        lines = checked.get("training", {}).get("kernels", {}).get("weft", ())
        least_us = WORTH_KNOWING * sum(each["us"] for each in lines)
        for each in lines:
            lost_us = each["us"] - each["launches"] * (each["predicted_us"] or each["us"])
            if lost_us > least_us:
                times = f"{each['launches']} x {each['us'] / each['launches']:.1f} us"
                yield f"{name}: {each['name']} {times}, predicted {each['predicted_us']:.1f}: {each['text']}"


def step_ratios(checked: Mapping[str, Result]) -> list[float]:
    """A step of weft's over one of TorchInductor's, in each process that timed steps."""
    runs = checked.get("training", {}).get("comparison", {}).get("runs", {})
    found = [{backend: run["median_ms"] for backend, run in runs.items()}]
    found += [result.get("median_ms", {}) for check, result in checked.items() if check.startswith(STEPS)]
    return [steps["weft"] / steps["inductor"] for steps in found if steps]


def gradient_cell(result: Mapping[str, Any] | None) -> str:
    """The largest error over what is allowed."""
    if result is None or result.get("worst") is None:
        return "" if result is None else "WRONG"
    return f"{result['worst']['excess']:.2f}" + (" WRONG" if result["wrong"] else "")


def loss_cell(result: Mapping[str, Any] | None) -> str:
    """weft's difference from eager's losses, and TorchInductor's."""
    if result is None or "comparison" not in result:
        return "" if result is None else "WRONG"
    apart = result["comparison"]["differences"]
    return f"{apart['weft']:.4f} ({apart['inductor']:.4f})" + (" WRONG" if result["wrong"] else "")


if __name__ == "__main__":
    sys.exit(main())
