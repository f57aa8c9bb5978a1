"""Which schedules of CUDA C++ a kernel can have: what threads and blocks hold, as ptxas says, how rows are divided."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from tests.cases import often
from tests.cuda_kernels import needs_nvrtc, planned_for, split_of, work_of
from tools.gpu_cells import drawn_cells, parts_of
from tools.swept import TARGET
from weft.backends.binary import Job, Variant
from weft.backends.cuda import choice, resources
from weft.backends.cuda.backend import BACKEND
from weft.backends.cuda.beginnings import turn_tiles
from weft.backends.cuda.candidates import candidates
from weft.backends.cuda.launches import shared_bytes
from weft.backends.cuda.registers import wanted_registers
from weft.backends.cuda.schedule import CudaSchedule
from weft.backends.cuda.work import Work
from weft.backends.listed import render
from weft.plan.kernel import Kernel
from weft.target import Target

WORKLOADS = (
    "rms_norm_backward",
    "layer_norm_backward",
    "softmax_forward",
    "layer_norm_forward",
    "cross_entropy_forward",
)


@needs_nvrtc
@pytest.mark.parametrize("seed", often([1, 2, 3], [1]))
def test_drawn_schedules_hardly_ever_spill(seed: int) -> None:
    """And take no more shared memory than was counted on."""
    draw, spilled, count = random.Random(seed), list[str](), 0
    for cell in drawn_cells(seed, WORKLOADS, 20, wide=0.6):
        for split in parts_of(cell, TARGET).values():
            found = candidates(split)
            if not found:
                continue
            kernel = Kernel(split.program, draw.choice(found))
            assert BACKEND.supports(kernel, TARGET) is None
            (first, *_) = BACKEND.compile(Job(kernel, render(kernel), Variant.expected(kernel, {}), 90))
            work = Work.under(split, kernel.schedule)
            assert isinstance(work, Work)
            assert shared_bytes(kernel) <= resources.shared_bytes(work, kernel.schedule)
            most = resources.most_registers(kernel.schedule.warps, kernel.schedule.blocks, TARGET)
            assert first.usage.registers <= most
            count += 1
            spilled += [str(kernel.schedule)] * (first.usage.spill_bytes > 0)
    assert count >= 20
    assert len(spilled) <= 0.08 * count, spilled


def test_each_scheduler_has_its_own_registers() -> None:
    assert resources.most_registers(8, 1, TARGET) == 168  # nine warps are three for one of four
    assert resources.most_registers(15, 1, TARGET) == 128
    assert resources.most_registers(16, 1, TARGET) == 96
    assert resources.most_registers(1, 1, TARGET) == 255


def test_chunks_of_likely_widths_have_a_stride_as_those_of_known_ones_do() -> None:
    """Where rows begin at several places some chunks turn from one to another, and have fewer tiles; a multiple of 16
    has none of that."""
    known = split_of("rms_norm_backward", 2048, 32768)
    (schedule, *_) = choice.ranked(known)
    _, likely, _ = planned_for("rms_norm_backward", (2048, 32768))
    _, odd, _ = planned_for("rms_norm_backward", (2048, 32761))
    tiles = {name: work_of(split).places_tiles(schedule) for name, split in (("likely", likely), ("odd", odd))}
    turn = turn_tiles(1, [2], [2, 2], [2], schedule.rows_per_tile)
    assert turn > 0
    assert tiles == {"likely": 2048 // schedule.rows_per_tile, "odd": 2048 // schedule.rows_per_tile + 8 * turn}
    assert choice.times_of(likely, schedule).tiles == pytest.approx(choice.times_of(known, schedule).tiles, rel=0.01)
    assert choice.times_of(odd, schedule).tiles > 1.03 * choice.times_of(known, schedule).tiles


@pytest.mark.parametrize(("target", "most"), [("h200", 16), ("h100", 16), ("b200", 8), ("gb200", 8)])
def test_clusters_are_as_large_as_a_gpu_is_sure_to_hold(target: str, most: int) -> None:
    split = split_of("rms_norm_backward", 1024, 65536, target=Target.named(target))
    assert max(schedule.cluster for schedule in candidates(split)) == most
    part = replace(split, target=replace(split.target, units=66))
    assert max(schedule.cluster for schedule in candidates(part)) == 8


def test_rows_wait_for_other_programs_only_where_nobody_else_does() -> None:
    split = split_of("rms_norm_backward", 1024, 65536)
    assert {s.finish for s in candidates(split)} == {"same", "separate"}
    shared = replace(split, target=replace(TARGET, exclusive=False))
    assert {s.finish for s in candidates(shared)} == {"separate"}


@pytest.mark.parametrize("rows", [8, 1024])
@pytest.mark.parametrize("columns", [50257, 50258, 50260, 50264])
def test_chunks_are_as_many_as_clusters_are_resident(columns: int, rows: int) -> None:
    """Wherever rows begin between vectors, if there are as many row tiles."""
    split = split_of("rms_norm_backward", rows, columns)
    found = candidates(split)
    for schedule in found:
        tiles = -(-rows // schedule.rows_per_tile)
        assert schedule.chunks == min(resources.resident_clusters(schedule, TARGET), tiles)
    assert all(BACKEND.supports(Kernel(split.program, schedule)) is None for schedule in found)
    if rows == 1024:
        assert math.gcd(*(schedule.chunks for schedule in found)) == 1
        eight = {schedule.blocks: schedule.chunks for schedule in found if schedule.cluster == 8}
        assert eight.items() >= {(1, 15), (2, 30)}
        assert all(chunks == 15 * blocks for blocks, chunks in eight.items())


def test_the_chunks_of_all_segments_are_as_many_as_clusters_are_resident() -> None:
    split = split_of("modulated_layer_norm_backward", 4096, 16384)
    assert split.segment_count > 1
    found = candidates(split)
    for schedule in found:
        resident = resources.resident_clusters(schedule, TARGET)
        assert schedule.chunks == min(resident, 4096 // schedule.rows_per_tile)
    assert any(schedule.chunks % split.segment_count for schedule in found)


@pytest.mark.parametrize(("name", "columns"), [("softmax_forward", 50257), ("layer_norm_backward", 16384)])
def test_tiles_come_behind_where_a_block_has_place_for_one_more(name: str, columns: int) -> None:
    """Of stages and registers. Two stages are ahead of the tile that comes behind, at the least."""
    split = split_of(name, 1335, columns)
    work = Work.of(split)
    assert isinstance(work, Work)
    found = candidates(split)
    behind = {schedule.but(lag=0, stages=0): schedule for schedule in found if schedule.lag}
    plain = [schedule for schedule in found if not schedule.lag]
    assert behind
    assert len(behind) + len(plain) == len(found)
    assert {schedule.tile for schedule in behind.values()} == {"shared"}
    for schedule in plain:
        if schedule.tile != "shared":
            continue
        most = resources.most_registers(schedule.warps, schedule.blocks, TARGET)
        fits = wanted_registers(work, schedule.but(lag=1)) <= most and schedule.warps * schedule.cluster > 1
        has_place = schedule.but(lag=1, stages=3) in staged(work, schedule.but(lag=1))
        made = behind.pop(schedule.but(stages=0), None)
        assert (made is not None) == (fits and has_place)
    assert not behind


def staged(work: Work, schedule: CudaSchedule) -> list[CudaSchedule]:
    """With all numbers of stages that a block has place for."""
    place = resources.most_shared_bytes(schedule.blocks, TARGET)
    possible = (schedule.but(stages=stages) for stages in range(1, 9))
    return [each for each in possible if resources.shared_bytes(work, each) <= place]


def ahead_bytes(work: Work, schedule: CudaSchedule) -> int:
    """That a multiprocessor copies ahead."""
    each, _ = resources.shared_parts(work, schedule)
    return (schedule.stages - schedule.held_stages) * schedule.blocks * each


@pytest.mark.parametrize("name", ["softmax_forward", "layer_norm_backward", "rms_norm_forward"])
@pytest.mark.parametrize("columns", [264, 4907, 16384, 50257])
def test_as_much_is_copied_ahead_as_is_enough(name: str, columns: int) -> None:
    """And no more; two tiles of a multiprocessor, at the least. Of what is likely the fastest, a stage more, too."""
    split = split_of(name, 2**26 // columns, columns)
    found = candidates(split)
    for schedule in found:
        work = Work.under(split, schedule)
        assert isinstance(work, Work)
        enough = resources.least_ahead_bytes(schedule)
        more, fewer = (schedule.but(stages=schedule.stages + change) for change in (1, -1))
        if ahead_bytes(work, schedule) < enough:
            assert more not in staged(work, schedule)
        elif schedule.stages > 1 + 2 * schedule.lag:
            assert ahead_bytes(work, fewer) < enough or fewer.stages * fewer.blocks < 2
        assert schedule.stages * schedule.blocks >= 2
    first, *_ = best = choice.ranked(split)
    assert {*found} < {*best}
    assert choice.chosen(split) == first
    for schedule in {*best} - {*found}:
        assert schedule.but(stages=schedule.stages - 1) in found


@pytest.mark.parametrize("name", ["rms_norm_backward", "layer_norm_backward", "layer_norm_forward"])
@pytest.mark.parametrize("columns", [12288, 24576, 32768, 35535])
def test_shared_memory_is_counted_as_it_is_laid_out(name: str, columns: int) -> None:
    """Of whatever is planned: a kernel that a block has no place for cannot be started."""
    split = split_of(name, 1335, columns)
    work, found = Work.of(split), candidates(split)
    assert isinstance(work, Work)
    for schedule in {schedule.but(stages=0): schedule for schedule in found[:: max(1, len(found) // 20)]}.values():
        kernel = Kernel(split.program, schedule)
        needed = shared_bytes(kernel)
        gathered = 4 * resources.FINISH_COLUMNS * schedule.warps * (schedule.finish == "same")  # where stages were
        assert needed <= resources.shared_bytes(work, schedule) <= needed + gathered + 1024
        assert BACKEND.supports(kernel) is None


@pytest.mark.parametrize(
    ("name", "columns", "tile"),
    [
        ("layer_norm_forward", 35535, "registers"),
        ("layer_norm_forward", 41496, "registers"),
        ("softmax_backward", 16384, "registers"),
        ("softmax_forward", 65536, "exponentials"),
    ],
)
def test_tiles_wait_in_registers_where_threads_have_place_for_them(name: str, columns: int, tile: str) -> None:
    split = split_of(name, 1335, columns)
    found = candidates(split)
    held = {schedule.but(tile="shared", stages=0) for schedule in found if schedule.tile == tile}
    for schedule in found:
        most = resources.most_registers(schedule.warps, schedule.blocks, TARGET)
        made = schedule.but(tile=tile)
        work = Work.under(split, made)
        assert isinstance(work, Work)
        fits = schedule.lag == 0 and wanted_registers(work, made) <= most
        assert (schedule.but(tile="shared", stages=0) in held) == fits
    assert held


def test_an_exponential_that_waits_is_computed_once() -> None:
    split, base = split_of("softmax_forward", 1024, 65536), CudaSchedule("CLUSTER", ("m",), ("n",))
    plain, held = Work.under(split, base), Work.under(split, base.but(tile="exponentials"))
    assert isinstance(plain, Work)
    assert isinstance(held, Work)
    assert (plain.loads, held.loads) == (2, 1)
    assert held.operations < plain.operations - 6


def test_a_tile_that_is_read_once_waits_in_shared_memory() -> None:
    found = candidates(split_of("cross_entropy_forward", 1335, 50257))
    assert found
    assert {schedule.tile for schedule in found} == {"shared"}


@pytest.mark.parametrize(("columns", "lanes"), [(1024, {8, 4, 2}), (1004, {4, 2}), (1002, {2})])
def test_short_vectors_are_tried_where_long_ones_are_refused(columns: int, lanes: set[int]) -> None:
    """Rows that are not equally far apart, and begin between two of these."""
    split = split_of("qk_norm_forward", 4096, columns)
    assert {each for each in (8, 4, 2) if isinstance(Work.of(split, each), Work)} == lanes
    assert {schedule.lanes for schedule in candidates(split)} == lanes


def test_one_warp_waits_for_nobody() -> None:
    found = candidates(split_of("softmax_forward", 16384, 512))
    alone = [schedule for schedule in found if schedule.warps * schedule.cluster == 1]
    assert alone
    assert all(schedule.lag == 0 for schedule in alone)
