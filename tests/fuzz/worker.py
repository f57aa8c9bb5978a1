"""The process that runs cases: a seed a line comes in, an answer a line goes out."""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import warnings
from importlib import import_module
from typing import Any


def main() -> None:
    kind, shrink_seconds = import_module(f"tests.fuzz.{sys.argv[1]}"), float(sys.argv[2])
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever prints does not get between the answers
    quiet()
    for line in sys.stdin:
        print(json.dumps(answer(kind, int(line), shrink_seconds, answers)), file=answers, flush=True)


def quiet() -> None:
    warnings.simplefilter("ignore")
    logging.getLogger("torch").setLevel(logging.ERROR)


def answer(kind: Any, seed: int, shrink_seconds: float, answers: Any) -> dict[str, Any]:
    """What became of one seed; a failure is made smaller first."""
    from tests.fuzz.outcome import Outcome
    from tests.fuzz.shrink import failure_of, shrink

    found: dict[str, Any] = {"state": "done", "seed": seed, "kernels": 0, "compared": 0, "torchs": 0}
    found["failure"] = None
    outcomes: list[Outcome] = []

    class Recording:
        @staticmethod
        def check(case: Any) -> None:
            outcomes.append(kind.check(case))

    case = kind.make(seed)
    failure = failure_of(Recording, case)
    if failure is None:
        return found | {"kernels": outcomes[0].kernels, "compared": outcomes[0].compared, "torchs": outcomes[0].torchs}
    place, message = failure
    if shrink_seconds > 0:
        print(json.dumps({"state": "shrinking", "seconds": 2 * shrink_seconds + 120}), file=answers, flush=True)
        case, smaller = shrink(kind, case, place, shrink_seconds)
        message = smaller or message
    text = f"{message}\n\n{kind.describe(case)}"
    return found | {"failure": text, "place": place, "script": kind.script(case, message)}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="weft-fuzz-") as folder:
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", folder)
        main()
