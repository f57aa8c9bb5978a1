"""Launches that are repeated in C++: when they are, what they do, and when they go back to Python."""

from __future__ import annotations

import ctypes
import gc
import re
import shutil
import signal
import sys
import tomllib
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor.utils import run_and_get_code

from tests.test_backend import run_python
from weft.backends.cpp import text as cpp
from weft.backends.cpp.schedule import CppSchedule
from weft.ir.interpret import interpret
from weft.ir.parser import parse
from weft.options import Options
from weft.plan.kernel import Kernel
from weft.runtime import build, executable, launch, launcher
from weft.runtime.counters import counters
from weft.runtime.executable import Executable, digest_of
from weft.runtime.launch import prepare

PROGRAM = parse(
    """program repeated(s0)
  dim m = s0
  dim n = 8
  input x: f32 [m:8, n:1]
  input w: f32 [n:1]
  twice: f32{m, n} = add(x, x)
  hat: f32{m, n} = mul(twice, w)
  column: f32{n} = sum[m](hat)
  output a: f32 [m:8, n:1] = hat
  output b: f32 [n:1] = column
end
"""
)
KERNEL = Kernel(PROGRAM, CppSchedule("STREAM", ("m",), ("n",), finish="same"))
DIGEST, TEXT = digest_of(KERNEL), str(KERNEL)
FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
MOST_FITTINGS = 16
OPERATOR = torch.ops.weft.launch.default
call: Callable[..., Any] = OPERATOR
ONCE = pytest.mark.parametrize("called", ["generated"], indirect=True)
AS_OPERATOR = pytest.mark.parametrize("called", ["operator"], indirect=True)
"""Generated code gives tensors as the graph has them; nobody looks how they lie."""
ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "weft" / "runtime" / "launcher"


