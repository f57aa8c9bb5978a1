"""How ``weft bench`` times what a GPU does, with a GPU that is not there."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent

from tests.bench_cases import case_of
from weft.bench import gpu_peers
from weft.bench.gpu_timing import FLUSH_BYTES, WARM_UP_CALLS, CudaDevice, DeviceClock, clocks_mhz
from weft.bench.measure import figures_of
from weft.bench.report import Row, table_of
from weft.runtime import timing
from weft.runtime.timing import Candidate, Sample, Spread, interleave


class FakeDevice:
    """Writes down what it is asked for; kernels take 3 and 4 us, a replay 5 us."""

    def __init__(self, captures: bool = True, kernels: Sequence[float] = (3.0, 4.0)) -> None:
        self.calls: list[str] = []
        self.captures, self.kernels = captures, kernels

    def flush(self) -> None:
        self.calls.append("flush")

    def synchronise(self) -> None:
        self.calls.append("synchronise")

    def kernel_durations_us(self, run: Callable[[], Any]) -> list[float]:
        self.calls.append("profile")
        run()
        return list(self.kernels)

    def capture(self, run: Callable[[], Any]) -> Callable[[], None]:
        if not self.captures:
            raise RuntimeError("cannot capture\nlong story")
        return lambda: self.calls.append("replay")

    def elapsed_us(self, run: Callable[[], Any]) -> float:
        self.calls.append("events")
        run()
        return 5.0


@pytest.fixture
def fake() -> tuple[FakeDevice, Candidate]:
    device = FakeDevice()
    return device, Candidate("c", "call", lambda: device.calls.append("run"), lambda: device.calls.append("prepare"))


def test_every_timing_on_a_gpu_begins_with_a_flush_and_a_wait(fake: tuple[FakeDevice, Candidate]) -> None:
    device, candidate = fake
    clock = DeviceClock(device)
    clock.warm_up(candidate)
    assert device.calls == ["prepare", "run"] * WARM_UP_CALLS + ["synchronise", "profile", "run"]
    device.calls.clear()
    sample = clock.sample(candidate)
    before_kernels = ["prepare", "flush", "synchronise", "profile", "run"]
    assert device.calls == [*before_kernels, "flush", "synchronise", "events", "replay"]
    assert sample == Sample(pytest.approx(7e-6), pytest.approx(5e-6), 2)  # type: ignore[arg-type]


def test_what_cannot_be_captured_is_timed_without_a_graph(fake: tuple[FakeDevice, Candidate]) -> None:
    device, candidate = fake
    device.captures = False
    clock = DeviceClock(device)
    clock.warm_up(candidate)
    assert clock.uncaptured == {"c call": "cannot capture"}
    assert clock.sample(candidate).graph_seconds is None


def test_kernels_that_the_profiler_does_not_see_are_an_error() -> None:
    clock = DeviceClock(FakeDevice(kernels=()))
    with pytest.raises(RuntimeError, match="the profiler saw no kernel of c call"):
        clock.sample(Candidate("c", "call", lambda: None))


def test_figures_of_a_gpu_have_the_graph_and_the_kernels(fake: tuple[FakeDevice, Candidate]) -> None:
    device, candidate = fake
    copy = Candidate("copy", "", lambda: None)
    timings = interleave([copy, candidate], 3, clock=DeviceClock(device))
    figures = figures_of(candidate, timings, None)
    assert (figures.kernels, figures.of_copy) == (2, Spread(1.0, 1.0, 1.0))
    assert figures.graph_us is not None
    assert figures.graph_us.median == pytest.approx(5.0)
    row = Row("w", "1x1", 1, "f32", 8, 3, (figures,), clocks={"sm_mhz": 1980, "memory_mhz": 2619})
    table = table_of(row)
    assert [str(column.header) for column in table.columns][1:4] == ["us", "IQR", "graph us"]
    assert str(table.title) == "\nw 1x1 f32, 0.0 MB, 3 rounds, at 1980 MHz, memory 2619 MHz"


class FakeEvent:
    """A millisecond apart per event made before."""

    made = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        FakeEvent.made += 1
        self.at = FakeEvent.made

    def record(self) -> None:
        pass

    def elapsed_time(self, other: FakeEvent) -> float:
        return float(other.at - self.at)


class FakeProfile:
    """Two kernels of a GPU, what the host did, and a range of the user's."""

    def __init__(self, activities: Sequence[Any], acc_events: bool) -> None:
        assert (activities, acc_events) == ([torch.profiler.ProfilerActivity.CUDA], True)

    def __enter__(self) -> FakeProfile:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def events(self) -> list[Any]:
        def event(device: DeviceType, start: float, end: float, annotation: bool = False) -> Any:
            return FunctionEvent(0, "", 0, start, end, device_type=device, is_user_annotation=annotation)

        kernels = [event(DeviceType.CUDA, 10.0, 13.5), event(DeviceType.CUDA, 20.0, 21.0)]
        return [*kernels, event(DeviceType.CPU, 0.0, 50.0), event(DeviceType.CUDA, 0.0, 40.0, True)]


