"""Schedules of GPU kernels: which there are, which is chosen, and what happens when one spills after all."""

from __future__ import annotations

import re
import statistics
from dataclasses import asdict, replace

import pytest
import torch
from torch import fx
from torch._inductor import inductor_prims
from torch.fx.experimental.proxy_tensor import make_fx

from weft import compiler
from weft.bench import gpu_fit
from weft.bench.gpu_fit import program_of
from weft.compiler import Compilation, compile_graph
from weft.options import Options
from weft.plan.demand import Demand
from weft.plan.gpu_candidates import can_keep_tiles, candidates
from weft.plan.gpu_cost import Work, constants, exchanges_of_pieces, kernel_us, programs_per_sm
from weft.plan.gpu_schedules import CLEARLY_FEWER, gpu_schedule, ranked, runner_up
from weft.plan.kernel import Kernel, Schedule, parse_kernel
from weft.plan.pieces import pieces_of, power_of_two
from weft.plan.resources import shared_bytes, spills, wanted_registers
from weft.plan.split import Split
from weft.render import triton
from weft.runtime import failures
from weft.runtime.counters import counters
from weft.runtime.executable import digest_of
from weft.target import Target

H200 = Target.named("h200")


@pytest.mark.parametrize(
    ("width", "pieces"),
    [
        (37, (64,)),
        (256, (256,)),
        (1000, (1024,)),
        (1152, (1024, 256)),
        (3072, (2048, 1024)),
        (5120, (4096, 1024)),
        (7168, (4096, 2048, 1024)),
        (7680, (8192,)),
        (12288, (8192, 4096)),
    ],
)
def test_a_row_is_cut_into_powers_of_two(width: int, pieces: tuple[int, ...]) -> None:
    assert pieces_of(width) == pieces


@pytest.mark.parametrize("width", [1, 100, 257, 640, 5000, 50257])
def test_pieces_cover_the_row_and_fall(width: int) -> None:
    pieces = pieces_of(width)
    assert sum(pieces) >= width > sum(pieces[:-1])
    assert list(pieces) == sorted(pieces, reverse=True)
    assert all(power_of_two(piece) == piece for piece in pieces)


def split_of(name: str, columns: int, rows: int = 8192) -> Split:
    program = program_of(name, columns)
    program = replace(program, dims=tuple(replace(d, size=rows) if d.name == "m" else d for d in program.dims))
    names = tuple(d.name for d in program.dims)
    return Split.of(program, names[:-1], names[-1:], H200, {})


@pytest.mark.parametrize("columns", [256, 1152, 5120, 8192])
def test_the_chosen_schedule_has_the_shortest_predicted_time(columns: int) -> None:
    split = split_of("layer_norm_backward", columns)
    chosen = gpu_schedule(split)
    found = candidates(split)
    work, demand = Work.of(split), Demand.of(split.program, chosen)
    times = {schedule: kernel_us(work, demand, schedule, H200) for schedule in found}
    assert times[chosen] == min(times.values())
    assert exchanges_of_pieces(chosen) == 1


@pytest.mark.parametrize("name", ["gelu_backward_bias", "row_column_sum", "softmax_forward"])
@pytest.mark.parametrize("columns", [8, 300, 4096, 100_000])
def test_the_chosen_schedule_is_the_first_of_all_candidates(name: str, columns: int) -> None:
    """Of the first, which reduces nothing along rows, most candidates are not looked at."""
    split = split_of(name, columns)
    little, none = replace(H200, shared_bytes=40_000), replace(H200, shared_bytes=0)
    chosen = {target: gpu_schedule(replace(split, target=target)) for target in (H200, little, none)}
    for target, schedule in chosen.items():
        other = replace(split, target=target)
        assert schedule == ranked(other, candidates(other))[0]
    if name == "gelu_backward_bias":
        assert chosen[H200].scheme == "COLUMN"
        assert chosen[little] != chosen[H200]  # which does not fit
        assert chosen[none] == chosen[H200]  # none fits


