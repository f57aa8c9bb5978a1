"""Launches in clusters of programs with the driver played by Python: tensors of the CPU stand for those of a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from tests.gpu_driver import Driver, played_driver  # noqa: F401
from tests.triton_by_hand import PROGRAM, SEPARATE, SOURCE
from weft.ir.interpret import interpret
from weft.options import Options
from weft.runtime.executable import Executable
from weft.runtime.gpu.function import GpuFunction


def tensors() -> tuple[list[Tensor], list[Tensor]]:
    return [torch.ones(32, 64, dtype=torch.bfloat16)], [torch.empty(32, 64), torch.empty(64)]


def in_clusters(size: int) -> Executable:
    """A kernel of two functions, of which the first is started in clusters of so many programs."""
    function = GpuFunction(SEPARATE, SOURCE, Options.read({}, {}))
    first, *others = function.abi.launches
    function.abi = replace(function.abi, launches=(replace(first, cluster=size), *others))
    return Executable(SEPARATE, function)


def test_clusters_are_as_many_as_the_driver_says(driver: Driver) -> None:
    """8 chunks are shared by 3 clusters of 2 programs, or by those that are left."""
    run = in_clusters(2)
    for options in ("off", "off sm_margin=1", "off sm_margin=99"):
        run(*tensors(), [32], options)
    assert [grid for name, grid, *_ in driver.started if name == "weft_p"] == [(6, 1), (4, 1), (2, 1)]
    assert driver.clusters == [2, 1] * 3


def test_the_launcher_is_told_of_clusters(driver: Driver) -> None:
    run, (given, made) = in_clusters(4), tensors()
    run(given, made, [32])
    numbers = run.repeatable(given, made, [32], "off").split()
    assert numbers[-14:-7] == ["1", "8", "1", "128", "2048", "4", "0"]
    assert numbers[-7:] == ["2", "6", "1", "128", "2048", "1", "0"]


def test_what_the_gpu_has_no_room_for_is_atens(driver: Driver) -> None:
    driver.most_clusters = 0
    given, made = tensors()
    room = "the GPU holds no cluster of 8 programs, each of 128 threads and 2048 bytes of shared memory"
    with pytest.warns(UserWarning, match=f"weft_p: {room}"):
        in_clusters(8)(given, made, [32])
    assert driver.started == []
    assert torch.equal(made[1].double(), interpret(PROGRAM, given, [32])[1])
