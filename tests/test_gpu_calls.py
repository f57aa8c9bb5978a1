"""Calls of Triton kernels with the driver played by Python: tensors of the CPU stand for those of a GPU."""

from __future__ import annotations

import ctypes
import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from triton import knobs

from tests.triton_by_hand import PROGRAM, SAME, SEPARATE, SOURCE, render_by_hand
from weft.errors import BuildError, LaunchError
from weft.ir.interpret import interpret, sizes_of
from weft.ir.parser import parse
from weft.options import LaunchOptions, Options
from weft.plan.kernel import Kernel
from weft.render import backends, triton_launch
from weft.render.backends import Renderer
from weft.render.triton_launch import Launch
from weft.runtime import driver as cuda_driver
from weft.runtime import gpu, launch, triton_build, triton_load
from weft.runtime.counters import counters
from weft.runtime.executable import Executable, digest_of
from weft.runtime.gpu import GpuFunction
from weft.runtime.layout import check_tensors
from weft.runtime.occupancy import grid_of
from weft.runtime.resource_usage import ResourceUsage
from weft.runtime.triton_build import Binary, GpuTarget, Job, Variant
from weft.runtime.triton_load import Loaded
from weft.runtime.workspace import Workspace

STREAM, UNITS, PER_UNIT = 77, 3, 2
H100 = GpuTarget(90)


class Driver:
    """What a GPU is asked to do. started: name, grid, stream and arguments of each start."""

    def __init__(self) -> None:
        self.started: list[tuple[str, tuple[int, int, int], int, tuple[int, ...]]] = []
        self.jobs: list[Job] = []
        self.told: list[Any] = []
        self.capturing = False
        self.arguments = 0
        self.error: Exception | None = None

    def binaries(self, job: Job, options: Options) -> dict[str, Binary]:
        self.jobs.append(job)
        entries = [found.entry for found in triton_build._functions(job.kernel)]
        return {entry: Binary(entry, "{}", b"", ResourceUsage(32, 0, 0, 0)) for entry in entries}

    def load(self, binary: Binary, kernel: Kernel) -> Loaded:
        compiled = SimpleNamespace(launch_metadata=lambda grid, stream, *arguments: (binary.entry, grid))

        def run(x: int, y: int, z: int, stream: int, function: int, packed: Any, *rest: Any) -> None:
            if self.error is not None:
                raise self.error
            told, enter, leave, *arguments = rest
            assert (function, packed) == (5, ("packed",))
            if enter is not None:
                enter(told)
            self.started.append((binary.entry, (x, y, z), stream, tuple(arguments)))
            if leave is not None:
                leave(told)

        cooperative = kernel.schedule.finish == "same"
        return Loaded(compiled, run, 5, ("packed",), PER_UNIT, 64, 2048, cooperative, self.arguments)


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    played = Driver()
    monkeypatch.setattr(launch, "_KERNELS", {})
    monkeypatch.setattr(launch, "FOUND_BY_TEXT", [])
    monkeypatch.setitem(backends.RENDERERS, "triton", Renderer("weft.render.triton", "cpu"))
    monkeypatch.setattr(triton_build, "binaries", played.binaries)
    monkeypatch.setattr(triton_build, "all_binaries", lambda jobs, o: [played.binaries(job, o) for job in jobs])
    monkeypatch.setattr(triton_load, "load", played.load)
    monkeypatch.setattr(gpu, "target_of", lambda _: H100)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: played.capturing)
    properties = SimpleNamespace(multi_processor_count=UNITS)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: STREAM, raising=False)
    counters.reset()
    return played


def tensors(rows: int = 32, offset: int = 0) -> tuple[list[Tensor], list[Tensor]]:
    x = torch.randint(-2, 3, (offset + rows * 64,)).bfloat16()[offset:].view(rows, 64)
    return [x], [torch.full((rows, 64), float("nan")), torch.full((64,), float("nan"))]


def executable(kernel: Kernel = SEPARATE) -> Executable:
    return Executable(kernel, GpuFunction(kernel, SOURCE, Options.read({}, {})))


# what is started


