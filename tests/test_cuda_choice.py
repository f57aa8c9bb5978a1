"""Which schedules of CUDA C++ are chosen: what a thread holds, as ptxas says, and times, as they were measured."""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import replace
from functools import cache

import pytest

from tests.cases import often
from tests.cuda_kernels import kernel_of, planned_for
from tools.cuda_fit import Point, points_of
from tools.gpu_cells import Cell, drawn_cells, parts_of
from tools.swept import CLUSTERS_TIMED, TARGET
from weft.backends.binary import Job, Variant
from weft.backends.cuda import build, choice, resources
from weft.backends.cuda.backend import BACKEND
from weft.backends.cuda.candidates import candidates
from weft.backends.cuda.cost import constants, times_us
from weft.backends.cuda.launches import shared_bytes
from weft.backends.cuda.registers import wanted_registers
from weft.backends.cuda.schedule import CudaSchedule
from weft.backends.cuda.view import View, in_one_pass, turn_tiles
from weft.backends.cuda.work import Work
from weft.backends.listed import render
from weft.plan.kernel import Kernel
from weft.plan.schedules import candidates as all_candidates
from weft.plan.schedules import schedule_for
from weft.plan.split import Split
from weft.target import Target

needs_nvrtc = pytest.mark.skipif(build.missing() != "", reason=f"{build.missing()} is missing")
WORKLOADS = (
    "rms_norm_backward",
    "layer_norm_backward",
    "softmax_forward",
    "layer_norm_forward",
    "cross_entropy_forward",
)


def split_of(name: str, rows: int, columns: int, dtype: str = "bf16", target: Target = TARGET) -> Split:
    """The whole of a workload."""
    return parts_of(Cell(name, dtype, rows, columns), target)[name]


@cache
def points() -> list[Point]:
    """Of every fourth shape."""
    return points_of([CLUSTERS_TIMED], 4)


# resources


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


# times


def test_times_are_near_what_was_measured() -> None:
    """Of schedules near the best of their kernels, at shapes that were drawn."""
    known = constants(TARGET)
    near = [p for p in points() if p.slower < math.log(1.15)]
    errors = [abs(math.log(times_us(p.work, p.schedule, TARGET, known).all / p.us)) for p in near]
    assert len(near) > 1000
    assert sum(error < math.log(1.1) for error in errors) >= 0.65 * len(errors)
    assert sum(error < math.log(1.25) for error in errors) >= 0.93 * len(errors)


def test_choices_lose_little() -> None:
    kernels: dict[tuple[Cell, str], list[Point]] = {}
    for point in points():
        kernels.setdefault((point.cell, point.part), []).append(point)
    known = constants(TARGET)

    def lost(own: list[Point]) -> float:
        chosen = min(own, key=lambda p: times_us(p.work, p.schedule, TARGET, known).all)
        return chosen.us / min(p.us for p in own)

    assert statistics.geometric_mean(map(lost, kernels.values())) < 1.06