@pytest.fixture(autouse=True, params=["operator", "generated"])
def called(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """By whom: as an operator of PyTorch's, or from generated code."""
    direct = launcher.direct()
    assert direct is not OPERATOR
    monkeypatch.setattr(sys.modules[__name__], "call", OPERATOR if request.param == "operator" else direct)
    return request.param


@pytest.fixture(autouse=True)
def entered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernel is ready; what is returned grows by the kind of check with each launch that Python does."""
    monkeypatch.setattr(launch, "_KERNELS", {})
    launcher.forget(DIGEST)  # by a test before, whose executable may not have been freed
    prepare([KERNEL], [cpp.render(KERNEL)], Options.read())
    assert launcher.is_loaded()
    seen: list[str] = []
    original = Executable.__call__

    def spy(self: Executable, *args: Any) -> None:
        seen.append(args[-1])
        original(self, *args)

    monkeypatch.setattr(Executable, "__call__", spy)
    counters.reset()
    return seen


def made(rows: int = 5) -> tuple[list[Tensor], list[Tensor]]:
    given = [torch.randn(rows, 8), torch.randn(8)]
    return given, [torch.full((rows, 8), float("nan")), torch.full((8,), float("nan"))]


def run(given: list[Tensor], outputs: list[Tensor], rows: int, check: str = "off", text: str = TEXT) -> None:
    call(DIGEST, text, given, outputs, [rows], check)


def right(given: list[Tensor], outputs: list[Tensor], rows: int) -> bool:
    expected = interpret(PROGRAM, given, [rows], exact=False)
    close = [torch.allclose(a.view(b.shape), b, atol=1e-5) for a, b in zip(outputs, expected, strict=True)]
    return all(close)


def checked_run(rows: int = 5, check: str = "off") -> None:
    given, outputs = made(rows)
    run(given, outputs, rows, check)
    assert right(given, outputs, rows)


# calls like earlier ones


def test_the_first_call_is_pythons_and_the_next_ones_are_not(entered: list[str]) -> None:
    for _ in range(3):
        checked_run()
    assert entered == ["off"]
    assert (counters.launches, counters.fallbacks) == (3, 0)
    assert counters.launch_bytes == 3 * 4 * (2 * 5 * 8 + 8 + 8)
    counters.reset()
    assert (counters.launches, counters.launch_bytes) == (0, 0)
    checked_run()
    assert entered == ["off"]
    assert counters.to_dict()["launches"] == 1


def test_each_size_is_new_once(entered: list[str]) -> None:
    for _ in range(2):
        for rows in (1, 5, 64, 300):
            checked_run(rows)
    assert len(entered) == 4
    assert counters.launches == 8


def test_a_bounded_number_of_fittings_is_known_the_newest_ones(entered: list[str]) -> None:
    for rows in range(1, MOST_FITTINGS + 5):
        checked_run(rows)
    entered.clear()
    for rows in range(MOST_FITTINGS + 4, 4, -1):
        checked_run(rows)
    assert not entered
    checked_run(4)
    assert entered == ["off"]


@AS_OPERATOR
@pytest.mark.parametrize(
    "change",
    [
        lambda given, outputs: ([given[0].view(5, 2, 4), given[1]], outputs),
        lambda given, outputs: ([given[0].view(1, 5, 8), given[1]], outputs),
        lambda given, outputs: ([given[0], given[1].view(1, 8)], outputs),
        lambda given, outputs: (given, [outputs[0].view(40), outputs[1]]),
        lambda given, outputs: ([given[0], given[1].expand(5, 8)], outputs),
    ],
)
def test_other_shapes_of_the_same_memory_are_pythons_to_judge(
    change: Callable[..., tuple[list[Tensor], list[Tensor]]], entered: list[str]
) -> None:
    checked_run()
    for _ in range(2):
        given, outputs = made()
        run(*change(given, outputs), 5)
        assert right(given, outputs, 5)
    assert entered == ["off", "off"]
    assert counters.launches == 3


@AS_OPERATOR
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda given, outputs: ([given[0].double(), given[1]], outputs), "repeated: x is torch.float64"),
        (lambda given, outputs: ([given[0][:4], given[1]], outputs), "repeated: x has shape"),
        (lambda given, outputs: ([given[0], given[1].repeat(2)], outputs), "repeated: w has shape"),
        (lambda given, outputs: (given, [outputs[0], outputs[1].int()]), "repeated: b is torch.int32"),
        (lambda given, outputs: (given, outputs[:1]), "repeated takes 4 tensors, got 3"),
        (lambda given, outputs: (given[:1], outputs), "repeated takes 4 tensors, got 3"),
    ],
)
def test_an_error_carries_its_message(
    change: Callable[..., tuple[list[Tensor], list[Tensor]]], message: str, entered: list[str]
) -> None:
    checked_run()
    for _ in range(2):
        with pytest.raises(RuntimeError, match=f"^{message}"):
            run(*change(*made()), 5)
    checked_run()
    assert len(entered) == 3
    assert counters.launches == 2


def test_other_parameters_are_pythons_to_judge(entered: list[str]) -> None:
    checked_run()
    with pytest.raises(RuntimeError, match=r"^repeated: x has shape"):
        run(*made(), 4)
    assert len(entered) == 2


def test_any_exception_is_an_error_with_its_message() -> None:
    with pytest.raises(RuntimeError, match=r"^line 1: not a schedule"):
        call("0" * 24, "no kernel", *made(), [5], "off")


def test_an_interrupt_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Executable, "__call__", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever a test before has put there

    def retrying() -> None:
        try:
            run(*made(), 5)
        except RuntimeError:
            for _ in range(10):
                gc.get_count()

    try:
        with pytest.raises(KeyboardInterrupt):
            retrying()
    finally:
        signal.signal(signal.SIGINT, before)


def test_tensors_without_elements_stay_with_python(entered: list[str]) -> None:
    for _ in range(2):
        given, outputs = made(0)
        run(given, outputs, 0)
        assert torch.equal(outputs[1], torch.zeros(8))
    assert len(entered) == 2


# when a kernel fails


def test_a_kernel_that_failed_is_not_called_again(entered: list[str]) -> None:
    for _ in range(2):
        checked_run()
    with pytest.warns(UserWarning, match="weft: kernel repeated runs on ATen, slowly: planned"):
        launch._KERNELS[DIGEST]._fail("planned")
    for _ in range(2):
        checked_run()
    assert len(entered) == 3
    assert (counters.launches, counters.fallbacks) == (2, 2)


@AS_OPERATOR
def test_tensors_that_lie_otherwise_take_the_function_away(entered: list[str]) -> None:
    checked_run()
    given, outputs = made()
    given[0] = given[0].t().contiguous().t()
    with pytest.warns(UserWarning, match=r"repeated: x has shape \(5, 8\) and strides \(1, 5\)"):
        run(given, outputs, 5)
    assert right([given[0].contiguous(), given[1]], outputs, 5)
    checked_run()
    assert len(entered) == 3
    assert (counters.launches, counters.fallbacks) == (1, 2)


def test_what_fails_while_it_is_called_is_not_kept(entered: list[str]) -> None:
    """Another thread may find a kernel wrong between a call and what it says of calls like it."""
    calls: list[int] = []

    def function(*_: Any) -> None:
        calls.append(len(entered))
        if len(calls) == 1:
            launcher.forget(DIGEST)

    launch._KERNELS[DIGEST] = Executable(KERNEL, FUNCTION(function))
    for _ in range(4):
        run(*made(), 5)
    assert calls == [1, 2, 2, 2]


def test_a_function_in_python_stays_with_python(entered: list[str]) -> None:
    launch._KERNELS[DIGEST] = Executable(KERNEL, lambda *_: None)
    for _ in range(2):
        run(*made(), 5)
    assert len(entered) == 2


# checks


def test_the_first_call_is_compared_even_if_others_came_before(
    entered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[str] = []
    original = executable.compare
    monkeypatch.setattr(executable, "compare", lambda p, *rest: compared.append(p.name) or original(p, *rest))
    for check in ("off", "off", "first", "first", "off", "first", "always", "always", "first"):
        checked_run(check=check)
    assert entered == ["off", "first", "always", "always"]
    assert len(compared) == 3
    assert counters.launches == 9


# what a function is called with


def test_a_function_gets_pointers_parameters_and_threads() -> None:
    seen: list[tuple[list[int], int, int]] = []

    def function(buffers: int, parameters: int, threads: int) -> None:
        pointers = [*(ctypes.c_int64 * 4).from_address(buffers)]
        seen.append((pointers, ctypes.c_int64.from_address(parameters).value, threads))

    launch._KERNELS[DIGEST] = Executable(KERNEL, FUNCTION(function))
    before = torch.get_num_threads()
    try:
        for rows, most, threads in ((5, 3, 1), (2**12, 3, 3), (2**12, 2, 2), (2**11, 9, 3), (2**11, 1, 1)):
            torch.set_num_threads(most)
            seen.clear()
            for _ in range(2):
                given, outputs = made(rows)
                run(given, outputs, rows)
                assert seen[-1] == ([t.data_ptr() for t in (*given, *outputs)], rows, threads)
    finally:
        torch.set_num_threads(before)


def test_large_outputs_are_right_and_counted(entered: list[str]) -> None:
    rows = 2**19  # an output of 16 MB
    for _ in range(2):
        given, outputs = made(rows)
        run(given, outputs, rows)
        assert torch.equal(outputs[0], (given[0] + given[0]) * given[1])
    assert len(entered) == 1


# threads, memory, dispatch


def test_threads_launch_at_once() -> None:
    def work(first: int) -> int:
        for i in range(200):
            checked_run(first + i % 3)
        return 200

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(work, (1, 2, 30, 40))) == 800
    assert (counters.launches, counters.fallbacks) == (800, 0)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_nothing_is_left_behind() -> None:
    text = TEXT + " " * 10**5

    def launches(calls: int, others: int) -> list[weakref.ref[Tensor]]:
        given, outputs = made()
        empty = made(0)
        for _ in range(calls):
            run(given, outputs, 5)
        for _ in range(others):
            run(given, outputs, 5, text=text)
            run(*empty, 0, text=text)
            with pytest.raises(RuntimeError, match="has shape"):
                run(given, outputs, 6, text=text)
        return [weakref.ref(t) for t in (*given, *outputs, *empty[0], *empty[1])]

    launches(1000, 20)
    before = resident_bytes()
    references = launches(200_000, 500)  # 32 bytes a call, or one text in ten, would be seen
    assert resident_bytes() - before < 5 * 2**20
    gc.collect()
    assert [r() for r in references] == [None] * 8


def test_the_operator_is_what_it_was_to_tracing() -> None:
    given, outputs = made()
    for _ in range(2):
        checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
        torch.library.opcheck(
            torch.ops.weft.launch.default, (DIGEST, TEXT, given, outputs, [5], "off"), test_utils=checks
        )
        run(given, outputs, 5)
    on_meta = [[t.to("meta") for t in ts] for ts in (given, outputs)]
    counters.reset()
    torch.ops.weft.launch.default(DIGEST, TEXT, *on_meta, [5], "off")
    with torch._subclasses.FakeTensorMode() as mode:
        fakes = [[mode.from_tensor(t) for t in ts] for ts in (given, outputs)]
        torch.ops.weft.launch.default(DIGEST, TEXT, *fakes, [5], "off")
    assert counters.launches == 0


def test_inputs_that_want_gradients_are_taken(entered: list[str]) -> None:
    for _ in range(2):
        given, outputs = made()
        run([t.requires_grad_() for t in given], outputs, 5)
        assert right([t.detach() for t in given], outputs, 5)
    assert len(entered) == 1


# the files that it is made of


def test_a_change_of_any_file_compiles_the_launcher_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """launcher.cpp is what the compiler is given: all others are included, and nothing else is."""
    folder = tmp_path / "launcher"
    shutil.copytree(FOLDER, folder)
    monkeypatch.setattr(launcher.resources, "files", lambda _: tmp_path)
    compiled: list[list[str]] = []
    monkeypatch.setattr(build, "_compile", lambda _, name, files: compiled.append([*files]) or b"a library")
    names = sorted(path.name for path in FOLDER.iterdir())
    for name in ["", *names]:
        if name:
            (folder / name).write_text((folder / name).read_text() + "// changed\n")
        for _ in range(2):
            build.auxiliary("weft_launcher", launcher._files(), Options.read({"cache_dir": str(tmp_path)}, {}))
    assert len(compiled) == 1 + len(names)
    assert compiled[0][0] == "launcher.cpp"
    assert sorted(compiled[0]) == names
    included = {name for path in FOLDER.iterdir() for name in re.findall(r'#include "(.*)"', path.read_text())}
    assert included == {*names} - {"launcher.cpp"}


def test_every_file_is_in_the_wheel() -> None:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    patterns = tools["setuptools"]["package-data"]["weft"]
    package = ROOT / "weft"
    packed = {path for pattern in patterns for path in package.glob(pattern)}
    others = {path for path in package.rglob("[!.]*.*") if path.suffix not in (".py", ".pyc")}
    assert {*FOLDER.iterdir()} <= others == packed


# processes

MODEL = """
    import json, logging, os, sys, torch, weft
    import torch.nn.functional as F
    from weft.runtime import build, launch, launcher
    from weft.runtime.executable import Executable
    logging.getLogger("weft").setLevel(logging.INFO)
    logging.getLogger("weft").addHandler(logging.StreamHandler())
    def refuse(*_):
        raise build.BuildError("no launcher today")
    if os.environ.get("REFUSE") == "compile":
        build.auxiliary = refuse
    if os.environ.get("REFUSE") == "probe":
        launch.parse_kernel = refuse
    entered = []
    original = Executable.__call__
    Executable.__call__ = lambda *args: entered.append(1) or original(*args)
    loaded = launcher.is_loaded()
    x = torch.arange(9 * 33, dtype=torch.float32).reshape(9, 33).sin()
    compiled = torch.compile(lambda x: F.softmax(x, -1), backend="weft", fullgraph=True)
    right = all(torch.allclose(compiled(x), F.softmax(x, -1), atol=1e-6) for _ in range(4))
    print(json.dumps(weft.counters.to_dict() | {
        "right": right, "entered": len(entered), "before": loaded, "loaded": launcher.is_loaded()}))
"""


@ONCE
@pytest.mark.slow
def test_a_process_that_takes_its_graphs_from_inductors_cache_launches_without_python_too(tmp_path: Path) -> None:
    for calls in (1, 0):  # in the second process the launcher is loaded by the code that Inductor wrote
        found = run_python(MODEL, tmp_path)
        assert (found["pass_calls"], found["right"], found["before"], found["loaded"]) == (calls, True, False, True)
        assert (found["launches"], found["fallbacks"], found["entered"]) == (4, 0, 1)
        assert found["builds"] + found["cache_hits"] == 1


@ONCE
@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("compile", "BuildError: no launcher today"),
        pytest.param(
            "probe", "OSError: PyTorch's C interface is not what it was: no launcher today", marks=pytest.mark.slow
        ),
    ],
)
def test_without_the_launcher_every_call_is_pythons_and_the_log_says_why(
    what: str, reason: str, tmp_path: Path
) -> None:
    found = run_python(MODEL, tmp_path, with_launcher=False, forked=True, REFUSE=what)
    assert (found["right"], found["loaded"], found["entered"]) == (True, False, 4)
    assert (found["launches"], found["fallbacks"]) == (4, 0)
    assert found["stderr"].count(f"weft::launch runs in Python: {reason}") == 1
    assert "Warning" not in found["stderr"]


# from generated code


@ONCE
@pytest.mark.parametrize(
    "arguments",
    [
        (DIGEST, TEXT, [torch.ones(5, 8), None], [torch.ones(5, 8), torch.ones(8)], [5], "off"),
        (DIGEST, TEXT, [torch.ones(5, 8), torch.ones(8)], [torch.ones(5, 8), torch.ones(8)], ["five"], "off"),
        (DIGEST, TEXT, [torch.ones(5, 8), torch.ones(8)], [torch.ones(5, 8), torch.ones(8)], [2**70], "off"),
        (DIGEST, TEXT, 5, [torch.ones(5, 8), torch.ones(8)], [5], "off"),
        (DIGEST, TEXT),
        (),
    ],
)
def test_what_is_no_call_is_said_by_the_operator(arguments: tuple[Any, ...]) -> None:
    checked_run()
    with pytest.raises(Exception) as by_operator:  # noqa: PT011 - whatever it is, the other one says the same
        OPERATOR(*arguments)
    for _ in range(2):
        with pytest.raises(by_operator.type, match=re.escape(str(by_operator.value).splitlines()[0])):
            call(*arguments)
    checked_run()


@ONCE
def test_nothing_stays_behind_of_a_call() -> None:
    given, outputs = made()
    run(given, outputs, 5)
    tensors = [*given, *outputs]
    before = [sys.getrefcount(t) for t in tensors]
    for _ in range(100):
        run(given, outputs, 5)
    assert [sys.getrefcount(t) for t in tensors] == before
    assert right(given, outputs, 5)


@ONCE
def test_compiled_code_starts_its_kernels_past_the_dispatcher(monkeypatch: pytest.MonkeyPatch) -> None:
    def normed(x: Tensor, w: Tensor) -> Tensor:
        return torch.nn.functional.rms_norm(x, (8,), w) * 3

    x, w = made()[0]
    torch._dynamo.reset()
    with torch.no_grad():
        _, (code,) = run_and_get_code(torch.compile(normed, backend="weft"), x, w)
    assert code.count("weft_launch(") == 1
    assert "torch.ops.weft.launch" not in code


@ONCE
def test_launches_are_heard_in_order() -> None:
    texts: list[str] = []
    with launcher.heard(texts.append):
        for _ in range(3):
            checked_run()
        with pytest.raises(RuntimeError, match=r"^line 1: not a schedule"):
            call("0" * 24, "no kernel", *made(), [5], "off")
    checked_run()
    assert texts == [*[TEXT] * 3, "no kernel"]

    def deaf(text: str) -> None:
        raise LookupError(text[:8])

    with launcher.heard(deaf), pytest.raises(LookupError, match="schedule"):
        checked_run()
    checked_run()
