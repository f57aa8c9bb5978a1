"""Kernels by digest: what a launch checks, what it counts, and what it does without compiled code."""

from __future__ import annotations

import ctypes
import hashlib
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from weft.backends.cpp.schedule import CppSchedule
from weft.errors import CompilerNotFoundError, LaunchError, ParseError, VerificationError
from weft.ir.interpret import interpret
from weft.ir.parser import parse
from weft.plan.kernel import Kernel, parse_kernel
from weft.runtime import build, launch
from weft.runtime.counters import Counters, counters
from weft.runtime.executable import Executable, digest_of
from weft.runtime.launch import find
from weft.runtime.layout import check_tensors

PROGRAM = parse(
    """program p(s0)
  dim m = s0
  dim n = 8
  input x: bf16 [m:8, n:1]
  input w: f32 [n:1]
  cast: f32{m, n} = cast(x)
  hat: f32{m, n} = mul(cast, w)
  row: f32{m} = sum[n](hat)
  column: f32{n} = sum[m](hat)
  output rows: f32 [m:1] = row
  output columns: f32 [n:1] = column
end
"""
)
KERNEL = Kernel(PROGRAM, CppSchedule("STREAM", ("m",), ("n",), finish="same"))


def inputs(rows: int = 5) -> list[Tensor]:
    return [torch.randn(rows, 8).bfloat16(), torch.randn(8)]


