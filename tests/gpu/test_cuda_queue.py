"""Row tiles that clusters take from a queue: each once, however many there are, and from launch to launch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.cuda_kernels import OF_ONE_GROUP, QUEUED, kernel_of
from tests.gpu.test_cuda_kernels import check, pytestmark  # noqa: F401  # where they run
from weft.backends.cuda.schedule import CudaKernel
from weft.backends.listed import render
from weft.options import Options
from weft.runtime.gpu.function import GpuFunction


@pytest.mark.parametrize("chunks", [1, 7, 1000])
@pytest.mark.parametrize("rows", [2, 5, 131, 133, 1030])
@pytest.mark.parametrize("way", list(QUEUED))
def test_every_tile_is_taken(way: str, rows: int, chunks: int) -> None:
    """Of fewer tiles than clusters, of as many, and of many more; of more clusters than are resident."""
    check("layer_norm_forward", (rows, 2048), **QUEUED[way], chunks=chunks)


@pytest.mark.parametrize("name", ["softmax_forward", "softmax_backward", "modulated_layer_norm_forward"])
@pytest.mark.parametrize("way", list(QUEUED))
def test_rows_may_begin_anywhere(way: str, name: str) -> None:
    check(name, (520, 2003), **QUEUED[way], chunks=132)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", ["rms_norm_forward", "layer_norm_forward", "add_rms_norm_forward", "rms_norm_fp8"])
@pytest.mark.parametrize("way", OF_ONE_GROUP)
def test_weights_may_be_shifted_for_each_row(way: str, name: str, dtype: torch.dtype) -> None:
    columns = 2003 if dtype == torch.bfloat16 else 1021
    check(name, (519, columns), dtype, **QUEUED[way], chunks=132, weights="shared")
    check(name, (67, columns + 1), dtype, **QUEUED[way], chunks=132, weights="shared", early=3)


class Called:
    """A softmax kernel of any number of rows, called again and again."""

    def __init__(self, **fields: Any) -> None:
        kernel: CudaKernel
        _, kernel = kernel_of("softmax_forward", (64, 2048), dynamic=True, **fields)
        self.function = GpuFunction(kernel, render(kernel), Options.read({}))

    def __call__(self, x: Tensor, y: Tensor) -> None:
        assert self.function(x.device, [x.data_ptr(), y.data_ptr()], (len(x),), 0)

    def is_right(self, rows: int) -> bool:
        x = torch.randn(rows, 2048, device="cuda").bfloat16()
        y = torch.full_like(x, float("nan"))
        self(x, y)
        torch.testing.assert_close(y.double(), x.double().softmax(1), rtol=2.0**-7, atol=2.0**-20)
        return True


@pytest.mark.parametrize("way", list(QUEUED))
def test_launches_may_have_other_numbers_of_rows(way: str) -> None:
    """Each number has counters of its own."""
    softmax = Called(**QUEUED[way], chunks=132)
    assert all(softmax.is_right(rows) for rows in (515, 3, 515, 1, 2000, 3, 515))


@pytest.mark.parametrize("way", list(QUEUED))
def test_launches_of_several_streams_may_overlap(way: str) -> None:
    softmax, streams = Called(**QUEUED[way], chunks=132), [torch.cuda.Stream() for _ in range(3)]
    inputs = [torch.randn(1500, 2048, device="cuda").bfloat16() for _ in streams]
    outputs = [torch.full_like(x, float("nan")) for x in inputs]
    torch.cuda.synchronize()
    for _ in range(20):
        for stream, x, y in zip(streams, inputs, outputs, strict=True):
            with torch.cuda.stream(stream):
                softmax(x, y.fill_(float("nan")))
    torch.cuda.synchronize()
    for x, y in zip(inputs, outputs, strict=True):
        torch.testing.assert_close(y.double(), x.double().softmax(1), rtol=2.0**-7, atol=2.0**-20)


@pytest.mark.parametrize("way", list(QUEUED))
def test_a_graph_may_be_replayed(way: str) -> None:
    softmax = Called(**QUEUED[way], chunks=132)
    x = torch.randn(700, 2048, device="cuda").bfloat16()
    y, z = (torch.empty_like(x) for _ in range(2))
    softmax(x, y)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        softmax(x, y)
        softmax(y, z)
    for _ in range(5):
        x.normal_()
        y.fill_(float("nan"))
        z.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        torch.testing.assert_close(y.double(), x.double().softmax(1), rtol=2.0**-7, atol=2.0**-20)
        torch.testing.assert_close(z.double(), y.double().softmax(1), rtol=2.0**-7, atol=2.0**-20)
