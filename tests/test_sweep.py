"""A slice of the sweep that takes a minute or two, what it says of wrong kernels, and addresses beyond 2^31."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
import torch

from tests.accuracy import is_averaged
from tests.cases import often
from tests.fuzz.outcome import Mismatch
from tests.sweep import check as sweep_check
from tests.sweep import huge, pool, worker
from tests.sweep.cases import SweepCase, all_cases
from tests.sweep.check import check, compare_all
from tests.sweep.layouts import LAYOUTS, lay_out
from tests.sweep.pool import run_cases
from weft.bench.inputs import batch_and_sequence, batch_sequence_heads
from weft.bench.workloads import WORKLOADS

STATIC = [
    *(f"static:{name}:{dtype}:{shape}:contiguous"
      for i, name in enumerate(WORKLOADS)
      for dtype, shape in (("f32", ("7x257", "3x1000")[i % 2]), (("bf16", "f16")[i % 2], ("33x131", "129x65")[i % 2]))),
    *(f"static:{name}:f64:{shape}:contiguous"
      for name, shape in (("layer_norm_backward_bias", "7x257"), ("cross_entropy_forward", "9x131"),
                          ("softmax_backward", "1x1000"), ("batch_norm_forward", "65x33"))),
    *(f"static:{name}:{dtype}:{shape}:{layout}"
      for layout in LAYOUTS if layout != "contiguous"
      for name, dtype, shape in (("layer_norm_backward", "bf16", "64x257"), ("add_rms_norm_forward", "f32", "7x100"),
                                 ("softmax_forward", "f16", "33x65"))),
    *(f"static:modulated_layer_norm_backward:f32:64x257:{layout}" for layout in ("batches", "transposed", "padded")),
    *(f"static:{name}:bf16:{shape}:contiguous"
      for name, shape in (("rms_norm_backward", "1x1"), ("log_softmax_forward", "1x3"), ("row_column_sum", "1024x1"),
                          ("cross_entropy_backward", "5x262144"), ("layer_norm_forward", "1x262144"))),
]  # fmt: skip
OF_WORKLOADS = 2 * len(WORKLOADS)
OFTEN = [*STATIC[:OF_WORKLOADS:8], *STATIC[6:OF_WORKLOADS:8], *STATIC[OF_WORKLOADS::2]]
"""Half of the workloads at one of two shapes each: all of them are compared in the tests of their kernels, too."""
OTHERS = [
    *(f"rows:{name}:bf16:130x257:padded"
      for name in ("layer_norm_backward", "rms_norm_forward", "cross_entropy_forward", "softmax_backward")),
    "rows:modulated_layer_norm_backward:f32:300x65:contiguous",
    "rows:qk_norm_backward:f16:1024x33:offset1",
    "fuse:layer_norm_backward:bf16:0x257:contiguous",
    "fuse:cross_entropy_forward:f32:0x64:contiguous",
    "fuse:row_column_amax:f32:0x64:contiguous",
    "fuse:modulated_layer_norm_forward:f32:0x65:contiguous",
    "dynamic:rms_norm_backward:f32:64x257:contiguous",
    "dynamic:softmax_forward:bf16:64x257:contiguous",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _settled() -> Generator[None]:
    """As in a worker."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.built_together(1)
@pytest.mark.parametrize("text", often(STATIC, OFTEN))
def test_kernels_for_one_size(text: str) -> None:
    outcome = check(SweepCase.parse(text))
    if ":1x1:" in text and not outcome.kernels:  # sums over one element are no reductions
        assert all(refused.startswith("no_reduction") for refused in outcome.refused)
        return
    assert outcome.compared > 0
    assert outcome.kernels > 0 or "rms_norm_fp8" in text, outcome.refused


@pytest.mark.parametrize("text", OTHERS)
def test_run_time_sizes_and_empty_tensors(text: str) -> None:
    outcome = check(SweepCase.parse(text))
    assert outcome.compared > 0 or ":0x" in text
    assert outcome.kernels > 0 or ":0x" in text, outcome.refused


