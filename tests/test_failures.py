"""What happens when a stage fails at compile time, and when a kernel fails at run time."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import weft
from tests.test_backend import run_python, start_cache
from weft import compiler, planning
from weft.backends.cpp.schedule import CppSchedule
from weft.capture import regions
from weft.errors import InternalError, LaunchError, WeftError, in_stage, warn_once
from weft.integration import rewrite
from weft.ir.interpret import interpret
from weft.ir.parser import parse
from weft.plan import planner
from weft.plan.kernel import Kernel
from weft.runtime import build, failures, launch
from weft.runtime.executable import Executable, digest_of

ERRORS = [KeyError("planned"), AssertionError("planned"), RecursionError("planned"), OSError("planned")]


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    warn_once.cache_clear()
    monkeypatch.setattr(launch, "_KERNELS", {})
    monkeypatch.setattr(launch, "FOUND_BY_TEXT", [])
    monkeypatch.setattr(planner, "check_worthwhile", lambda *_: None)
    weft.counters.reset()
    weft.clear_reports()


@contextmanager
def warned() -> Iterator[list[str]]:
    """weft's warnings."""
    messages: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield messages
    messages += [str(w.message) for w in caught if "weft:" in str(w.message)]


def two(x: Tensor, w: Tensor) -> Tensor:
    """Two regions with a matrix product between them: a softmax and a norm."""
    first = F.softmax(x, -1)
    return F.rms_norm(first @ w, (33,))


def inputs() -> tuple[Tensor, Tensor]:
    return torch.randn(9, 33), torch.randn(33, 33)


def is_softmax(text: object) -> bool:
    return "max[" in str(text)


