"""Schedules of GPU kernels: which there are, which is chosen, and what happens when one spills after all."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from operator import attrgetter

import pytest
import torch
from torch import fx
from torch._inductor import inductor_prims
from torch.fx.experimental.proxy_tensor import make_fx

from tests.cases import checkered
from tools.gpu_cells import Cell, parts_of
from weft import compiler
from weft.backends.listed import backend_of
from weft.backends.resource_usage import ResourceUsage
from weft.backends.triton import choice as gpu_schedules
from weft.backends.triton import text as triton
from weft.backends.triton.backend import SLACK
from weft.backends.triton.candidates import can_keep_tiles, candidates
from weft.backends.triton.choice import CLEARLY_FEWER, gpu_schedule, predicted_us, ranked, runner_up
from weft.backends.triton.column_schedules import MOST_PIECES, pieces_of, power_of_two
from weft.backends.triton.cost import programs_per_sm
from weft.backends.triton.demand import Demand
from weft.backends.triton.resources import spills, wanted_registers
from weft.backends.triton.schedule import TritonSchedule
from weft.bench.workloads import WORKLOADS
from weft.capture.trace import trace
from weft.compiler import Compilation, compile_graph
from weft.errors import VerificationError
from weft.ir.parser import parse
from weft.options import Options
from weft.plan.cost import estimate
from weft.plan.kernel import Kernel, Plan, parse_kernel
from weft.plan.planner import plan
from weft.plan.schedule import Schedule
from weft.plan.schedules import resources, schedule_for
from weft.plan.split import Split
from weft.plan.verify import verify_plan
from weft.runtime import failures, misses
from weft.runtime.counters import counters
from weft.runtime.executable import digest_of
from weft.runtime.misses import MOST_RUNNERS_UP
from weft.target import Target

H200 = Target.named("h200")


@pytest.mark.parametrize(
    ("width", "pieces"),
    [
        (37, [(64, 1), (16, 3), (8, 5)]),
        (256, [(256, 1)]),
        (1000, [(1024, 1)]),
        (1152, [(2048, 1), (512, 3), (256, 5)]),
        (2176, [(4096, 1), (1024, 3), (512, 5)]),
        (3072, [(4096, 1), (1024, 3)]),
        (5120, [(8192, 1), (2048, 3), (1024, 5)]),
        (7680, [(8192, 1)]),
        (40000, [(32768, 2), (16384, 3), (8192, 5)]),
        (60968, [(32768, 2)]),
    ],
)
def test_a_row_is_cut_into_equal_powers_of_two(width: int, pieces: list[tuple[int, int]]) -> None:
    assert list(pieces_of(width)) == pieces


@pytest.mark.parametrize("width", [1, 100, 257, 640, 5000, 50257])
def test_pieces_cover_the_row_and_only_the_last_is_masked(width: int) -> None:
    masked = [piece * count - width for piece, count in pieces_of(width)]
    assert masked == sorted(masked, reverse=True)
    assert len(set(masked)) == len(masked)
    for (piece, count), beyond in zip(pieces_of(width), masked, strict=True):
        assert power_of_two(piece) == piece
        assert 0 <= beyond < piece
        assert count <= MOST_PIECES


def split_of(name: str, columns: int, rows: int = 8192) -> Split:
    return parts_of(Cell(name, "bf16", rows, columns), H200)[name]


@pytest.mark.parametrize("name", ["layer_norm_backward", "layer_norm_forward", "cross_entropy_forward"])
@pytest.mark.parametrize(("rows", "columns"), [(8192, 256), (8192, 1152), (64, 5120), (3000, 8192), (500, 30000)])
def test_the_chosen_schedule_has_the_shortest_predicted_time(name: str, rows: int, columns: int) -> None:
    split = split_of(name, columns, rows)
    chosen, found = gpu_schedule(split), candidates(split)
    assert predicted_us(split, chosen) == min(predicted_us(split, each) for each in found)
    assert len(found) < 600


@pytest.mark.parametrize("name", ["gelu_backward_bias", "row_column_sum", "softmax_forward"])
@pytest.mark.parametrize("columns", [8, 300, 4096, 100_000])
def test_the_chosen_schedule_is_the_first_of_all_candidates(name: str, columns: int) -> None:
    """Whatever shared memory there is."""
    split = split_of(name, columns)
    little, none = replace(H200, shared_bytes=40_000), replace(H200, shared_bytes=0)
    chosen = {target: gpu_schedule(replace(split, target=target)) for target in (H200, little, none)}
    for target, schedule in chosen.items():
        other = replace(split, target=target)
        assert schedule == ranked(other, candidates(other))[0]


def test_where_others_run_no_program_waits_for_another() -> None:
    split = split_of("rms_norm_backward", 1024)
    assert gpu_schedule(split).finish == "same"
    assert gpu_schedule(replace(split, target=replace(H200, exclusive=False))).finish == "separate"


@pytest.mark.parametrize("columns", [256, 1024, 4096])
@pytest.mark.parametrize("rows", [2, 64, 132])
def test_of_few_rows_each_program_has_one(rows: int, columns: int) -> None:
    """There is nothing to load ahead, and no second round."""
    chosen = gpu_schedule(split_of("layer_norm_backward", columns, rows))
    assert (chosen.rows_per_tile * chosen.chunks, chosen.stages) == (rows, 1)


@pytest.mark.parametrize("name", ["rms_norm_backward", "layer_norm_backward_bias"])
def test_of_a_few_short_rows_one_program_has_all(name: str) -> None:
    """Nothing is left for a second launch, or for a barrier."""
    chosen = gpu_schedule(split_of(name, 512, 3))
    assert (chosen.scheme, chosen.finish, chosen.chunks) == ("STREAM", "none", 1)
    kernel = Kernel(split_of(name, 512, 3).program, chosen)
    (launch,) = backend_of(kernel).abi(kernel).launches
    assert (launch.grid, launch.cooperative) == ((1, 1), False)


@pytest.mark.parametrize(("rows", "columns"), [(16, 1024), (64, 1024), (64, 4096), (96, 1024), (2, 8)])
def test_of_few_rows_a_program_adds_up_all(rows: int, columns: int) -> None:
    chosen = gpu_schedule(split_of("gelu_backward_bias", columns, rows))
    assert (chosen.scheme, chosen.finish, chosen.chunks, chosen.stages) == ("COLUMN", "none", 1, 1)
    assert gpu_schedule(split_of("gelu_backward_bias", columns, 2**16)).finish == "separate"


@pytest.mark.parametrize("columns", [50257, 2**20])
def test_all_rows_of_wide_columns_fit_the_threads(columns: int) -> None:
    for schedule in candidates(split_of("gelu_backward_bias", columns, 100)):
        assert schedule.elements <= 64
        assert schedule.rows_per_tile >= 1


def test_a_kernel_for_any_number_of_rows_is_one_for_many() -> None:
    split = split_of("layer_norm_backward", 1024)
    dims = tuple(replace(d, size="s0") if d.name == "m" else d for d in split.program.dims)
    program = replace(split.program, dims=dims, parameters=("s0",))
    chosen = gpu_schedule(replace(split, program=program, hints=(("s0", 64),)))
    assert chosen.stages > 1
    assert chosen.chunks >= H200.units


def test_of_more_rows_programs_load_ahead() -> None:
    chosen = gpu_schedule(split_of("layer_norm_backward", 1024, 8192))
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
    ("name", "rows", "columns", "warps", "hoisted"),
    [
        ("layer_norm_forward", 1000, 1024, 4, {False, True}),
        ("layer_norm_forward", 16384, 1024, 1, {False, True}),
        ("rms_norm_forward", 64, 8192, 16, {False, True}),
        ("softmax_forward", 64, 1024, 4, {False}),  # which has no weights
    ],
)
def test_weights_may_be_loaded_before_row_sums_are_exchanged(
    name: str, rows: int, columns: int, warps: int, hoisted: set[bool]
) -> None:
    split = split_of(name, columns, rows)
    tile = ("ONE_SHOT", "none", 1, power_of_two(columns), warps)
    of = attrgetter("scheme", "remat", "rows_per_tile", "piece_columns", "warps")
    found = [schedule for schedule in candidates(split, SLACK) if of(schedule) == tile]
    assert {schedule.hoisted for schedule in found} == hoisted
    for schedule in found:
        kernel = Kernel(split.program, schedule)
        assert parse_kernel(str(kernel)) == kernel
        text = triton.render(kernel).text
        if "weight" in text:
            assert (text.index("tl.load(weight + n)") < text.index("tl.sum(")) == schedule.hoisted


@pytest.mark.parametrize(("rows", "columns"), [(64, 8192), (1000, 512), (3136, 768), (16384, 1024), (50000, 96)])
def test_no_better_schedule_is_left_out_for_weights_that_are_loaded_early(rows: int, columns: int) -> None:
    split = split_of("layer_norm_forward", columns, rows)
    every = [s for s in candidates(split, SLACK) if not spills(Demand.of(split.program, s), s, split.target)]
    assert len(every) > len(candidates(split))
    assert predicted_us(split, gpu_schedule(split)) == min(predicted_us(split, each) for each in every)


def test_a_norm_of_a_few_microseconds_waits_for_its_weights_and_its_rows_at_a_time() -> None:
    split = split_of("layer_norm_forward", 1024, 2048)
    schedule = gpu_schedule(split)
    assert schedule.hoisted
    assert predicted_us(split, schedule) < predicted_us(split, schedule.but(hoisted=False))


TILES = [("layer_norm_backward_bias", 5120), ("rms_norm_backward", 14336), ("rms_norm_forward", 32768)]


@pytest.mark.parametrize("remat", ["tiles", "inputs"])
@pytest.mark.parametrize(("name", "columns"), TILES)
def test_a_row_may_be_kept_as_it_was_loaded(name: str, columns: int, remat: str) -> None:
    split = split_of(name, columns)
    kept = next(s for s in candidates(split, 1.5) if s.remat == remat and s.stages in (1, 3))
    kernel = Kernel(split.program, kept)
    assert parse_kernel(str(kernel)) == kernel
    plain = replace(kept, remat="none")
    text = triton.render(kernel).text
    text = text.partition("_finish(")[0]
    exchange = text.index("w.sums(" if "w.sums(" in text else " = tl.sum(")
    before, behind = text[:exchange], text[exchange:]
    casts = re.compile(r"w\.(to_f32|to_f32_again)\(x_tile")
    assert set(casts.findall(before)) == {"to_f32"}
    assert set(casts.findall(behind)) == {"to_f32_again"}
    loops_over_rows = " in tl.range(" in text
    stays = loops_over_rows and text.index("tl.load(weight") < text.index(" in tl.range(")
    assert stays == (remat == "inputs")
    casts_of_weights = set(re.findall(r"w\.(to_f32|to_f32_again)\(weight_tile", text))
    assert casts_of_weights == {"to_f32_again"} or not stays
    assert "to_f32_again" not in triton.render(replace(kernel, schedule=plain)).text


def test_what_does_not_fit_as_values_may_fit_as_it_was_loaded() -> None:
    split = split_of("layer_norm_backward", 14336)
    found = [s for s in candidates(split) if s.scheme == "STREAM"]
    assert found
    assert "none" not in {s.remat for s in found}
    plain = [replace(s, remat="none") for s in found]
    assert all(spills(Demand.of(split.program, s), s, H200, 1.25) for s in plain)


def test_what_was_loaded_as_float32_is_not_kept_in_place_of_values() -> None:
    split = split_of("layer_norm_backward_bias", 5120)
    inputs = tuple(replace(b, dtype="f32") if b.name == "x" else b for b in split.program.inputs)
    schedule = replace(gpu_schedule(split), remat="tiles")
    assert can_keep_tiles(Demand.of(split.program, schedule))
    assert not can_keep_tiles(Demand.of(replace(split.program, inputs=inputs), schedule))


@pytest.mark.parametrize("columns", [2, 3, 4, 8, 16, 100])
@pytest.mark.parametrize("name", ["rms_norm_forward", "softmax_forward", "layer_norm_backward"])
def test_narrow_rows_are_taken_many_at_a_time(name: str, columns: int) -> None:
    chosen = gpu_schedule(split_of(name, columns, 2**20))
    assert chosen.scheme in ("ONE_SHOT", "STREAM")
    assert chosen.rows_per_tile >= (16 if columns < 100 else 8)


@pytest.mark.parametrize(
    ("name", "columns"),
    checkered(
        ["layer_norm_forward", "rms_norm_forward", "softmax_forward", "rms_norm_backward"],
        [300, 4136, 9000, 15040, 17064, 29160, 32776, 41400, 48960, 61600, 65536],
    ),
)
def test_a_row_in_registers_is_there_whole(name: str, columns: int) -> None:
    split = split_of(name, columns, 2**26 // columns)
    held = [s for s in candidates(split, 1.5) if s.scheme in ("ONE_SHOT", "STREAM")]
    assert all(columns <= s.tile_columns < 2 * columns for s in held)
    planned = plan(split.program, H200)
    assert isinstance(planned, Plan)
    assert verify_plan(planned, split.program) is planned
    kernel = next((Kernel(split.program, s) for s in held if s.pieces > 1), None)
    if kernel is not None:
        less = replace(kernel, schedule=replace(kernel.schedule, pieces=1))
        with pytest.raises(VerificationError, match="hold no row"):
            verify_plan(replace(planned, kernels=(less,)), split.program)


def test_a_runner_up_is_another_schedule_that_is_sure_to_fit() -> None:
    split = split_of("layer_norm_backward", 5120)
    chosen = gpu_schedule(split)
    other = runner_up(Kernel(split.program, chosen), H200, {})
    assert other is not None
    assert (other.rows, other.columns, other.scheme) == (chosen.rows, chosen.columns, chosen.scheme)
    wanted = [wanted_registers(Demand.of(split.program, schedule), schedule) for schedule in (chosen, other)]
    assert wanted[1] <= CLEARLY_FEWER * wanted[0]


def test_more_bytes_and_less_in_flight_take_longer() -> None:
    def us(rows: int, target: Target = H200, **changes: int) -> float:
        split = replace(split_of("rms_norm_backward", 4096, rows), target=target)
        plain = TritonSchedule("STREAM", *split.dims, 1, finish="same", piece_columns=4096)
        schedule = replace(plain, **({"warps": 8, "stages": 5, "chunks": 132} | changes))  # type: ignore[arg-type]
        return predicted_us(split, schedule)

    known = us(16384)
    assert us(32768) == pytest.approx(2 * known, rel=0.1)
    assert us(16384, stages=2) > 1.2 * known
    assert us(16384, replace(H200, bandwidth_gbps=2 * H200.bandwidth_gbps)) < known


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


SEGMENTED = """
program p()
  dim b = 65536
  dim t = 8
  dim n = 64
  input x: bf16 [b:512, t:64, n:1]
  wide: f32{b, t, n} = cast(x)
  total: f32{b, t} = sum[n](wide)
  scaled: f32{b, t, n} = mul(wide, total)
  columns: f32{b, n} = sum[t](scaled)
  output out0: f32 [b:64, n:1] = columns