@pytest.mark.parametrize("run_time", [False, True], ids=["static", "run-time sizes"])
@pytest.mark.parametrize("dtype", ["i8", "bf16"])
def test_rows_beyond_two_to_the_thirty_one_elements(dtype: str, run_time: bool, tmp_path: Path) -> None:
    huge.check(tmp_path, dtype, run_time)


# what the sweep says of what is wrong


def test_a_wrong_kernel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    case = SweepCase.parse("static:row_column_sum:f32:64x40:contiguous")
    right = sweep_check.run_plan

    def wrong(*args: object) -> list[torch.Tensor]:
        made = right(*args)  # type: ignore[arg-type]
        made[1][3] *= 1.0001
        return made

    check(case)
    monkeypatch.setattr(sweep_check, "run_plan", wrong)
    with pytest.raises(Mismatch, match="element"):
        check(case)


@pytest.mark.parametrize(
    "text",
    [
        "static:row_column_sum:f64:512x257:contiguous",
        "static:softmax_backward:f64:64x257:padded",
        "static:layer_norm_backward:f64:64x257:contiguous",
        "rows:gelu_backward_bias:f64:300x257:contiguous",
    ],
)
@pytest.mark.parametrize("elements", [sweep_check.EACH_CHECKED, 0])
def test_a_slightly_wrong_element_in_double_precision_is_found(
    text: str, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the check of each element, whatever its size, and by the one of the largest error if the element is large."""
    case, right = SweepCase.parse(text), sweep_check.run_plan
    monkeypatch.setattr(sweep_check, "EACH_CHECKED", elements)

    def wrong(*args: object) -> list[torch.Tensor]:
        made = right(*args)  # type: ignore[arg-type]
        for tensor in made:
            by_size = tensor.abs().reshape(-1).argsort()
            place = by_size[tensor.numel() // 2 if elements else -1]
            tensor[tuple(int(i) for i in torch.unravel_index(place, tensor.shape))] *= 1 + 1e-12
        return made

    check(case)
    monkeypatch.setattr(sweep_check, "run_plan", wrong)
    with pytest.raises(Mismatch, match="element" if elements else "value"):
        check(case)


def test_cancellation_in_double_precision_is_no_finding() -> None:
    """The gradient of a softmax whose incoming gradient is constant along its rows is zero but for rounding."""
    check(SweepCase.parse("static:softmax_backward:f64:64x257:expanded_columns"))


def test_a_single_float32_sum_that_cancels_is_held_to_its_own_condition() -> None:
    """1024 terms whose sum is a thousandth of them: eager's one error is next to nothing there."""
    case = "rows:gelu_backward_bias:f32:1024x1:contiguous"
    check(SweepCase.parse(case))
    inputs = sweep_check.inputs_of(SweepCase.parse(case))
    bias = WORKLOADS["gelu_backward_bias"].outputs(*inputs)[1]
    (_, moved) = sweep_check.moved_by_inputs(WORKLOADS["gelu_backward_bias"], inputs)
    assert 0 < moved < 1e-5
    exact = bias.double()
    compare_all([bias + 2 * moved], [bias], [exact], (), [moved])
    with pytest.raises(Mismatch, match="value"):
        compare_all([bias + 1e-4], [bias], [exact], (), [moved])


@pytest.mark.parametrize(
    ("distinct", "copies", "averaged"), [(60, 1, True), (1, 60, False), (15, 4, False), (16, 4, True)]
)
def test_roundings_are_averaged_over_rows_that_differ(distinct: int, copies: int, averaged: bool) -> None:
    assert is_averaged(torch.randn(distinct, 768, dtype=torch.float64).repeat(copies, 1)) == averaged


def test_equal_rows_are_one_rounding() -> None:
    check(SweepCase.parse("static:softmax_forward:f32:60x768:expanded_rows"))


def test_what_is_not_written_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = sweep_check.run_plan

    def lazy(*args: object) -> list[torch.Tensor]:
        made = right(*args)  # type: ignore[arg-type]
        made[0][-1] = float("nan")
        return made

    monkeypatch.setattr(sweep_check, "run_plan", lazy)
    with pytest.raises(Mismatch):
        check(SweepCase.parse("static:rms_norm_forward:bf16:9x40:contiguous"))


def test_an_input_that_is_written_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = sweep_check.run_plan

    def writes(*args: object) -> list[torch.Tensor]:
        made = right(*args)  # type: ignore[arg-type]
        args[2][0].view(-1)[0] += 1  # type: ignore[index]
        return made

    monkeypatch.setattr(sweep_check, "run_plan", writes)
    with pytest.raises(Mismatch, match="input was written"):
        check(SweepCase.parse("static:rms_norm_forward:bf16:9x40:contiguous"))


def test_types_and_errors_are_compared() -> None:
    exact = torch.randn(2000, dtype=torch.float64)
    right = exact.to(torch.bfloat16)
    compare_all([right], [right], [exact], (), [0.0])
    with pytest.raises(Mismatch, match="type"):
        compare_all([right.float()], [right], [exact], (), [0.0])
    with pytest.raises(Mismatch, match="finite"):
        compare_all([torch.where(torch.arange(2000) == 7, float("nan"), right)], [right], [exact], (), [0.0])
    with pytest.raises(Mismatch, match="root-mean-square"):
        compare_all([(exact * 1.004).to(torch.bfloat16)], [right], [exact], (), [0.0])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", WORKLOADS)
def test_layouts_change_strides_only(name: str, layout: str) -> None:
    inputs = WORKLOADS[name].make_inputs((60, 48), torch.float32, "cpu", 1)
    made = lay_out(inputs, layout, 48)
    assert [(t.shape, t.dtype) for t in made] == [(t.shape, t.dtype) for t in inputs]
    same = all(torch.equal(a, b) for a, b in zip(made, inputs, strict=True))
    assert same or layout.startswith(("expanded", "overlapping"))
    moved = [
        (a.stride(), a.storage_offset()) != (b.stride(), b.storage_offset()) for a, b in zip(made, inputs, strict=True)
    ]
    nothing_small = all(t.shape == inputs[0].shape for t in inputs)
    assert any(moved) or layout == "contiguous" or (layout == "expanded_small" and nothing_small)


def test_run_time_rows_are_several_batches() -> None:
    for case in all_cases(WORKLOADS, ["f32", "f64"], ["rows"]):
        assert batch_and_sequence(case.rows)[0] > 1, case
        assert batch_sequence_heads(case.rows)[0] > 1, case


def test_cases_have_names() -> None:
    cases = all_cases(WORKLOADS, ["bf16"], ["static", "rows", "fuse", "dynamic"])
    assert all(SweepCase.parse(str(case)) == case for case in cases)
    assert {case.workload for case in cases} == set(WORKLOADS)
    assert {case.layout for case in cases} == set(LAYOUTS)
    with pytest.raises(ValueError, match="none of"):
        SweepCase.parse("static:unknown:bf16:3x4:contiguous")


def test_a_case_that_hangs_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "CASE_SECONDS", 0.01)
    summary = run_cases([SweepCase("static", "row_column_sum", "f32", 3, 5)], jobs=1, minutes=2, progress=False)
    assert [f.message.partition(":")[0] for f in summary.findings] == ["hang"]


def test_a_failure_is_a_finding_and_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [SweepCase("static", name, "f32", 3, 5) for name in ("row_column_sum", "rms_norm_forward")]
    monkeypatch.setenv("CXX", "/nowhere/g++")
    summary = run_cases(cases, jobs=1, minutes=2, progress=False)
    assert summary.ran == 2
    assert [f.message.partition(":")[0] for f in summary.findings] == ["CompilerNotFoundError"] * 2
    assert summary.findings[0].command == f"python -m tests.sweep --case {summary.findings[0].case}"
    assert worker.answer("nonsense")["finding"].startswith("ValueError")
