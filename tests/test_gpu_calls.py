"""Calls of Triton kernels with the driver played by Python: tensors of the CPU stand for those of a GPU."""

from __future__ import annotations

import ctypes
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from tests.gpu_driver import H100, STREAM, Driver, played_driver  # noqa: F401
from tests.triton_by_hand import PROGRAM, SAME, SEPARATE, SOURCE, render_by_hand
from weft.backends.binary import Job, Variant
from weft.backends.triton import text as triton
from weft.backends.triton.backend import TritonBackend
from weft.errors import BuildError, LaunchError
from weft.ir.interpret import interpret
from weft.ir.parser import parse
from weft.options import Options
from weft.plan.kernel import Kernel, Plan
from weft.plan.planner import plan_split
from weft.runtime import executable as weft_executable
from weft.runtime import launch
from weft.runtime.counters import counters
from weft.runtime.executable import Executable, digest_of
from weft.runtime.gpu.driver import SPARE_WORDS
from weft.runtime.gpu.function import GpuFunction
from weft.runtime.layout import check_tensors
from weft.target import Target

ALL = (True,) * 3


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
    assert first[:3] == ("weft_p", (6, 1), STREAM)  # 8 chunks are shared by the 6 programs that 3 SMs hold
    assert second[:3] == ("weft_p_finish", (6, 1), STREAM)
    assert first[3][:3] == pointers
    assert first[3][4:] == (32,)
    assert second[3] == first[3]
    assert (counters.launches, counters.launch_bytes, counters.fallbacks) == (1, 32 * 64 * 6 + 256, 0)


def test_a_kernel_that_waits_gets_a_counter_of_its_stream(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    run = executable(SAME)
    for stream in (STREAM, STREAM, STREAM + 1):
        monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _, s=stream: s)
        run(*tensors(), [32])
    first, again, other = (words[4] for _, _, _, words, _ in driver.started)
    assert first == again  # launches on one stream do not overlap
    assert first != other  # those on two streams do, and must not wait for each other's programs
    assert [ctypes.c_int64.from_address(counter).value for counter in (first, other)] == [0, 0]


def test_every_place_in_a_graph_has_a_counter_of_its_own(driver: Driver) -> None:
    run = executable(SAME)
    run(*tensors(), [32])
    driver.capturing = True
    for _ in range(2):
        run(*tensors(), [32])
    assert len({words[4] for _, _, _, words, _ in driver.started}) == 3


def test_a_margin_leaves_sms_free_and_nothing_else_changes(driver: Driver) -> None:
    run = executable()
    for options in ("off", "off sm_margin=1", "off sm_margin=2", "off sm_margin=99"):
        run(*tensors(), [32], options)
    assert [grid for name, grid, *_ in driver.started if name == "weft_p"] == [
        (6, 1),
        (4, 1),
        (2, 1),
        (2, 1),
    ]
    assert {words[-1] for _, _, _, words, _ in driver.started} == {32}
    assert len(driver.jobs) == 1


