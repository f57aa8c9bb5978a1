"""Kernels in CUDA C++ on a GPU against the float64 interpreter, by inputs for which all sums are exact."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.cuda_kernels import SOME, WORKLOADS_OF_ROWS, kernel_of, of_any_width
from tests.exact_inputs import exact_inputs
from weft.backends.cuda import build
from weft.bench.kernel_run import KernelRun, output_tensors
from weft.ir.interpret import interpret
from weft.options import Options

pytestmark = [
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0),
        reason="needs compute capability 9.0",
    ),
    pytest.mark.skipif(build.missing() != "", reason=f"{build.missing()} is missing"),
]
BF16, F32 = torch.bfloat16, torch.float32


def check(name: str, shape: tuple[int, int], dtype: torch.dtype = BF16, *, early: int = 0, **fields: Any) -> None:
    """Equal bits, also of twenty runs more. early: elements that tensors start behind a multiple of 16 bytes."""
    case, kernel = kernel_of(name, shape, dtype, **fields)
    given = exact_inputs(name, shape, dtype, "cuda", 3)
    parameters = case.parameters_for(given)
    bound = dict(zip((b.name for b in case.program.inputs), case.bind(given), strict=True))
    inputs = [moved(bound[b.name], early) for b in kernel.program.inputs]
    outputs = output_tensors(kernel.program, parameters, inputs[0].device)
    run = KernelRun(kernel, inputs, outputs, parameters, Options.read({}))
    run.run_poisoned()
    right = interpret(kernel.program, [t.cpu() for t in inputs], parameters)
    for mine, exact in zip(outputs, right, strict=True):
        assert torch.equal(mine.cpu(), exact.to(mine.dtype).reshape(mine.shape))
    first = [t.clone() for t in outputs]
    for _ in range(20):
        run()
    assert all(torch.equal(a, b) for a, b in zip(first, outputs, strict=True))


def moved(tensor: torch.Tensor, early: int) -> torch.Tensor:
    """The same numbers, so many elements behind a multiple of 16 bytes."""
    if early == 0:
        return tensor
    memory = torch.empty(tensor.numel() + early, dtype=tensor.dtype, device=tensor.device)
    return memory[early:].view(tensor.shape).copy_(tensor)


@pytest.mark.parametrize("shape", [(512, 2048), (515, 1003)], ids=str)
@pytest.mark.parametrize("name", WORKLOADS_OF_ROWS)
def test_a_workload_has_equal_bits(name: str, shape: tuple[int, int]) -> None:
    check(name, shape, cluster=2 if shape[1] % 2 == 0 else 1, warps=4, vectors=1, stages=3)


@pytest.mark.parametrize("columns", [1001, 2048, 3001, 4104])
@pytest.mark.parametrize("way", list(SOME))
def test_a_schedule_has_equal_bits(way: str, columns: int) -> None:
    check("layer_norm_backward", (515, columns), **SOME[way])


@pytest.mark.parametrize("cluster", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("columns", [5003, 16384])
def test_a_row_may_be_shared_by_a_cluster(cluster: int, columns: int) -> None:
    check("rms_norm_backward", (260, columns), cluster=cluster, warps=4, vectors=1, stages=2)


@pytest.mark.parametrize("early", [1, 3])
@pytest.mark.parametrize("name", ["rms_norm_backward", "softmax_forward"])
def test_tensors_may_start_anywhere(name: str, early: int) -> None:
    check(name, (515, 2048), early=early, cluster=2, warps=4, vectors=1)


@pytest.mark.parametrize("rows", [2, 3, 515])
def test_the_number_of_rows_may_be_known_at_run_time_only(rows: int) -> None:
    check("rms_norm_backward", (rows, 2048), dynamic=True, warps=8, vectors=1)


@pytest.mark.parametrize("columns", [1, 5, 640, 1023, 1024])
@pytest.mark.parametrize("cluster", [1, 2])
def test_the_width_may_be_known_at_run_time_only(cluster: int, columns: int) -> None:
    kernel = of_any_width(cluster=cluster, warps=4, vectors=2)
    x = torch.randint(-64, 64, (8, columns), device="cuda").float()
    outputs = output_tensors(kernel.program, (columns,), x.device)
    KernelRun(kernel, [x], outputs, (columns,), Options.read({})).run_poisoned()
    rest = x - x.amax(1, keepdim=True)
    assert torch.equal(outputs[0], rest)
    assert torch.equal(outputs[1], rest.sum(0))


@pytest.mark.parametrize("dtype", [F32, torch.float16], ids=str)
def test_other_types(dtype: torch.dtype) -> None:
    check("layer_norm_backward", (515, 1001), dtype, warps=4, vectors=2, rows_per_tile=2)
