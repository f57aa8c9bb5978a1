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
from typing import Any

import torch

from tests.zoo.entries import ENTRIES
from tests.zoo.training import COMPARED, setup_of
from weft.bench.training import Trainee

CACHES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton", "WEFT_CACHE_DIR": "weft"}
"""The compilers' folders: variables of the environment, and their names in a folder for all of them."""
STATES = ("empty", "full")
"""Of the caches."""


def caches_in(folder: Path) -> dict[str, str]:
    """Variables that put all caches below a folder."""
    return {variable: str(folder / name) for variable, name in CACHES.items()}


def first_steps(name: str, device: str) -> dict[str, Any]:
    """Seconds of the first step of a model by backend and state of the caches. What was compiled is left in the caches
    of this process, which imports what the others need and must not have used a GPU yet."""
    seconds, wrong = dict[str, dict[str, float]](), list[str]()
    for backend in COMPARED:
        with tempfile.TemporaryDirectory(prefix="weft-start-") as folder:
            for state in STATES:
                with ProcessPoolExecutor(1, get_context("fork")) as process:
                    asked = process.submit(first_step, name, device, backend, caches_in(Path(folder)))
                seconds.setdefault(backend, {})[state], said = asked.result()
                wrong += said
            for variable, made in caches_in(Path(folder)).items():
                if variable in os.environ and Path(made).exists():
                    shutil.copytree(made, os.environ[variable], dirs_exist_ok=True)
    return {"first_step_s": seconds, "wrong": wrong}


def first_step(name: str, device: str, backend: str, caches: dict[str, str]) -> tuple[float, list[str]]:
    """Its seconds, and weft's warnings."""
    os.environ.update(caches)
    make, setup = setup_of(ENTRIES[name], device, steps=1)
    trainee = Trainee(make, backend, setup)
    batch = [tensor.to(device) for tensor in trainee.model.make_batch(setup.batch, setup.sequence, 0)]
    torch.zeros(1, device=device)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainee.step(0, batch)
    return trainee.run.first_s, [str(w.message) for w in caught if "weft" in str(w.message)]