def test_a_call_that_aten_answers_is_no_first_comparison(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    monkeypatch.setattr(weft_executable, "compare", lambda *_: compared.append(len(driver.started)))
    run, (given, made) = executable(), tensors()
    run([given[0][:0]], [made[0][:0], made[1]], [0], "first")
    assert (compared, driver.started) == ([], [])
    for _ in range(2):
        run(given, made, [32], "first")
    assert compared == [2]


# how the launcher repeats it


def repeated(run: Executable, given: list[Tensor], made: list[Tensor], options: str = "off") -> list[str]:
    return run.repeatable(given, made, [32], options).split()


def test_two_functions_are_repeated_with_their_memory(driver: Driver) -> None:
    run, (given, made) = executable(), tensors()
    run(given, made, [32])
    word, compared, launch_bytes, device, *numbers = repeated(run, given, made)
    assert (word, compared, launch_bytes, device) == ("cpu", "0", str(32 * 64 * 6 + 256), "None")  # the CPU's index
    assert numbers[:5] == ["16", "3", "1", "1", "1"]  # three tensors, all of them aligned
    counter, stream, words, workspace_bytes, slices, first = map(int, numbers[5:11])
    assert (counter, stream, words) == (0, 0, 3 + 1 + 1 + SPARE_WORDS)
    assert (workspace_bytes, slices, first) == (8 * 64 * 4, 1, 0)
    starts = [numbers[11:18], numbers[18:]]
    assert starts == [[function, "6", "1", "128", "2048", "1", "0"] for function in "12"]


def test_a_kernel_that_waits_is_repeated_on_its_stream(driver: Driver) -> None:
    run, (given, made) = executable(SAME), tensors()
    run(given, made, [32])
    counter, stream = repeated(run, given, made)[9:11]
    assert int(counter) == driver.started[0][3][4]
    assert stream == str(STREAM)
    assert repeated(run, given, made)[-1] == "1"


@pytest.mark.parametrize("reason", ["capture", "other", "empty", "failed"])
def test_other_calls_are_not_repeated(reason: str, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    run, (given, made) = executable(), tensors()
    run(given, made, [32])
    if reason == "capture":
        driver.capturing = True
    if reason == "failed":
        monkeypatch.setattr(run, "_function", None)
    if reason == "other":  # margin: such a call was not made
        assert not repeated(run, given, made, "off sm_margin=1")
    elif reason == "empty":
        nothing = torch.zeros(0, 64, dtype=torch.bfloat16), torch.zeros(0, 64)
        assert run.repeatable([nothing[0]], [nothing[1], made[1]], [0], "off") == ""
    else:
        assert not repeated(run, given, made)


# which binary


@pytest.mark.parametrize(
    ("rows", "offset", "variant"),
    [
        (32, 0, Variant(ALL, (True,))),
        (33, 0, Variant(ALL, (False,))),
        (32, 1, Variant((False, True, True), (True,))),
        (33, 8, Variant(ALL, (False,))),
        (33, 4, Variant((False, True, True), (False,))),
    ],
)
def test_the_variant_follows_addresses_and_parameters(rows: int, offset: int, variant: Variant, driver: Driver) -> None:
    executable()(*tensors(rows, offset), [rows])
    assert driver.jobs == [Job(SEPARATE, SOURCE, variant, H100)]


def test_an_unaligned_output_is_enough(driver: Driver) -> None:
    given, (y, _) = tensors()
    executable()(given, [y, torch.empty(65)[1:]], [32])
    assert driver.jobs[0].variant == Variant((True, True, False), (True,))


def test_a_variant_is_built_once(driver: Driver) -> None:
    run = executable()
    for rows, offset in ((32, 0), (32, 1), (32, 0), (48, 0), (33, 0), (33, 0)):
        run(*tensors(rows, offset), [rows])
    assert [job.variant for job in driver.jobs] == [
        Variant(ALL, (True,)),
        Variant((False, True, True), (True,)),
        Variant(ALL, (False,)),
    ]
    assert len(driver.started) == 12


def test_after_a_few_ways_to_start_anywhere_is_enough(driver: Driver) -> None:
    run, ways = executable(), [(a, b, c) for a in (0, 1) for b in (0, 1) for c in (0, 1)]
    for _ in range(2):
        for x, y, columns in ways:
            given, _ = tensors(32, x)
            run(given, [torch.empty(32 * 64 + y)[y:].view(32, 64), torch.empty(64 + columns)[columns:]], [32])
    aligned = [job.variant.aligned for job in driver.jobs]
    assert aligned[:6] == [tuple(at == 0 for at in way) for way in ways[:6]]
    assert aligned[6:] == [(False, False, False)]


def test_the_expected_variant_is_built_before_the_first_call(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    launch.prepare([SEPARATE], [SOURCE], Options.read({}, {}), [{"s0": 33}])
    assert driver.jobs == [Job(SEPARATE, SOURCE, Variant(ALL, (False,)), H100)]
    launch.find(digest_of(SEPARATE), "not looked at")(*tensors(33), [33])
    assert len(driver.jobs) == 1
    assert len(driver.started) == 2


def test_a_kernel_found_by_its_text_is_built_by_its_first_call(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    render_by_hand(monkeypatch)
    found = launch.find(digest_of(SEPARATE), str(SEPARATE))
    assert driver.jobs == []
    found(*tensors(32, 1), [32])
    assert [job.variant for job in driver.jobs] == [Variant((False, True, True), (True,))]


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


LONG = """program long(s0)
  dim m = 4
  dim n = s0
  input x: f32 [m:s0, n:1]
  {value}
  output y: f32 [{kept}:1] = sum
end
"""


@pytest.mark.parametrize(
    ("value", "kept", "columns", "reason"),
    [
        ("sum: f32{m} = sum[n](x)", "m", 2**31, r"it counts along n in 32 bits \(have 2\d+, limit 2147418112\)"),
        ("sum: f32{n} = sum[m](x)", "n", 2**30, r"it has more programs side by side along its columns than a launch"),
    ],
)
def test_sizes_beyond_a_launch_are_left_to_aten(
    value: str, kept: str, columns: int, reason: str, driver: Driver
) -> None:
    program = parse(LONG.format(value=value, kept=kept))
    plan = plan_split(program, ("m",), ("n",), Target.named("h200"), {"s0": 2**20})
    assert isinstance(plan, Plan)
    (kernel,) = plan.kernels
    function = GpuFunction(kernel, triton.render(kernel), Options.read({}, {}))
    device = SimpleNamespace(index=None)
    with pytest.warns(UserWarning, match=f"^weft: kernel long.* runs on ATen with these sizes: {reason}") as told:
        assert [function(device, [0, 0], [columns], 0) for _ in range(2)] == [False, False]  # type: ignore[arg-type]
    assert len(told) == 1
    assert (driver.jobs, driver.started) == ([], [])
    assert function(device, [0, 0], [2**20], 0)  # type: ignore[arg-type]


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


def test_the_operator_reaches_a_triton_kernel(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GpuFunction, "repeat", lambda *_: [])  # the launcher takes these tensors for those of a CPU
    launch.prepare([SEPARATE], [SOURCE], Options.read({}, {}))
    torch.ops.weft.launch(digest_of(SEPARATE), str(SEPARATE), *tensors(), [32], "off sm_margin=2")
    assert [grid for _, grid, *_ in driver.started] == [(2, 1), (2, 1)]


# devices


def test_a_triton_kernel_wants_all_tensors_on_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    given, made = tensors()
    monkeypatch.setattr(TritonBackend, "device", "cuda")
    with pytest.raises(LaunchError, match=r"^p: x is on cpu, the kernel runs on a GPU$"):
        check_tensors(SEPARATE, given, made, [32])
    monkeypatch.setattr(TritonBackend, "device", "meta")
    lies = {"dtype": torch.bfloat16, "shape": (32, 64), "numel": lambda: 2048, "stride": lambda: (64, 1)}
    placed: Any = [SimpleNamespace(device=torch.device("meta", at), **lies) for at in range(3)]
    with pytest.raises(LaunchError, match=r"^p: y is on meta:1, x on meta:0$"):
        check_tensors(SEPARATE, placed[:1], placed[1:], [32])
