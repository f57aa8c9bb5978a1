"""Kernels whose programs wait for each other, beside one that holds multiprocessors: ``python -m tests.gpu.beside``.

A process of its own, which a defect may hang: it ends after a minute and a half with the stacks of its threads. Prints
one line of JSON.
"""

from __future__ import annotations

import faulthandler
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

import weft
from tests.gpu.holder import Holder, happened
from tests.gpu.workloads import MIXED, compiled, equal, in_chunks, inputs_of, plan_of, program_of, with_finish
from weft.bench.workloads import WORKLOADS

HELD, CALLS = 32, 20
PATIENCE_S, MOMENT_S = 8.0, 0.1
"""How long kernels have that need not wait; how long one that has to is watched."""
LIMIT_S = 90


@dataclass(frozen=True)
class Found:
    """done: whether all calls had ended when their time was up, the other kernel still being there (held). right: calls
    with the bits of an undisturbed one."""

    case: str
    done: bool
    held: bool
    right: int


def main() -> None:
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    inputs = inputs_of(MIXED, torch.bfloat16, (16384, 1024))
    case = program_of(MIXED, inputs)
    found = in_chunks(plan_of(case, inputs), 2048)  # work for more programs than the device holds
    same, apart = (compiled(with_finish(found, finish), case, inputs) for finish in ("same", "separate"))
    fused = weft.fuse(WORKLOADS[MIXED].fn, strict=True, sm_margin=HELD)
    holder = Holder(HELD)
    results = [
        beside("finish in the same launch, margin 32", holder, lambda: same(sm_margin=HELD), PATIENCE_S),
        beside("finish in a launch of its own, margin 0", holder, apart, PATIENCE_S),
        beside("weft.fuse, margin 32", holder, lambda: list(fused(*inputs)), PATIENCE_S),
        beside("finish in the same launch, margin 0", holder, same, MOMENT_S),
    ]
    os.environ["WEFT_SM_MARGIN"] = str(HELD)
    results.append(beside("finish in the same launch, WEFT_SM_MARGIN=32", holder, same, PATIENCE_S))
    print(
        json.dumps(
            {
                "found": [asdict(each) for each in results],
                "registers": holder.registers,
                "units": torch.cuda.get_device_properties(0).multi_processor_count,
                "fallbacks": weft.counters.fallbacks,
            }
        )
    )


def beside(case: str, holder: Holder, call: Callable[[], list[Tensor]], limit_s: float) -> Found:
    """Some calls while multiprocessors are held, for that long; then they are let go."""
    # kernels are loaded and memory is there before: both may wait for everything that runs
    wanted, *others = [call() for _ in range(CALLS + 1)]
    assert all(equal(wanted, other) for other in others), f"{case}: not the same bits without the other kernel"
    del others
    torch.cuda.synchronize()
    with holder:
        made = [call() for _ in range(CALLS)]
        ended = torch.cuda.Event()
        ended.record()
        done = happened(ended, limit_s)
        held = holder.holds
    torch.cuda.synchronize()
    return Found(case, done, held, sum(equal(wanted, each) for each in made))


if __name__ == "__main__":
    main()
