"""How ``weft bench`` checks results before it times them, and what it makes of the times."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from tests.bench_cases import QUICK, case_of
from weft.bench import correctness
from weft.bench.case import function_case
from weft.bench.correctness import check_candidate, check_output, reference
from weft.bench.measure import figures_of, measure_candidates
from weft.bench.peers import copy_candidate, eager_call, inductor_call, inductor_kernels, weft_kernels
from weft.bench.reason import UntimedError
from weft.options import Options
from weft.runtime.timing import Candidate, Sample, Spread, Timing, in_turn, interleave, ratio

# correctness


def test_one_lost_row_of_many_is_found() -> None:
    x = torch.randn(4096, 64)
    exact = x.double() * 3
    eager = (x * 3).bfloat16()
    assert check_output("c", eager.clone(), eager, exact) is None
    lost = eager.clone()
    lost[17] = 0  # the root mean square alone would not show it
    refusal = check_output("c", lost, eager, exact)
    assert refusal is not None
    assert (refusal.kind, refusal.message) == ("wrong_result", "largest error")


@pytest.mark.parametrize(("dtype", "factor"), [(torch.float32, 2.0), (torch.bfloat16, 3.0)])
def test_the_error_is_held_to_a_multiple_of_eagers(dtype: torch.dtype, factor: float) -> None:
    exact = torch.ones(1024, dtype=torch.float64)
    unit = max(torch.finfo(dtype).eps, 1e-5)
    off = 0.125  # exact in both dtypes, far above a unit
    eager = torch.full((1024,), 1 + off, dtype=dtype)
    allowed = torch.full((1024,), 1 + factor * off, dtype=dtype)
    assert check_output("c", allowed, eager, exact) is None
    beyond = torch.full((1024,), 1 + factor * off + 4 * unit, dtype=dtype)
    refusal = check_output("c", beyond, eager, exact)
    assert refusal is not None
    assert refusal.message == "root mean square of the error"
    assert refusal.limit == pytest.approx(factor * off + unit, rel=2e-3)


@pytest.mark.parametrize("spoiled", [None, 0.0, 1.5, float("nan"), float("inf")])
def test_what_is_compared_piece_by_piece_is_what_is_compared_at_once(
    spoiled: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if an element differs, the last piece is smaller, and of one piece nothing is known."""
    torch.manual_seed(0)
    exact = torch.randn(41, 7, dtype=torch.float64)
    eager, mine = ((exact + 1e-3 * torch.randn_like(exact)).bfloat16() for _ in range(2))
    eager[4:6] = float("nan")
    if spoiled is not None:
        mine[3, 2] = spoiled
    whole = check_output("c", mine.T, eager.T, exact.T)
    assert (whole is None) == (spoiled is None)
    for piece in (1, 7, 40, 286):
        monkeypatch.setattr(correctness, "PIECE", piece)
        assert check_output("c", mine.T, eager.T, exact.T) == whole


def test_integers_shapes_and_dtypes_must_be_eagers() -> None:
    counts = torch.tensor([1, 2, 3])
    assert check_output("c", counts.clone(), counts, counts) is None
    refusal = check_output("c", torch.tensor([1, 2, 4]), counts, counts)
    assert str(refusal) == "wrong_result: c: elements differ from eager's (have 1, limit 0)"
    one = torch.ones(3)
    assert check_output("c", one.double(), one, one.double()) is not None
    assert check_output("c", one[:2], one, one.double()) is not None


def test_memory_that_exists_is_poisoned_before_the_check() -> None:
    case = case_of("row_column_sum")
    expected = reference(case.function, case.inputs)
    rows, columns = (t.clone() for t in expected.eager)  # the right results lie there already

    def forgets_the_columns() -> None:
        rows.copy_(case.inputs[0].sum(1).reshape(rows.shape))

    lazy = Candidate("c", "kernels", forgets_the_columns, memory=(rows, columns), outputs=lambda: (rows, columns))
    refusal = check_candidate(lazy, case.inputs, expected)
    assert str(refusal) == (
        "wrong_result: c kernels, output 1: elements are not finite, or were never written (have 64, limit 0)"
    )


def test_integers_are_poisoned_with_a_pattern_and_inputs_are_not() -> None:
    x = torch.arange(6)
    case = function_case("f", lambda x: (x, x.argmax()), [x])
    expected = reference(case.function, case.inputs)
    where = torch.tensor(5)
    lazy = Candidate("c", "kernels", lambda: None, memory=(x, where), outputs=lambda: (x, where))
    refusal = check_candidate(lazy, case.inputs, expected)
    assert refusal is not None
    assert refusal.subject == "c kernels, output 1"
    assert where.item() == 85
    assert x.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("name", ["qk_norm_backward", "rms_norm_fp8", "batch_norm_forward", "cross_entropy_forward"])