def test_where_others_run_no_program_waits_for_another() -> None:
    split = split_of("rms_norm_backward", 1024)
    assert gpu_schedule(split).finish == "same"
    assert gpu_schedule(replace(split, target=replace(H200, exclusive=False))).finish == "separate"


@pytest.mark.parametrize(("columns", "warps"), [(256, 2), (1024, 8), (4096, 16), (8192, 16)])
@pytest.mark.parametrize("rows", [1, 64, 132])
def test_of_few_rows_each_program_has_one(rows: int, columns: int, warps: int) -> None:
    chosen = gpu_schedule(split_of("layer_norm_backward", columns, rows))
    assert (chosen.rows_per_tile, chosen.chunks, chosen.stages) == (1, rows, 1)
    assert (chosen.warps, chosen.finish) == (warps, "separate")


@pytest.mark.parametrize(
    ("rows", "columns", "width", "tile", "warps"),
    [(16, 1024, 16, 16, 4), (64, 1024, 16, 64, 4), (64, 4096, 32, 64, 4), (132, 1024, 16, 256, 8), (2, 8, 8, 2, 4)],
)
def test_of_few_rows_a_program_adds_up_all(rows: int, columns: int, width: int, tile: int, warps: int) -> None:
    split = split_of("gelu_backward_bias", columns, rows)
    chosen = gpu_schedule(split)
    assert (chosen.scheme, chosen.finish, chosen.chunks, chosen.stages) == ("COLUMN", "none", 1, 1)
    assert (chosen.pieces, chosen.rows_per_tile, chosen.warps) == ((width,), tile, warps)
    assert gpu_schedule(split_of("gelu_backward_bias", columns, 133)).finish == "separate"


@pytest.mark.parametrize("columns", [50257, 2**20])
def test_all_rows_of_wide_columns_fit_the_threads(columns: int) -> None:
    for schedule in candidates(split_of("gelu_backward_bias", columns, 100)):
        assert schedule.elements <= 32
        assert schedule.rows_per_tile >= 1


def test_a_kernel_for_any_number_of_rows_is_one_for_many() -> None:
    split = split_of("layer_norm_backward", 1024)
    dims = tuple(replace(d, size="s0") if d.name == "m" else d for d in split.program.dims)
    program = replace(split.program, dims=dims, parameters=("s0",))
    chosen = gpu_schedule(replace(split, program=program, hints=(("s0", 64),)))
    assert chosen.stages > 1
    assert chosen.chunks >= H200.units


def test_of_more_rows_programs_load_ahead() -> None:
    chosen = gpu_schedule(split_of("layer_norm_backward", 1024, 133))
    assert chosen.stages > 1
    assert chosen.finish == "same"


@pytest.mark.parametrize(
    ("name", "rows", "inputs"),
    [
        ("rms_norm_forward", 8192, "normal"),  # 64 MiB of rows, a little more than one level-two cache
        ("rms_norm_forward", 16384, "evict_last"),
        ("softmax_backward", 4096, "normal"),
        ("softmax_backward", 8192, "evict_last"),  # twice 64 MiB
        ("rms_norm_backward", 16384, "normal"),  # sums columns
    ],
)
def test_rows_that_fill_the_caches_twice_go_from_them_last(name: str, rows: int, inputs: str) -> None:
    split = split_of(name, 4096, rows)
    kernel = Kernel(split.program, gpu_schedule(split))
    assert kernel.schedule.inputs == inputs
    assert parse_kernel(str(kernel)) == kernel
    loads = [line for line in triton.render(kernel).text.splitlines() if "tl.load(" in line and "partial" not in line]
    of_rows = [line for line in loads if "_at + n" in line]
    assert of_rows
    kept = [line for line in loads if "evict_last" in line]
    assert kept == (of_rows if inputs == "evict_last" else [])


