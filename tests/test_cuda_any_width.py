"""Kernels in CUDA C++ whose width is known at run time only: how they are planned, and that they are right."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.cases import often
from tests.cuda_kernels import compiled, kernel_of, needs_nvrtc, of_any_width, planned_for, split_of, with_any_rows
from tests.on_host.kernels import Machine, check, is_right
from tools.swept import TARGET
from weft.backends.binary import Job, Variant
from weft.backends.cuda import choice, legality, resources
from weft.backends.cuda.backend import BACKEND
from weft.backends.cuda.candidates import candidates
from weft.backends.cuda.launches import shared_bytes
from weft.backends.cuda.view import View
from weft.backends.cuda.work import Work
from weft.backends.listed import render
from weft.errors import Refusal
from weft.ir.parser import parse
from weft.plan.exact import exact
from weft.plan.schedules import schedule_for
from weft.plan.split import Split

pytestmark = pytest.mark.where_changed("tests/on_host", "weft/backends", "weft/ir", "weft/lowering", "weft/plan")

# plans


@pytest.mark.parametrize(
    ("name", "columns"), [("layer_norm_backward", 24576), ("softmax_forward", 50257), ("rms_norm_forward", 30001)]
)
def test_kernels_of_any_width_are_planned_for_the_likely_one(name: str, columns: int) -> None:
    """By the time of that one, and shared memory as it is laid out, for as many columns as there is place for."""
    kernel, split, _ = planned_for(name, (4096, columns))
    known, unknown = Work.of(split_of(name, 4096, columns)), Work.of(split)
    assert isinstance(known, Work)
    assert unknown == replace(known, is_any_width=True, alike=8)
    assert known.is_early == (columns % 8 != 0)
    assert schedule_for(split) == kernel.schedule
    (least, us) = (
        min(choice.times_of(s, each).all for each in candidates(s)) for s in (split_of(name, 4096, columns), split)
    )
    assert 0.99 * least <= us <= 1.2 * least
    for schedule in candidates(split)[::23]:
        made = replace(kernel, schedule=schedule)
        assert View(made).stage_bytes == resources.stage_bytes(unknown, schedule)
        assert shared_bytes(made) <= resources.shared_bytes(unknown, schedule)
        assert BACKEND.check_sizes(made, {"m": 4096, "n": columns, "s0": columns}) is None


@needs_nvrtc
@pytest.mark.parametrize(("name", "columns"), [("layer_norm_backward", 24576), ("layer_norm_forward", 30001)])
def test_what_is_planned_for_any_width_does_not_spill(name: str, columns: int) -> None:
    kernel, _, _ = planned_for(name, (4096, columns))
    (first, *_) = BACKEND.compile(Job(kernel, render(kernel), Variant.expected(kernel, {"s0": columns}), 90))
    assert first.usage.spill_bytes == 0


@needs_nvrtc
def test_parts_of_any_number_of_segments_are_counted_in_few_registers() -> None:
    """Numbers of 64 bits spilled 32 bytes."""
    _, kernel = kernel_of("modulated_layer_norm_backward", (8192, 2000), dynamic=True)
    split = Split.of_kernel(kernel, TARGET, {"s0": 64})
    schedule = choice.chosen(split)
    assert schedule is not None
    kernel = replace(kernel, schedule=schedule)
    assert View(kernel).part_type == "int"
    assert "const w::ChunkParts<int> parts{static_cast<int>(segments), chunks};" in render(kernel).text
    for binary in BACKEND.compile(Job(kernel, render(kernel), Variant.expected(kernel, {"s0": 64}), 90)):
        assert binary.usage.spill_bytes == 0


@needs_nvrtc
def test_more_row_tiles_than_32_bits_count_are_counted_in_64() -> None:
    _, kernel = kernel_of("rms_norm_backward", (515, 1001), warps=4, vectors=2)
    (rows,) = kernel.schedule.rows
    dims = kernel.program.dims
    for count, kind in ((10**6, "int"), (10**9, "int64_t")):
        program = replace(kernel.program, dims=tuple(replace(d, size=count) if d.name == rows else d for d in dims))
        made = replace(kernel, program=program)
        text = render(made).text
        assert f"constexpr w::ChunkParts<{kind}> parts{{apart, chunks}};" in text
        assert text.count(f"for ({kind} part = parts.first(chunk); part <= parts.last(chunk); ++part)") == 2
        assert BACKEND.compile(Job(made, render(made), Variant.expected(made, {}), 90))


def test_parts_are_counted_in_64_bits_where_there_are_as_many_segments() -> None:
    """That of a part follows from a product of both numbers."""
    _, kernel = kernel_of("modulated_layer_norm_backward", (512, 1024), warps=4, vectors=2, finish="separate")
    (segments,) = kernel.schedule.segments
    dims = kernel.program.dims
    for count, kind in ((46_000, "int"), (50_000, "int64_t")):
        program = replace(kernel.program, dims=tuple(replace(d, size=count) if d.name == segments else d for d in dims))
        assert View(replace(kernel, program=program)).part_type == kind


@needs_nvrtc
@pytest.mark.parametrize(
    ("name", "columns"), [("layer_norm_backward", 48887), ("layer_norm_backward", 27346), ("rms_norm_backward", 18587)]
)
def test_the_finish_of_rows_whose_number_is_known_at_run_time_does_not_spill(name: str, columns: int) -> None:
    """It divides numbers of parts, which fit 32 bits."""
    rows = 2**26 // columns
    kernel = exact(with_any_rows(planned_for(name, (rows, columns))[0]), TARGET, {"s0": columns, "rows": rows})
    assert kernel is not None
    assert {dim.size for dim in kernel.program.dims} == {"rows", columns}
    compiled(kernel, 90)


@pytest.mark.parametrize(
    ("name", "columns"),
    [("softmax_forward", 6571), ("softmax_forward", 1935), ("layer_norm_forward", 11944), ("rms_norm_backward", 9001)],
)
def test_a_width_of_a_call_has_the_schedule_of_a_known_one(name: str, columns: int) -> None:
    rows = 2**26 // columns
    kernel = exact(planned_for(name, (rows, columns))[0], TARGET, {"s0": columns})
    assert kernel is not None
    assert kernel.schedule == schedule_for(split_of(name, rows, columns))


def test_rows_that_likely_begin_with_vectors_need_a_row_reduction() -> None:
    """As those do that are known to."""
    body = "  input x: bf16 [m:s0, n:1]\n  double: bf16{m, n} = add(x, x)\n  output y: bf16 [m:s0, n:1] = double\n"
    program = parse(f"program p(s0)\n  dim m = 4096\n  dim n = s0\n{body}end\n")
    found = [Work.of(Split.of(program, ("m",), ("n",), TARGET, {"s0": columns})) for columns in (20000, 20001)]
    assert isinstance(found[0], Refusal)
    assert found[0].rule == "cuda_rows"
    assert isinstance(found[1], Work)


# threads that are fibers of this machine


@pytest.mark.parametrize("apart", ["s1", 1040, 1042])
@pytest.mark.parametrize("cluster", [1, 2])
def test_rows_of_any_width_may_be_any_distance_apart(cluster: int, apart: int | str) -> None:
    kernel = of_any_width(apart, cluster=cluster, warps=4, vectors=2)
    for columns, distance in ((640, 640), (640, 656), (640, 641), (641, 656), (1021, 1023), (1024, 1040)):
        distance = distance if isinstance(apart, str) else apart
        x = torch.randint(-64, 64, (8, distance)).float()[:, :columns]
        is_right(
            kernel, [x], (columns, distance) if apart == "s1" else (columns,), machines=[Machine(3), Machine(1, 1)]
        )


PLANNED = [
    ("layer_norm_backward", 2056), ("layer_norm_backward", 2048), ("layer_norm_backward", 4099),
    ("rms_norm_backward", 8192), ("softmax_forward", 4104), ("softmax_forward", 13001), ("layer_norm_forward", 1001),
    ("layer_norm_forward", 6008), ("cross_entropy_forward", 2048), ("thunder_layer_norm_backward", 1016),
]  # fmt: skip
"""Workloads with likely widths."""
OFTEN = [PLANNED[number] for number in (2, 3, 5, 6, 9)]


@pytest.mark.parametrize("early", [0, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "likely"), often(PLANNED, OFTEN))
def test_what_is_planned_for_a_likely_width_is_right_for_all_that_it_has_place_for(
    name: str, likely: int, early: int
) -> None:
    kernel, _, fields = planned_for(name, (1000, likely))
    view = View(kernel)
    widest = view.most_columns(divisible=False)
    assert likely <= (widest if likely % 16 else view.most_columns(divisible=True))
    fields["chunks"] = min(fields["chunks"], 4)
    for columns in {2, 64, likely, min(likely - 3, widest), widest, (widest + 7) // 16 * 16}:
        assert legality.check_width(view, {"n": columns, "s0": columns}) is None
        check(name, (21, columns), early=early, any_width=True, machines=[Machine(2, columns)], **fields)


@needs_nvrtc
def test_what_all_parts_have_in_common_is_not_kept_for_them() -> None:
    """While it was, this kernel spilled, which does not where its number of rows is known."""
    fields = {"warps": 10, "vectors": 4, "stages": 3, "chunks": 132, "weights": "shared", "finish": "separate"}
    kernel = kernel_of("layer_norm_backward", (6759, 9929), **fields)[1]
    compiled(kernel, TARGET.architecture)
    compiled(with_any_rows(kernel), TARGET.architecture)