def test_both_functions_get_tensors_partial_results_and_parameters(driver: Driver) -> None:
    given, made = tensors()
    executable()(given, made, [32])
    (first, second) = driver.started
    pointers = tuple(t.data_ptr() for t in (*given, *made))
    assert first[:3] == ("weft_p", (6, 1, 1), STREAM)  # 8 chunks are shared by the 6 programs that 3 SMs hold
    assert second[:3] == ("weft_p_finish", (6, 1, 1), STREAM)
    assert first[3][:3] == pointers
    assert first[3][4:] == (32,)
    assert second[3] == first[3]
    assert (counters.launches, counters.launch_bytes, counters.fallbacks) == (1, 32 * 64 * 6 + 256, 0)


def test_a_kernel_that_waits_gets_a_counter_of_its_stream(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    run = executable(SAME)
    for stream in (STREAM, STREAM, STREAM + 1):
        monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _, s=stream: s)
        run(*tensors(), [32])
    first, again, other = (arguments[4] for _, _, _, arguments in driver.started)
    assert first == again  # launches on one stream do not overlap
    assert first != other  # those on two streams do, and must not wait for each other's programs
    assert [ctypes.c_int64.from_address(counter).value for counter in (first, other)] == [0, 0]


def test_every_place_in_a_graph_has_a_counter_of_its_own(driver: Driver) -> None:
    run = executable(SAME)
    run(*tensors(), [32])
    driver.capturing = True
    for _ in range(2):
        run(*tensors(), [32])
    assert len({arguments[4] for _, _, _, arguments in driver.started}) == 3


def test_a_margin_leaves_sms_free_and_nothing_else_changes(driver: Driver) -> None:
    run = executable()
    for options in ("off", "off sm_margin=1", "off sm_margin=2", "off sm_margin=99"):
        run(*tensors(), [32], options)
    assert [grid for name, grid, *_ in driver.started if name == "weft_p"] == [
        (6, 1, 1),
        (4, 1, 1),
        (2, 1, 1),
        (2, 1, 1),
    ]
    assert {rest[-1] for _, _, _, rest in driver.started} == {32}
    assert len(driver.jobs) == 1


@pytest.mark.parametrize("hook", ["launch_enter_hook", "launch_exit_hook"])
def test_a_profiler_is_told(hook: str, driver: Driver) -> None:
    chain = getattr(knobs.runtime, hook)
    chain.add(driver.told.append)
    try:
        executable()(*tensors(), [32])
    finally:
        chain.remove(driver.told.append)
    assert driver.told == [("weft_p", (6, 1, 1)), ("weft_p_finish", (6, 1, 1))]


# how the launcher repeats it


def repeated(run: Executable, given: list[Tensor], made: list[Tensor], options: str = "off") -> list[str]:
    return run.repeatable(given, made, [32], options).split()


def test_two_functions_are_repeated_with_their_memory(driver: Driver) -> None:
    run, (given, made) = executable(), tensors()
    driver.arguments = 3 + 1 + 1 + 2
    run(given, made, [32])
    word, compared, launch_bytes, device, *numbers = repeated(run, given, made)
    assert (word, compared, launch_bytes, device) == ("cpu", "0", str(32 * 64 * 6 + 256), "None")  # the CPU's index
    alignment_bytes, aligned, counter, stream, arguments, workspace_bytes, slices, first = map(int, numbers[:8])
    assert (alignment_bytes, aligned, counter, stream, arguments) == (16, 1, 0, 0, 7)
    assert (workspace_bytes, slices, first) == (8 * 64 * 4, 1, 0)
    assert numbers[8:] == ["5", "6", "1", "64", "2048", "0"] * 2


def test_a_kernel_that_waits_is_repeated_on_its_stream(driver: Driver) -> None:
    run, (given, made) = executable(SAME), tensors()
    driver.arguments = 3 + 1 + 1 + 1 + 2
    run(given, made, [32])
    counter, stream = repeated(run, given, made)[6:8]
    assert int(counter) == driver.started[0][3][4]
    assert stream == str(STREAM)
    assert repeated(run, given, made)[-1] == "1"


