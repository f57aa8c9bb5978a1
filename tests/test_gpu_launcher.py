"""Launches on a GPU that are repeated in C++, the driver played by Python and tensors of the CPU by those of a GPU."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from weft.options import Options
from weft.runtime import launch, launcher
from weft.runtime.counters import counters
from weft.runtime.executable import Executable
from weft.runtime.gpu.driver import _Config

DIGEST, TEXT = "0123456789abcdef01234567", "a kernel of two functions"
DEVICE, STREAM, COUNTER, FUNCTION, FINISH = 3, 0x7700, 0x5550, 0xF1, 0xF2
WORKSPACE_BYTES, SLICES = 1024, (0, 384)
SPARE = 16
COOPERATIVE, CLUSTER_DIMENSION = 2, 4  # of CUlaunchAttributeID
OPERATOR = torch.ops.weft.launch.default
call: Callable[..., Any] = OPERATOR


class Driver:
    """What the launcher asks and starts. started: function, grid, threads, shared memory, stream and arguments.
    together, clusters: attributes of the starts that have any, each its function, those also the cluster's extents."""

    def __init__(self) -> None:
        self.device, self.stream, self.capturing, self.error = DEVICE, STREAM, 0, 0
        self.arguments = 0
        self.started: list[tuple[Any, ...]] = []
        self.together: list[int] = []
        self.clusters: list[tuple[int, list[int]]] = []
        self.functions = self._functions()

    def _functions(self) -> list[Any]:
        pointer, number = ctypes.c_void_p, ctypes.c_int

        def current_stream(device: int, found: int) -> int:
            assert device == DEVICE
            ctypes.c_void_p.from_address(found).value = self.stream
            return 0

        def current_device(found: int) -> int:
            ctypes.c_int.from_address(found).value = self.device
            return 0

        def is_capturing(stream: int, found: int) -> int:
            assert stream == self.stream
            ctypes.c_int.from_address(found).value = self.capturing
            return 0

        def start(config: int, function: int, places: int, extra: None) -> int:
            given = _Config.from_address(config)
            (x, y, *one), (threads, *others) = given.grid, given.block
            assert (one, others, extra) == ([1], [1, 1], None)
            for attribute in given.attributes[: given.attribute_count]:
                if attribute.kind == COOPERATIVE:
                    assert attribute.value.cooperative == 1
                    self.together.append(function)
                else:
                    assert attribute.kind == CLUSTER_DIMENSION
                    self.clusters.append((function, list(attribute.value.cluster)))
            addresses = (ctypes.c_void_p * self.arguments).from_address(places)
            values = [ctypes.c_void_p.from_address(address).value for address in addresses]
            self.started.append((function, x, y, threads, given.shared_bytes, given.stream, values))
            return self.error

        return [
            ctypes.CFUNCTYPE(number, ctypes.c_int32, pointer)(current_stream),
            ctypes.CFUNCTYPE(number, pointer)(current_device),
            ctypes.CFUNCTYPE(number, pointer, pointer)(is_capturing),
            ctypes.CFUNCTYPE(number, pointer, pointer, pointer, pointer)(start),
        ]


class Played:
    """The implementation in Python. calls: options of each; counter: whether programs wait for each other."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.calls: list[str] = []
        self.aligned, self.counter, self.slices = True, False, SLICES
        self.repeatable, self.compared, self.cluster = True, False, 1
        self.error: BaseException | None = None

    def call(self, inputs: list[Tensor], outputs: list[Tensor], parameters: list[int], options: str) -> None:
        self.calls.append(options)
        if self.error is not None:
            raise self.error
        self.driver.arguments = 3 + len(self.slices) + self.counter + len(parameters) + SPARE

    def answer(self, *_: Any) -> str:
        if not self.repeatable:
            return ""
        numbers = [int(self.compared), 4096, DEVICE, 16, 3, *[int(self.aligned)] * 3]
        numbers += [COUNTER, self.driver.stream] if self.counter else [0, 0]
        numbers += [self.driver.arguments, WORKSPACE_BYTES, len(self.slices), *self.slices]
        numbers += [FUNCTION, 132, 2, 128, 2048, self.cluster, int(self.counter), FINISH, 16, 1, 64, 0, 1, 0]
        return " ".join(map(str, ("cuda", *numbers)))


@pytest.fixture(autouse=True, params=["operator", "generated"])
def called(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whom: as an operator of PyTorch's, or from generated code."""
    direct = launcher.direct()
    assert direct is not OPERATOR
    monkeypatch.setattr(sys.modules[__name__], "call", OPERATOR if request.param == "operator" else direct)


@pytest.fixture
def driver() -> Iterator[Driver]:
    launcher.load(Options.read())
    library = launcher._LAUNCHER.library
    assert library is not None
    played = Driver()
    launcher.use_gpu(library, [ctypes.cast(f, ctypes.c_void_p).value or 0 for f in played.functions])
    launcher.forget(DIGEST)
    yield played
    launcher.forget(DIGEST)
    launcher.use_gpu(library, launcher.gpu_functions() or [0] * len(played.functions))


