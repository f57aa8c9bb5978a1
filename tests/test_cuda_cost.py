"""Predicted times of CUDA C++ kernels, as they were measured."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from functools import cache

import pytest

from tests.cuda_kernels import kernel_of, split_of, work_of
from tools.cuda_fit import Point, points_of
from tools.gpu_cells import Cell
from tools.swept import CLUSTERS_TIMED, TARGET
from weft.backends.cuda.cost import constants, times_us
from weft.backends.cuda.inputs import in_one_pass
from weft.backends.cuda.schedule import CudaSchedule
from weft.backends.cuda.view import View
from weft.backends.cuda.work import Work
from weft.backends.listed import render


@cache
def points() -> list[Point]:
    """Of every fourth shape."""
    return points_of([CLUSTERS_TIMED], 4)


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


@pytest.mark.parametrize(
    ("name", "columns", "rows_per_tile"),
    [("rms_norm_backward", 1001, 1), ("layer_norm_backward", 1001, 2), ("layer_norm_backward_bias", 1002, 4)],
)
def test_chunks_have_as_many_tiles_fewer_as_the_model_says(name: str, columns: int, rows_per_tile: int) -> None:
    _, kernel = kernel_of(name, (515, columns), warps=4, rows_per_tile=rows_per_tile, chunks=60 - (columns % 4 == 2))
    work, view = work_of(split_of(name, 515, columns)), View(in_one_pass(kernel))
    places, tiles = work.alike, -(-515 // (work.alike * rows_per_tile))
    assert work.places_tiles(kernel.schedule) == places * (tiles + view.turn)
    whole = kernel.schedule.but(chunks=64)
    assert work.places_tiles(whole) == places * tiles  # no chunk has two places
    text = render(kernel).text
    assert f"w::tiles_of<apart, {'tile_rows' if rows_per_tile > 1 else 1}, turn>(" in text
    assert f"constexpr int turn = {view.turn};" in text
    assert view.turn > 0


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
        known = replace(constants(TARGET), partly_bytes=0.0, edge_bytes=0.0, ahead_between=0.0, scarce=0.0)
        plain, slow = (
            times_us(work, schedule, TARGET, each).memory for each in (known, replace(known, **{constant: 1e3}))
        )
        return slow - plain

    assert takes(336, fewer) == takes(336, more) == 0
    times = 7 if "lanes" in fewer else 4 if "lanes" in more or more["groups"] == 16 else 2
    assert takes(333, more) == pytest.approx(times * takes(333, fewer), rel=1e-6)


@pytest.mark.parametrize(
    ("constant", "name", "columns"),
    [
        ("power_sums", "layer_norm_backward", 8192),
        ("power", "layer_norm_forward", 8192),
        ("ahead_between", "layer_norm_backward", 8193),
        ("ahead", "layer_norm_backward", 8192),
        ("edge", "layer_norm_backward", 8193),
    ],
)
def test_each_kind_of_kernel_has_its_constants(constant: str, name: str, columns: int) -> None:
    kinds = [("layer_norm_backward", 8192), ("layer_norm_forward", 8192), ("layer_norm_backward", 8193)]
    known = constants(TARGET)
    more = replace(known, **{constant: 2 * getattr(known, constant)})
    differ = set[tuple[str, int]]()
    for kind in kinds:
        schedule = CudaSchedule(
            "CLUSTER", ("m",), ("n",), (), rows_per_tile=1, warps=8, vectors=5, stages=6, chunks=132
        )
        work = work_of(split_of(kind[0], 8192, kind[1]))
        if times_us(work, schedule, TARGET, known) != times_us(work, schedule, TARGET, more):
            differ.add(kind)
    assert (name, columns) in differ
    others = {"power_sums": {("layer_norm_backward", 8193)}, "ahead": {("layer_norm_forward", 8192)}}
    assert differ == {(name, columns)} | others.get(constant, set())


@pytest.mark.parametrize(
    ("name", "columns", "clears"),
    [
        ("layer_norm_backward", 8193, True),
        ("add_rms_norm_backward", 8193, True),
        ("layer_norm_backward", 8192, False),  # rows begin with vectors
        ("layer_norm_forward", 8193, False),  # moments are no sums of what is zero beside a row
    ],
)
def test_edges_that_become_zeros_are_those_of_the_text(name: str, columns: int, clears: bool) -> None:
    fields = {"rows_per_tile": 1, "warps": 8, "vectors": 5, "chunks": 8, "weights": "shared"}
    kernel = kernel_of(name, (512, columns), **fields)[1]
    assert work_of(split_of(name, 512, columns)).clears_edges(kernel.schedule) is clears
    assert ("row_lanes[" in render(kernel).text) is clears


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
