"""The model of registers and shared memory against what ptxas gives kernels for GPUs, without one."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import cycle
from multiprocessing import get_context
from typing import Any

import pytest

from tests.cases import often
from tools import ptxas_fit, ptxas_kernels
from tools.gpu_cells import Cell, drawn_cells, parts_of, program_of
from tools.ptxas_sweep import drawn_kernels, used
from tools.swept import COMPILED, TIMED, read
from weft.backends.listed import supports
from weft.backends.triton.candidates import candidates
from weft.backends.triton.choice import gpu_schedule
from weft.backends.triton.demand import Demand
from weft.backends.triton.resources import (
    RESERVED_BYTES,
    Weights,
    given_registers,
    most_registers,
    most_shared_bytes,
    weights,
)
from weft.bench.workloads import WORKLOADS as ALL
from weft.ir.parser import parse
from weft.plan.kernel import Kernel, Plan, Resources
from weft.plan.planner import plan
from weft.plan.schedules import resources
from weft.plan.split import Split
from weft.target import Target

H200 = Target.named("h200")
ARCHITECTURES = ("a100", "rtx3090", "l40s", "h200", "b200", "rtx5090")
"""Targets, one of each."""
WORKLOADS = tuple(name for name in ALL if name != "batch_norm_forward")
SAMPLED, CELLS, PARTS = 40, 40, 3
"""Candidates that are compiled, and cells of the planner's choices, of so many parts."""


def first_kernel(name: str, columns: int, dtype: str = "bf16", rows: int = 8192) -> Kernel:
    """The kernel of a workload's pass, whether the planner would have it so or not."""
    split = parts_of(Cell(name, dtype, rows, columns), H200)[name]
    return Kernel(split.program, gpu_schedule(split))


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    context = get_context("forkserver")
    context.set_forkserver_preload(["triton", "tools.ptxas_sweep"])
    with ProcessPoolExecutor(2, mp_context=context) as made:
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


def test_a_sample_of_candidates_against_ptxas(pool: ProcessPoolExecutor) -> None:
    targets = [Target.named(name) for name in ARCHITECTURES]
    drawn = drawn_kernels(7, WORKLOADS, 24, 4, targets)
    every = [(target, kernel) for target, *_, kernel in drawn if kernel.schedule.elements <= 32]
    every = [(target, kernel) for target, kernel in every if supports(kernel, target) is None]
    chosen = random.Random(7).sample(every, SAMPLED)
    usages = [usage[0] for usage in compiled([(kernel, target.architecture) for target, kernel in chosen], pool)]
    triples = [(k, resources(k, target), u) for (target, k), u in zip(chosen, usages, strict=True)]
    whole = [(r, u) for k, r, u in triples if not lacks_registers(u, k) and not r.spill_bytes]
    assert sum(lacks_registers(u, k) and not r.spill_bytes for k, r, u in triples) <= 1
    assert len(whole) >= 0.8 * len(triples)
    assert sum(is_within(r.registers_per_thread, u["registers"]) for r, u in whole) >= 0.65 * len(whole)
    for r, u in whole:
        assert r.registers_per_thread is not None
        assert r.shared_bytes is not None
        assert u["registers"] / 2 - 16 <= r.registers_per_thread <= 2 * u["registers"] + 16
        assert r.shared_bytes >= u["shared_bytes"] - 4096  # sm_100 has other margins for the system


@pytest.mark.only_triton
@pytest.mark.parametrize("part", often(range(PARTS), [0]))
def test_what_the_planner_chooses_against_ptxas(part: int, pool: ProcessPoolExecutor) -> None:
    """At shapes drawn at random, for targets of all architectures in turn. What spills has a runner-up, and is rare."""
    cells = drawn_cells(100 + part, WORKLOADS, CELLS)
    chosen: list[tuple[Target, Kernel]] = []
    for cell, name in zip(cells, cycle(ARCHITECTURES), strict=False):
        target = Target.named(name)
        found = plan(program_of(cell), target)
        kernels = found.kernels if isinstance(found, Plan) else ()
        chosen += [(target, kernel) for kernel in kernels if supports(kernel, target) is None]
    assert {target.name for target, _ in chosen} == set(ARCHITECTURES)
    usages = compiled([(kernel, target.architecture) for target, kernel in chosen], pool)
    spilled = [k for (_, k), usage in zip(chosen, usages, strict=True) if lacks_registers(usage[0], k)]
    assert len(spilled) <= 0.03 * len(chosen), [str(k.schedule) for k in spilled]
    for (target, _), functions in zip(chosen, usages, strict=True):
        assert all(usage["shared_bytes"] <= target.shared_bytes + RESERVED_BYTES for usage in functions)
    assert [usage[1] for usage in usages if len(usage) > 1 and usage[1]["spill_bytes"] > 16] == []
    predicted = [resources(k, target).registers_per_thread for target, k in chosen]
    near = [is_within(r, usage[0]["registers"]) for r, usage in zip(predicted, usages, strict=True)]
    assert sum(near) >= 0.65 * len(near)