@pytest.mark.parametrize("reason", ["capture", "profiler", "arguments", "other", "empty", "failed"])
def test_other_calls_are_not_repeated(reason: str, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    run, (given, made) = executable(), tensors()
    driver.arguments = 7 + (reason == "arguments")
    run(given, made, [32])
    if reason == "capture":
        driver.capturing = True
    if reason == "profiler":
        monkeypatch.setattr(knobs.runtime.launch_enter_hook, "calls", [driver.told.append])
    if reason == "failed":
        monkeypatch.setattr(run, "_function", None)
    if reason == "other":  # margin: such a call was not made
        assert not repeated(run, given, made, "off sm_margin=1")
    elif reason == "empty":
        nothing = torch.zeros(0, 64, dtype=torch.bfloat16), torch.zeros(0, 64)
        assert run.repeatable([nothing[0]], [nothing[1], made[1]], [0], "off") == ""
    else:
        assert not repeated(run, given, made)


@pytest.mark.parametrize(
    ("sizes", "words", "metadata"),
    [
        ((8,) * 7, 7, {}),
        ((8, 8, 4), 0, {}),
        ((), 0, {}),
        ((8,) * 7, 0, {"global_scratch_size": 128}),
        ((8,) * 7, 0, {"num_ctas": 2}),
        ((8,) * 7, 0, {"launch_pdl": True}),
    ],
)
def test_functions_that_take_words_alone_are_started_by_the_launcher(
    sizes: tuple[int, ...], words: int, metadata: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_load, "argument_bytes", lambda _: sizes)
    plain = {"num_ctas": 1, "global_scratch_size": 0, "profile_scratch_size": 0}
    assert triton_load._words(5, SimpleNamespace(**{**plain, **metadata})) == words


def test_an_old_driver_leaves_starts_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_driver, "_driver", lambda: SimpleNamespace())
    assert triton_load._words(5, SimpleNamespace(num_ctas=1)) == 0


# which binary


@pytest.mark.parametrize(
    ("rows", "offset", "variant"),
    [
        (32, 0, Variant(True, (True,))),
        (33, 0, Variant(True, (False,))),
        (32, 1, Variant(False, (True,))),
        (33, 8, Variant(True, (False,))),
        (33, 4, Variant(False, (False,))),
    ],
)
def test_the_variant_follows_addresses_and_parameters(rows: int, offset: int, variant: Variant, driver: Driver) -> None:
    executable()(*tensors(rows, offset), [rows])
    assert driver.jobs == [Job(SEPARATE, SOURCE, variant, H100)]


def test_an_unaligned_output_is_enough(driver: Driver) -> None:
    given, (y, _) = tensors()
    executable()(given, [y, torch.empty(65)[1:]], [32])
    assert driver.jobs[0].variant == Variant(False, (True,))


def test_a_variant_is_built_once(driver: Driver) -> None:
    run = executable()
    for rows, offset in ((32, 0), (32, 1), (32, 0), (48, 0), (33, 0), (33, 0)):
        run(*tensors(rows, offset), [rows])
    assert [job.variant for job in driver.jobs] == [
        Variant(True, (True,)),
        Variant(False, (True,)),
        Variant(True, (False,)),
    ]
    assert len(driver.started) == 12


