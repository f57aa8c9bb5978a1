"""CUDA C++ kernels whose clusters take row tiles from a queue: which these are, and what lies where for it."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable
from importlib import resources
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cases import checkered, often
from tests.cuda_kernels import WORKLOADS_OF_ROWS, compiled, kernel_of, needs_nvrtc
from tests.host_cuda import library
from weft.backends.cuda import launches
from weft.backends.cuda.inputs import in_one_pass
from weft.backends.cuda.schedule import CudaSchedule
from weft.backends.cuda.view import View
from weft.backends.cuda.work import Work
from weft.backends.listed import render
from weft.plan.split import Split
from weft.target import Target

ANYWHERE = (
    *("softmax_forward", "softmax_backward", "log_softmax_forward", "log_softmax_backward"),
    "modulated_layer_norm_forward",
)
"""Workloads without column sums, and without weights that are the same for all rows."""
ALIKE = (*ANYWHERE, "rms_norm_forward", "layer_norm_forward", "add_rms_norm_forward", "rms_norm_fp8")
"""Those without column sums."""


@pytest.mark.parametrize(
    ("columns", "weights", "queued"),
    [(2048, "registers", ALIKE), (2048, "shared", ALIKE), (1001, "registers", ANYWHERE), (1001, "shared", ALIKE)],
)
def test_tiles_are_queued_where_none_has_to_do_with_another(
    columns: int, weights: str, queued: tuple[str, ...]
) -> None:
    """No columns are added up, and no weights are kept for rows that begin alike."""
    kernels = {name: kernel_of(name, (512, columns), warps=4, weights=weights)[1] for name in WORKLOADS_OF_ROWS}
    assert {name for name, kernel in kernels.items() if View(kernel).is_queued} == {*queued}
    for name, kernel in kernels.items():
        lines = render(kernel).text.splitlines()
        assert any("w::TileQueue" in line for line in lines) == (name in queued)
        assert any("gridDim" in line for line in lines) == (name not in queued)
        nests = launches.lowered(kernel)[1]
        assert str(nests[0]).count("tiles of=queue") == 2 * (name in queued)
        assert str(nests[0]).count("chunks\n") == 2 * (name not in queued)


@needs_nvrtc
@pytest.mark.parametrize(
    ("name", "dtype"),
    checkered([name for name in ALIKE if name not in ANYWHERE], [torch.bfloat16, torch.float32]),
    ids=str,
)
def test_weights_are_shifted_in_shared_memory_where_rows_begin_between_vectors(name: str, dtype: torch.dtype) -> None:
    wide: dict[str, Any] = {"cluster": 2, "warps": 4, "vectors": 4, "weights": "shared"}
    for columns in (2048, 2001):
        _, kernel = kernel_of(name, (512, columns), dtype, **wide)
        lines = render(kernel).text.splitlines()
        shifted = {line.strip() for line in lines if "_tile.before(vector + 1, before)" in line}
        assert len(shifted) == (len(View(kernel).kept(shifted=True)) if columns == 2001 else 0)
        assert any("w::wait_for_threads<threads>();" in line for line in lines) == (columns == 2001)
        for aligned in (True, False):
            compiled(kernel, 90, aligned=aligned)


@needs_nvrtc
@pytest.mark.parametrize("weights", ["registers", "shared"])
@pytest.mark.parametrize(("columns", "cluster"), checkered([2048, 1001], [1, 2]))
def test_the_model_of_time_knows_which_tiles_are_queued(columns: int, cluster: int, weights: str) -> None:
    for name in WORKLOADS_OF_ROWS:
        _, kernel = kernel_of(name, (512, columns), warps=4, cluster=cluster, weights=weights)
        view, work = View(in_one_pass(kernel)), Work.of(Split.of_kernel(kernel, Target.named("h200"), {}))
        assert isinstance(work, Work)
        found = (work.is_queued, work.keeps_columns, work.shifts_weights, work.has_next_rows)
        right = (view.is_queued, view.keeps_columns, view.shifts_weights, view.has_next_rows)
        assert [each(kernel.schedule) for each in found] == [*right]
        assert work.row_numbers == len(view.numbers()[1])


def test_a_queue_has_a_counter_and_its_clusters_do_not_wait_for_each_other() -> None:
    abi = launches.abi(kernel_of("softmax_forward", (512, 2048), warps=4, cluster=2)[1])
    assert abi.counter
    assert "words x, out0, counter\n" in str(abi)
    assert [launch.cooperative for launch in abi.launches] == [False]


@pytest.mark.parametrize("fields", [{}, {"rows_per_tile": 2}, {"cluster": 2, "stages": 3, "lag": 1}])
def test_what_lies_in_shared_memory_does_not_overlap(fields: dict[str, Any]) -> None:
    chosen: dict[str, Any] = {"warps": 4, "stages": 2} | fields
    _, kernel = kernel_of("layer_norm_forward", (512, 2048), **chosen)
    layout, schedule = launches.Layout(*launches.lowered(kernel)), kernel.schedule
    places = schedule.queue_places
    assert (places > 0) == (schedule.cluster > 1)
    assert layout.next_rows_at % 8 == 0
    assert layout.barriers_at == layout.next_rows_at + 8 * (schedule.stages + places)
    assert layout.queue_barriers == 2 * schedule.stages + schedule.exchange_places
    assert 0 <= layout.end - layout.barriers_at - 8 * (layout.queue_barriers + places) < 128
    head = f"w::TileQueue<cluster, {places}> queue("
    (line,) = (line.strip() for line in render(kernel).text.splitlines() if "TileQueue" in line)
    assert line.startswith(head)
    assert line.endswith(f", counter, next_rows + {schedule.stages}, barriers + {layout.queue_barriers}, rank);")


@needs_nvrtc
@pytest.mark.parametrize(
    "name", often(["layer_norm_forward", "softmax_backward", "modulated_layer_norm_forward"], ["layer_norm_forward"])
)
@pytest.mark.parametrize("fields", [{}, {"rows_per_tile": 2, "cluster": 8}, {"cluster": 2, "stages": 3, "lag": 1}])
def test_queues_compile(name: str, fields: dict[str, Any]) -> None:
    compiled(kernel_of(name, (515, 2048), warps=4, **fields)[1], 90)
    compiled(kernel_of(name, (515, 2048), warps=4, **fields, dynamic=True)[1], 100, aligned=False)


# which tiles clusters of one block take, in any order in which they may ask

_STUBS = """
struct { int x; } gridDim, blockIdx;
inline unsigned long long atomicAdd(unsigned long long* counter, unsigned long long more) {
  return (*counter += more) - more;
}
namespace w {
inline uint32_t shared_address(const void*) { return 0; }
inline void start_barrier(uint32_t, int) {}
inline void arrive_and_expect(uint32_t, uint32_t) {}
template <bool> void wait(uint32_t, uint32_t) {}
inline uint32_t in_block(uint32_t, int) { return 0; }
inline void send_word(uint32_t, uint64_t, uint32_t) {}
}
"""
_CALLED = """
#include <vector>
/// A launch whose clusters ask in an order: turns say which of those that are not done is next, from the first again
/// when they are over. Of each tile that is taken its number, with that of the cluster; their count is returned.
extern "C" int64_t launch(
    unsigned long long* counter, int64_t tiles, int64_t clusters, const int64_t* turns, int64_t many, int64_t* taken
) {
  struct Cluster { w::TileQueue<1, 0> queue; int64_t tile; int number; };
  gridDim.x = static_cast<int>(clusters);
  std::vector<Cluster> running;
  for (int i = 0; i < clusters; ++i) {
    blockIdx.x = i;
    running.push_back({{tiles, counter, nullptr, nullptr, 0}, 0, i});
    running.back().tile = running.back().queue.first();
  }
  int64_t found = 0;
  for (int64_t turn = 0; !running.empty(); ++turn) {
    const auto at = running.begin() + turns[turn % many] % running.size();
    if (at->tile >= tiles) {
      running.erase(at);
      continue;
    }
    taken[2 * found] = at->tile, taken[2 * found + 1] = at->number, ++found;
    blockIdx.x = at->number;
    at->tile = at->queue.next();
  }
  return found;
}
"""
Launch = Callable[[ctypes.c_ulonglong, int, int, list[int]], list[tuple[int, int]]]


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """The tiles that are taken, with the clusters that have them."""
    queue = resources.files("weft.backends.cuda").joinpath("queue.cuh").read_text()
    made = library(_STUBS + queue + _CALLED, tmp_path_factory.mktemp("queue"))
    made.launch.restype = ctypes.c_int64

    def call(counter: ctypes.c_ulonglong, tiles: int, clusters: int, turns: list[int]) -> list[tuple[int, int]]:
        words = (ctypes.c_int64 * (2 * tiles + 2 * clusters))()
        order = (ctypes.c_int64 * len(turns))(*turns)
        count = made.launch(
            ctypes.byref(counter),
            ctypes.c_int64(tiles),
            ctypes.c_int64(clusters),
            order,
            ctypes.c_int64(len(turns)),
            words,
        )
        return [(words[2 * i], words[2 * i + 1]) for i in range(count)]

    return call


@settings(deadline=None, max_examples=400, derandomize=True)
@given(
    tiles=st.integers(1, 300),
    clusters=st.integers(1, 70),
    orders=st.lists(st.lists(st.integers(0, 1000), min_size=1, max_size=40), min_size=1, max_size=4),
)
def test_every_tile_is_taken_once_in_every_launch(
    launch: Launch, tiles: int, clusters: int, orders: list[list[int]]
) -> None:
    """One after the other, whichever cluster is how fast, without setting the counter back."""
    counter = ctypes.c_ulonglong(0)
    for turns in orders:
        taken = launch(counter, tiles, clusters, turns)
        assert Counter(tile for tile, _ in taken) == Counter(range(tiles))


def test_a_cluster_that_is_fast_has_more_tiles(launch: Launch) -> None:
    """Two are given to each, and what is left goes to whoever asks."""
    taken = launch(ctypes.c_ulonglong(0), 100, 4, [0] * 200)
    assert Counter(cluster for _, cluster in taken) == {0: 94, 1: 2, 2: 2, 3: 2}


@pytest.mark.parametrize(("tiles", "clusters", "added"), [(100, 4, 96), (5, 4, 4), (3, 7, 3), (8, 4, 4), (9, 4, 5)])
def test_a_launch_adds_as_much_to_the_counter_in_any_order(
    launch: Launch, tiles: int, clusters: int, added: int
) -> None:
    for turns in ([0], [1, 5, 2, 8], [3, 3, 0, 1, 2]):
        counter = ctypes.c_ulonglong(0)
        launch(counter, tiles, clusters, turns)
        assert counter.value == added


# how far the first block of a cluster can be ahead of another


def events(stages: int, lag: int, tiles: int, *, early: bool) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Of the thread that copies, and of those that compute. early: a stage is free before the row reductions of its
    tile are sent, as where a row is passed over once."""
    copies = [event for tile in range(tiles) for event in (("next", tile + 1), ("copy", tile))]
    computes = list[tuple[str, int]]()
    for tile in range(tiles + lag):
        if tile < tiles:
            computes += [("arrive", tile), *[("release", tile)] * early, ("send", tile)]
        if tile >= lag:
            computes += [("receive", tile - lag), *[("release", tile - lag)] * (not early)]
    return copies, computes