OF_TWO_SIZES = parse("""program p()
  dim m = 8192
  dim n = 8192
  input x: f32 [m:8192, n:1]
  input y: f32 [m:8192, n:1]
  input z: bf16 [m:8192, n:1]
  cast: f32{m, n} = cast(z)
  mul: f32{m, n} = mul(x, y)
  row: f32{m} = sum[n](mul)
  add: f32{m, n} = add(cast, row)
  mul_1: f32{m, n} = mul(add, x)
  column: f32{n} = sum[m](mul_1)
  cast_1: bf16{m, n} = cast(mul_1)
  output out0: bf16 [m:8192, n:1] = cast_1
  output out1: f32 [n:1] = column
end
""")


def test_tiles_of_two_sizes_fit_shared_memory_with_what_moves_them(pool: ProcessPoolExecutor) -> None:
    """A stage has 80 KB: two of them and 8 KB to have all elements in one layout would not be left to chance."""
    split = Split.of(OF_TWO_SIZES, ("m",), ("n",), H200, {})
    every = [s for s in candidates(split) if s.scheme == "STREAM" and s.stages > 1 and s.remat == "none"]
    assert every
    bounds = {s: most_shared_bytes(Demand.of(OF_TWO_SIZES, s), s) for s in every}
    assert max(bounds.values()) <= H200.shared_bytes
    largest = sorted(every, key=lambda s: -bounds[s])[:2]
    for schedule, (usage, *_) in zip(
        largest, compiled([(Kernel(OF_TWO_SIZES, s), 90) for s in largest], pool), strict=True
    ):
        assert usage["shared_bytes"] <= bounds[schedule] + RESERVED_BYTES


def test_loads_of_the_last_row_cost_the_others_no_registers(pool: ProcessPoolExecutor) -> None:
    """Its elements are loaded in a branch: 168 registers of a thread where that has the others' index, and 16 KB of
    shared memory where nothing is known of its own."""
    kernel = first_kernel("softmax_forward", 481, rows=139_519)
    four = replace(kernel.schedule, scheme="ONE_SHOT", rows_per_tile=4, pieces=1, piece_columns=512, warps=1, stages=1)
    ((usage,),) = compiled([(replace(kernel, schedule=replace(four, chunks=0)), 90)], pool)
    assert usage["registers"] <= 128
    assert usage["spill_bytes"] == usage["shared_bytes"] == 0


@pytest.mark.where_changed("tools", "weft/backends/triton", "weft/ir", "weft/lowering", "weft/plan")
@pytest.mark.parametrize("every", [10, pytest.param(1, marks=pytest.mark.slow)])
def test_the_weights_are_those_of_the_sweeps(every: int) -> None:
    swept = map(ptxas_kernels.counted, read([TIMED, COMPILED], every=every))
    rows = [row for row in swept if not ptxas_kernels.is_odd(row)]
    assert len(rows) > 14000 // every
    for scheme, least, said_least in (
        ("ONE_SHOT", 0.78, 0.0),
        ("ONE_SHOT_TILES", 0.78, 0.8),
        ("LOOP", 0.60, 0.0),
        ("COLUMN", 0.76, 0.7),
        ("COLUMN_WHOLE", 0.72, 0.0),
        ("STREAM", 0.70, 0.8),
        ("STREAM_TILES", 0.68, 0.8),
    ):
        fitted = weights()[scheme]
        own = [row for row in rows if row["group"] == scheme]
        fits = [row for row in own if not ptxas_kernels.is_spilled(row)]
        assert sum(ptxas_kernels.is_within(row, fitted) for row in fits) >= least * len(fits), scheme
        said = [ptxas_kernels.is_said_to_spill(row, fitted) for row in own]
        spilled = [ptxas_kernels.is_spilled(row) and ptxas_kernels.has_room(row) for row in own]
        assert sum(yes for yes, wrong in zip(said, spilled, strict=True) if wrong) >= said_least * sum(spilled), scheme
        refused = sum(yes and not ptxas_kernels.is_spilled(row) for yes, row in zip(said, own, strict=True))
        assert refused < 0.15 * len(own)