end
"""


def test_the_time_of_many_programs_with_a_tile_each_is_a_number() -> None:
    """Powers of microseconds are not: with as many as this has, those of programs that share a multiprocessor."""
    split = Split.of(parse(SEGMENTED), ("b", "t"), ("n",), H200, {})
    found = candidates(split)
    times = [predicted_us(split, schedule) for schedule in found]
    assert 0 < min(times) <= max(times) < 1e6


# a kernel that spills


def compiled(monkeypatch: pytest.MonkeyPatch, *spilled: int, target: Target = H200) -> Compilation:
    """Of a layer norm's backward on an H200 whose kernels spill so many bytes, the chosen one first; later ones
    none."""
    seen: dict[Schedule, int] = {}

    def usage(kernel: Kernel) -> ResourceUsage:
        at = seen.setdefault(kernel.schedule, len(seen))
        return ResourceUsage(0, spilled[at] if at < len(spilled) else 0, 0, 0)

    monkeypatch.setattr(compiler.launch, "prepare", lambda *_: None)
    monkeypatch.setattr(compiler.launch, "usage", usage)
    counters.reset()
    graph = trace(WORKLOADS["layer_norm_backward"].fn, inputs()).graph
    return compiler.build(compile_graph(graph, target=target), Options.read({}, {}))


@functools.cache
def inputs() -> tuple[torch.Tensor, ...]:
    """Which are large, and traced only."""
    return tuple(WORKLOADS["layer_norm_backward"].make_inputs((8192, 5120), torch.bfloat16, "cpu"))


def schedule_of(compilation: Compilation) -> Schedule:
    ((kernel,),) = (region.plan.kernels for region in compilation.regions)
    return kernel.schedule


def test_a_kernel_without_spills_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    assert schedule_of(compiled(monkeypatch)) == schedule_for(split_of("layer_norm_backward", 5120))
    assert counters.model_misses == 0


def test_a_kernel_that_spills_gives_way_to_the_runner_up(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, found = schedule_of(compiled(monkeypatch)), compiled(monkeypatch, 100)
    (region,) = found.regions
    assert schedule_of(found) != chosen
    assert str(schedule_of(found)) in region.sources[0].text
    assert counters.model_misses == 1
    (kernel,) = region.plan.kernels
    assert region.plan.estimates == (estimate(kernel, H200, {}),)
    assert region.plan.resources == (resources(kernel, H200),)


def test_runners_up_that_spill_more_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = schedule_of(compiled(monkeypatch))
    assert schedule_of(compiled(monkeypatch, 100, *[200] * MOST_RUNNERS_UP)) == chosen
    assert counters.model_misses == 1


def test_a_kernel_whose_runner_up_spills_less_gives_way_to_the_next_and_is_one_miss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [schedule_of(compiled(monkeypatch, *spilled)) for spilled in ((), (100,), (100, 50))]
    assert len(set(found)) == 3
    assert counters.model_misses == 1


def test_a_kernel_that_fewer_fit_of_than_planned_gives_way_to_what_is_faster_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A row of 21232 columns in 16 warps was to take 64 registers of a thread, and takes 80: then programs that pass
    over rows, with a row's weights in registers, are faster."""
    split = split_of("layer_norm_forward", 21232, 3160)
    chosen = gpu_schedule(split)
    assert chosen.register_cap == 64
    kernel = Kernel(split.program, chosen)
    assert runner_up(kernel, H200, {}, 64) is None
    other = runner_up(kernel, H200, {}, 80)
    assert other is not None
    assert predicted_us(split, other) < predicted_us(split, chosen, 80)
    for cap in (64, 0):
        capped = replace(kernel, schedule=replace(chosen, register_cap=cap))
        assert misses.is_missed(capped, ResourceUsage(80, 0, 0, 0), H200)
        assert not misses.is_missed(capped, ResourceUsage(64, 0, 0, 0), H200)
        assert misses.is_missed(capped, ResourceUsage(64, 8, 0, 0), H200)


@pytest.mark.only_triton
def test_a_runner_up_waits_for_no_other_program_beside_kernels_of_other_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    monkeypatch.setattr(gpu_schedules, "runner_up", lambda kernel, target, *_: seen.append(target.exclusive))
    for exclusive in (True, False):
        compiled(monkeypatch, 100, target=replace(H200, exclusive=exclusive))
    assert seen == [True, False]


def test_a_runner_up_that_failed_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, (region,) = schedule_of(compiled(monkeypatch)), compiled(monkeypatch, 100).regions
    failures.record(digest_of(region.plan.kernels[0]), "p", "out of resources")
    assert schedule_of(compiled(monkeypatch, 100)) == chosen


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
