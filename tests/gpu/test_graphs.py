"""CUDA graphs: captured by hand, and by Inductor for ``mode="reduce-overhead"``."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.utils import counters as counted

import weft
from tests.gpu.workloads import MIXED, compiled, equal, expected, in_chunks, inputs_of, plan_of, program_of, run
from weft.backends.listed import render
from weft.bench.workloads import WORKLOADS
from weft.options import Options
from weft.runtime import launch
from weft.runtime.executable import digest_of

STEPS = 8


class Block(nn.Module):
    """Two norms and two linear layers on a residual stream, `[M, 512]`; the mean squared error."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(512), nn.RMSNorm(1024)
        self.up, self.down = nn.Linear(512, 1024), nn.Linear(1024, 512)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        x = x + self.down(self.second(F.gelu(self.up(self.first(x)))))
        return F.mse_loss(x, target)


def train(mode: str | None) -> tuple[list[float], list[int]]:
    """Losses of steps of training, and how many kernels weft had started after each."""
    torch._dynamo.reset()
    counted.clear()
    weft.counters.reset()
    torch.manual_seed(0)
    model = Block().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    step = torch.compile(model, backend="weft", mode=mode, fullgraph=True)
    losses: list[float] = []
    launches: list[int] = []
    for _ in range(STEPS):
        x, target = (torch.randn(2048, 512, device="cuda") for _ in range(2))
        torch.compiler.cudagraph_mark_step_begin()
        loss = step(x, target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        launches.append(weft.counters.launches)
    return losses, launches


def test_training_in_replayed_graphs_gives_the_losses_of_plain_calls() -> None:
    plain, launches = train(None)
    assert launches[-1] > launches[-2], f"weft launched nothing in the last plain step: {launches}"
    assert plain[-1] < plain[0]
    replayed, launches = train("reduce-overhead")
    assert counted["inductor"]["cudagraph_skips"] == 0, dict(counted["inductor"])
    assert launches[-1] == launches[-3], f"the last steps were not replayed, they launched kernels: {launches}"
    assert weft.counters.fallbacks == 0
    torch.testing.assert_close(torch.tensor(replayed), torch.tensor(plain), rtol=1e-5, atol=0)


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


def test_graphs_that_are_replayed_in_turn_give_the_results_of_their_inputs() -> None:
    """Each has counters and partial results of its own; plain calls in between have theirs."""
    fused = weft.fuse(WORKLOADS[MIXED].fn, strict=True)
    given = [inputs_of(MIXED, torch.bfloat16, seed=seed) for seed in (1, 2)]
    graphs = [_captured(fused, inputs) for inputs in given]
    for turn, which in enumerate((0, 1, 1, 0, 1, 0, 0, 1)):
        (graph, made), new = graphs[which], inputs_of(MIXED, torch.bfloat16, seed=10 + turn)
        for tensor, value in zip(given[which], new, strict=True):
            tensor.copy_(value)
        graph.replay()
        assert equal(made, list(fused(*new))), f"turn {turn}, graph {which}"
    assert weft.counters.fallbacks == 0


def test_graphs_on_two_streams_do_not_disturb_each_other() -> None:
    fused = weft.fuse(WORKLOADS[MIXED].fn, strict=True)
    given = [inputs_of(MIXED, torch.bfloat16, seed=seed) for seed in (1, 2)]
    alone = [[t.clone() for t in fused(*inputs)] for inputs in given]
    graphs = [_captured(fused, inputs) for inputs in given]
    streams = [torch.cuda.Stream() for _ in graphs]
    torch.cuda.synchronize()
    for _ in range(20):
        for stream, (graph, _) in zip(streams, graphs, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()
    for (_, made), wanted in zip(graphs, alone, strict=True):
        assert equal(made, wanted)
    assert weft.counters.fallbacks == 0


def test_a_captured_backward_gives_the_gradients_of_new_inputs() -> None:
    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (1024,), weight) * x

    fused = weft.fuse(norm)
    leaves = [torch.randn(n, device="cuda", requires_grad=True) for n in ((4096, 1024), (1024,))]

    def gradients(*own: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(fused(*own).square().sum(), own))

    graph, made = _captured(gradients, leaves)
    for _ in range(3):
        with torch.no_grad():
            for leaf in leaves:
                leaf.normal_()
        graph.replay()
        new = [leaf.detach().clone().requires_grad_() for leaf in leaves]
        assert equal(made, gradients(*new))
    assert weft.counters.fallbacks == 0


def _captured(
    function: Callable[..., list[Tensor]], inputs: tuple[Tensor, ...] | list[Tensor]
) -> tuple[torch.cuda.CUDAGraph, list[Tensor]]:
    """A graph of one call, and what it writes."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            function(*inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = list(function(*inputs))
    return graph, made


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


@pytest.mark.parametrize("built", [False, True], ids=["unbuilt", "built, not loaded"])
def test_a_kernel_that_is_new_inside_a_capture_is_neither_built_nor_loaded(built: bool) -> None:
    """It runs on ATen, in that graph for good, and as a kernel in the calls behind the capture."""
    inputs = inputs_of(MIXED, torch.bfloat16)
    case = program_of(MIXED, inputs)
    found = in_chunks(plan_of(case, inputs), 77 + built)  # a kernel of its own
    kernel = found.kernels[0]
    if built:
        launch.prepare(found.kernels, [render(kernel)], Options.read(), [found.hints])
    bound, graph, before = case.bind(inputs), torch.cuda.CUDAGraph(), weft.counters.builds
    with pytest.warns(UserWarning, match="runs on ATen in a CUDA graph"), torch.cuda.graph(graph):
        made = launch.launch_plan(found, case.program, bound, (), Options.read())
    assert weft.counters.builds == before
    assert weft.counters.fallbacks == 1
    assert launch.find(digest_of(kernel), str(kernel)).function is not None
    call = compiled(found, case, inputs)
    for given in (inputs, inputs_of(MIXED, torch.bfloat16, seed=9)):
        for tensor, value in zip(inputs, given, strict=True):
            tensor.copy_(value)
        graph.replay()
        for captured, plain, exact in zip(made, call(), expected(case, inputs), strict=True):
            for mine in (captured, plain):
                torch.testing.assert_close(mine.double(), exact, rtol=0.02, atol=0.02 * exact.abs().max().item())
    assert weft.counters.fallbacks == 1, "the calls behind the capture ran on ATen as well"