def most_ahead(stages: int, lag: int, *, early: bool) -> int:
    """Numbers that the first of two blocks has sent and the other has not taken, at the most in any order of events."""
    copies, computes = events(stages, lag, stages + 6, early=early)
    place = {event: at for each in (copies, computes) for at, event in enumerate(each)}
    taken = [sum(kind == "next" for kind, _ in copies[:at]) for at in range(len(copies) + 1)]

    def is_possible(event: tuple[str, int], own: tuple[int, int], other: tuple[int, int], *, is_first: bool) -> bool:
        kind, tile = event
        if kind == "next":
            return is_first or other[0] > place[event]
        if kind == "copy":
            return tile < stages or own[1] > place["release", tile - stages]
        if kind == "arrive":
            return own[0] > place["copy", tile]
        return kind != "receive" or other[1] > place["send", tile]

    start = ((0, 0), (0, 0))
    seen, left = {start}, [start]
    while left:
        state = left.pop()
        for block in range(2):
            own, other = state[block], state[1 - block]
            for role, listed in enumerate((copies, computes)):
                if own[role] == len(listed):
                    continue
                if is_possible(listed[own[role]], own, other, is_first=block == 0):
                    moved = (own[0] + (role == 0), own[1] + (role == 1))
                    after = (moved, other) if block == 0 else (other, moved)
                    if after not in seen:
                        seen.add(after)
                        left.append(after)
    return max(taken[first[0]] - taken[second[0]] for first, second in seen)


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize(("lag", "early"), [(0, False), (0, True), (1, False), (1, True)])
def test_there_is_a_place_for_each_number_that_is_sent_and_not_taken(stages: int, lag: int, *, early: bool) -> None:
    """All orders in which two blocks may do what they do are tried."""
    schedule = CudaSchedule("CLUSTER", ("m",), ("n",), (), cluster=2, stages=stages + lag, lag=lag)  # type: ignore[arg-type]
    assert most_ahead(schedule.stages, lag, early=early) <= schedule.queue_places