def test_chunks_of_likely_widths_have_a_stride_as_those_of_known_ones_do() -> None:
    """Where rows begin at several places some chunks turn from one to another, and have fewer tiles; a multiple of 16
    has none of that."""
    known = split_of("rms_norm_backward", 2048, 32768)
    (schedule, *_) = choice.ranked(known)
    _, likely, _ = planned_for("rms_norm_backward", (2048, 32768))
    _, odd, _ = planned_for("rms_norm_backward", (2048, 32761))
    tiles = {name: _work_of(split).places_tiles(schedule) for name, split in (("likely", likely), ("odd", odd))}
    turn = turn_tiles(1, [2], [2, 2], [2], schedule.rows_per_tile)
    assert turn > 0
    assert tiles == {"likely": 2048 // schedule.rows_per_tile, "odd": 2048 // schedule.rows_per_tile + 8 * turn}
    assert choice.times_of(likely, schedule).tiles == pytest.approx(choice.times_of(known, schedule).tiles, rel=0.01)
    assert choice.times_of(odd, schedule).tiles > 1.03 * choice.times_of(known, schedule).tiles


@pytest.mark.parametrize(
    ("name", "columns", "rows_per_tile"),
    [("rms_norm_backward", 1001, 1), ("layer_norm_backward", 1001, 2), ("layer_norm_backward_bias", 1002, 4)],
)
def test_chunks_have_as_many_tiles_fewer_as_the_model_says(name: str, columns: int, rows_per_tile: int) -> None:
    _, kernel = kernel_of(name, (515, columns), warps=4, rows_per_tile=rows_per_tile, chunks=60 - (columns % 4 == 2))
    work, view = _work_of(split_of(name, 515, columns)), View(in_one_pass(kernel))
    places, tiles = work.alike, -(-515 // (work.alike * rows_per_tile))
    assert work.places_tiles(kernel.schedule) == places * (tiles + view.turn)
    whole = kernel.schedule.but(chunks=64)
    assert work.places_tiles(whole) == places * tiles  # no chunk has two places
    text = render(kernel).text
    assert f"w::tiles_of<apart, {'tile_rows' if rows_per_tile > 1 else 1}, turn>(" in text
    assert f"constexpr int turn = {view.turn};" in text
    assert view.turn > 0


def _work_of(split: Split) -> Work:
    work = Work.of(split)
    assert isinstance(work, Work)
    return work


# choices


@pytest.mark.parametrize(
    ("name", "rows", "columns", "backend"),
    [
        ("rms_norm_backward", 16384, 4096, "triton"),
        ("layer_norm_forward", 8192, 8192, "triton"),
        ("layer_norm_backward", 4096, 16384, "cuda"),
        ("rms_norm_backward", 1024, 65536, "cuda"),
        ("softmax_forward", 1335, 50257, "cuda"),
        ("layer_norm_forward", 512, 131072, "cuda"),
    ],
)
def test_the_backend_with_the_shorter_time_is_taken(name: str, rows: int, columns: int, backend: str) -> None:
    """As it was measured."""
    assert schedule_for(split_of(name, rows, columns)).backend == backend


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


# row tiles that overlap


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


def test_rows_that_are_copied_one_by_one_take_the_thread_that_copies_longer() -> None:
    """As those of a cluster, or of chunks with parts, do: of two inputs and two numbers of a row."""
    even, odd = (Work.of(split_of("layer_norm_backward", 65536, columns)) for columns in (1024, 1025))
    assert isinstance(even, Work)
    assert isinstance(odd, Work)
    fields = {"rows_per_tile": 8, "warps": 8, "vectors": 2, "stages": 3, "chunks": 132, "finish": "separate"}
    base = CudaSchedule("CLUSTER", ("m",), ("n",), (), **fields)
    assert [even.copies(base), even.copies(base.but(cluster=2)), even.copies(base.but(rows_per_tile=1))] == [4, 32, 4]
    assert [odd.copies(base), odd.copies(base.but(groups=8))] == [32, 4]
    slow = replace(constants(TARGET), copy_ns=1000.0)
    assert times_us(odd, base, TARGET, slow).tiles > times_us(odd, base, TARGET, constants(TARGET)).tiles


def test_clusters_that_are_no_multiple_of_those_held_at_a_time_share_multiprocessors() -> None:
    """An H200 holds seven clusters of sixteen blocks at a time: of 24 some share with three others, as all of 28
    do, though there were place for all blocks with three on each multiprocessor."""
    work = Work.of(split_of("layer_norm_backward", 2048, 32768))
    assert isinstance(work, Work)
    fields = {"cluster": 16, "blocks": 4, "rows_per_tile": 2, "warps": 3, "vectors": 3, "stages": 2}
    base = CudaSchedule("CLUSTER", ("m",), ("n",), (), finish="separate", **fields)
    slow = replace(constants(TARGET), issue_ns=1.0, latency_ns=0.0)

    def each(chunks: int) -> float:
        return times_us(work, base.but(chunks=chunks), TARGET, slow).tiles / math.ceil(1024 / chunks)

    assert each(24) == pytest.approx(each(28), rel=0.02)
    assert each(21) < 0.8 * each(24)


@pytest.mark.parametrize(("columns", "rows"), [(1024, 0), (1032, 512), (1025, 512)])
def test_rows_that_are_stored_between_sectors_are_counted(columns: int, rows: int) -> None:
    work = Work.of(split_of("rms_norm_forward", 512, columns))
    assert isinstance(work, Work)
    assert work.stored_between_sectors == rows


@pytest.mark.parametrize(
    ("constant", "fewer", "more"),
    [
        ("partly_bytes", {"warps": 4, "groups": 4}, {"warps": 8, "groups": 8}),
        ("partly_bytes", {"warps": 4, "groups": 4}, {"warps": 4, "groups": 4, "blocks": 2}),
        ("partly_bytes", {"warps": 4, "groups": 4}, {"warps": 4, "groups": 16}),
        ("partly_bytes", {"warps": 4, "groups": 4}, {"warps": 4, "groups": 4, "lanes": 2}),
        ("edge_bytes", {"warps": 4, "groups": 4}, {"warps": 4, "groups": 8}),
        ("edge_bytes", {"warps": 4, "groups": 4, "lanes": 2}, {"warps": 4, "groups": 4}),
    ],
)
def test_what_is_stored_between_sectors_takes_longer(
    constant: str, fewer: dict[str, int], more: dict[str, int]
) -> None:
    """Twice, four times or seven times as long."""
    base = CudaSchedule("CLUSTER", ("m",), ("n",), (), rows_per_tile=32, vectors=6, stages=2, chunks=264)

    def takes(columns: int, fields: dict[str, int]) -> float:
        schedule = base.but(**fields)
        work = Work.of(split_of("rms_norm_forward", 2**26 // columns, columns), schedule.lanes)
        assert isinstance(work, Work)
        known = replace(constants(TARGET), partly_bytes=0.0, edge_bytes=0.0, ahead=0.0, scarce=0.0)
        plain, slow = (
            times_us(work, schedule, TARGET, each).memory for each in (known, replace(known, **{constant: 1e3}))
        )
        return slow - plain

    assert takes(336, fewer) == takes(336, more) == 0
    times = 7 if "lanes" in fewer else 4 if "lanes" in more or more["groups"] == 16 else 2
    assert takes(333, more) == pytest.approx(times * takes(333, fewer), rel=1e-6)


def test_row_reductions_that_come_behind_are_not_waited_for() -> None:
    """If that takes time, and there are stages enough: a tile that comes behind keeps one."""
    work = Work.of(split_of("layer_norm_backward", 4096, 16384))
    assert isinstance(work, Work)
    known = replace(constants(TARGET), exchange_ns=500.0)
    base = CudaSchedule(
        "CLUSTER", ("m",), ("n",), (), rows_per_tile=1, finish="separate", warps=8, vectors=4, chunks=16
    )

    def saved(stages: int, cluster: int) -> float:
        own = base.but(stages=stages, cluster=cluster)
        plain, behind = (times_us(work, own.but(lag=lag), TARGET, known).tiles for lag in (0, 1))
        return 1 - behind / plain

    assert all(saved(4, cluster) > 0 for cluster in (1, 2, 8))
    assert saved(2, 1) < saved(3, 1) < saved(4, 1)


def test_stages_that_are_held_are_not_filled() -> None:
    """So more stages of a block take less time, and two blocks of one stage less than one."""
    work = Work.of(split_of("softmax_forward", 1086, 61760))
    assert isinstance(work, Work)
    base = CudaSchedule("CLUSTER", ("m",), ("n",), (), rows_per_tile=1, cluster=2, warps=14, vectors=9, chunks=66)

    def us(stages: int, blocks: int) -> float:
        own = base.but(stages=stages, blocks=blocks, chunks=66 * blocks)
        return times_us(work, own, TARGET, constants(TARGET)).all

    assert us(3, 1) < us(2, 1) < us(1, 1)
    assert us(3, 1) < us(1, 2) < us(1, 1), "measured: 75 us of three stages, 85 of two blocks with one each"


# others


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
    split = split_of("layer_norm_backward", 615, 109104)
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