def outputs(rows: int = 5) -> list[Tensor]:
    return [torch.full((rows,), float("nan")), torch.full((8,), float("nan"))]


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel is known yet, nothing was counted, and nothing stays behind."""
    monkeypatch.setattr(launch, "_KERNELS", {})
    monkeypatch.setattr(launch, "FOUND_BY_TEXT", [])
    counters.reset()


def refused(message: str, *tensors: Tensor, rows: int = 5) -> None:
    with pytest.raises(LaunchError, match=f"^{re.escape(message)}"):
        check_tensors(KERNEL, tensors[:2], tensors[2:], [rows])


# checks


def test_tensors_that_fit_are_accepted() -> None:
    for rows in (1, 5, 300):
        check_tensors(KERNEL, inputs(rows), outputs(rows), [rows])


def test_tensors_are_counted() -> None:
    refused("p takes 4 tensors, got 3", *inputs(), *outputs()[:1])
    refused("p takes 4 tensors, got 5", *inputs(), *outputs(), outputs()[0])


@pytest.mark.parametrize(
    ("index", "name", "dtype", "compiled"),
    [
        (0, "x", torch.float32, "bf16"),
        (0, "x", torch.float16, "bf16"),
        (1, "w", torch.float64, "f32"),
        (2, "rows", torch.int32, "f32"),
        (3, "columns", torch.bfloat16, "f32"),
    ],
)
def test_another_dtype_names_the_buffer(index: int, name: str, dtype: torch.dtype, compiled: str) -> None:
    tensors = [*inputs(), *outputs()]
    tensors[index] = tensors[index].to(dtype)
    refused(f"p: {name} is {dtype}, compiled for {compiled}", *tensors)


@pytest.mark.parametrize(("index", "name"), [(0, "x"), (1, "w"), (2, "rows"), (3, "columns")])
def test_another_device_names_the_buffer(index: int, name: str) -> None:
    tensors = [*inputs(), *outputs()]
    tensors[index] = tensors[index].to("meta")
    refused(f"p: {name} is on meta, the kernel runs on the CPU", *tensors)


@pytest.mark.parametrize(
    ("index", "name", "make"),
    [
        (0, "x", lambda: torch.randn(8, 5).bfloat16().t()),
        (0, "x", lambda: torch.randn(5, 16).bfloat16()[:, ::2]),
        (0, "x", lambda: torch.randn(5, 9).bfloat16()[:, :8]),
        (0, "x", lambda: torch.randn(6, 8).bfloat16()),
        (0, "x", lambda: torch.randn(1, 8).bfloat16().expand(5, 8)),
        (0, "x", lambda: torch.randn(0, 8).bfloat16()),
        (1, "w", lambda: torch.randn(9)),
        (1, "w", lambda: torch.randn(16)[::2]),
        (1, "w", lambda: torch.randn(1)),
        (1, "w", lambda: torch.randn(0)),
        (2, "rows", lambda: torch.empty(4)),
        (2, "rows", lambda: torch.empty(0)),
        (3, "columns", lambda: torch.empty(8, 2)[:, 0]),
        (3, "columns", lambda: torch.empty(1).expand(8)),
    ],
)
def test_another_layout_names_the_buffer_and_both_layouts(index: int, name: str, make: Callable[[], Tensor]) -> None:
    tensors = [*inputs(), *outputs()]
    tensors[index] = make()
    shape, strides = tuple(tensors[index].shape), tensors[index].stride()
    refused(f"p: {name} has shape {shape} and strides {strides}, compiled for ", *tensors)


def test_the_layout_asked_for_is_spelled_out() -> None:
    refused(
        "p: x has shape (5, 8) and strides (16, 2), compiled for m of size 5 and stride 8, n of size 8 and stride 1",
        torch.randn(5, 16).bfloat16()[:, ::2],
        *inputs()[1:],
        *outputs(),
    )


def test_only_memory_matters_not_the_shape() -> None:
    """The same elements as [5, 8], [5, 2, 4], [1, 5, 8] or [40] are the same buffer."""
    x, w = inputs()
    for shape in ((5, 2, 4), (1, 5, 1, 8), (40,)):
        check_tensors(KERNEL, [x.view(shape), w], outputs(), [5])
    check_tensors(KERNEL, [x, w.expand(3, 8)], outputs(), [5])


def test_strides_of_a_single_row_do_not_matter() -> None:
    x = torch.randn(1, 16).bfloat16()[:, :8]
    assert x.stride(0) == 16
    check_tensors(KERNEL, [x, inputs()[1]], outputs(1), [1])


def test_no_rows_at_all_are_accepted() -> None:
    check_tensors(KERNEL, inputs(0), outputs(0), [0])


def test_run_time_strides_are_checked() -> None:
    text = str(PROGRAM).replace("program p(s0)", "program p(s0, s1)").replace("[m:8, n:1]", "[m:s1, n:1]")
    kernel = Kernel(parse(text), KERNEL.schedule)
    x = torch.randn(5, 12).bfloat16()[:, :8]
    check_tensors(kernel, [x, inputs()[1]], outputs(), [5, 12])
    with pytest.raises(LaunchError, match="m of size 5 and stride 10"):
        check_tensors(kernel, [x, inputs()[1]], outputs(), [5, 10])


def test_a_call_is_checked_every_time_something_is_new() -> None:
    run = Executable(KERNEL, None)
    run(inputs(), outputs(), [5])
    run(inputs(), outputs(), [5])
    with pytest.raises(LaunchError, match="p: x has shape"):
        run(inputs(4), outputs(), [5])
    with pytest.raises(LaunchError, match=r"p: x is torch\.float32"):
        run([inputs()[0].float(), inputs()[1]], outputs(), [5])
    with pytest.raises(LaunchError, match="p: x has shape"):
        run(inputs(), outputs(), [4])
    assert counters.fallbacks == 2


def test_the_device_is_checked_after_an_equal_layout_was_accepted() -> None:
    run = Executable(KERNEL, None)
    run(inputs(), outputs(), [5])
    with pytest.raises(LaunchError, match="p: x is on meta"):
        run([inputs()[0].to("meta"), inputs()[1]], outputs(), [5])


# without compiled code


@pytest.mark.parametrize("rows", [1, 5, 64])
def test_without_a_function_the_program_is_evaluated(rows: int) -> None:
    given, made = inputs(rows), outputs(rows)
    Executable(KERNEL, None)(given, made, [rows])
    for mine, eager, exact in zip(
        made, interpret(PROGRAM, given, [rows], exact=False), interpret(PROGRAM, given, [rows]), strict=True
    ):
        assert torch.equal(mine, eager)
        torch.testing.assert_close(mine.double(), exact, rtol=1e-5, atol=1e-5)
    assert (counters.fallbacks, counters.launches, counters.launch_bytes) == (1, 0, 0)


def test_the_fallback_writes_through_strides() -> None:
    text = str(PROGRAM).replace("output columns: f32 [n:1]", "output columns: f32 [n:3]")
    kernel = Kernel(parse(text), KERNEL.schedule)
    given, storage = inputs(), torch.zeros(24)
    Executable(kernel, None)(given, [outputs()[0], storage[::3]], [5])
    torch.testing.assert_close(storage[::3].double(), interpret(PROGRAM, given, [5])[1], rtol=1e-5, atol=1e-5)
    assert (storage.view(8, 3)[:, 1:] == 0).all()


# the compiled function


class Recorder:
    """Stands for a compiled function: keeps what it is called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[int | None], list[int], int]] = []

    def __call__(self, pointers: Any, numbers: Any, threads: int) -> None:
        self.calls.append((list(pointers), list(numbers), threads))


