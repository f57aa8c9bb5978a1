"""Streams, threads and several devices."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

import weft
from tests.gpu.workloads import MIXED, equal, inputs_of, program_of, run


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


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one CUDA device")
def test_a_function_runs_on_a_device_that_is_not_the_current_one() -> None:
    """Compiled there, forward and backward, and nothing of it on the current one."""

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return torch.nn.functional.layer_norm(x, (1024,), weight) * x

    before = torch.cuda.memory_allocated(0)
    leaves = [torch.randn(n, device="cuda:1", requires_grad=True) for n in ((4096, 1024), (1024,))]
    found = torch.autograd.grad(weft.fuse(norm)(*leaves).sum(), leaves)
    wanted = torch.autograd.grad(norm(*(t.double() for t in leaves)).sum(), leaves)
    for mine, exact in zip(found, wanted, strict=True):
        assert mine.device == torch.device("cuda", 1)
        torch.testing.assert_close(mine, exact, rtol=1e-3, atol=1e-3 * exact.abs().max().item(), check_dtype=False)
    assert torch.cuda.current_device() == 0
    assert torch.cuda.memory_allocated(0) <= before
    assert weft.counters.launches > 0
    assert weft.counters.fallbacks == 0
