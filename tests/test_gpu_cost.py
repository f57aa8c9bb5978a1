"""The model of time of GPU kernels where whole columns are added up, where the caches have what is read, and where
tensors lie along a slow axis."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tools.gpu_cells import Cell, parts_of
from weft.backends.binary import Job, Variant
from weft.backends.triton import text as triton
from weft.backends.triton.accesses import FILLED_BYTES, SECTOR_COST, bank_turns, sectors_bytes
from weft.backends.triton.candidates import candidates
from weft.backends.triton.choice import ranked
from weft.backends.triton.constants import fitted_constants
from weft.backends.triton.cost import Load, times_us
from weft.backends.triton.demand import Demand, share_of
from weft.backends.triton.resources import registers_per_thread
from weft.backends.triton.schedule import VECTOR_BYTES
from weft.backends.triton.work import Work
from weft.ir.parser import parse
from weft.options import Options
from weft.plan.kernel import Kernel
from weft.plan.schedule import Schedule
from weft.plan.split import Split
from weft.runtime.gpu.builds import binaries
from weft.target import Target

H200 = Target.named("h200")


def whole_columns(workload: str, rows: int, columns: int, tile: tuple[int, int], warps: int) -> tuple[Split, Schedule]:
    """The kernel for columns of a workload, and a schedule of it in which each program has whole ones."""
    split = parts_of(Cell(workload, "bf16", rows, columns), H200)[f"{workload}_columns"]
    for schedule in candidates(split):
        if (schedule.rows_per_tile, schedule.piece_columns, schedule.warps) == (*tile, warps):
            return split, schedule.but(finish="none", chunks=1, stages=1)
    raise AssertionError(f"no candidate has {tile} in {warps} warps")


@pytest.mark.parametrize(
    ("tile", "warps", "turns"),
    [((32, 64), 4, 64), ((128, 64), 8, 64), ((256, 32), 8, 32), ((256, 16), 8, 16), ((256, 16), 4, 16)],
)
def test_lanes_whose_columns_meet_in_a_bank_take_turns(tile: tuple[int, int], warps: int, turns: int) -> None:
    split, schedule = whole_columns("row_column_sum", 256, 8192, tile, warps)
    demand = Demand.of(split.program, schedule)
    found = bank_turns(share_of(demand, schedule), schedule, VECTOR_BYTES // demand.item_bytes)
    assert found == turns
    load = Load.of(Work.of(split), demand, schedule, H200)
    assert (load.shuffles, load.block_reductions) == (turns * tile[0] / 256, tile[0] / 256)


def test_a_warp_that_has_all_rows_hands_nothing_on() -> None:
    split, schedule = whole_columns("row_column_sum", 256, 8192, (256, 32), 8)
    alone = schedule.but(warps=1, rows_per_tile=8)
    part = share_of(Demand.of(split.program, alone), alone)
    assert part.warps == 1
    assert bank_turns(part, alone, 8) == 0


def test_elements_that_are_divided_by_a_number_of_their_row_are_products() -> None:
    """With its reciprocal, which is taken once. A number that is divided by them is divided by each."""
    body = (
        "input x: f32 [m:64, n:1]\nlargest: f32{m} = max[n](x)\n"
        "quotient: f32{m, n} = %s\noutput y: f32 [m:64, n:1] = quotient"
    )
    found = dict[str, float]()
    for text in ("div(x, largest)", "mul(x, largest)", "div(largest, x)"):
        program = parse(f"program p()\ndim m = 512\ndim n = 64\n{body % text}\nend\n")
        found[text] = Work.of(Split.of(program, ("m",), ("n",), H200, {})).operations
    assert found["div(x, largest)"] == found["mul(x, largest)"] < found["div(largest, x)"]


def rows_in_pieces(columns: int, pieces: int, piece: int, *, is_given: bool = False) -> Load:
    """Of softmax, four rows of so many columns in one warp. is_given: whether its registers are known to be those that
    are predicted."""
    split = parts_of(Cell("softmax_forward", "bf16", 131072, columns), H200)["softmax_forward"]
    fields = {"rows_per_tile": 4, "pieces": pieces, "piece_columns": piece, "warps": 1}
    schedule = next(s for s in candidates(split) if s.scheme == "ONE_SHOT").but(**fields)
    demand = Demand.of(split.program, schedule)
    registers = registers_per_thread(demand, schedule) if is_given else 0
    return Load.of(Work.of(split), demand, schedule, H200, registers)


@pytest.mark.parametrize(("pieces", "piece", "edges"), [(1, 512, 1.0), (3, 128, 2 / 3), (6, 64, 1 / 3)])
def test_elements_of_the_first_and_the_last_piece_are_stored_by_themselves(
    pieces: int, piece: int, edges: float
) -> None:
    """Of rows that begin between two vectors, of others none."""
    assert rows_in_pieces(359, pieces, piece).edges == pytest.approx(edges)
    assert rows_in_pieces(360, pieces, piece).edges == 0


def test_a_multiprocessor_may_have_fewer_programs_than_registers_are_predicted_for() -> None:
    """Where rows begin between two vectors: what is given, what is wanted, and a tenth more."""
    between, known = rows_in_pieces(359, 3, 128), rows_in_pieces(360, 3, 128)
    assert between.resident != round(between.resident)
    assert known.resident == round(known.resident)
    assert between.resident < rows_in_pieces(359, 3, 128, is_given=True).resident


def test_rows_that_begin_between_vectors_take_longer_the_more_are_on_their_way() -> None:
    """Those of a tile, and of the tiles that a loop loads ahead: with four stages for three layer norm's forward
    of 300 to 450 columns took 5 % longer, of more columns 2 % less."""
    assert rows_in_pieces(360, 3, 128).open_rows == 0
    one_shot = rows_in_pieces(359, 3, 128)
    assert one_shot.open_rows == pytest.approx(4 * one_shot.resident)
    known = fitted_constants()["ONE_SHOT_SPLIT"]
    assert one_shot.us(known) > one_shot.us(replace(known, open=0.0))
    split = parts_of(Cell("layer_norm_forward", "bf16", 202745, 331), H200)["layer_norm_forward"]
    loop = next(s for s in candidates(split) if s.scheme == "STREAM" and (s.stages, s.rows_per_tile) == (3, 4))
    demand = Demand.of(split.program, loop)
    three, four = (Load.of(Work.of(split), demand, loop.but(stages=n), H200, 128) for n in (3, 4))
    assert three.resident == four.resident
    assert [three.open_rows, four.open_rows] == [8 * three.resident, 12 * three.resident]


def test_what_a_cache_has_arrives_sooner() -> None:
    split, schedule = whole_columns("rms_norm_backward", 256, 8192, (128, 64), 8)
    cold, warm = times_us(split, schedule), times_us(split, schedule, warm=True)
    assert 0.5 * cold.all < warm.all < cold.all


@pytest.mark.parametrize(("tile", "warps", "first"), [((256, 32), 8, True), ((128, 64), 8, False)])
def test_a_statistic_for_each_thread_is_loaded_before_tiles(tile: tuple[int, int], warps: int, first: bool) -> None:
    """Triton would lay tiles out a row to a thread otherwise, and move them through shared memory to add up: 5120
    bytes in place of what sums need."""
    split, schedule = whole_columns("rms_norm_backward", 256, 8192, tile, warps)
    kernel = Kernel(split.program, schedule)
    source = triton.render(kernel)
    loads = [line.split(" = ")[0].strip() for line in source.text.splitlines() if "tl.load(" in line]
    assert (loads[0] == "rstd_row") is first
    assert (loads[-1] == "rstd_row") is not first
    job = Job(kernel, source, Variant.expected(kernel, {}), 90)
    usage = binaries(job, Options.read())[source.entry].usage
    assert usage.shared_bytes <= 4 * tile[1] * warps + 1024


def strided(rows: int, columns: int, *, read: bool, written: bool) -> Split:
    """A norm of rows that lie along the slow axis of what is read, or of what is written."""
    beside, apart = f"[m:{columns}, n:1]", f"[n:{rows}, m:1]"
    program = parse(f"""program norm()
  dim m = {rows}
  dim n = {columns}
  input x: bf16 {apart if read else beside}
  cast: f32{{m, n}} = cast(x)
  mul: f32{{m, n}} = mul(cast, cast)
  sum: f32{{m}} = sum[n](mul)
  rsqrt: f32{{m}} = rsqrt(sum)
  mul_1: f32{{m, n}} = mul(cast, rsqrt)
  cast_1: bf16{{m, n}} = cast(mul_1)
  output y: bf16 {apart if written else beside} = cast_1