@pytest.mark.where_changed("tools", "weft/backends/triton", "weft/ir", "weft/lowering", "weft/plan")
def test_a_weight_that_is_off_is_moved_until_it_meets_all_kernels() -> None:
    """Of kernels whose registers are made of two weights, of which the search is given one as half of what it is."""
    right, wrong = {"rows": 9.0, "alive": 0.4}, {"rows": 9.0, "alive": 0.2}
    draw, rows = random.Random(3), list[dict[str, str]]()
    for _ in range(200):
        row = {"warps": "4", "spill_bytes": "0", "chosen": "0", "predicted_shared_bytes": "0"}
        row |= {f"n_{name}": str(draw.randint(1, most)) for name, most in (("rows", 8), ("alive", 200), ("loads", 6))}
        rows.append(row | {"registers": str(given_registers(round(ptxas_kernels.wanted(row, right)), 4, 0.9))})
    start = Weights(wrong, 0.9, 1.0)
    found = ptxas_fit.polished(start, rows)
    assert sum(ptxas_kernels.is_within(row, start) for row in rows) < 0.75 * len(rows)
    assert sum(ptxas_kernels.is_within(row, found) for row in rows) >= 0.97 * len(rows)
    assert not any(ptxas_kernels.is_said_to_spill(row, found) for row in rows)


@pytest.mark.parametrize(
    ("wanted", "warps", "given"),
    [
        *[(100, 4, 96), (130, 4, 128), (145, 4, 145), (184, 4, 168), (190, 4, 190), (300, 4, 255)],
        *[(100, 8, 100), (140, 8, 128), (160, 8, 160), (140, 16, 128), (30, 1, 30)],
    ],
)
def test_ptxas_saves_some_registers_to_fit_one_program_more(wanted: int, warps: int, given: int) -> None:
    assert given_registers(wanted, warps, 0.9) == given


def of(name: str, columns: int, **schedule: Any) -> Resources:
    """Of the kernel of a pass, with another schedule."""
    kernel = first_kernel(name, columns)
    return resources(Kernel(kernel.program, replace(kernel.schedule, **schedule)), H200)


@pytest.mark.parametrize(("columns", "measured"), [(512, 32), (2048, 58)])
def test_one_row_of_a_backward(columns: int, measured: int) -> None:
    found = of("rms_norm_backward", columns, rows_per_tile=1, warps=8, stages=3, piece_columns=columns, pieces=1)
    assert is_within(found.registers_per_thread, measured)
    assert found.spill_bytes == 0


def test_a_long_row_of_a_forward_fits() -> None:
    row = {"rows_per_tile": 1, "piece_columns": 16384, "pieces": 1, "warps": 16}
    found = of("rms_norm_forward", 16384, remat="none", **row)
    assert found.spill_bytes == 0
    assert is_within(found.registers_per_thread, 64)


def test_what_does_not_fit_is_spilled() -> None:
    whole = first_kernel("rms_norm_backward", 16384)
    held = {"rows_per_tile": 1, "piece_columns": 16384, "pieces": 1, "warps": 8, "stages": 2}
    schedule = replace(whole.schedule, scheme="STREAM", finish="separate", remat="none", **held)
    found = resources(Kernel(whole.program, schedule), H200)
    assert found.registers_per_thread == 255
    assert found.spill_bytes is not None
    assert found.spill_bytes > 0


def test_wider_data_takes_more_shared_memory() -> None:
    narrow, wide = (
        resources(Kernel(k.program, replace(k.schedule, rows_per_tile=1, warps=8, stages=3)), H200).shared_bytes
        for k in (first_kernel("rms_norm_backward", 4096, dtype) for dtype in ("bf16", "f32"))
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


def planned(name: str, columns: int, target: str, rows: int = 8192) -> Plan:
    found = plan(program_of(Cell(name, "bf16", rows, columns)), Target.named(target))
    assert isinstance(found, Plan)
    return found


def test_every_kernel_of_a_plan_has_its_own() -> None:
    found = planned("batch_norm_forward", 256, "h200", rows=65536)
    assert len(found.resources) == len(found.kernels) == 2
    assert found.resources[0] != found.resources[1]


def test_a_cpu_has_none() -> None:
    (found,) = planned("rms_norm_backward", 512, "cpu").resources
    assert found == Resources(None, None, None, "model")
