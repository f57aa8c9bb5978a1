"""The process that runs cases: a case a line comes in, an answer a line goes out."""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

from tests.fuzz.worker import quiet


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever prints does not get between the answers
    quiet()
    settle()
    for line in sys.stdin:
        print(json.dumps({"state": "done"} | answer(line.strip())), file=answers, flush=True)


def settle() -> None:
    """Two threads, so that rows are divided; every graph is compiled, not found."""
    import torch
    import torch._functorch.config
    import torch._inductor.config

    torch.set_num_threads(2)
    torch._inductor.config.fx_graph_cache = False
    torch._functorch.config.enable_autograd_cache = False


def answer(text: str) -> dict[str, Any]:
    """What became of one case."""
    from tests.sweep.cases import SweepCase
    from tests.sweep.check import check

    try:
        outcome = check(SweepCase.parse(text))
    except Exception as error:
        last = traceback.format_exc(limit=-4)
        return {"finding": f"{type(error).__name__}: {error}", "trace": last}
    return {"finding": None, "kernels": outcome.kernels, "compared": outcome.compared, "refused": outcome.refused}


if __name__ == "__main__":
    main()