def test_a_function_gets_pointers_parameters_and_threads() -> None:
    function = Recorder()
    given, made = inputs(), outputs()
    Executable(KERNEL, function)(given, made, [5])
    assert function.calls == [([t.data_ptr() for t in (*given, *made)], [5], 1)]
    assert counters.launches == 1
    assert counters.fallbacks == 0
    assert counters.launch_bytes == 5 * 8 * 2 + 8 * 4 + 5 * 4 + 8 * 4


def test_threads_grow_with_the_work_up_to_the_users_number() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        for rows, threads in ((5, 1), (4096, 2), (2**16, 3)):
            text = str(PROGRAM).replace("program p(s0)", "program p()").replace("dim m = s0", f"dim m = {rows}")
            function = Recorder()
            Executable(Kernel(parse(text), KERNEL.schedule), function)(inputs(rows), outputs(rows), [])
            assert function.calls[0][2] == threads, rows
    finally:
        torch.set_num_threads(before)


def test_a_function_is_not_called_with_tensors_that_do_not_fit() -> None:
    function = Recorder()
    with pytest.raises(LaunchError):
        Executable(KERNEL, function)(inputs(), outputs(4), [5])
    assert not function.calls
    assert counters.launches == 0


def test_a_kernel_without_parameters_gets_an_array_all_the_same() -> None:
    static = parse(str(PROGRAM).replace("program p(s0)", "program p()").replace("dim m = s0", "dim m = 5"))
    function = Recorder()
    Executable(Kernel(static, KERNEL.schedule), function)(inputs(), outputs(), [])
    assert len(function.calls[0][1]) == 1
    assert ctypes.sizeof(ctypes.c_int64 * 1) == 8


def test_bytes_of_a_tensor_bound_twice_are_counted_once() -> None:
    program = parse(
        """program p()
  dim m = 4
  dim n = 4
  input x: f32 [m:4, n:1]
  input x_1: f32 [n:4, m:1]
  both: f32{m, n} = add(x, x_1)
  row: f32{m} = sum[n](both)
  output out0: f32 [m:1] = row
end
"""
    )
    x = torch.randn(4, 4)
    Executable(Kernel(program, CppSchedule("ONE_SHOT", ("m",), ("n",))), Recorder())([x, x], [torch.empty(4)], [])
    assert counters.launch_bytes == 4 * 4 * 4 + 4 * 4


# by digest and by text


def test_a_digest_is_a_hash_of_the_text() -> None:
    assert digest_of(KERNEL) == hashlib.sha256(str(KERNEL).encode()).hexdigest()[:24]
    assert digest_of(parse_kernel(str(KERNEL))) == digest_of(KERNEL)


def test_a_digest_stays_the_same_from_release_to_release() -> None:
    """Generated code in Inductor's cache holds digests: the printed form may change, but not by accident."""
    program = parse("program p()\n dim n = 4\n input x: f32 [n:1]\n s: f32{} = sum[n](x)\n output y: f32 [] = s\nend\n")
    assert str(Kernel(program, CppSchedule("ONE_SHOT", (), ("n",)))) == (
        "schedule ONE_SHOT rows=() columns=(n) segments=() rows_per_tile=8 rows_per_chunk=64 held=() finish=none\n"
        "program p()\n  dim n = 4\n  input x: f32 [n:1]\n  s: f32{} = sum[n](x)\n  output y: f32 [] = s\nend\n"
    )
    assert digest_of(Kernel(program, CppSchedule("ONE_SHOT", (), ("n",)))) == "0a8cda4b716d10d85062f524"


@pytest.mark.parametrize(
    "other",
    [
        replace(KERNEL, schedule=replace(KERNEL.schedule, rows_per_chunk=32)),
        replace(KERNEL, schedule=replace(KERNEL.schedule, held=("hat",))),
        replace(KERNEL, program=replace(PROGRAM, name="q")),
        replace(KERNEL, program=parse(str(PROGRAM).replace("dim n = 8", "dim n = 9"))),
        replace(KERNEL, program=parse(str(PROGRAM).replace("w: f32 [n:1]", "w: f32 [n:2]"))),
    ],
)
def test_whatever_changes_a_kernel_changes_its_digest(other: Kernel) -> None:
    assert digest_of(other) != digest_of(KERNEL)


