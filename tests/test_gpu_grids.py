"""What a launch on a GPU is given, without one: slices of a workspace, a grid, and options."""

from __future__ import annotations

import ctypes
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")


from tests.gpu_driver import STREAM, Driver, played_driver  # noqa: F401
from tests.triton_by_hand import SAME, SEPARATE
from weft.backends.abi import Abi, Launch, at_most, ceil_div, count, largest, product
from weft.backends.triton import text
from weft.errors import BuildError
from weft.ir.parser import parse
from weft.ir.printer import print_program
from weft.ir.program import Size
from weft.options import LaunchOptions, Options
from weft.runtime.gpu import workspace
from weft.runtime.gpu.workspace import Workspace

# the workspace

TWO_SUMS = replace(
    SEPARATE,
    schedule=replace(SEPARATE.schedule, stages=1),  # tiles that are loaded ahead would have every eighth row
    program=parse(
        """program p(s0)
  dim m = s0
  dim n = 5
  input x: f32 [m:5, n:1]
  wide: f64{m, n} = cast(x)
  column: f32{n} = sum[m](x)
  highest: f32{n} = max[m](x)
  total: f64{n} = sum[m](wide)
  output a: f32 [n:1] = column
  output b: f32 [n:1] = highest
  output c: f64 [n:1] = total
end
"""
    ),
)


