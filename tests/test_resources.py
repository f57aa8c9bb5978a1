"""The model of registers and shared memory against what ptxas gives kernels for GPUs, without one."""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from importlib import resources as files
from multiprocessing import get_context
from typing import Any

import pytest
import torch

from tests.cases import make_case
from weft.bench import ptxas_fit
from weft.bench.ptxas_sweep import chosen_kernels, kernels_of, schedules, used
from weft.bench.workloads import WORKLOADS
from weft.plan.kernel import Kernel, Plan, Resources
from weft.plan.planner import plan
from weft.plan.register_weights import FEWEST, SPILLING, WEIGHTS
from weft.plan.resources import given_registers, most_registers, resources
from weft.target import Target

H200 = Target.named("h200")
ARCHITECTURES = {"h200": 90, "gb200": 100}
SAMPLED = {90: 24, 100: 8}
ELEMENTS = 2**26
PARTS = 12
NOT_IN_THE_FIT = (640, 1536, 6144, 10240)
WIDTHS = (256, 512, 1024, 2048, 3072, 4096, 5120, 6144, 8192, 12288, 16384)
CHOSEN = [(name, width, target) for width in WIDTHS for target in ARCHITECTURES for name in WORKLOADS]

OFF_STREAMED: dict[tuple[str, str], tuple[int, ...]] = {
    ("add_rms_norm_backward", "h200"): (4096, 8192, 12288),
    ("add_rms_norm_backward", "gb200"): (12288,),
    ("cross_entropy_forward", "h200"): (512, 3072, 6144, 8192, 12288, 16384),
    ("cross_entropy_forward", "gb200"): (256, 6144, 8192, 12288),
    ("layer_norm_backward", "h200"): (3072,),
    ("layer_norm_backward", "gb200"): (3072,),
    ("modulated_layer_norm_backward", "h200"): (4096, 8192),
    ("qk_norm_backward", "h200"): (3072, 6144),
    ("qk_norm_backward", "gb200"): (3072, 6144, 12288),
    ("rms_norm_backward", "h200"): (3072, 6144),
    ("rms_norm_backward", "gb200"): (3072, 6144, 12288),
    ("row_column_sum", "h200"): (12288,),
    ("row_column_sum", "gb200"): (12288,),
    ("thunder_layer_norm_backward", "h200"): (512, 1024),
    ("thunder_layer_norm_backward", "gb200"): (512, 1024, 2048),
}
"""Kernels whose rows are streamed: losses, sums of rows in pieces, and more than 200 registers, of which ptxas takes
what there is."""
OFF_AT_ONCE: dict[tuple[str, str], tuple[int, ...]] = {
    ("cross_entropy_backward", "h200"): (256, 3072, 4096, 6144, 16384),
    ("cross_entropy_backward", "gb200"): (256, 3072, 4096, 6144, 16384),
    ("layer_norm_backward", "gb200"): (12288, 16384),
    ("layer_norm_backward_bias", "gb200"): (16384,),
    ("log_softmax_backward", "h200"): (12288,),
    ("log_softmax_backward", "gb200"): (12288,),
    ("modulated_layer_norm_backward", "h200"): (16384,),
    ("modulated_layer_norm_backward", "gb200"): (16384,),
    ("qk_norm_forward", "h200"): (16384,),
    ("rms_norm_forward", "h200"): (16384,),
    ("rms_norm_fp8", "h200"): (12288,),
    ("rms_norm_fp8", "gb200"): (12288,),
}
"""Others: compared columns of a loss, and rows of 24 and 64 elements a thread, where ptxas takes registers for loads
that are not waited for."""
OFF = {
    (name, width, target)
    for table in (OFF_STREAMED, OFF_AT_ONCE)
    for (name, target), widths in table.items()
    for width in widths
}


@cache
def planned(
    name: str, columns: int, target: str = "h200", dtype: torch.dtype = torch.bfloat16, rows: int = 512
) -> Plan:
    inputs = WORKLOADS[name].make_inputs((rows, columns), dtype)
    found = plan(make_case(name, inputs).program, Target.named(target))
    assert isinstance(found, Plan)
    return found


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as made:
        yield made


def compiled(kernels: Sequence[tuple[Kernel, int]], pool: ProcessPoolExecutor) -> list[list[dict[str, int]]]:
    """What ptxas says of each function of kernels for GPUs of some architecture."""
    found = list(pool.map(used, [str(k) for k, _ in kernels], [arch for _, arch in kernels], chunksize=2))
    assert [usage for usage in found if isinstance(usage, str)] == []
    return [usage for usage in found if not isinstance(usage, str)]


