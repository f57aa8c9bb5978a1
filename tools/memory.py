"""Memory of a process that trains on the CPU: ``python -m tools.memory`` compares weft with TorchInductor.

Each run is a process of its own, after one that fills the caches on disk. ``training`` says what four steps of a model
leave resident, before and after what is free is given back to the system, and the most that PyTorch's allocator had
handed out in a step. ``recompiling`` compiles a layer norm forward and backward again and again, for the same shape
(``reset``) or another one (``shapes``), and says what each time adds, resident and in objects of Python.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BACKENDS = ("inductor", "weft")
WHAT = ("training", "reset", "shapes")
SIZES = {"dim": 512, "heads": 8, "vocabulary": 4096, "blocks": 12}
BATCH, STEPS = (16, 256), 4
FIRST, LAST = 10, 40
"""Recompiles between which growth is measured: the first ones fill caches of everything."""
WITHOUT_CACHES = {"TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print medians, least and most."""
    parser = argparse.ArgumentParser(prog="python -m tools.memory", description=__doc__)
    parser.add_argument("--what", nargs="+", choices=WHAT, default=list(WHAT))
    parser.add_argument("--model", default="gpt2", help="of weft.bench.models")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--one", choices=BACKENDS, help="measure once in this process and print JSON")
    given = parser.parse_args(arguments)
    if given.one is not None:
        (what,) = given.what
        print(json.dumps(training(given.one, given.model) if what == "training" else recompiling(given.one, what)))
        return 0
    for what in given.what:
        for backend in BACKENDS:
            with tempfile.TemporaryDirectory(prefix="weft-memory-") as folder:
                runs = [_run(what, backend, given.model, folder) for _ in range(1 + given.runs)][1:]
            for name in runs[0]:
                samples = [run[name] for run in runs]
                spread = f"{min(samples):.2f} to {max(samples):.2f}"
                print(f"{what:9} {backend:9} {name:24} {statistics.median(samples):9.2f} ({spread})", flush=True)
    return 0


def _run(what: str, backend: str, model: str, folder: str) -> dict[str, float]:
    caches = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "WEFT_CACHE_DIR": f"{folder}/weft"}
    own = {} if what == "training" else WITHOUT_CACHES
    command = [sys.executable, "-m", "tools.memory", "--one", backend, "--what", what, "--model", model]
    done = subprocess.run(command, env=os.environ | caches | own, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def training(backend: str, name: str) -> dict[str, float]:
    """MB after some steps of a model with SGD in bfloat16 autocast."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from weft.bench.models import MODELS

    torch.manual_seed(0)
    model = MODELS[name](**SIZES)
    batch = model.make_batch(*BATCH, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    compiled = torch.compile(model, backend=backend)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = compiled(*batch)
        loss.backward()
        optimizer.step()

    for _ in range(STEPS):
        step()
    found = {"resident_mb": _status("VmRSS"), "most_resident_mb": _status("VmHWM"), "trimmed_mb": _trimmed()}
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    events: Any = profiler.profiler
    held = most = 0
    for event in events.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return found | {"allocated_in_step_mb": most / 1e6}


def recompiling(backend: str, what: str) -> dict[str, float]:
    """What a compile of a layer norm's forward and backward adds."""
    import torch
    import torch.nn.functional as F
    from torch import Tensor

    import weft

    assert weft.__name__  # the backend is known by its name
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 10**6

    def function(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        total = x + residual
        return F.layer_norm(total, (128,), weight, bias).relu() * 2, total

    found: list[tuple[float, int]] = []
    for number in range(1, LAST + 1):
        if what == "reset":
            torch._dynamo.reset()
        rows = 256 if what == "reset" else 64 + 8 * number
        data = [torch.randn(shape, requires_grad=True) for shape in ((rows, 128), (rows, 128), (128,), (128,))]
        outputs = torch.compile(function, backend=backend, dynamic=False)(*data)
        torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])
        if number in (FIRST, LAST):
            found.append((_trimmed(), len(gc.get_objects())))
    (first_mb, first), (last_mb, last) = found
    count = LAST - FIRST
    return {"mb_each": (last_mb - first_mb) / count, "objects_each": (last - first) / count}


def _trimmed() -> float:
    """Resident MB once Python and the C library have given back what they can."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return _status("VmRSS")


def _status(name: str) -> float:
    """A figure of this process in MB, as Linux has it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024 / 1e6


if __name__ == "__main__":
    raise SystemExit(main())