def test_the_expected_variant_is_built_before_the_first_call(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    launch.prepare([SEPARATE], [SOURCE], Options.read({}, {}), [{"s0": 33}])
    assert driver.jobs == [Job(SEPARATE, SOURCE, Variant(True, (False,)), H100)]
    launch.find(digest_of(SEPARATE), "not looked at")(*tensors(33), [33])
    assert len(driver.jobs) == 1
    assert len(driver.started) == 2


def test_a_kernel_found_by_its_text_is_built_by_its_first_call(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    render_by_hand(monkeypatch)
    found = launch.find(digest_of(SEPARATE), str(SEPARATE))
    assert driver.jobs == []
    found(*tensors(32, 1), [32])
    assert [job.variant for job in driver.jobs] == [Variant(False, (True,))]


# what is done on ATen


def test_nothing_is_built_while_a_graph_is_captured(driver: Driver) -> None:
    run = executable()
    driver.capturing = True
    given, made = tensors()
    with pytest.warns(
        UserWarning, match="^weft: kernel p runs on ATen in a CUDA graph: no call like this one was made"
    ):
        run(given, made, [32])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(given, made, [32])
    assert torch.equal(made[1].double(), interpret(PROGRAM, given, [32])[1])
    assert (driver.jobs, driver.started, counters.fallbacks) == ([], [], 2)
    driver.capturing = False
    run(given, made, [32])
    driver.capturing = True
    run(given, made, [32])
    assert len(driver.started) == 4
    assert counters.fallbacks == 2


def test_what_was_built_before_is_not_loaded_while_a_graph_is_captured(driver: Driver) -> None:
    launch.prepare([SEPARATE], [SOURCE], Options.read({}, {}))
    driver.capturing = True
    with pytest.warns(UserWarning, match="in a CUDA graph"):
        launch.find(digest_of(SEPARATE), "")(*tensors(), [32])
    assert driver.started == []


def test_no_rows_at_all_are_evaluated(driver: Driver) -> None:
    given, made = tensors(0)
    executable()(given, made, [0])
    assert made[1].tolist() == [0.0] * 64
    assert (driver.started, counters.fallbacks) == ([], 1)


@pytest.mark.parametrize("error", [RuntimeError("Triton Error [CUDA]: invalid argument"), BuildError("no")])
def test_a_start_that_fails_is_done_on_aten_from_then_on(error: Exception, driver: Driver) -> None:
    run, (given, made) = executable(), tensors()
    driver.error = error
    with pytest.warns(UserWarning, match="^weft: kernel p runs on ATen, slowly: "):
        run(given, made, [32])
    driver.error = None
    run(given, made, [32])
    assert torch.equal(made[1].double(), interpret(PROGRAM, given, [32])[1])
    assert (driver.started, counters.fallbacks) == ([], 2)


def test_the_operator_reaches_a_triton_kernel(driver: Driver) -> None:
    launch.prepare([SEPARATE], [SOURCE], Options.read({}, {}))
    torch.ops.weft.launch(digest_of(SEPARATE), str(SEPARATE), *tensors(), [32], "off sm_margin=2")
    assert [grid for _, grid, *_ in driver.started] == [(2, 1, 1), (2, 1, 1)]


# devices


def test_a_triton_kernel_wants_all_tensors_on_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    given, made = tensors()
    monkeypatch.setitem(backends.RENDERERS, "triton", Renderer("weft.render.triton", "cuda"))
    with pytest.raises(LaunchError, match=r"^p: x is on cpu, the kernel runs on a GPU$"):
        check_tensors(SEPARATE, given, made, [32])
    monkeypatch.setitem(backends.RENDERERS, "triton", Renderer("weft.render.triton", "meta"))
    lies = {"dtype": torch.bfloat16, "shape": (32, 64), "numel": lambda: 2048, "stride": lambda: (64, 1)}
    placed: Any = [SimpleNamespace(device=torch.device("meta", at), **lies) for at in range(3)]
    with pytest.raises(LaunchError, match=r"^p: y is on meta:1, x on meta:0$"):
        check_tensors(SEPARATE, placed[:1], placed[1:], [32])


# the workspace

TWO_SUMS = replace(
    SEPARATE,
    program=parse(
        """program p(s0)
  dim m = s0
  dim n = 5
  input x: f32 [m:5, n:1]
  wide: f64{m, n} = cast(x)
  column: f32{n} = sum[m](x)
  highest: f32{n} = max[m](x)
  total: f64{n} = sum[m](wide)
  output a: f32 [n:1] = column
  output b: f32 [n:1] = highest
  output c: f64 [n:1] = total
end
"""
    ),
)


@pytest.mark.parametrize(("rows", "offsets", "size"), [(32, (0, 256, 512), 896), (1, (0, 128, 256), 384)])
def test_slices_of_the_workspace_start_at_lines_of_the_cache(rows: int, offsets: tuple[int, ...], size: int) -> None:
    """8 chunks of 5 float32 are 160 bytes, of 5 float64 320."""
    sizes = sizes_of(TWO_SUMS.program, [rows])
    assert [p.elements for p in triton_launch.partials(TWO_SUMS, sizes)] == [5 * min(8, -(-rows // 4))] * 3
    assert Workspace.of(TWO_SUMS, sizes) == Workspace(size, offsets, None)


def test_addresses_are_in_the_memory_that_is_kept() -> None:
    kept, addresses = Workspace(896, (0, 256, 512), None).allocate(torch.device("cpu"), STREAM)
    assert kept is not None
    assert kept.nbytes == 896
    assert [a - kept.data_ptr() for a in addresses] == [0, 256, 512]
    assert Workspace(0, (), None).allocate(torch.device("cpu"), STREAM) == (None, [])


# grids


@pytest.mark.parametrize(
    ("grid", "persistent", "cooperative", "margin", "expected"),
    [
        ((500, 1), True, False, 0, (264, 1)),
        ((500, 1), True, False, 32, (200, 1)),
        ((100, 1), True, False, 0, (100, 1)),
        ((500, 3), True, True, 0, (88, 3)),
        ((500, 300), True, False, 0, (1, 300)),
        ((500, 1), True, True, 500, (2, 1)),
        ((500, 7), False, False, 100, (500, 7)),
        ((0, 7), True, True, 0, (0, 7)),
    ],
)
def test_persistent_programs_are_as_many_as_are_resident(
    grid: tuple[int, int], persistent: bool, cooperative: bool, margin: int, expected: tuple[int, int]
) -> None:
    assert grid_of(Launch("weft_p", grid, 4, 2, persistent, cooperative), 2, 132, margin) == expected


def test_programs_that_wait_for_each_other_all_have_to_be_resident() -> None:
    with pytest.raises(BuildError, match=r"^weft_p: 9 programs wait for each other, the GPU holds 8 at a time$"):
        grid_of(Launch("weft_p", (4, 9), 4, 2, True, True), 2, 4, 0)


@pytest.mark.parametrize("error", [0, 400])
def test_the_driver_says_how_many_programs_fit(error: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fits(found: Any, function: ctypes.c_void_p, threads: ctypes.c_int, shared: ctypes.c_size_t) -> int:
        assert (function.value, threads.value, shared.value) == (5, 128, 2048)
        ctypes.cast(found, ctypes.POINTER(ctypes.c_int))[0] = 9
        return error

    library = SimpleNamespace(cuOccupancyMaxActiveBlocksPerMultiprocessor=fits)
    monkeypatch.setattr(cuda_driver, "_driver", lambda: library)
    if error == 0:
        assert cuda_driver.programs_per_unit(5, 128, 2048) == 9
    else:
        with pytest.raises(BuildError, match=r"does not say how many programs fit \(error 400\)$"):
            cuda_driver.programs_per_unit(5, 128, 2048)


# options


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (LaunchOptions(), "off"),
        (LaunchOptions("first"), "first"),
        (LaunchOptions("off", 8), "off sm_margin=8"),
        (LaunchOptions("always", 16), "always sm_margin=16"),
    ],
)
def test_the_options_of_a_launch_travel_as_text(options: LaunchOptions, text: str) -> None:
    assert str(options) == text
    assert LaunchOptions.parse(text) == options


def test_the_margin_is_an_option_that_only_gpus_see() -> None:
    assert Options.read({}, {}).sm_margin == 0
    assert Options.read({}, {"WEFT_SM_MARGIN": "8"}).sm_margin == 8
    options = Options.read({"sm_margin": 4}, {"WEFT_SM_MARGIN": "8"})
    assert [str(options.of_launch(device)) for device in ("cpu", "cuda")] == ["off", "off sm_margin=4"]
    assert "sm_margin=4" in repr(options)  # part of the key of Inductor's cache: the margin is in its graphs


@pytest.mark.parametrize("wrong", [-1, "8 SMs", 1.5])
def test_a_margin_that_is_no_number_of_sms_is_an_error(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"^the SMs to leave free \(sm_margin, WEFT_SM_MARGIN\) are a number of SMs"):
        Options.read({"sm_margin": wrong}, {})


def test_the_driver_is_looked_for_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    cuda_driver._driver.cache_clear()
    monkeypatch.setattr(cuda_driver.ctypes, "CDLL", missing)
    with pytest.raises(BuildError, match=r"^no CUDA driver: libcuda\.so\.1: cannot open"):
        cuda_driver.programs_per_unit(5, 128, 0)
