"""The first step of a model, with empty caches and with full ones, each in a process of its own that has one backend:
what is compiled and tuned for one is there for the other where both are in a process."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import torch

from tests.zoo.entries import ENTRIES
from tests.zoo.training import COMPARED, setup_of
from tools.training import Trainee

CACHES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton", "WEFT_CACHE_DIR": "weft"}
"""The compilers' folders: variables of the environment, and their names in a folder for all of them."""
STARTS = {"empty": 1, "full": 3}
"""Of the caches, how often a step is timed: with full ones seven seconds differ by one from process to process."""


def caches_in(folder: Path) -> dict[str, str]:
    """Variables that put all caches below a folder."""
    return {variable: str(folder / name) for variable, name in CACHES.items()}


def first_steps(name: str, device: str) -> dict[str, Any]:
    """Seconds of the first step of a model by backend and state of the caches, with their medians. Backends take turns.
    What was compiled is left in the caches of this process, which imports what the others need and must not have used a
    GPU yet."""
    seconds: dict[str, dict[str, list[float]]] = {backend: {state: [] for state in STARTS} for backend in COMPARED}
    wrong = list[str]()
    with tempfile.TemporaryDirectory(prefix="weft-start-") as folder:
        for backend in COMPARED:
            (Path(folder) / backend).mkdir()
        for state, times in STARTS.items():
            for backend in times * list(COMPARED):
                with ProcessPoolExecutor(1, get_context("fork")) as process:
                    asked = process.submit(first_step, name, device, backend, caches_in(Path(folder) / backend))
                took, said = asked.result()
                seconds[backend][state].append(took)
                wrong += said
        for backend in COMPARED:
            for variable, made in caches_in(Path(folder) / backend).items():
                if variable in os.environ and Path(made).exists():
                    shutil.copytree(made, os.environ[variable], dirs_exist_ok=True)
    medians = {backend: {state: median(each) for state, each in own.items()} for backend, own in seconds.items()}
    return {"first_step_s": medians, "first_steps_s": seconds, "wrong": wrong}


def fill_caches(name: str, device: str) -> dict[str, Any]:
    """One step by each backend, so that what is timed next finds all compiled. Many may do so at a time."""
    return {"wrong": [text for backend in COMPARED for text in first_step(name, device, backend, {})[1]]}


def first_step(name: str, device: str, backend: str, caches: dict[str, str]) -> tuple[float, list[str]]:
    """Its seconds, and weft's warnings. caches: where they are to be, variables of the environment."""
    os.environ.update(caches)
    make, setup = setup_of(ENTRIES[name], device, steps=1)
    trainee = Trainee(make, backend, setup)
    batch = [tensor.to(device) for tensor in trainee.model.make_batch(setup.batch, setup.sequence, 0)]
    torch.zeros(1, device=device)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainee.step(0, batch)
    return trainee.run.first_s, [str(w.message) for w in caught if "weft" in str(w.message)]