def failing(original: Callable[..., Any], error: Exception, when: Callable[..., bool]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        if when(*args):
            raise error
        return original(*args, **kwargs)

    return run


# compile time

STAGES: dict[str, tuple[Any, str, Callable[..., bool]]] = {
    "capture": (regions.GroupLowering, "run", lambda group, _: any("amax" in n.name for n in group.members)),
    "simplify": (compiler, "simplify", is_softmax),
    "plan": (planning, "plan", lambda program, *_: is_softmax(program)),
    "render": (compiler, "render", is_softmax),
    "build": (build, "library", lambda source, _: is_softmax(source.text)),
    "rewrite": (rewrite._Rewriter, "_launch", lambda _, kernel: is_softmax(kernel)),
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_that_fails_leaves_its_region_to_inductor(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, when = STAGES[stage]
    original = getattr(where, name)
    x, w = inputs()
    for error in ERRORS:
        torch._dynamo.reset()
        weft.counters.reset()
        warn_once.cache_clear()
        monkeypatch.setattr(launch, "_KERNELS", {})
        monkeypatch.setattr(where, name, failing(original, error, when))
        with warned() as messages:
            result = torch.compile(two, backend="weft", fullgraph=True)(x, w)
        torch.testing.assert_close(result, two(x, w))
        assert (weft.counters.regions, weft.counters.launches, weft.counters.fallbacks) == (1, 1, 0)
        assert weft.counters.refusals["internal_error"] == 1
        (message,) = messages
        subject = "region" if stage == "capture" else "row_max_exp_row_sum"
        assert message.startswith(f"weft: a region is left to Inductor: internal_error: {subject}: ")
        assert f"[{stage}] {type(error).__name__}: " in message
        assert "planned" in message
        assert message.endswith("first = F.softmax(x, -1)")
        report = weft.last_reports()[-1].text()
        assert "left out" in report
        assert "internal_error" in report


def test_capture_that_fails_as_a_whole_leaves_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise KeyError("planned")

    monkeypatch.setattr(regions.Growth, "join_siblings", broken)
    x, w = inputs()
    with warned() as messages:
        torch.testing.assert_close(torch.compile(two, backend="weft", fullgraph=True)(x, w), two(x, w))
    assert messages == ["weft: a graph is left to Inductor: InternalError: [capture] KeyError: 'planned'"]
    assert weft.counters.launches == 0


def test_a_failure_after_the_rewrite_gives_the_graph_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Any) -> None:
        raise RuntimeError("the rewritten graph has a cycle")

    monkeypatch.setattr(rewrite, "sort", broken)
    x, w = inputs()
    state = torch.randn(9, 33)
    mine, theirs = state.clone(), state.clone()

    def step(x: Tensor, w: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        y = two(x, w) + state
        state.add_(y.sum(0))
        return y, state * 2

    with warned() as messages:
        result = torch.compile(step, backend="weft", fullgraph=True)(x, w, mine)
    torch.testing.assert_close(result, step(x, w, theirs))
    torch.testing.assert_close(mine, theirs)
    assert messages == ["weft: a graph is left to Inductor: RuntimeError: the rewritten graph has a cycle"]
    assert weft.counters.launches == weft.counters.kernels == 0


def test_a_failure_in_strict_mode_is_the_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise OSError("disk full")

    monkeypatch.setattr(build, "library", broken)
    fused = weft.fuse(lambda x: F.softmax(x, -1), strict=True)
    with pytest.raises(weft.RefusedError, match=r"\[build\] OSError: disk full"):
        fused(torch.randn(9, 33))


def test_a_stage_names_itself_once() -> None:
    with pytest.raises(WeftError, match=r"^\[plan\] no") as inner, in_stage("render"), in_stage("plan"):
        raise WeftError("no")
    assert inner.value.stage == "plan"
    with pytest.raises(InternalError, match=r"^\[plan\] ZeroDivisionError: by zero$") as caught, in_stage("plan"):
        raise ZeroDivisionError("by zero")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


# run time

PROGRAM = parse(
    """program p(s0)
  dim m = s0
  dim n = 8
  input x: f32 [m:8, n:1]
  input w: f32 [n:1]
  hat: f32{m, n} = mul(x, w)
  row: f32{m} = sum[n](hat)
  y: f32{m, n} = sub(hat, row)
  column: f32{n} = sum[m](hat)
  output a: f32 [m:8, n:1] = y
  output b: f32 [n:1] = column
end
"""
)
KERNEL = Kernel(PROGRAM, CppSchedule("STREAM", ("m",), ("n",), finish="same"))


def made(rows: int = 5) -> tuple[list[Tensor], list[Tensor]]:
    poison = [torch.full((rows, 8), float("nan")), torch.full((8,), float("nan"))]
    return [torch.randn(rows, 8), torch.randn(8)], poison


def raising(*_: Any) -> None:
    raise RuntimeError("launch failed")


def test_a_kernel_that_raises_runs_on_aten_from_then_on_with_one_warning() -> None:
    run = Executable(KERNEL, raising)
    with warned() as messages:
        for rows in (5, 5, 7):
            given, outputs = made(rows)
            run(given, outputs, [rows])
            for mine, right in zip(outputs, interpret(PROGRAM, given, [rows], exact=False), strict=True):
                assert torch.equal(mine, right)
    assert messages == ["weft: kernel p runs on ATen, slowly: RuntimeError: launch failed"]
    assert (weft.counters.launches, weft.counters.fallbacks) == (0, 3)
    assert failures.failed_digests() == (digest_of(KERNEL),)


def test_a_kernel_that_raises_over_its_own_input_is_an_error() -> None:
    """The input may be half overwritten: nothing right can be computed from it."""
    given, outputs = made()
    with pytest.raises(RuntimeError, match="launch failed"):
        Executable(KERNEL, raising)(given, [given[0], outputs[1]], [5])


def transposed(tensor: Tensor) -> Tensor:
    """The same elements, the first axis fastest."""
    return tensor.t().contiguous().t()


@pytest.mark.parametrize("index", [0, 2])
def test_the_same_elements_in_another_layout_are_evaluated(index: int) -> None:
    given, outputs = made()
    tensors = [*given, *outputs]
    tensors[index] = transposed(tensors[index])
    run = Executable(KERNEL, raising)
    with warned() as messages:
        for _ in range(2):
            run(tensors[:2], tensors[2:], [5])
            for mine, right in zip(tensors[2:], interpret(PROGRAM, given, [5], exact=False), strict=True):
                assert torch.equal(mine, right)
    name = {0: "x", 2: "a"}[index]
    (message,) = messages
    assert f"p: {name} has shape (5, 8) and strides (1, 5), compiled for m of size 5 and stride 8" in message
    assert weft.counters.fallbacks == 2
    assert failures.has_failed(digest_of(KERNEL))


@pytest.mark.parametrize(
    ("index", "change"),
    [
        (0, lambda t: t.double()),
        (0, lambda t: t[:4]),
        (0, lambda t: t.to("meta")),
        (0, lambda t: transposed(t).reshape(40)[:39]),
        (1, lambda t: t.repeat(2)),
        (2, lambda t: t[:1].expand(5, 8)),
        (3, lambda t: t[:7]),
    ],
)
def test_other_elements_are_an_error_that_names_the_buffer(index: int, change: Callable[[Tensor], Tensor]) -> None:
    given, outputs = made()
    tensors = [*given, *outputs]
    tensors[index] = change(tensors[index])
    with warned() as messages, pytest.raises(LaunchError, match=f"p: {'xwab'[index]} "):
        Executable(KERNEL, raising)(tensors[:2], tensors[2:], [5])
    assert not messages
    assert not failures.failed_digests()


def test_aten_evaluates_in_the_graphs_dtypes_under_autocast_and_autograd() -> None:
    given, outputs = made()
    given = [t.requires_grad_() for t in given]
    with torch.autocast("cpu", torch.bfloat16):
        Executable(KERNEL, None)(given, outputs, [5])
    right = interpret(PROGRAM, [t.detach() for t in given], [5], exact=False)
    assert all(torch.equal(a, b) and not a.requires_grad for a, b in zip(outputs, right, strict=True))


def test_the_next_compile_refuses_the_region_of_a_failed_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = inputs()
    original = build.open_library

    def damaged(path: Path, entry: str) -> Any:
        function = original(path, entry)
        calls.append(entry)
        return raising if len(calls) == 1 else function

    calls: list[str] = []
    monkeypatch.setattr(build, "open_library", damaged)
    with warned() as messages:
        for _ in range(2):
            result = torch.compile(two, backend="weft", fullgraph=True)(x, w)
            torch.testing.assert_close(result, two(x, w))
            torch._dynamo.reset()
    assert len(messages) == 1
    assert "RuntimeError: launch failed" in messages[0]
    assert (weft.counters.pass_calls, weft.counters.fallbacks) == (2, 1)
    assert weft.counters.launches == 2  # the other region, twice
    assert weft.counters.refusals["run_time_failure"] == 1
    assert "a kernel of this region failed in this process" in weft.last_reports()[-1].text()


OPEN_LIBRARY = build.open_library


def zero_the_last_output(content: bytes, entry: str) -> Any:
    """The compiled function, and a damaged result: the first bytes of the last buffer."""
    function = OPEN_LIBRARY(content, entry)

    def run(pointers: Any, numbers: Any, threads: int) -> None:
        function(pointers, numbers, threads)
        ctypes.memset(pointers[len(pointers) - 1], 0, 16)

    return run


@pytest.mark.parametrize("option", [{"check": "first"}, {"check": "always"}])
def test_a_wrong_kernel_of_a_model_is_found_replaced_and_refused(
    option: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    start_cache(tmp_path / "cache", with_launcher=True)
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "open_library", zero_the_last_output)
    x = torch.randn(9, 33)
    with warned() as messages:
        compiled = torch.compile(lambda x: F.softmax(x, -1), backend="weft", fullgraph=True, options=option)
        for _ in range(3):
            torch.testing.assert_close(compiled(x), F.softmax(x, -1))
    assert len(messages) == 1
    assert "reproduce.py shows it" in messages[0]
    assert weft.counters.fallbacks == 3
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: F.softmax(x, -1), backend="weft", fullgraph=True, options=option)
    torch.testing.assert_close(compiled(x), F.softmax(x, -1))
    assert weft.counters.refusals["run_time_failure"] == 1


CHECKED = """
    import json, os, torch, weft
    import torch.nn.functional as F
    from weft.runtime import build, executable
    from tests.test_failures import zero_the_last_output
    if os.environ.get("DAMAGE"):
        build.open_library = zero_the_last_output
    compared = []
    original = executable.compare
    executable.compare = lambda program, *rest: compared.append(program.name) or original(program, *rest)
    x = torch.arange(9 * 33, dtype=torch.float32).reshape(9, 33).sin()
    compiled = torch.compile(lambda x: F.softmax(x, -1), backend="weft", options=json.loads(os.environ["OPTIONS"]))
    right = all(torch.allclose(compiled(x), F.softmax(x, -1), atol=1e-6) for _ in range(3))
    print(json.dumps(weft.counters.to_dict() | {"compared": len(compared), "right": right}))
"""


@pytest.mark.parametrize(
    ("given", "environment"),
    [('{"check": "first"}', {}), pytest.param("{}", {"WEFT_CHECK": "first"}, marks=pytest.mark.slow)],
)
def test_the_check_is_done_in_a_process_that_takes_its_graphs_from_inductors_cache(
    given: str, environment: dict[str, str], tmp_path: Path
) -> None:
    cold = run_python(CHECKED, tmp_path, OPTIONS=given, **environment)
    warm = run_python(CHECKED, tmp_path, forked=True, OPTIONS=given, **environment)
    assert (cold["pass_calls"], warm["pass_calls"]) == (1, 0)
    for process in (cold, warm):
        assert (process["compared"], process["right"], process["fallbacks"], process["launches"]) == (1, True, 0, 3)
    damaged = run_python(CHECKED, tmp_path, forked=True, OPTIONS=given, DAMAGE="1", **environment)
    assert (damaged["pass_calls"], damaged["compared"], damaged["right"], damaged["fallbacks"]) == (0, 1, True, 3)
    assert damaged["stderr"].count("reproduce.py shows it") == 1


def test_check_must_be_one_of_its_values() -> None:
    from weft.options import Options

    assert Options.read(environment={}).check == "off"
    assert Options.read(environment={"WEFT_CHECK": "always"}).check == "always"
    assert Options.read({"check": "first"}, environment={"WEFT_CHECK": "always"}).check == "first"
    with pytest.raises(ValueError, match="check is 'sometimes'; it can be off, first, always"):
        Options.read({"check": "sometimes"})
