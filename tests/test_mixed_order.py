"""What a user allows row and column reductions to share: options, plans, results and counters."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor.utils import fresh_cache

import weft
from tests.cases import checkered, make_case
from tests.together import prepare
from tools import fusion_cells
from weft.bench.correctness import reference, tensors_of
from weft.bench.workloads import WORKLOADS
from weft.ir.interpret import interpret
from weft.options import MixedOrder, Options
from weft.plan import grouping
from weft.plan.kernel import Plan
from weft.plan.planner import plan, plan_split, plans_of_split
from weft.plan.verify import verify_plan
from weft.runtime.launch import run_plan
from weft.target import Target

NAMES = ("rms_norm_backward", "layer_norm_backward_bias", "row_column_sum", "modulated_layer_norm_backward")
TARGETS = ("cpu", "h200")
OFF = MixedOrder(allowed=False)


@pytest.fixture(autouse=True)
def _apart() -> Iterator[None]:
    """Counters and compiled functions of this test alone, nothing from Inductor's cache."""
    torch._dynamo.reset()
    weft.counters.reset()
    with fresh_cache():
        yield
    weft.counters.reset()


def program_of(name: str, shape: tuple[int, int] = (4096, 1024)) -> Any:
    return make_case(name, tuple(WORKLOADS[name].make_inputs(shape, torch.bfloat16, "cpu"))).program


def planned(program: Any, target: str, mixed_order: MixedOrder) -> Plan:
    found = plan(program, Target.named(target), mixed_order=mixed_order)
    assert isinstance(found, Plan)
    return verify_plan(found, program)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("target", TARGETS)
def test_without_mixed_order_no_kernel_reduces_rows_and_columns(name: str, target: str) -> None:
    program = program_of(name)
    assert "mixed-order" in planned(program, target, MixedOrder()).kinds
    found = planned(program, target, OFF)
    assert "mixed-order" not in found.kinds
    assert len(found.kernels) > 1
    assert [refusal.rule for refusal in found.cuts] == ["mix_order"]


@pytest.mark.parametrize("target", TARGETS)
def test_a_kernel_reads_as_many_buffers_as_it_may_and_no_more(target: str) -> None:
    """The gradients of an RMS norm read four: `dy`, `x`, the weight and the statistics."""
    program = program_of("rms_norm_backward")
    assert len(program.inputs) == 4
    for limit, refused in ((0, []), (4, []), (3, ["max_reads"]), (1, ["max_reads"])):
        found = planned(program, target, MixedOrder(max_reads=limit))
        assert [refusal.rule for refusal in found.cuts] == refused, limit
        assert ("mixed-order" in found.kinds) == (not refused)
        assert [(refusal.have, refusal.limit) for refusal in found.cuts] == [(4, limit)] * len(refused)


def test_a_kernel_without_column_sums_reads_what_it_likes() -> None:
    found = planned(program_of("add_rms_norm_forward"), "h200", MixedOrder(allowed=False, max_reads=1))
    assert (len(found.kernels), found.cuts) == (1, ())


@pytest.mark.parametrize(("count", "expected"), [(1, 1), (2, 4), (3, 14), (4, 15), (5, 31), (6, 1)])
def test_the_number_of_groupings(count: int, expected: int) -> None:
    """With the one in which nothing is taken out there are as many as partitions of the rows and up to three sums."""
    found = list(grouping.groupings([f"sum{i}" for i in range(count)]))
    assert len(found) == len(set(found)) == expected
    assert found[0] == (tuple(f"sum{i}" for i in range(count)),)


@pytest.mark.parametrize(("count", "expected"), [(0, 1), (1, 1), (2, 2), (3, 5), (4, 15), (5, 52)])
def test_the_number_of_partitions(count: int, expected: int) -> None:
    names = [str(i) for i in range(count)]
    found = list(grouping.partitions(names))
    assert len(found) == len({frozenset(map(frozenset, groups)) for groups in found}) == expected
    assert all(sorted(name for group in groups for name in group) == names for groups in found)


@pytest.mark.parametrize(("name", "sums"), [("rms_norm_backward", 1), ("layer_norm_backward", 2)])
@pytest.mark.parametrize("rows", [64, 8192])
def test_the_chosen_plan_is_the_least_predicted_of_all_partitions(name: str, sums: int, rows: int) -> None:
    program, target = program_of(name, (rows, 4096)), Target.named("h200")
    split = ((program.dims[0].name,), (program.dims[1].name,))
    found = [verify_plan(each, program) for each in plans_of_split(program, *split, target, {})]
    assert len({fusion_cells.grouping(each, program) for each in found}) == {1: 2, 2: 5}[sums]
    assert len(set(map(str, found))) == len(found)
    chosen = plan_split(program, *split, target, {})
    assert isinstance(chosen, Plan)
    assert chosen.predicted_us == min(each.predicted_us for each in found)
    assert str(chosen) in map(str, found)


@pytest.mark.parametrize(("name", "options"), checkered(NAMES, [{}, {"mix_order": False}, {"max_reads": 2}]))
def test_results_and_counters_of_each_option(name: str, options: dict[str, Any]) -> None:
    workload = WORKLOADS[name]
    inputs = tuple(workload.make_inputs((192, 96), torch.float32, "cpu"))
    compiled = torch.compile(workload.fn, backend="weft", dynamic=False, options=options)
    expected = reference(workload.fn, inputs)
    for mine, exact in zip(tensors_of(compiled(*inputs)), expected.exact, strict=True):
        torch.testing.assert_close(mine.double(), exact, rtol=1e-4, atol=1e-3)
    limited = bool(options) and not (options == {"max_reads": 2} and name == "row_column_sum")  # which reads one
    counters = weft.counters
    assert (counters.regions, counters.fallbacks) == (1, 0)
    assert (counters.mixed_order_kernels, counters.mixed_order_refused) == ((0, 1) if limited else (1, 0))
    assert counters.to_dict()["mixed_order_refused"] == counters.mixed_order_refused
    if limited:
        (rule,) = options
        assert counters.cuts == {rule: 1}


def test_every_partition_computes_the_same() -> None:
    case = make_case("layer_norm_backward_bias", tuple(WORKLOADS["layer_norm_backward_bias"].make_inputs(
        (96, 64), torch.float32, "cpu")))  # fmt: skip
    split = ((case.program.dims[0].name,), (case.program.dims[1].name,))
    inputs: list[Tensor] = case.bind(tuple(WORKLOADS["layer_norm_backward_bias"].make_inputs((96, 64), torch.float32)))
    exact = interpret(case.program, inputs)
    for mixed_order, count in ((MixedOrder(), 1), (OFF, 5), (MixedOrder(max_reads=1), 5)):
        every = list(plans_of_split(case.program, *split, Target.named("cpu"), {}, mixed_order=mixed_order))
        assert len(every) == count
        prepare(every)
        for each in every:
            found = run_plan(each, case.program, inputs, (), Options.read())
            for mine, right in zip(found, exact, strict=True):
                torch.testing.assert_close(mine.double(), right, rtol=1e-4, atol=1e-3)


def test_more_allowed_is_never_predicted_slower() -> None:
    program = program_of("layer_norm_backward_bias", (8192, 4096))
    times = [planned(program, "h200", MixedOrder(max_reads=n)).predicted_us for n in (1, 4, 5, 0)]
    assert all(more <= less for less, more in pairwise(times))
    assert times[0] > times[-1]