def test_the_layer_over_cuda_adds_up_what_ran_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[Any] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waits.append)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.profiler, "profile", FakeProfile)
    monkeypatch.setattr("weft.bench.gpu_timing.FLUSH_BYTES", 1024)
    device = CudaDevice(torch.device("cpu"))
    ran: list[str] = []
    assert device.kernel_durations_us(lambda: ran.append("profiled")) == [3.5, 1.0]
    assert device.elapsed_us(lambda: ran.append("replayed")) == 1000.0
    assert (ran, len(waits)) == (["profiled", "replayed"], 2)
    device._buffer.fill_(1)
    device.flush()
    assert not device._buffer.any()


def test_one_profile_is_divided_into_turns_by_the_flushes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second round begins with the other run; events come in any order, and a kernel may be called like a flush."""
    names = ("bitwise_not", "a", "triton_bitwise_not", "bitwise_not", "b", "bitwise_not", "b", "bitwise_not", "a")

    class Turns(FakeProfile):
        def events(self) -> list[Any]:
            kernels = [
                FunctionEvent(0, name, 0, 10.0 * i, 10.0 * i + i, device_type=DeviceType.CUDA)
                for i, name in enumerate(names)
            ]
            return kernels[::-1]

    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.profiler, "profile", Turns)
    monkeypatch.setattr(timing, "FLUSH_BYTES", 1024)
    ran: list[str] = []
    runs = [lambda name=name: ran.append(name) for name in "ab"]
    assert timing.samples_us(runs, 2, torch.device("cpu")) == [[1.0 + 2.0, 8.0], [4.0, 6.0]]
    assert ran == [*"ab", *"abba"]


def test_the_flush_is_larger_than_any_cache() -> None:
    assert FLUSH_BYTES == 268_435_456


def test_clocks_come_from_nvidia_smi_where_there_is_one() -> None:
    asked: list[list[str]] = []

    def answer(command: list[str], **_: Any) -> Any:
        asked.append(command)
        return subprocess.CompletedProcess(command, 0, stdout="1980, 2619\n")

    assert clocks_mhz("GPU-1", answer) == {"sm_mhz": 1980, "memory_mhz": 2619}
    assert asked[0][-1] == "--id=GPU-1"
    assert clocks_mhz(None, lambda *_, **__: subprocess.CompletedProcess([], 0, stdout="[N/A], 2619\n")) is None

    def missing(*_: Any, **__: Any) -> Any:
        raise FileNotFoundError("nvidia-smi")

    assert clocks_mhz(None, missing) is None


def test_the_pipelined_peer_takes_the_options_that_the_release_has(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(gpu_peers, "inductor_call", lambda *given: asked.append(given[1:]))
    gpu_peers.inductor_pipelined(case_of("row_column_sum"))
    names = [name for name in gpu_peers.PIPELINED if hasattr(torch._inductor.config.triton, name)]
    assert asked == [("inductor_pipelined", {f"triton.{name}": True for name in names})]
    monkeypatch.setattr(gpu_peers, "PIPELINED", ("an_option_of_no_release",))
    refusal = gpu_peers.inductor_pipelined(case_of("row_column_sum"))
    assert str(refusal) == f"no_option: inductor_pipelined: torch {torch.__version__} has none of its options"