end
""")
    return Split.of(program, ("m",), ("n",), H200, {})


@pytest.mark.parametrize(
    ("shape", "read", "written", "tile", "warps", "measured_us"),
    [
        ((1024, 768), True, False, (1, 1024), 2, 6.43),
        ((1024, 768), True, False, (4, 1024), 8, 3.55),
        ((1024, 768), False, True, (1, 1024), 2, 12.32),
        ((1024, 768), False, True, (4, 1024), 8, 4.90),
        ((1024, 768), True, True, (2, 1024), 4, 8.80),
        ((3136, 384), False, True, (2, 512), 2, 10.30),
        ((49000, 512), True, False, (16, 512), 8, 32.51),
        ((49000, 512), False, True, (8, 512), 4, 99.78),
    ],
)
def test_parts_of_sectors_take_what_they_were_measured_to(
    shape: tuple[int, int], read: bool, written: bool, tile: tuple[int, int], warps: int, measured_us: float
) -> None:
    """On an H200. Without them the third would be predicted to take 3.3 us, the last 33."""
    split = strided(*shape, read=read, written=written)
    schedule = next(
        s
        for s in ranked(split, candidates(split))
        if (s.scheme, s.rows_per_tile, s.piece_columns, s.warps) == ("ONE_SHOT", *tile, warps)
    )
    assert times_us(split, schedule).all == pytest.approx(measured_us, rel=0.3)


def test_rows_that_are_no_neighbours_share_no_sector() -> None:
    """A tile of one segment, of which the neighbours are other segments."""
    split = strided(1024, 768, read=False, written=True)
    (beside,) = Work.of(split).strided
    assert (beside.along_rows, beside.is_written, beside.elements) == (True, True, 1024 * 768)
    apart = replace(beside, along_rows=False)
    tile = candidates(split)[0].but(rows_per_tile=16)
    assert sectors_bytes(beside, tile, 0.0) == 0
    assert sectors_bytes(apart, tile, 0.0) == pytest.approx(1024 * 768 * 30 * SECTOR_COST[True])
    assert sectors_bytes(apart, tile, 2.0) == pytest.approx(1024 * 768 * (30 * SECTOR_COST[True] + FILLED_BYTES))