def is_within(predicted: int | None, registers: int) -> bool:
    assert predicted is not None
    return abs(predicted - registers) <= max(16, 0.15 * registers)


def lacks_registers(usage: dict[str, int], kernel: Kernel) -> bool:
    """Whether registers were spilled because there are no more. A few bytes are to stay within 64 or 128."""
    most = most_registers(kernel.schedule.warps, 1, H200)
    return usage["spill_bytes"] > 64 or (usage["spill_bytes"] > 0 and usage["registers"] >= most - 8)


def sampled() -> list[tuple[Kernel, int]]:
    """Candidates of all workloads, at widths that the weights were fitted to and at others."""
    draw = random.Random(7)
    found: list[tuple[Kernel, int]] = []
    for arch, count in SAMPLED.items():
        for at in range(count):
            name = list(WORKLOADS)[(at * 7 + arch) % len(WORKLOADS)]
            width = draw.choice(NOT_IN_THE_FIT if at % 2 else WIDTHS)
            kernel = draw.choice(kernels_of(name, "bf16" if at % 4 else "f32", width))
            few = [s for s in schedules(kernel) if s.elements <= 32]
            found.append((Kernel(kernel.program, draw.choice(few or [kernel.schedule])), arch))
    return found


def test_a_sample_of_candidates_against_ptxas(pool: ProcessPoolExecutor) -> None:
    kernels = sampled()
    usages = [usage[0] for usage in compiled(kernels, pool)]
    held = [resources(kernel, H200) for kernel, _ in kernels]
    triples = list(zip((k for k, _ in kernels), held, usages, strict=True))
    assert [str(k.schedule) for k, r, u in triples if lacks_registers(u, k) and not r.spill_bytes] == []
    whole = [(r, u) for k, r, u in triples if not lacks_registers(u, k) and not r.spill_bytes]
    assert len(whole) >= 0.8 * len(triples)
    assert sum(is_within(r.registers_per_thread, u["registers"]) for r, u in whole) >= 0.75 * len(whole)
    for r, u in whole:
        assert r.registers_per_thread is not None
        assert r.shared_bytes is not None
        assert 0.4 < r.registers_per_thread / u["registers"] < 2
        assert r.shared_bytes >= u["shared_bytes"] - 4096  # sm_100 has other margins for the system


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, PARTS))])
def test_what_the_planner_chooses_against_ptxas(part: int, pool: ProcessPoolExecutor) -> None:
    """None spills for want of registers, and all have as many as predicted but those in ``OFF``."""
    cells = [
        (cell, kernel)
        for cell in CHOSEN[part::PARTS]
        for kernel in chosen_kernels(cell[0], "bf16", cell[1], cell[2], ELEMENTS // cell[1])
    ]
    usages = compiled([(kernel, ARCHITECTURES[target]) for (_, _, target), kernel in cells], pool)
    spilled = {cell for (cell, k), usage in zip(cells, usages, strict=True) if lacks_registers(usage[0], k)}
    assert spilled == set()
    assert [usage[1] for usage in usages if len(usage) > 1 and usage[1]["spill_bytes"] > 16] == []
    off = {
        cell
        for (cell, kernel), usage in zip(cells, usages, strict=True)
        if not is_within(resources(kernel, H200).registers_per_thread, usage[0]["registers"])
    }
    assert off == {cell for cell in OFF if cell in CHOSEN[part::PARTS]}


def test_all_rows_of_some_columns_against_ptxas(pool: ProcessPoolExecutor) -> None:
    kernels = [
        (kernel, arch)
        for name in ("rms_norm_backward", "layer_norm_backward_bias", "gelu_backward_bias", "batch_norm_forward")
        for rows, columns in ((64, 1024), (128, 4096))
        for target, arch in ARCHITECTURES.items()
        for kernel in chosen_kernels(name, "bf16", columns, target, rows)
        if kernel.schedule.scheme == "COLUMN"
    ]
    usages = [usage for (usage,) in compiled(kernels, pool)]  # of one function each
    assert [usage["spill_bytes"] for usage in usages] == [0] * 16
    held = [resources(kernel, H200).registers_per_thread for kernel, _ in kernels]
    assert sum(is_within(r, u["registers"]) for r, u in zip(held, usages, strict=True)) >= 0.9 * 16


def test_the_weights_are_those_of_the_sweep() -> None:
    with (files.files("weft.plan") / "calibration" / "ptxas_sm90.csv").open() as file:  # type: ignore[union-attr]
        rows = [row for row in csv.DictReader(file) if not ptxas_fit.is_odd(row)]
    assert len(rows) > 1400
    for scheme, least, chosen_least in (
        ("ONE_SHOT", 0.94, 0.96),
        ("LOOP", 0.89, 1.0),
        ("COLUMN", 0.85, 1.0),
        ("COLUMN_WHOLE", 0.71, 1.0),
        ("STREAM", 0.82, 0.895),
        ("STREAM_TILES", 0.8, 1.0),
    ):
        fitted = ptxas_fit.Fit(WEIGHTS[scheme], FEWEST[scheme], SPILLING[scheme])
        own = [row for row in rows if ptxas_fit.group(row) == scheme]
        fits = [row for row in own if not ptxas_fit.is_spilled(row)]
        chosen = [row for row in fits if row["chosen"] == "1"]
        assert sum(ptxas_fit.is_within(row, fitted) for row in fits) >= least * len(fits)
        assert sum(ptxas_fit.is_within(row, fitted) for row in chosen) >= chosen_least * len(chosen)
        said = [ptxas_fit.is_said_to_spill(row, fitted) for row in own]
        spilled = [ptxas_fit.is_spilled(row) and ptxas_fit.has_room(row) for row in own]
        assert all(yes for yes, wrong in zip(said, spilled, strict=True) if wrong)
        assert sum(yes for yes, row in zip(said, own, strict=True) if not ptxas_fit.is_spilled(row)) < 0.15 * len(own)


@pytest.mark.parametrize(
    ("wanted", "warps", "given"),
    [
        *[(100, 4, 96), (130, 4, 128), (145, 4, 145), (184, 4, 168), (190, 4, 190), (300, 4, 300)],
        *[(100, 8, 100), (140, 8, 128), (160, 8, 160), (140, 16, 128), (30, 1, 30)],
    ],
)
def test_ptxas_saves_some_registers_to_fit_one_program_more(wanted: int, warps: int, given: int) -> None:
    assert given_registers(wanted, warps, 0.9) == given


def of(name: str, columns: int, **schedule: Any) -> Resources:
    """Of the first kernel, with another schedule."""
    (kernel, *_) = kernels_of(name, "bf16", columns)
    return resources(Kernel(kernel.program, replace(kernel.schedule, **schedule)), H200)


@pytest.mark.parametrize(("columns", "measured"), [(512, 32), (2048, 58)])
def test_one_row_of_a_backward(columns: int, measured: int) -> None:
    found = of("rms_norm_backward", columns, rows_per_tile=1, warps=8, stages=3, piece_columns=columns, pieces=1)
    assert is_within(found.registers_per_thread, measured)
    assert found.spill_bytes == 0


def test_a_long_row_of_a_forward_fits() -> None:
    found = of("rms_norm_forward", 16384, rows_per_tile=1, warps=16)
    assert found.spill_bytes == 0
    assert is_within(found.registers_per_thread, 64)


def test_what_does_not_fit_is_spilled() -> None:
    (*_, whole) = kernels_of("rms_norm_backward", "bf16", 16384)
    held = {"rows_per_tile": 1, "piece_columns": 16384, "pieces": 1, "warps": 8, "stages": 2}
    schedule = replace(whole.schedule, scheme="STREAM", finish="separate", keeps="values", **held)
    found = resources(Kernel(whole.program, schedule), H200)
    assert found.registers_per_thread == 255
    assert found.spill_bytes is not None
    assert found.spill_bytes > 0


def test_wider_data_takes_more_shared_memory() -> None:
    narrow, wide = (
        resources(Kernel(k.program, replace(k.schedule, rows_per_tile=1, warps=8, stages=3)), H200).shared_bytes
        for k in (kernels_of("rms_norm_backward", dtype, 4096)[0] for dtype in ("bf16", "f32"))
    )
    assert narrow is not None
    assert wide is not None
    assert narrow < wide < 2.5 * narrow


def test_stages_but_one_wait_in_shared_memory() -> None:
    two, four = (of("rms_norm_backward", 4096, rows_per_tile=1, warps=8, stages=s).shared_bytes for s in (2, 4))
    assert two is not None
    assert four is not None
    tile = 4096 * 2 * 2 + 4  # dy, x and a number
    assert 2 * tile <= four - two <= 2 * tile + 128


def test_a_kernel_without_column_sums_stages_nothing() -> None:
    shared = of("softmax_forward", 4096, rows_per_tile=1, warps=8).shared_bytes
    assert shared is not None
    assert 1024 < shared < 1200


def test_every_kernel_of_a_plan_has_its_own() -> None:
    found = planned("batch_norm_forward", 256, rows=65536)
    assert len(found.resources) == len(found.kernels) == 2
    assert found.resources[0] != found.resources[1]


def test_a_cpu_has_none() -> None:
    (found,) = planned("rms_norm_backward", 512, "cpu").resources
    assert found == Resources(None, None, None, "model")
