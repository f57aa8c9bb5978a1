"""A check of models in this process: ``python -m tests.zoo.one CHECK DEVICE SECONDS NAME ...``.

It prints a line of JSON for each model, which may take so many seconds.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from tests.zoo.entries import ENTRIES, Entry
from tests.zoo.gradients import DTYPES, Compared, compare
from tests.zoo.race import races
from tests.zoo.start import fill_caches, first_steps
from tests.zoo.training import time_steps, train
from weft.integration import kept
from weft.plan import planner

OF_NAMES: dict[str, Callable[[str, str], dict[str, Any]]] = {"compile": fill_caches, "start": first_steps}
"""Checks of first steps, which are given the name of a model."""
CHECKS = ("f32", "bf16", *OF_NAMES, "race", "training")
"""Gradients in two dtypes, a step that fills the caches, first steps with empty and with full ones, races of regions,
twenty steps."""

SEED = 5
"""Of the batch that gradients are compared on; seven further ones follow."""
STEPS = "steps"
"""The twenty steps once more, without eager PyTorch."""


def main() -> None:
    check, device, patience_s, *names = sys.argv[1:]
    for name in names:
        faulthandler.dump_traceback_later(float(patience_s), exit=True)  # says where it hangs
        start = time.perf_counter()
        torch.manual_seed(0)
        result = OF_NAMES[check](name, device) if check in OF_NAMES else run(ENTRIES[name], check, device)
        gc.collect()  # models have circles of references
        print(json.dumps(result | {"seconds": time.perf_counter() - start}), flush=True)


def run(entry: Entry, check: str, device: str) -> dict[str, Any]:
    """What a check says. On a CPU models are small, and all is taken that can be."""
    with everything_taken() if device == "cpu" else nullcontext():
        if check in DTYPES:
            return gradients(entry, check, device).to_dict()
        if check == STEPS:
            return time_steps(entry, device)
        if check == "race":
            return races(entry, device)
        return train(entry, device).to_dict()


def gradients(entry: Entry, dtype: str, device: str) -> Compared:
    """A model of a CPU's or a GPU's size, compared in that dtype."""
    model, batch = (entry.make_small(), entry.small_batch) if device == "cpu" else entry.make_checked()
    tensors = model.make_batch(*batch, SEED)
    make: Callable[[], nn.Module] = lambda: model  # noqa: E731
    further = (model.make_batch(*batch, seed) for seed in range(SEED + 1, SEED + 8))
    return compare(make, tensors, dtype, device, fullgraph=entry.fullgraph, further=further)


@contextmanager
def everything_taken() -> Generator[None]:
    """Small models are for their kernels, of which the cost model would leave most to Inductor, and for exchanges in
    what is kept, which would be too small to be made."""
    with patch.object(planner, "check_worthwhile", lambda *_: None), patch.object(kept, "LEAST_BYTES", 1):
        yield


if __name__ == "__main__":
    main()
