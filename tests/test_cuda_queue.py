"""CUDA C++ kernels whose clusters take row tiles from a queue: which these are, and what lies where for it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cuda_kernels import WORKLOADS_OF_ROWS, kernel_of
from tests.test_cuda_kernels import compiled, needs_nvrtc
from weft.backends.cuda import text
from weft.backends.cuda.view import View
from weft.backends.listed import render

ANYWHERE = (
    *("softmax_forward", "softmax_backward", "log_softmax_forward", "log_softmax_backward"),
    "modulated_layer_norm_forward",
)
"""Workloads without column sums, and without weights that are the same for all rows."""
ALIKE = (*ANYWHERE, "rms_norm_forward", "layer_norm_forward", "add_rms_norm_forward", "rms_norm_fp8")
"""Those without column sums."""


@pytest.mark.parametrize(("columns", "queued"), [(2048, ALIKE), (1001, ANYWHERE)])
def test_tiles_are_queued_where_none_has_to_do_with_another(columns: int, queued: tuple[str, ...]) -> None:
    """No columns are added up, and no weights are kept for rows that begin alike."""
    kernels = {name: kernel_of(name, (512, columns), warps=4)[1] for name in WORKLOADS_OF_ROWS}
    assert {name for name, kernel in kernels.items() if View(kernel).is_queued} == {*queued}
    for name, kernel in kernels.items():
        lines = render(kernel).text.splitlines()
        assert any("w::TileQueue" in line for line in lines) == (name in queued)
        assert any("gridDim" in line for line in lines) == (name not in queued)
        nests = text.lowered(kernel)[1]
        assert str(nests[0]).count("tiles of=queue") == 2 * (name in queued)


def test_a_queue_has_a_counter_and_its_clusters_do_not_wait_for_each_other() -> None:
    abi = text.abi(kernel_of("softmax_forward", (512, 2048), warps=4, cluster=2)[1])
    assert abi.counter
    assert "words x, out0, counter\n" in str(abi)
    assert [launch.cooperative for launch in abi.launches] == [False]


@pytest.mark.parametrize("fields", [{}, {"rows_per_tile": 2}, {"cluster": 2, "stages": 3, "lag": 1}])
def test_what_lies_in_shared_memory_does_not_overlap(fields: dict[str, Any]) -> None:
    _, kernel = kernel_of("layer_norm_forward", (512, 2048), **{"warps": 4, "stages": 2} | fields)
    layout, schedule = text.Layout(*text.lowered(kernel)), kernel.schedule
    places = schedule.stages + 2 if schedule.cluster > 1 else 0
    assert layout.next_rows_at % 8 == 0
    assert layout.barriers_at == layout.next_rows_at + 8 * (schedule.stages + places)
    assert layout.queue_barriers == 2 * schedule.stages + schedule.exchange_places
    assert 0 <= layout.end - layout.barriers_at - 8 * (layout.queue_barriers + places) < 128
    head = f"w::TileQueue<cluster, {places}> queue("
    (line,) = (line.strip() for line in render(kernel).text.splitlines() if "TileQueue" in line)
    assert line.startswith(head)
    assert line.endswith(f", counter, next_rows + {schedule.stages}, barriers + {layout.queue_barriers}, rank);")


@needs_nvrtc
@pytest.mark.parametrize("name", ["layer_norm_forward", "softmax_backward", "modulated_layer_norm_forward"])
@pytest.mark.parametrize("fields", [{}, {"rows_per_tile": 2, "cluster": 8}, {"cluster": 2, "stages": 3, "lag": 1}])
def test_queues_compile(name: str, fields: dict[str, Any]) -> None:
    compiled(kernel_of(name, (515, 2048), warps=4, **fields)[1], 90)
    compiled(kernel_of(name, (515, 2048), warps=4, **fields, dynamic=True)[1], 100, aligned=False)