@pytest.fixture
def python(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> Played:
    played = Played(driver)
    found = Executable.__new__(Executable)
    monkeypatch.setattr(launch, "_KERNELS", {DIGEST: found})
    monkeypatch.setattr(Executable, "__call__", played.call)
    monkeypatch.setattr(Executable, "repeatable", played.answer)
    counters.reset()
    return played


def run(offset: int = 0, options: str = "off", parameter: int = 5) -> list[int]:
    """Addresses of the tensors of a call."""
    memory = [torch.zeros(64), torch.zeros(64), torch.zeros(64)]
    x, y, z = (m[16 + offset :][:32] for m in memory)
    call(DIGEST, TEXT, [x], [y, z], [parameter], options)
    return [t.data_ptr() for t in (x, y, z)]


def test_the_second_call_is_started_from_cpp(driver: Driver, python: Played) -> None:
    run()
    assert not driver.started
    addresses = run()
    assert python.calls == ["off"]
    first, second = driver.started
    assert first[:6] == (FUNCTION, 132, 2, 128, 2048, STREAM)
    assert second[:6] == (FINISH, 16, 1, 64, 0, STREAM)
    tensors, (one, other, parameter, *others) = first[6][:3], first[6][3:]
    assert tensors == addresses
    assert other - one == SLICES[1] - SLICES[0]
    assert [parameter, *others] == [5, *[None] * SPARE]
    assert second[6] == first[6]
    assert (driver.together, driver.clusters) == ([], [])
    assert (counters.launches, counters.launch_bytes) == (1, 4096)  # the first one is counted by Python


def test_programs_that_wait_are_started_together_with_their_counter(driver: Driver, python: Played) -> None:
    python.counter = True
    run()
    run()
    assert driver.together == [FUNCTION]
    assert driver.started[0][6][5] == COUNTER


@pytest.mark.parametrize("waits", [False, True])
def test_programs_are_started_in_clusters(waits: bool, driver: Driver, python: Played) -> None:
    python.cluster, python.counter = 4, waits
    run()
    run()
    assert [start[:6] for start in driver.started] == [
        (FUNCTION, 132, 2, 128, 2048, STREAM),
        (FINISH, 16, 1, 64, 0, STREAM),
    ]
    assert driver.clusters == [(FUNCTION, [4, 1, 1])]
    assert driver.together == [FUNCTION] * waits


def test_a_kernel_without_partial_results_has_no_memory_for_them(driver: Driver, python: Played) -> None:
    python.slices = ()
    run()
    addresses = run()
    assert driver.started[0][6] == [*addresses, 5, *[None] * SPARE]


def test_without_a_counter_any_stream_will_do(driver: Driver, python: Played) -> None:
    run()
    driver.stream = STREAM + 8
    driver.capturing = 1
    run()
    assert python.calls == ["off"]
    assert {start[5] for start in driver.started} == {STREAM + 8}


def test_a_counter_is_of_one_stream_and_no_graph(driver: Driver, python: Played) -> None:
    python.counter = True
    run()
    driver.stream = STREAM + 8
    run()  # Python's, which has another counter for it
    run()
    assert len(python.calls) == 2
    driver.stream = STREAM
    run()
    assert len(python.calls) == 2
    driver.capturing = 1
    run()
    assert len(python.calls) == 3
    assert [start[5] for start in driver.started] == [STREAM + 8] * 2 + [STREAM] * 2


@pytest.mark.parametrize("change", ["alignment", "parameter", "margin", "device"])
def test_what_is_not_alike_is_pythons(change: str, driver: Driver, python: Played) -> None:
    run()
    if change == "device":
        driver.device = DEVICE + 1
    options = "off sm_margin=4" if change == "margin" else "off"
    run(int(change == "alignment"), options, 6 if change == "parameter" else 5)
    assert len(python.calls) == 2
    assert not driver.started


def test_aligned_and_unaligned_calls_are_known_side_by_side(driver: Driver, python: Played) -> None:
    run()
    python.aligned = False
    run(1)
    for offset in (0, 1):
        run(offset)
    assert len(python.calls) == 2
    assert len(driver.started) == 4


def test_a_function_that_is_not_started_goes_to_python(driver: Driver, python: Played) -> None:
    run()
    driver.error = 700
    run()
    assert len(python.calls) == 2
    assert counters.launches == 0


def test_calls_are_compared_first(driver: Driver, python: Played) -> None:
    run(options="first")
    run(options="first")
    assert len(python.calls) == 2
    python.compared = True
    run(options="first")
    run(options="first")
    assert len(python.calls) == 3
    run(options="always")
    assert len(python.calls) == 4
    assert len(driver.started) == 2


def test_what_python_does_not_say_how_to_repeat_stays_its_own(driver: Driver, python: Played) -> None:
    python.repeatable = False
    run()
    run()
    assert len(python.calls) == 2
    assert not driver.started


def test_no_memory_left_is_pytorchs_own_error(driver: Driver, python: Played) -> None:
    python.error = torch.OutOfMemoryError("no memory, says a test")
    with pytest.raises(torch.OutOfMemoryError, match="no memory, says a test"):
        run()
    python.error = None
    python.slices = (0,)
    run()
    run()
    assert len(driver.started) == 2


def test_no_memory_for_partial_results_is_pythons(
    driver: Driver, python: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.test_gpu_launcher.WORKSPACE_BYTES", 2**62)
    run()
    run()
    assert len(python.calls) == 2
    assert not driver.started
