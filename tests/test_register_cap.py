"""Registers that ptxas is told of."""

from __future__ import annotations

from dataclasses import replace

from tests.test_gpu_schedules import H200, split_of
from tools.ptxas_sweep import used
from weft.backends.triton.candidates import candidates
from weft.backends.triton.cost import programs_of, programs_per_sm
from weft.backends.triton.register_cap import is_scarce
from weft.backends.triton.work import Work
from weft.plan.kernel import Kernel, parse_kernel


def test_registers_are_capped_where_one_program_less_would_be_a_third_or_more() -> None:
    """And as many are given as the compiler likes where the cap would spill."""
    split = split_of("rms_norm_forward", 22808, 2942)
    found = [s for s in candidates(split) if (s.scheme, s.warps, s.remat) == ("ONE_SHOT", 16, "none")]
    schedule = next(s for s in found if s.pieces == 3)
    assert schedule.register_cap == 64
    assert parse_kernel(str(Kernel(split.program, schedule))).schedule == schedule
    assert not any(is_scarce(split, s) for s in candidates(split) if s.scheme == "STREAM" or s.warps == 32)
    for cap, most in ((64, 64), (32, 128)):
        (usage,) = used(str(Kernel(split.program, replace(schedule, register_cap=cap))), 90)
        assert isinstance(usage, dict)
        assert 32 < usage["registers"] <= most
        assert usage["spill_bytes"] == 0


def test_of_few_programs_a_thread_may_have_the_registers_that_they_leave() -> None:
    """Told nothing, ptxas makes room for programs that there are not, and has one load wait for the other."""
    split = split_of("row_column_sum", 1536, 1000)
    found = [s for s in candidates(split) if (s.rows_per_tile, s.warps, s.pieces, s.stages) == (4, 4, 1, 1)]
    schedule = next(s for s in found if (s.chunks, s.finish) == (250, "separate"))
    assert schedule.register_cap == 255  # of two programs of 128 threads
    registers = []
    for cap in (schedule.register_cap, 0):
        usage = used(str(Kernel(split.program, replace(schedule, register_cap=cap))), 90)
        assert isinstance(usage[0], dict)
        registers.append(usage[0]["registers"])
    assert registers[0] > 1.5 * registers[1]
    for each in candidates(split):
        programs = -(-programs_of(Work.of(split), each) // H200.units)
        assert not each.register_cap or programs_per_sm(each.register_cap, each.warps, 0, H200) >= programs
    many = split_of("rms_norm_forward", 1024, 2**16)
    one_shots = [s for s in candidates(many) if s.scheme == "ONE_SHOT"]
    assert one_shots
    assert not any(s.register_cap and not is_scarce(many, s) for s in one_shots)