def test_kernels_of_weft_are_checked_where_they_write(name: str) -> None:
    case = case_of(name, 64, 64, torch.bfloat16)
    candidate = weft_kernels(case, Options.read())
    assert candidate.kernels == (2 if name == "batch_norm_forward" else 1)
    assert len(candidate.memory) >= len(reference(case.function, case.inputs).eager)
    assert check_candidate(candidate, case.inputs, reference(case.function, case.inputs)) is None


def test_kernels_of_inductor_write_where_they_are_checked() -> None:
    torch._dynamo.reset()
    case = case_of("row_column_sum")
    called = inductor_call(case)
    kernels = inductor_kernels(called)
    expected = reference(case.function, case.inputs)
    assert called.kernels == kernels.kernels
    assert check_candidate(kernels, case.inputs, expected) is None
    broken = replace(kernels, run=lambda: None)
    assert check_candidate(broken, case.inputs, expected) is not None


def test_a_module_is_a_call() -> None:
    norm = torch.nn.LayerNorm(64)
    with pytest.raises(UntimedError, match="N is a module; timed as a call only"):
        weft_kernels(function_case("N", norm, [torch.randn(8, 64)]), Options.read())
    expected = reference(norm, [torch.randn(8, 64)])
    assert expected.exact[0].dtype == torch.float64
    assert norm.weight.dtype == torch.float32


def test_eager_counts_operations_that_are_no_views() -> None:
    case = function_case("f", lambda x: F.relu(x.t().reshape(4, 8) + 1), [torch.randn(4, 8).t()])
    assert eager_call(case).kernels == 2


# figures


def timing(name: str, *seconds: float) -> Timing:
    return Timing(name, [Sample(s) for s in seconds])


def test_ratios_are_medians_of_ratios_of_rounds() -> None:
    copy, own = timing("copy", 1.0, 2.0, 4.0), timing("weft kernels", 2.0, 4.0, 8.0)  # the machine gets slower
    peer = timing("inductor kernels", 3.0, 6.0, 16.0)
    timings = {t.name: t for t in (copy, own, peer)}
    figures = figures_of(Candidate("inductor", "kernels", lambda: None), timings, None)
    assert figures.to_weft == Spread(1.5, 1.5, 1.75)
    assert figures.of_copy is not None
    assert figures.of_copy.median == pytest.approx(1 / 3)
    assert figures.time_us == Spread(6e6, 4.5e6, 11e6)
    mine = figures_of(Candidate("weft", "kernels", lambda: None), timings, None)
    assert mine.of_copy == Spread(0.5, 0.5, 0.5)
    assert mine.to_weft == Spread(1.0, 1.0, 1.0)
    assert ratio(peer, own) == figures.to_weft


def test_a_call_is_only_compared_with_a_call() -> None:
    timings = {t.name: t for t in (timing("copy", 1.0), timing("weft kernels", 2.0), timing("eager call", 6.0))}
    assert figures_of(Candidate("eager", "call", lambda: None), timings, None).to_weft is None


def test_every_round_begins_with_another_candidate_and_every_second_goes_backwards() -> None:
    made = [Candidate(name, "", lambda: None) for name in "abc"]
    orders = ["".join(c.peer for c in in_turn(made, number)) for number in range(4)]
    assert orders == ["abc", "acb", "cab", "cba"]


class Ticks:
    """A clock that counts."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def warm_up(self, candidate: Candidate) -> None:
        self.seen.append(f"warm {candidate.peer}")

    def sample(self, candidate: Candidate) -> Sample:
        self.seen.append(candidate.peer)
        return Sample(float(len(self.seen)))


def test_all_are_warm_before_the_first_round_and_a_budget_leaves_three() -> None:
    ticks = Ticks()
    made = [Candidate(name, "", lambda: None) for name in "ab"]
    timings = interleave(made, 9, budget_s=-1.0, clock=ticks)
    assert ticks.seen == ["warm a", "warm b", "a", "b", "a", "b", "a", "b"]
    assert timings["a"].seconds == [3.0, 5.0, 7.0]


def test_the_copy_moves_the_bytes_of_the_row() -> None:
    target = copy_candidate(1000).run()
    assert 2 * target.numel() * target.itemsize == 1000
    case = case_of("row_column_sum")
    row = measure_candidates(case, [eager_call(case)], QUICK)
    assert row.bytes == 4 * (32 * 64 + 32 + 64)