@pytest.mark.parametrize(("rows", "offsets", "size"), [(32, (0, 256, 512), 896), (1, (0, 128, 256), 384)])
def test_slices_of_the_workspace_start_at_lines_of_the_cache(rows: int, offsets: tuple[int, ...], size: int) -> None:
    """8 chunks of 5 float32 are 160 bytes, of 5 float64 320."""
    abi, sizes = text.abi(TWO_SUMS), {"s0": rows}
    assert [count(p.elements, sizes) for p in abi.partials] == [5 * min(8, -(-rows // 4))] * 3
    assert Workspace.of(abi, sizes) == Workspace(size, offsets, None)


def test_addresses_are_in_the_memory_that_is_kept() -> None:
    kept, addresses = Workspace(896, (0, 256, 512), None).allocate(torch.device("cpu"), STREAM)
    (slices,) = kept
    assert slices.nbytes == 896
    assert [a - slices.data_ptr() for a in addresses] == [0, 256, 512]
    assert Workspace(0, (), None).allocate(torch.device("cpu"), STREAM) == ([], [])


@pytest.fixture
def bank(monkeypatch: pytest.MonkeyPatch) -> None:
    """No counter was ever asked for, and blocks are small."""
    monkeypatch.setattr(workspace, "_BANKS", {})
    monkeypatch.setattr(workspace, "COUNTERS", 3)


@pytest.mark.usefixtures("bank")
def test_a_graph_of_more_kernels_than_there_are_counters_sets_its_own_to_zero(driver: Driver) -> None:
    given = Workspace(0, (), workspace.Counters())
    device = torch.device("cpu")
    _, first = given.allocate(device, STREAM)
    driver.capturing = True
    captured = [given.allocate(device, STREAM) for _ in range(4)]
    assert [len(kept) for kept, _ in captured] == [0, 0, 1, 1]  # two of the block were left
    assert len({*first, *(address for _, (address,) in captured)}) == 5
    for kept, (address,) in captured[2:]:
        assert kept[0].data_ptr() == address
        assert ctypes.c_int64.from_address(address).value == 0
    driver.capturing = False
    assert given.allocate(device, STREAM + 1)[0] == []  # another block


@pytest.mark.usefixtures("bank")
def test_counters_are_no_memory_of_the_thread_that_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a thread allocates may be memory of a CUDA graph that is given back."""
    threads: list[int] = []
    zeros = torch.zeros

    def spy(*arguments: Any, **named: Any) -> torch.Tensor:
        threads.append(threading.get_ident())
        return zeros(*arguments, **named)

    monkeypatch.setattr(torch, "zeros", spy)
    Workspace(0, (), workspace.Counters()).allocate(torch.device("cpu"), STREAM)
    assert len(threads) == 1
    assert threads != [threading.get_ident()]


@pytest.mark.usefixtures("bank")
def test_threads_that_ask_first_share_a_bank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "_Bank", lambda device: time.sleep(0.01) or [device])
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(workspace._bank, [torch.device("cpu")] * 4))
    assert all(one is found[0] for one in found)


# grids


@pytest.mark.parametrize(
    ("grid", "persistent", "cooperative", "margin", "expected"),
    [
        ((500, 1), True, False, 0, (264, 1)),
        ((500, 1), True, False, 32, (200, 1)),
        ((100, 1), True, False, 0, (100, 1)),
        ((500, 3), True, True, 0, (88, 3)),
        ((500, 300), True, False, 0, (1, 300)),
        ((500, 1), True, True, 500, (2, 1)),
        ((500, 7), False, False, 100, (500, 7)),
        ((0, 7), True, True, 0, (0, 7)),
    ],
)
def test_persistent_programs_are_as_many_as_are_resident(
    grid: tuple[int, int], persistent: bool, cooperative: bool, margin: int, expected: tuple[int, int]
) -> None:
    launch = Launch("weft_p", grid, 128, persistent, cooperative)
    resident = launch.resident(2 * 132, 132, margin)
    assert Abi((), (), cooperative, (), (launch,)).grid(launch, {}, resident) == expected


@pytest.mark.parametrize(
    ("cluster", "clusters", "units", "margin", "expected"),
    [
        (1, 264, 132, 0, 264),
        (1, 264, 132, 32, 200),
        (1, 264, 132, 500, 2),
        (4, 31, 132, 0, 124),
        (4, 31, 132, 1, 120),  # 30.8 clusters
        (4, 31, 132, 32, 92),
        (16, 8, 132, 0, 128),
        (16, 8, 132, 131, 16),
        (2, 264, 132, 132, 4),  # one SM's share
    ],
)
def test_the_margin_takes_its_share_of_clusters(
    cluster: int, clusters: int, units: int, margin: int, expected: int
) -> None:
    assert Launch("weft_p", (500, 1), 128, cluster=cluster).resident(clusters, units, margin) == expected


@pytest.mark.parametrize(
    ("grid", "persistent", "cooperative", "cluster", "resident", "expected"),
    [
        ((500, 1), True, True, 4, 124, (124, 1)),
        ((500, 1), True, False, 4, 127, (124, 1)),
        ((48, 1), True, True, 16, 128, (48, 1)),
        ((496, 3), True, True, 4, 124, (40, 3)),
        ((496, 31), True, True, 4, 124, (4, 31)),
        ((496, 99), True, False, 4, 124, (4, 99)),
        ((500, 7), False, False, 4, 124, (500, 7)),
        ((0, 7), True, True, 4, 124, (0, 7)),
    ],
)
def test_resident_programs_are_whole_clusters(
    grid: tuple[int, int],
    persistent: bool,
    cooperative: bool,
    cluster: int,
    resident: int,
    expected: tuple[int, int],
) -> None:
    launch = Launch("weft_p", grid, 128, persistent, cooperative, cluster)
    assert Abi((), (), cooperative, (), (launch,)).grid(launch, {}, resident) == expected


@pytest.mark.parametrize(
    ("grid", "cluster", "message"),
    [
        ((4, 9), 1, "9 programs wait for each other, the GPU holds 8 at a time"),
        ((4, 3), 4, "12 programs wait for each other, the GPU holds 8 at a time"),
        ((6, 1), 4, "6 programs are no clusters of 4"),
    ],
)
def test_programs_that_wait_for_each_other_all_have_to_be_resident(
    grid: tuple[int, int], cluster: int, message: str
) -> None:
    with pytest.raises(BuildError, match=rf"^weft_p: {message}$"):
        Abi((), (), True, (), ()).grid(Launch("weft_p", grid, 128, True, True, cluster), {}, 8)


@pytest.mark.parametrize(
    ("made", "text", "number"),
    [
        (product([3, 4]), 12, 12),
        (product([3, "s0", "-(-s0 // 4)"]), "s0 * (-(-s0 // 4)) * 3", 10 * 3 * 3),
        (product(["s0", 0]), 0, 0),
        (ceil_div(9, 4), 3, 3),
        (ceil_div("s0", 1), "s0", 10),
        (ceil_div("s0 * 4", 3), "-(-(s0 * 4) // 3)", 14),
        (at_most(9, 4), 4, 4),
        (at_most(0, 4), 1, 1),
        (at_most("s0", 4), "max(1, min(s0, 4))", 4),
        (largest([3, 9, 4]), 9, 9),
        (largest(["s0", 3]), "max(s0, 3)", 10),
        (largest(["s0", "s0"]), "s0", 10),
    ],
)
def test_counts_are_numbers_where_sizes_are_known(made: Size, text: Size, number: int) -> None:
    assert made == text
    assert count(made, {"s0": 10}) == number


def test_a_parameter_may_be_called_as_a_function_of_counts_is() -> None:
    named = replace(TWO_SUMS, program=parse(print_program(TWO_SUMS.program).replace("s0", "max")))
    abi = text.abi(named)
    assert abi.parameters == ("max_",)
    assert [count(p.elements, {"max_": 32}) for p in abi.partials] == [5 * 8] * 3
    assert "max_" in text.render(named).text


def test_an_abi_prints_what_a_launcher_has_to_know() -> None:
    assert str(text.abi(SEPARATE)) == (
        "words x, y, columns, column__partial, s0\n"
        "partial column__partial: f32 [(max(1, min(-(-s0 // 4), 8))) * 64]\n"
        "launch weft_p grid=(max(1, min(-(-s0 // 4), 8)), 1) threads=128 persistent\n"
        "launch weft_p_finish grid=(8, 1) threads=128 persistent\n"
    )
    assert str(text.abi(SAME)) == (
        "words x, y, columns, column__partial, counter, s0\n"
        "partial column__partial: f32 [(max(1, min(-(-s0 // 4), 8))) * 64]\n"
        "launch weft_p grid=(max(1, min(-(-s0 // 4), 8)), 1) threads=128 persistent cooperative\n"
    )
    clustered = Launch("weft_p", ("s0 * 4", 1), 128, persistent=True, cluster=4)
    assert str(clustered) == "launch weft_p grid=(s0 * 4, 1) threads=128 cluster=4 persistent"


# options


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (LaunchOptions(), "off"),
        (LaunchOptions("first"), "first"),
        (LaunchOptions("off", 8), "off sm_margin=8"),
        (LaunchOptions("always", 16), "always sm_margin=16"),
    ],
)
def test_the_options_of_a_launch_travel_as_text(options: LaunchOptions, text: str) -> None:
    assert str(options) == text
    assert LaunchOptions.parse(text) == options


def test_the_margin_is_an_option_that_only_gpus_see() -> None:
    assert Options.read({}, {}).sm_margin == 0
    assert Options.read({}, {"WEFT_SM_MARGIN": "8"}).sm_margin == 8
    options = Options.read({"sm_margin": 4}, {"WEFT_SM_MARGIN": "8"})
    assert [str(options.of_launch(device)) for device in ("cpu", "cuda")] == ["off", "off sm_margin=4"]
    assert "sm_margin=4" in repr(options)  # part of the key of Inductor's cache: the margin is in its graphs


@pytest.mark.parametrize("wrong", [-1, "8 SMs", 1.5])
def test_a_margin_that_is_no_number_of_sms_is_an_error(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"^the SMs to leave free \(sm_margin, WEFT_SM_MARGIN\) are a number of SMs"):
        Options.read({"sm_margin": wrong}, {})
