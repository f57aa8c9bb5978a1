"""Streams, CUDA graphs, threads and several devices."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

import weft
from tests.gpu.workloads import MIXED, equal, inputs_of, program_of, run
from weft.bench.workloads import WORKLOADS


def test_streams_at_the_same_time_do_not_disturb_each_other() -> None:
    """Each launch has partial results and a counter of its own."""
    several = [inputs_of(MIXED, torch.bfloat16, seed=seed) for seed in range(4)]
    case = program_of(MIXED, several[0])
    alone = [run(case, inputs) for inputs in several]
    streams = [torch.cuda.Stream() for _ in several]
    torch.cuda.synchronize()
    made: list[list[list[Tensor]]] = [[] for _ in several]
    for _ in range(20):
        for at, (stream, inputs) in enumerate(zip(streams, several, strict=True)):
            with torch.cuda.stream(stream):
                made[at].append(run(case, inputs))
    torch.cuda.synchronize()
    for first, found in zip(alone, made, strict=True):
        assert all(equal(first, one) for one in found)
    assert weft.counters.fallbacks == 0


def test_a_launch_goes_to_the_current_stream() -> None:
    inputs = inputs_of(MIXED, torch.bfloat16)
    case = program_of(MIXED, inputs)
    first = run(case, inputs)
    stream = torch.cuda.Stream()
    data = tuple(t.clone() for t in inputs)
    for tensor in data:
        tensor.zero_()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)  # the copies come after it, and the kernel after them
        for tensor, given in zip(data, inputs, strict=True):
            tensor.copy_(given)
        made = run(case, data)
    stream.synchronize()
    assert equal(first, made)


def test_a_captured_graph_gives_the_results_of_new_inputs() -> None:
    workload = WORKLOADS[MIXED]
    inputs = inputs_of(MIXED, torch.bfloat16)
    fused = weft.fuse(workload.fn, strict=True)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            fused(*inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = fused(*inputs)
    for seed in (4, 5, 6):
        new = inputs_of(MIXED, torch.bfloat16, seed=seed)
        for tensor, given in zip(inputs, new, strict=True):
            tensor.copy_(given)
        graph.replay()
        assert equal(list(made), list(fused(*new)))
    assert weft.counters.fallbacks == 0


def test_graphs_of_torch_compile_are_captured_by_inductor() -> None:
    inputs = inputs_of(MIXED, torch.bfloat16)
    fn = WORKLOADS[MIXED].fn
    compiled = torch.compile(fn, backend="weft", mode="reduce-overhead", fullgraph=True)
    expected = list(weft.fuse(fn, strict=True)(*inputs))
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        assert equal(expected, [t.clone() for t in compiled(*inputs)])
    assert weft.counters.fallbacks == 0


def test_a_call_that_is_new_inside_a_capture_runs_on_aten() -> None:
    inputs = inputs_of(MIXED, torch.bfloat16, (96, 640))  # a kernel of its own
    case = program_of(MIXED, inputs)
    first = run(case, inputs)
    memory = [torch.empty(t.numel() + 1, dtype=t.dtype, device="cuda") for t in inputs]
    shifted = tuple(m[1:].view(t.shape).copy_(t) for m, t in zip(memory, inputs, strict=True))
    before = weft.counters.fallbacks
    graph = torch.cuda.CUDAGraph()
    with pytest.warns(UserWarning, match="runs on ATen in a CUDA graph"), torch.cuda.graph(graph):
        made = run(case, shifted)
    graph.replay()
    for mine, theirs in zip(made, first, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0.02, atol=0.02 * theirs.abs().max().item())
    assert weft.counters.fallbacks > before


def test_threads_share_a_kernel() -> None:
    several = [inputs_of(MIXED, torch.bfloat16, seed=seed) for seed in range(4)]
    case = program_of(MIXED, several[0])
    alone = [run(case, inputs) for inputs in several]

    def repeated(inputs: tuple[Tensor, ...]) -> list[list[Tensor]]:
        with torch.cuda.stream(torch.cuda.Stream()):
            made = [run(case, inputs) for _ in range(20)]
            torch.cuda.current_stream().synchronize()
        return made

    torch.cuda.synchronize()
    with ThreadPoolExecutor(4) as pool:
        for first, found in zip(alone, pool.map(repeated, several), strict=True):
            assert all(equal(first, one) for one in found)


def test_gradients_come_from_the_thread_of_autograd() -> None:
    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return torch.nn.functional.rms_norm(x, (1024,), weight) * x

    x, weight = (torch.randn(n, 1024, device="cuda") for n in (4096, 1))
    leaves = [x.requires_grad_(), weight[0].detach().requires_grad_()]
    found = torch.autograd.grad(weft.fuse(norm)(*leaves).sum(), leaves)
    wanted = torch.autograd.grad(norm(*(t.double() for t in leaves)).sum(), leaves)
    for mine, exact in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, exact, rtol=1e-3, atol=1e-3 * exact.abs().max().item())
    assert weft.counters.launches > 0


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one CUDA device")
def test_every_device_runs_its_own_copy() -> None:
    inputs = inputs_of(MIXED, torch.bfloat16)
    case = program_of(MIXED, inputs)
    first = run(case, inputs)
    other = tuple(t.to("cuda:1") for t in inputs)
    for given in (other, inputs, other):
        made = run(case, given)
        assert torch.cuda.current_device() == 0
        assert {t.device for t in made} == {given[0].device}
        assert equal(first, [t.to("cuda:0") for t in made])
    with pytest.raises(Exception, match="is on cuda:1"):
        run(case, (inputs[0], *other[1:]))
