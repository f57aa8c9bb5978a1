"""One function whose rows are of a width that is known at run time only: the first widths have kernels of their own,
the others do not, and all are right."""

from __future__ import annotations

import pytest
import torch

import weft
from weft.bench.case import workload_case
from weft.bench.correctness import check_candidate, reference
from weft.bench.peers import call_candidate
from weft.bench.workloads import WORKLOADS
from weft.runtime import launch

WIDTHS = (24576, 5000, 1001, 24576, 700, 9000, 36563, 5001, 1001, 50257)
"""More than have kernels of their own, some of them wider than what was planned for."""


@pytest.mark.parametrize("count", [0, 2, 4])
@pytest.mark.parametrize("name", ["layer_norm_backward", "layer_norm_forward", "softmax_forward"])
def test_every_width_is_right(name: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_KERNELS", {})  # kernels are found by their text, whatever options they were made with
    fused = weft.fuse(WORKLOADS[name].fn, exact_widths=count)
    for columns in WIDTHS:
        case = workload_case(WORKLOADS[name], (96, columns), torch.bfloat16, "cuda")
        for tensor in case.inputs:
            if tensor.shape[-1] == columns:
                torch._dynamo.mark_dynamic(tensor, tensor.ndim - 1)
        candidate = call_candidate("weft", fused, case.inputs)
        for _ in range(2):  # the second call is made again by the launcher
            assert check_candidate(candidate, case.inputs, reference(case.function, case.inputs)) is None
    assert weft.counters.pass_calls == 1
    assert weft.counters.fallbacks == 0
    functions = [executable.function for executable in launch._KERNELS.values()]
    assert max(len(function.others.exact_widths) for function in functions) == count
