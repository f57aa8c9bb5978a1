"""The check of kernels against the reference: silent on right ones, chunk by chunk, loud on wrong ones."""

from __future__ import annotations

import re
import runpy
import warnings
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.cases import DTYPES, NAMES, checkered, make_case, often
from weft.backends.cpp.schedule import CppSchedule
from weft.bench.workloads import WORKLOADS
from weft.ir.interpret import Evaluation, interpret
from weft.ir.parser import parse
from weft.ir.program import Program
from weft.plan.kernel import Kernel
from weft.runtime import check, executable, failures, launch, verdict
from weft.runtime.check import chunked_dimension, compare, late_values
from weft.runtime.counters import counters
from weft.runtime.executable import Executable, digest_of
from weft.runtime.verdict import distinct

MIXED = parse(
    """program mixed(s0)
  dim m = s0
  dim n = 12
  input x: f32 [m:12, n:1]
  input w: f32 [n:1]
  hat: f32{m, n} = mul(x, w)
  row: f32{m} = sum[n](hat)
  centred: f32{m, n} = sub(hat, row)
  column: f32{n} = sum[m](centred)
  largest: f32{n} = max[m](hat)
  scaled: f32{n} = mul(column, largest)
  whole: f32{} = sum[m](row)
  output y: f32 [m:12, n:1] = centred
  output g: f32 [n:1] = scaled
  output t: f32 [] = whole
  output wide: f32 [m:12, n:1] = largest
end
"""
)
KERNEL = Kernel(MIXED, CppSchedule("STREAM", ("m",), ("n",), finish="same"))
OFTEN = [(name, dtype) for k, dtype in enumerate(DTYPES) for name in (NAMES if dtype == "bf16" else NAMES[k::3])]
"""Allowances are multiples of what the dtype rounds: every workload in one dtype, and a third of them in each other."""


def tensors(rows: int = 50) -> tuple[list[Tensor], list[Tensor]]:
    """Random inputs and what the program makes of them in its own dtypes."""
    inputs = [torch.randn(rows, 12), torch.randn(12)]
    return inputs, interpret(MIXED, inputs, [rows], exact=False)


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(launch, "_KERNELS", {})
    monkeypatch.setattr(launch, "FOUND_BY_TEXT", [])
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    counters.reset()


# what is right