@pytest.mark.parametrize(
    ("name", "rows", "elements", "beside"),
    [
        ("layer_norm_forward", 64, 8, True),
        ("layer_norm_forward", 16384, 16, False),  # which exchanges twice
        ("rms_norm_forward", 16384, 16, True),
        ("rms_norm_forward", 16384, 32, False),
    ],
)
def test_weights_of_few_elements_are_loaded_beside_the_row(name: str, rows: int, elements: int, beside: bool) -> None:
    split = split_of(name, 1024, rows)
    schedule = replace(gpu_schedule(split), warps=1024 // 32 // elements)
    text = triton.render(Kernel(split.program, schedule)).text
    assert (text.index("tl.load(weight + n)") < text.index("tl.sum(")) == beside


TILES = [
    ("layer_norm_backward_bias", 5120),
    ("thunder_layer_norm_backward", 5120),
    ("rms_norm_backward", 12288),
    ("rms_norm_backward", 14336),
    ("layer_norm_backward", 16384),
]


@pytest.mark.parametrize(("name", "columns"), TILES)
def test_a_row_whose_values_do_not_fit_is_kept_as_it_was_loaded(name: str, columns: int) -> None:
    split = split_of(name, columns)
    kernel = Kernel(split.program, gpu_schedule(split))
    assert kernel.schedule.keeps == "tiles"
    assert parse_kernel(str(kernel)) == kernel
    plain = replace(kernel.schedule, keeps="values")
    demands = [Demand.of(split.program, schedule) for schedule in (kernel.schedule, plain)]
    assert [spills(d, s, H200) for d, s in zip(demands, (kernel.schedule, plain), strict=True)] == [False, True]
    text = triton.render(kernel).text
    text = text[: text.index("_finish(")]
    exchange = text.index("w.sums(" if "w.sums(" in text else " = tl.sum(")
    before, behind = text[:exchange], text[exchange:]
    casts = re.compile(r"w\.(to_f32|to_f32_again)\(\w+_tile")
    assert set(casts.findall(before)) == {"to_f32"}
    assert set(casts.findall(behind)) == {"to_f32_again"}
    assert len(casts.findall(before)) == len(casts.findall(behind))
    assert "to_f32_again" not in triton.render(replace(kernel, schedule=plain)).text


@pytest.mark.parametrize(
    ("name", "columns", "stages"), [("layer_norm_backward", 16384, 3), ("add_rms_norm_backward", 16384, 2)]
)
def test_wide_rows_are_shared_by_few_warps(name: str, columns: int, stages: int) -> None:
    """Two stages where shared memory has no room for three, and nowhere else."""
    split = split_of(name, columns)
    chosen = gpu_schedule(split)
    assert (chosen.scheme, chosen.warps, chosen.elements, chosen.stages) == ("STREAM", 8, 64, stages)
    demand = Demand.of(split.program, chosen)
    assert shared_bytes(demand, chosen) <= H200.shared_bytes
    assert (shared_bytes(demand, replace(chosen, stages=3)) > H200.shared_bytes) == (stages == 2)
    for width in (8192, 12288, 14336):
        assert {s.stages for s in candidates(split_of(name, width))} <= {3, 4, 5}
    assert max(s.elements for s in candidates(split_of(name, 8192))) <= 40


@pytest.mark.parametrize(("name", "columns"), [(name, 4096) for name, _ in TILES])
def test_a_row_whose_values_fit_keeps_them(name: str, columns: int) -> None:
    assert gpu_schedule(split_of(name, columns)).keeps == "values"


def test_what_was_loaded_as_float32_is_not_kept_in_place_of_values() -> None:
    split = split_of("layer_norm_backward_bias", 5120)
    inputs = tuple(replace(b, dtype="f32") if b.name == "x" else b for b in split.program.inputs)
    schedule = replace(gpu_schedule(split), keeps="tiles")
    assert can_keep_tiles(Demand.of(split.program, schedule))
    assert not can_keep_tiles(Demand.of(replace(split.program, inputs=inputs), schedule))


@pytest.mark.parametrize(
    ("name", "columns", "rows", "least"),
    [
        ("rms_norm_forward", 64, 2**20, 16),  # 128 bytes of a row read, as many written; a start is worth 2545
        ("rms_norm_forward", 256, 2**18, 4),
        ("add_rms_norm_forward", 256, 2**18, 2),
        ("rms_norm_forward", 4096, 2**14, 1),
        ("rms_norm_forward", 64, 256, 16),
        ("rms_norm_forward", 32, 140, 32),
    ],
)
def test_a_program_of_many_moves_what_it_takes_to_start_it(name: str, columns: int, rows: int, least: int) -> None:
    found = candidates(split_of(name, columns, rows))
    assert min(schedule.rows_per_tile for schedule in found if schedule.scheme == "ONE_SHOT") == least
    assert all(schedule.elements >= 8 for schedule in found)


@pytest.mark.parametrize("columns", [2, 3, 4, 8, 16, 100])
@pytest.mark.parametrize("name", ["rms_norm_forward", "softmax_forward", "layer_norm_backward"])
def test_narrow_rows_are_taken_many_at_a_time(name: str, columns: int) -> None:
    chosen = gpu_schedule(split_of(name, columns, 2**20))
    assert chosen.scheme in ("ONE_SHOT", "STREAM")
    assert chosen.rows_per_tile >= 16


def test_a_runner_up_is_another_schedule_that_is_sure_to_fit() -> None:
    split = split_of("layer_norm_backward", 5120)
    chosen = gpu_schedule(split)
    other = runner_up(Kernel(split.program, chosen), H200, {})
    assert other is not None
    assert (other.rows, other.columns, other.scheme) == (chosen.rows, chosen.columns, chosen.scheme)
    wanted = [wanted_registers(Demand.of(split.program, schedule), schedule) for schedule in (chosen, other)]
    assert wanted[1] <= CLEARLY_FEWER * wanted[0]


def test_more_bytes_and_less_in_flight_take_longer() -> None:
    work, demand = gpu_fit.facts_of("rms_norm_backward", 4096, "STREAM")
    split = ("STREAM", ("m",), ("n",), ())
    plain = Schedule(*split, 1, backend="triton", pieces=(4096,), warps=8, stages=5, chunks=132)  # type: ignore[arg-type]
    tall = replace(work, rows=16384)
    known = kernel_us(tall, demand, plain, H200)
    assert kernel_us(replace(tall, rows=32768), demand, plain, H200) == pytest.approx(2 * known, rel=0.1)
    assert kernel_us(tall, demand, replace(plain, stages=2), H200) > 1.2 * known
    assert kernel_us(tall, demand, plain, replace(H200, bandwidth_gbps=2 * H200.bandwidth_gbps)) < known


@pytest.mark.parametrize(
    ("registers", "warps", "shared", "programs"),
    [
        *[(32, 4, 0, 16), (64, 8, 0, 4), (255, 8, 0, 1), (32, 16, 0, 4), (32, 4, 100_000, 2), (16, 1, 0, 32)],
        # 228 KB, 1 KB of each program for the system, which ``shared_bytes`` counts: 3 programs of 75 KB, not of more
        *[(32, 4, 76 * 1024, 3), (32, 4, 76 * 1024 + 1, 2), (32, 4, 114 * 1024, 2), (32, 4, 228 * 1024, 1)],
        # of a scheduler's 16384 registers two warps have 224 each, not nine of four schedulers
        *[(224, 1, 0, 8), (168, 1, 0, 12), (96, 1, 0, 20), (96, 2, 0, 10)],
    ],
)
def test_programs_that_a_multiprocessor_holds(registers: int, warps: int, shared: int, programs: int) -> None:
    assert programs_per_sm(registers, warps, shared, H200) == programs


def test_the_constants_choose_well_among_what_was_measured() -> None:
    points = gpu_fit.read_points()
    assert len(points) > 4000
    for ways in gpu_fit.FITS.values():
        values = [value for way in ways for value in asdict(constants()[way]).values()]
        own = gpu_fit.Points([p for p in points if p.way in ways and p.is_candidate], ways)
        found = own.regrets(values)
        assert len(found) > 60
        assert statistics.geometric_mean(found.values()) < 1.03
        assert max(found.values()) < 1.10
    found = gpu_fit.planned(points)
    assert len(found) > 160
    assert statistics.geometric_mean(found.values()) < 1.03
    assert max(found.values()) < 1.10


@pytest.mark.parametrize(
    ("end", "cells", "mean", "worst"), [("forward", 40, 1.045, 1.22), ("backward", 15, 1.01, 1.04)]
)
def test_what_nothing_was_fitted_to_is_chosen_well_on_average(end: str, cells: int, mean: float, worst: float) -> None:
    """Kernels of 2 to 50 microseconds, some of which one register more or less of a thread makes a fifth slower, and
    wide rows with column sums."""
    found = gpu_fit.planned([p for p in gpu_fit.read_points(gpu_fit.UNSEEN) if f"_{end}" in p.cell[0]])
    assert len(found) == cells
    assert statistics.geometric_mean(found.values()) < mean
    assert max(found.values()) < worst


# a kernel that spills


def compiled(monkeypatch: pytest.MonkeyPatch, spilled: dict[str, int]) -> Compilation:
    """Of a layer norm's backward on an H200 whose kernels spill so many bytes by their warps."""

    def spill_bytes(kernel: Kernel) -> int:
        return spilled.get(str(kernel.schedule.warps), 0)

    monkeypatch.setattr(compiler.launch, "prepare", lambda *_: None)
    monkeypatch.setattr(compiler.launch, "spill_bytes", spill_bytes)
    counters.reset()
    graph = gpu_fit.trace(gpu_fit.WORKLOADS["layer_norm_backward"].fn, inputs()).graph
    return compiler.build(compile_graph(graph, target=H200), Options.read({}, {}))


def inputs() -> tuple[torch.Tensor, ...]:
    return tuple(gpu_fit.WORKLOADS["layer_norm_backward"].make_inputs((512, 5120), torch.bfloat16, "cpu"))


def test_a_kernel_without_spills_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    (region,) = compiled(monkeypatch, {}).regions
    assert [k.schedule.warps for k in region.plan.kernels] == [4]
    assert counters.model_misses == 0


def test_a_kernel_that_spills_gives_way_to_the_runner_up(monkeypatch: pytest.MonkeyPatch) -> None:
    (region,) = compiled(monkeypatch, {"4": 100}).regions
    assert [k.schedule.warps for k in region.plan.kernels] == [8]
    assert "warps=8" in region.sources[0].text
    assert counters.model_misses == 1


def test_a_runner_up_that_spills_more_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    (region,) = compiled(monkeypatch, {"4": 100, "8": 200, "16": 200}).regions
    assert [k.schedule.warps for k in region.plan.kernels] == [4]
    assert counters.model_misses == 1


def test_a_runner_up_waits_for_no_other_program_beside_kernels_of_other_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    monkeypatch.setattr(compiler, "runner_up", lambda kernel, target, hints: seen.append(target.exclusive))
    compiled(monkeypatch, {"4": 100})
    monkeypatch.setattr(compiler, "is_distributed", lambda: True)
    compiled(monkeypatch, {"4": 100})
    assert seen == [True, False]


def test_a_runner_up_that_failed_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    (region,) = compiled(monkeypatch, {"4": 100}).regions
    failures.record(digest_of(region.plan.kernels[0]), "p", "out of resources")
    (region,) = compiled(monkeypatch, {"4": 100}).regions
    assert [k.schedule.warps for k in region.plan.kernels] == [4]


# what TorchInductor makes of a softmax on a GPU


def softmax_graph(x: torch.Tensor) -> fx.GraphModule:
    def softmax(x: torch.Tensor) -> torch.Tensor:
        largest, total = inductor_prims.prepare_softmax_online(x, 1)
        return (x - largest).exp() / total

    return make_fx(softmax, tracing_mode="fake")(x)


def test_an_online_softmax_is_one_region() -> None:
    found = compile_graph(softmax_graph(torch.randn(64, 512)).graph, target=H200)
    assert found.refusals == ()
    (region,) = found.regions
    assert [value.op for value in region.program.values] == ["max", "sub", "exp", "sum", "div"]
    assert region.plan.kinds == ("inner",)
