"""Which schedule is chosen where there are several backends, and what takes the place of one that spills."""

from __future__ import annotations

import pytest

from tests.cuda_kernels import split_of
from tools.swept import TARGET
from weft.backends.cuda import choice, resources
from weft.backends.cuda.registers import wanted_registers
from weft.backends.cuda.schedule import CudaSchedule
from weft.backends.cuda.work import Work
from weft.backends.listed import backends_of
from weft.plan.kernel import Kernel
from weft.plan.schedules import candidates as all_candidates
from weft.plan.schedules import schedule_for
from weft.target import Target


@pytest.mark.parametrize(
    ("name", "rows", "columns", "backend"),
    [
        ("rms_norm_backward", 178481, 376, "triton"),
        ("rms_norm_backward", 16384, 4096, "cuda"),
        ("layer_norm_forward", 8192, 8192, "cuda"),
        ("layer_norm_backward", 16384, 4096, "cuda"),
        ("layer_norm_backward", 95325, 704, "cuda"),
        ("softmax_forward", 49453, 1357, "cuda"),
        ("layer_norm_forward", 18787, 3572, "triton"),
        ("softmax_forward", 14491, 4631, "cuda"),
        ("layer_norm_backward", 4096, 16384, "cuda"),
        ("rms_norm_backward", 1024, 65536, "cuda"),
        ("softmax_forward", 1335, 50257, "cuda"),
        ("layer_norm_forward", 512, 131072, "cuda"),
    ],
)
def test_the_backend_with_the_shorter_time_is_taken(name: str, rows: int, columns: int, backend: str) -> None:
    """As it was measured."""
    assert schedule_for(split_of(name, rows, columns)).backend == backend


@pytest.mark.parametrize(
    ("name", "rows", "columns", "optimism"),
    [
        ("layer_norm_forward", 8192, 8192, 1.045),
        ("softmax_forward", 65536, 1001, 1.075),
        ("layer_norm_backward", 65536, 1000, 1.045),
        ("layer_norm_backward", 65536, 1001, 1.0),  # programs have several tiles of rows that begin between vectors
        ("layer_norm_forward", 512, 2048, 1.0),  # the second cache has all of it
    ],
)
def test_tritons_choice_takes_longer_than_predicted_from_memory(
    name: str, rows: int, columns: int, optimism: float
) -> None:
    split = split_of(name, rows, columns)
    for backend in backends_of("gpu"):
        schedule = backend.choose(split)
        assert schedule is not None
        assert backend.optimism(split, schedule) == (optimism if backend.name == "triton" else 1.0)


def test_tuning_has_the_schedules_of_both_in_turn() -> None:
    split = split_of("layer_norm_backward", 4096, 16384)
    kernel = Kernel(split.program, schedule_for(split))
    found = all_candidates(kernel, TARGET, {})
    assert found[0] == kernel.schedule
    assert {s.backend for s in found[1:4]} == {"cuda", "triton"}


@pytest.mark.parametrize("target", ["a100", "l40s"])
def test_before_hopper_there_is_none(target: str) -> None:
    split = split_of("rms_norm_backward", 1024, 65536, target=Target.named(target))
    assert choice.chosen(split) is None
    refusal = choice.refusal(split)
    assert refusal is not None
    assert refusal.rule == "cuda_architecture"
    assert schedule_for(split).backend == "triton"


def test_what_spills_gives_way_to_the_next_that_leaves_more_registers() -> None:
    for name, rows, columns in (
        ("layer_norm_backward", 2869, 23389),
        ("layer_norm_backward", 4096, 16384),
        ("modulated_layer_norm_backward", 2048, 32768),
    ):
        split = split_of(name, rows, columns)
        work, first = Work.of(split), choice.chosen(split)
        assert isinstance(work, Work)
        assert first is not None

        def share(schedule: CudaSchedule, work: Work = work) -> float:
            return wanted_registers(work, schedule) / resources.most_registers(schedule.warps, schedule.blocks, TARGET)

        tried, order = [first], choice.ranked(split)
        for _ in range(3):
            other = choice.runner_up(split, tried)
            assert other is not None
            worst = max(map(share, tried))
            assert share(other) <= worst - choice.FEWER
            alike = {each.but(stages=0) for each in tried}
            assert other.but(stages=0) not in alike
            passed = [s for s in order[: order.index(other)] if s.but(stages=0) not in alike]
            assert all(share(s) > worst - choice.FEWER for s in passed)
            tried.append(other)
        assert choice.runner_up(split, order) is None


def test_what_is_much_faster_is_tried_before_what_leaves_more_registers() -> None:
    split = split_of("layer_norm_backward", 644, 104168)
    work = Work.of(split)
    assert isinstance(work, Work)

    def share(schedule: CudaSchedule) -> float:
        return wanted_registers(work, schedule) / resources.most_registers(schedule.warps, schedule.blocks, TARGET)

    first, *others = choice.ranked(split)
    second, *others = (s for s in others if s.but(stages=0) != first.but(stages=0))
    fewer = next(s for s in others if share(s) <= share(first) - choice.FEWER)
    assert share(second) > share(first) - choice.FEWER
    assert choice.times_of(split, fewer).all > choice.WORTH * choice.times_of(split, second).all
    assert choice.runner_up(split, [first]) == second


def test_a_runner_up_is_not_much_slower() -> None:
    """Of this kernel the first one spills 8 bytes."""
    split = split_of("add_rms_norm_backward", 1400, 47766)
    first = choice.ranked(split)[0]
    second = choice.runner_up(split, [first])
    assert second is not None
    assert choice.times_of(split, second).all < 1.01 * choice.times_of(split, first).all


def test_nothing_takes_the_place_of_what_spills_that_takes_a_quarter_longer() -> None:
    """As of this kernel, if it spilled: the next one that leaves more registers would."""
    split = split_of("layer_norm_backward_bias", 992, 67597)
    first, *others = choice.ranked(split)
    most = choice.SPILLED * choice.times_of(split, first).all
    work = Work.of(split)
    assert isinstance(work, Work)

    def share(schedule: CudaSchedule, work: Work = work) -> float:
        return wanted_registers(work, schedule) / resources.most_registers(schedule.warps, schedule.blocks, TARGET)

    fewer = [s for s in others if share(s) < share(first) - choice.FEWER]
    assert choice.times_of(split, fewer[0]).all > most
    assert choice.runner_up(split, [first]) is None