def test_a_kernel_is_found_by_its_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Executable(KERNEL, None)
    monkeypatch.setitem(launch._KERNELS, digest_of(KERNEL), known)
    assert find(digest_of(KERNEL), "the text is not looked at") is known


def test_a_kernel_is_made_from_its_text_once(monkeypatch: pytest.MonkeyPatch) -> None:
    function, sources = Recorder(), []

    def load(source: Any, options: Any) -> Any:
        sources.append(source)
        return function

    monkeypatch.setattr(build, "load", load)
    first = find(digest_of(KERNEL), str(KERNEL))
    assert first.kernel == KERNEL
    assert find(digest_of(KERNEL), str(KERNEL)) is first
    assert [s.entry for s in sources] == ["weft_p"]
    first(inputs(), outputs(), [5])
    assert len(function.calls) == 1
    assert launch.FOUND_BY_TEXT == [KERNEL]


@pytest.mark.parametrize(
    ("error", "subjects"),
    [
        (CompilerNotFoundError("no compiler"), ["every kernel that is not built yet"]),
        (OSError("disk full"), ["kernel p", "kernel q"]),
    ],
)
def test_a_kernel_that_cannot_be_built_runs_on_aten_with_one_warning(
    error: Exception, subjects: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warning for each kernel, but only one for all of them where there is no compiler."""

    def load(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(build, "load", load)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for kernel in (KERNEL, replace(KERNEL, program=replace(KERNEL.program, name="q"))) * 2:
            made = outputs()
            find(digest_of(kernel), str(kernel))(inputs(), made, [5])
            assert not made[0].isnan().any()
    shown = [str(w.message) for w in caught if w.category is UserWarning]
    assert shown == [f"weft: {subject} runs on ATen, slowly: {error}" for subject in subjects]
    assert counters.fallbacks == 4


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (lambda t: "", ParseError, "line 1: not a schedule"),
        (lambda t: t.split("\n", 1)[1], ParseError, "line 1: not a schedule"),
        (lambda t: t.replace("STREAM", "TORRENT"), ParseError, "line 1: not a schedule"),
        (lambda t: t.replace("end\n", ""), ParseError, "ends with 'end'"),
        (lambda t: t.replace("= cast(x)", "is cast of x"), ParseError, "line 7: not a line of a program"),
        (lambda t: t.replace("= cast(x)", "= cast(y)"), VerificationError, "cast: operand y is not defined before it"),
    ],
)
def test_a_damaged_text_is_an_error(damage: Callable[[str], str], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        find("0" * 24, damage(str(KERNEL)))
    assert launch._KERNELS == {}


def test_the_operator_runs_a_known_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(launch._KERNELS, digest_of(KERNEL), Executable(KERNEL, None))
    given, made = inputs(), outputs()
    torch.ops.weft.launch(digest_of(KERNEL), str(KERNEL), given, made, [5], "off")
    assert torch.equal(made[0], interpret(PROGRAM, given, [5], exact=False)[0])
    with pytest.raises(RuntimeError, match="p: columns has shape"):  # a LaunchError unless the launcher is loaded
        torch.ops.weft.launch(digest_of(KERNEL), str(KERNEL), given, [made[0], made[0]], [5], "off")


def test_the_operator_does_nothing_on_meta_tensors() -> None:
    given, made = ([t.to("meta") for t in ts] for ts in (inputs(), outputs()))
    torch.ops.weft.launch("no such digest", "no such text", given, made, [5], "off")
    assert counters.to_dict() == Counters().to_dict()


# counters


def test_counters_add_up_and_start_again() -> None:
    own = Counters()
    own.count_launch(6)
    own.launched_without_python[:] = (2, 4)
    own.add(builds=2)
    own.add(builds=1)
    own.add(model_misses=4)
    own.refusals["unsupported_op"] += 2
    own.cuts["outer_dependency"] += 1
    found = own.to_dict()
    assert found == Counters().to_dict() | {
        "builds": 3,
        "launches": 3,
        "launch_bytes": 10,
        "model_misses": 4,
        "refusals": {"unsupported_op": 2},
        "cuts": {"outer_dependency": 1},
    }
    own.reset()
    assert own.to_dict() == Counters().to_dict()
    assert found["launches"] == 3
    with pytest.raises(AttributeError):
        own.add(lunches=1)