@pytest.mark.parametrize(("name", "dtype"), often(product(NAMES, DTYPES), OFTEN))
def test_eager_arithmetic_passes_with_a_margin_in_any_chunks(
    name: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of every allowance is enough for an evaluation in the program's own dtypes."""
    for factor in ("FACTOR", "MEAN_FACTOR", "EPSILONS", "MEAN_EPSILONS", "RMS_FACTOR", "RMS_EPSILONS"):
        monkeypatch.setattr(verdict, factor, getattr(verdict, factor) / 2)
    inputs = WORKLOADS[name].make_inputs((130, 96), DTYPES[dtype], "cpu", 5)
    case = make_case(name, inputs)
    outputs = interpret(case.program, case.bind(inputs), exact=False)
    for chunk_bytes in (2**14, 2**17, 2**30):
        monkeypatch.setattr(check, "CHUNK_BYTES", chunk_bytes)
        assert compare(case.program, case.bind(inputs), outputs) is None


def test_sums_that_cancel_are_no_finding() -> None:
    program = parse(
        "program p()\n dim m = 4000\n dim n = 8\n input x: f32 [m:8, n:1]\n s: f32{n} = sum[m](x)\n"
        " output y: f32 [n:1] = s\nend\n"
    )
    half = torch.randn(2000, 8) * 1000
    x = torch.cat([half, -half])
    forward, backward = x.sum(0), x[torch.randperm(4000)].cumsum(0)[-1]
    assert not torch.equal(forward, backward)
    assert compare(program, [x], [forward]) is None
    assert compare(program, [x], [backward]) is None
    assert compare(program, [x], [backward + 1]) is not None


def test_a_comparison_that_rounding_turns_round_may_go_either_way() -> None:
    program = parse(
        "program p()\n dim m = 4\n dim n = 3\n input x: f32 [m:3, n:1]\n s: f32{m} = sum[n](x)\n"
        " third: f32{} = const[0.3333333432674408]()\n mean: f32{m} = mul(s, third)\n above: bool{m, n} = gt(x, mean)\n"
        " output y: bool [m:3, n:1] = above\nend\n"
    )
    x = torch.tensor([[0.1, 0.1, 0.1], [0.7, 0.7, 0.7], [1.0, 2.0, 3.0], [0.3, 0.3, 0.3]])
    for ties in (True, False):
        y = torch.full((4, 3), ties)
        y[2] = torch.tensor([False, False, True])
        y[2, 1] = ties
        assert compare(program, [x], [y]) is None, ties
        y[2, 2] = False
        assert compare(program, [x], [y]) is not None


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_few_rows_or_none_pass(rows: int) -> None:
    inputs, outputs = tensors(rows)
    assert compare(MIXED, inputs, outputs, [rows]) is None


def test_a_program_without_dimensions_to_cut_is_evaluated_whole() -> None:
    program = parse(
        "program p()\n dim n = 6\n input x: f32 [n:1]\n s: f32{} = sum[n](x)\n y: f32{n} = sub(x, s)\n"
        " output out: f32 [n:1] = y\nend\n"
    )
    assert chunked_dimension(program, {"n": 6}) is None
    x = torch.randn(6)
    assert compare(program, [x], [x - x.sum()]) is None
    assert compare(program, [x], [x]) is not None


def test_not_a_number_and_infinity_must_be_where_they_belong() -> None:
    inputs, _ = tensors()
    inputs[0][3, 4], inputs[0][7, 1] = float("nan"), float("inf")
    outputs = interpret(MIXED, inputs, [50], exact=False)
    assert compare(MIXED, inputs, outputs, [50]) is None
    for value in (0.0, float("inf"), float("-inf")):
        wrong = [t.clone() for t in outputs]
        wrong[0][3, 5] = value
        found = compare(MIXED, inputs, wrong, [50])
        assert found is not None
        assert (found.buffer, found.index) == ("y", {"m": 3, "n": 5})


# what is wrong


def spoil(outputs: list[Tensor], index: int, change: Callable[[Tensor], object]) -> list[Tensor]:
    wrong = [t.clone() for t in outputs]
    change(wrong[index])
    return wrong


@pytest.mark.parametrize(
    ("name", "index", "change", "place"),
    [
        ("y", 0, lambda t: t[49, 11].add_(0.01), {"m": 49, "n": 11}),
        ("y", 0, lambda t: t[17, 3].fill_(float("nan")), {"m": 17, "n": 3}),
        ("y", 0, lambda t: t[17, 3].fill_(float("inf")), {"m": 17, "n": 3}),
        ("g", 1, lambda t: t[5].mul_(1.001), {"n": 5}),
        ("t", 2, lambda t: t.mul_(1.001), {}),
        ("wide", 3, lambda t: t[31, 2].add_(0.01), {"m": 31, "n": 2}),
    ],
)
def test_one_wrong_element_is_found_and_named(
    name: str, index: int, change: Any, place: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, outputs = tensors()
    wrong = spoil(outputs, index, change)
    for chunk_bytes in (1, 5000, 2**30):
        monkeypatch.setattr(check, "CHUNK_BYTES", chunk_bytes)
        assert compare(MIXED, inputs, outputs, [50]) is None
        found = compare(MIXED, inputs, wrong, [50])
        assert found is not None
        assert (found.buffer, found.index) == (name, place)
        assert str(found).startswith(f"{name}[")


@pytest.mark.parametrize(
    ("name", "dtype"), checkered([name for name in NAMES if "norm_backward" in name], ["f32", "bf16"])
)
def test_a_lost_row_of_a_column_sum_is_found(name: str, dtype: str) -> None:
    """It changes every element a little: in 16-bit types less than one rounding explains."""
    inputs = WORKLOADS[name].make_inputs((1000, 96), DTYPES[dtype], "cpu", 5)
    case = make_case(name, inputs)
    outputs = interpret(case.program, case.bind(inputs), exact=False)
    shorter = [t.clone() for t in case.bind(inputs)]
    for t in shorter:
        if t.ndim == max(other.ndim for other in shorter):
            t[(-1,) * (t.ndim - 1)] = 0
    lost = interpret(case.program, shorter, exact=False)
    tile = max(t.ndim for t in outputs)
    wrong = [a if a.ndim == tile else b for a, b in zip(outputs, lost, strict=True)]
    assert any(t.ndim < tile for t in outputs)
    assert compare(case.program, case.bind(inputs), outputs) is None
    assert compare(case.program, case.bind(inputs), wrong) is not None


def test_integers_are_compared_exactly() -> None:
    program = parse(
        "program p()\n dim m = 9\n dim n = 4\n input x: i64 [m:4, n:1]\n s: i64{n} = sum[m](x)\n"
        " output y: i64 [n:1] = s\nend\n"
    )
    x = torch.randint(-(10**9), 10**9, (9, 4))
    assert compare(program, [x], [x.sum(0)]) is None
    found = compare(program, [x], [x.sum(0) + torch.tensor([0, 0, 1, 0])])
    assert found is not None
    assert found.index == {"n": 2}


# chunks


def test_the_cut_dimension_is_one_no_late_value_varies_over() -> None:
    assert late_values(MIXED, "m") == {"column", "largest", "scaled", "whole"}
    assert chunked_dimension(MIXED, {"m": 5, "n": 12}) == "m"
    columns = parse(
        "program p()\n dim m = 4\n dim n = 9\n input x: f32 [m:9, n:1]\n s: f32{n} = sum[m](x)\n"
        " output y: f32 [n:1] = s\nend\n"
    )
    assert chunked_dimension(columns, {"m": 4, "n": 9}) == "n"
    assert chunked_dimension(columns, {"m": 10, "n": 9}) == "m"


def test_chunks_bound_the_size_of_what_is_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    class Watched(Evaluation):
        def evaluate(self, value: Any) -> Tensor:
            result = super().evaluate(value)
            sizes.append(result.numel())
            return result

    monkeypatch.setattr(check, "Evaluation", Watched)
    monkeypatch.setattr(check, "CHUNK_BYTES", 8 * 12 * 4 * 10)  # ten rows of four values or so
    inputs, outputs = tensors(1000)
    assert compare(MIXED, inputs, outputs, [1000]) is None
    assert max(sizes) <= 12 * 16
    assert len(sizes) > 1000 / 16 * 4


def test_positions_and_counts_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    program = parse(
        "program p(s0)\n dim m = s0\n dim n = 4\n input x: f32 [m:4, n:1]\n i: f32{m} = iota[m]()\n"
        " c: f32{} = size[m]()\n a: f32{m, n} = mul(x, i)\n b: f32{m, n} = div(a, c)\n s: f32{n} = sum[m](b)\n"
        " output y: f32 [m:4, n:1] = b\n output z: f32 [n:1] = s\nend\n"
    )
    x = torch.randn(37, 4)
    b = x * torch.arange(37.0)[:, None] / 37
    for chunk_bytes in (1, 500, 2**30):
        monkeypatch.setattr(check, "CHUNK_BYTES", chunk_bytes)
        assert compare(program, [x], [b, b.sum(0)], [37]) is None
        assert compare(program, [x], [b, b.sum(0) * 1.001], [37]) is not None


def test_the_check_leaves_the_users_random_numbers_alone() -> None:
    inputs, outputs = tensors()
    state = torch.get_rng_state()
    compare(MIXED, inputs, outputs, [50])
    assert torch.equal(state, torch.get_rng_state())


# launches


class Function:
    """Stands for a compiled function: writes what the program makes, and ``spoilt`` after that."""

    def __init__(
        self, inputs: list[Tensor], outputs: list[Tensor], spoilt: Callable[[], object] = lambda: None
    ) -> None:
        self.inputs, self.outputs, self.spoilt, self.calls = inputs, outputs, spoilt, 0

    def __call__(self, *_: Any) -> None:
        self.calls += 1
        for out, value in zip(self.outputs, interpret(MIXED, self.inputs, [50], exact=False), strict=True):
            out.copy_(value)
        self.spoilt()


def poisoned() -> list[Tensor]:
    return [torch.full(t.shape, float("nan")) for t in tensors()[1]]


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[Program]:
    """Every program that is compared from now on."""
    seen: list[Program] = []

    def spy(program: Program, *rest: Any) -> Any:
        seen.append(program)
        return compare(program, *rest)

    monkeypatch.setattr(executable, "compare", spy)
    return seen


@pytest.mark.parametrize(("mode", "times"), [("off", 0), ("first", 1), ("always", 3)])
def test_a_kernel_is_compared_as_often_as_asked(mode: str, times: int, compared: list[Program]) -> None:
    inputs, outputs = tensors()[0], poisoned()
    function = Function(inputs, outputs)
    run = Executable(KERNEL, function)
    for _ in range(3):
        run(inputs, outputs, [50], mode)
    assert (len(compared), function.calls, counters.launches, counters.fallbacks) == (times, 3, 3, 0)


def test_nothing_is_compared_while_a_cuda_graph_is_captured(
    compared: list[Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, outputs = tensors()[0], poisoned()
    run = Executable(KERNEL, Function(inputs, outputs))
    monkeypatch.setattr(executable, "_is_capturing", lambda _: True)
    run(inputs, outputs, [50], "first")
    assert not compared
    monkeypatch.setattr(executable, "_is_capturing", lambda _: False)
    run(inputs, outputs, [50], "first")
    assert len(compared) == 1


def test_a_wrong_kernel_is_reported_once_and_replaced() -> None:
    inputs, outputs = tensors()[0], poisoned()
    function = Function(inputs, outputs, lambda: outputs[1][3].mul_(1.01))
    run = Executable(KERNEL, function)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            run(inputs, outputs, [50], "first")
            for mine, right in zip(outputs, interpret(MIXED, inputs, [50], exact=False), strict=True):
                assert torch.equal(mine, right)
    (message,) = (str(w.message) for w in caught)
    assert message.startswith("weft: kernel mixed runs on ATen, slowly: g[n=3] is ")
    assert (function.calls, counters.fallbacks) == (1, 3)
    refusal = failures.check_run_time_failure("mixed", [digest_of(KERNEL)])
    assert refusal is not None
    assert refusal.rule == "run_time_failure"
    assert "g[n=3]" in refusal.message


@pytest.mark.parametrize("stored", [True, False])
def test_the_reproducer_runs_by_itself(stored: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from weft.runtime import reproducer

    if not stored:
        monkeypatch.setattr(reproducer, "DATA_BYTES", 0)
    inputs, outputs = tensors()[0], poisoned()
    with pytest.warns(UserWarning, match="shows it") as caught:
        Executable(KERNEL, Function(inputs, outputs, lambda: outputs[0].zero_()))(inputs, outputs, [50], "first")
    found = re.search(r"(\S+reproduce\.py) shows it", str(caught[0].message))
    assert found is not None
    script = Path(found[1])
    assert script.parent.parent == tmp_path / "cache-reproducers"
    assert (script.parent / "x.npy").exists() == stored
    names: dict[str, Any] = {}

    def wrong(pointers: Any, numbers: Any, threads: int) -> None:
        del pointers, numbers, threads  # writes nothing: outputs stay what they were

    for function, code in ((wrong, True), (None, False)):
        failures.forget()
        monkeypatch.setattr(launch, "_KERNELS", {})
        known = Executable(KERNEL, function)
        monkeypatch.setitem(launch._KERNELS, digest_of(KERNEL), known)
        with pytest.raises(SystemExit) as left:
            names = runpy.run_path(str(script))
        assert left.value.code is code
    del names
    if stored:
        read = [reproducer.read(script.parent, d) for d in descriptions(script)]
        assert all(torch.equal(a, b) and a.stride() == b.stride() for a, b in zip(read, inputs, strict=True))


def descriptions(script: Path) -> list[dict[str, Any]]:
    """The list of inputs in a script."""
    import ast

    for node in ast.parse(script.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "INPUTS":
            return ast.literal_eval(node.value)
    raise AssertionError("no INPUTS")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.bool, torch.float64])
def test_stored_and_drawn_inputs_have_dtype_and_layout(dtype: torch.dtype, tmp_path: Path) -> None:
    from weft.runtime import reproducer

    tensor = (torch.randn(7, 30) * 3).to(dtype)[:, 4:20:2]
    drawn = reproducer.read(tmp_path, reproducer.describe(tensor, 3))
    assert (drawn.dtype, drawn.shape, drawn.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
    again = reproducer.read(tmp_path, reproducer.describe(tensor, 3))
    assert torch.equal(drawn, again)
    assert abs(drawn.double().mean() - tensor.double().mean()) < 1.5


def test_an_input_that_is_overwritten_is_compared_as_it_was() -> None:
    inputs, outputs = tensors()[0], poisoned()
    before = inputs[0].clone()
    outputs[0] = inputs[0]
    run = Executable(KERNEL, Function(inputs, outputs))
    run(inputs, outputs, [50], "first")
    assert counters.fallbacks == 0
    assert torch.equal(inputs[0], interpret(MIXED, [before, inputs[1]], [50], exact=False)[0])
    inputs[0].copy_(before)
    with pytest.warns(UserWarning, match=r"y\[m="):
        Executable(KERNEL, Function(inputs, outputs, lambda: inputs[0].zero_()))(inputs, outputs, [50], "first")
    assert torch.equal(inputs[0], interpret(MIXED, [before, inputs[1]], [50], exact=False)[0])


def test_a_check_that_fails_itself_says_so_and_keeps_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise MemoryError("none left")

    monkeypatch.setattr(executable, "compare", broken)
    inputs, outputs = tensors()[0], poisoned()
    run = Executable(KERNEL, Function(inputs, outputs))
    with pytest.warns(UserWarning, match="kernel mixed could not be checked: MemoryError: none left"):
        run(inputs, outputs, [50], "first")
    run(inputs, outputs, [50], "first")
    assert (counters.launches, counters.fallbacks) == (2, 0)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (torch.zeros(100, 300), 1),
        (torch.arange(257.0).expand(64, 257), 257),
        (torch.arange(64.0).reshape(64, 1).expand(64, 1000), 64),
        (torch.arange(64.0 * 257).reshape(64, 257), 64 * 257),
        (torch.tensor(3.0), 1),
    ],
)
def test_elements_that_are_equal_share_a_rounding(values: torch.Tensor, expected: int) -> None:
    assert distinct(values) == expected
