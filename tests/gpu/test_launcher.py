"""Calls of fused functions that are repeated in C++: as right as the first one, and without Python."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

import weft
from tests.gpu.workloads import MIXED, equal, inputs_of
from weft.bench.workloads import WORKLOADS
from weft.runtime import launcher
from weft.runtime.executable import Executable


@pytest.fixture(autouse=True)
def entered(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Grows by the options of each launch that Python does."""
    seen: list[str] = []
    original = Executable.__call__

    def spy(self: Executable, *args: Any) -> None:
        seen.append(args[-1])
        original(self, *args)

    monkeypatch.setattr(Executable, "__call__", spy)
    torch._dynamo.reset()
    yield seen
    assert weft.counters.fallbacks == 0


def listed(made: Any) -> list[Tensor]:
    return [t.clone() for t in (made if isinstance(made, tuple | list) else (made,))]


def fused(name: str = MIXED, **options: Any) -> Any:
    return weft.fuse(WORKLOADS[name].fn, strict=True, **options)


@pytest.mark.parametrize("name", [MIXED, "rms_norm_forward", "softmax_backward", "modulated_layer_norm_backward"])
def test_the_second_call_does_without_python(name: str, entered: list[str]) -> None:
    inputs = inputs_of(name, torch.bfloat16)
    call = fused(name)
    first = listed(call(*inputs))
    assert launcher.is_loaded(), launcher.reason_against()
    count, launches = len(entered), weft.counters.launches
    assert count >= 1
    for _ in range(20):
        assert equal(first, listed(call(*inputs)))
    assert len(entered) == count
    assert weft.counters.launches == launches + 20 * count


def test_other_inputs_are_read(entered: list[str]) -> None:
    one, other = (inputs_of(MIXED, torch.bfloat16, seed=seed) for seed in (0, 1))
    call = fused()
    first = listed(call(*one))
    launcher.forget()
    second = listed(call(*other))  # Python's
    entered.clear()
    for _ in range(3):
        assert equal(first, listed(call(*one)))
        assert equal(second, listed(call(*other)))
    assert not equal(first, second)
    assert not entered


def test_the_numbers_of_rows_are_passed_on(entered: list[str]) -> None:
    call = weft.fuse(WORKLOADS["rms_norm_backward"].fn, dynamic=True)
    counts: list[int] = []
    for _ in range(3):  # in the second round a graph that was compiled last may serve the first sizes too
        for rows in (1024, 1040, 777):
            inputs = inputs_of("rms_norm_backward", torch.bfloat16, (rows, 1024))
            eager = WORKLOADS["rms_norm_backward"].fn(*inputs)
            for mine, theirs in zip(listed(call(*inputs)), listed(eager), strict=True):
                assert torch.allclose(mine.float(), theirs.float(), rtol=0.05, atol=0.05 * float(theirs.abs().max()))
        counts.append(len(entered))
    assert counts[2] == counts[1] > 0


def test_unaligned_inputs_take_their_own_variant(entered: list[str]) -> None:
    inputs = inputs_of("softmax_forward", torch.bfloat16, (512, 1024))
    whole = torch.empty(512 * 1024 + 8, dtype=torch.bfloat16, device="cuda")
    shifted = whole[1 : 512 * 1024 + 1].view(512, 1024)
    shifted.copy_(inputs[0])
    call = fused("softmax_forward")
    first = listed(call(*inputs))
    for _ in range(3):
        assert equal(first, listed(call(shifted)))
        assert equal(first, listed(call(*inputs)))
    assert len(entered) <= 2


def test_every_stream_has_a_counter(entered: list[str]) -> None:
    several = [inputs_of(MIXED, torch.bfloat16, seed=seed) for seed in range(3)]
    call = fused()
    alone = [listed(call(*inputs)) for inputs in several]
    streams = [torch.cuda.Stream() for _ in several]
    torch.cuda.synchronize()
    made: list[list[list[Tensor]]] = [[] for _ in several]
    for _ in range(20):
        for at, (stream, inputs) in enumerate(zip(streams, several, strict=True)):
            with torch.cuda.stream(stream):
                made[at].append(listed(call(*inputs)))
    torch.cuda.synchronize()
    for first, found in zip(alone, made, strict=True):
        assert all(equal(first, one) for one in found)
    assert len(entered) == 1 + len(streams)  # the first call, and the first one on each stream


def test_threads_launch_at_the_same_time() -> None:
    several = [inputs_of(MIXED, torch.bfloat16, seed=seed) for seed in range(4)]
    call = fused()
    alone = [listed(call(*inputs)) for inputs in several]
    torch.cuda.synchronize()

    def repeated(inputs: tuple[Tensor, ...]) -> list[list[Tensor]]:
        with torch.cuda.stream(torch.cuda.Stream()):
            made = [listed(call(*inputs)) for _ in range(20)]
            torch.cuda.current_stream().synchronize()
        return made

    with ThreadPoolExecutor(4) as pool:
        for first, found in zip(alone, pool.map(repeated, several), strict=True):
            assert all(equal(first, one) for one in found)


def test_a_graph_keeps_a_counter_of_its_own(entered: list[str]) -> None:
    inputs = inputs_of(MIXED, torch.bfloat16)
    call = fused()
    first = listed(call(*inputs))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    before = len(entered)
    with torch.cuda.graph(graph):
        held = call(*inputs)
    assert len(entered) == before + 1  # a place in a graph has a counter that no call has
    for _ in range(3):
        for tensor in listed(held):
            tensor.zero_()
        graph.replay()
        again = listed(call(*inputs))
        torch.cuda.synchronize()
        assert equal(first, listed(held))
        assert equal(first, again)
    assert len(entered) == before + 1


def test_no_memory_left_is_an_error_of_pytorch() -> None:
    torch.cuda.empty_cache()
    inputs = inputs_of(MIXED, torch.bfloat16, (65536, 1024))
    call = fused()
    first = listed(call(*inputs))
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1e-6)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            call(*inputs)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert equal(first, listed(call(*inputs)))
