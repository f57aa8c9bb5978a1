"""Every workload as a compiled kernel against the float64 interpreter, with the project's own error rules."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.accuracy import rms, rounding_excess
from tests.cases import BACKWARDS, DTYPES, NAMES, Case, make_case, often, planned
from tests.exact_inputs import WEIGHT_OUTPUTS, exact_inputs
from weft.backends.listed import render
from weft.ir.interpret import interpret
from weft.options import Options
from weft.plan.kernel import Plan
from weft.runtime.build import library
from weft.runtime.counters import counters
from weft.runtime.launch import run_plan

SHAPE = (517, 1000)
"""Chunks of rows for several threads, and columns that are left over: of all tests of the same kernels, so that each is
compiled once."""
SHAPES = [SHAPE, (65, 7)]
MORE_SHAPES = [(256, 1024), (1000, 96), (37, 40), (3, 2048), (8, 5120)]
OFTEN = often(DTYPES, ["bf16"])
"""Rows and chunks are taken in one way whatever the dtype; casts, all have in the tests of each operation."""
THIRD, OTHER_THIRD, LAST_THIRD = (often(NAMES, NAMES[k::3]) for k in range(3))
"""Of three tests of the same kernels each has its own workloads where every change is tested, and all of them in the
tests of everything."""
EXACT_SHAPES = [(130, 1000)]
MORE_EXACT_SHAPES = [*EXACT_SHAPES, (64, 128), (403, 192)]
TILINGS = ((8, 64, 1), (8, 64, 2), (3, 7, 3), (1, 1000, 2))
OPTIONS = Options.read()


def run(case: Case, inputs: tuple[Tensor, ...], chosen: Plan | None = None) -> list[Tensor]:
    return case.outputs(run_plan(chosen or planned(case), case.program, case.bind(inputs), case.parameters, OPTIONS))


def expected(case: Case, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    return case.outputs(interpret(case.program, case.bind(inputs), case.parameters))


@pytest.mark.built_together(2)
@pytest.mark.parametrize("dtype", OFTEN)
@pytest.mark.parametrize("name", LAST_THIRD)
def test_error_is_no_larger_than_eagers(name: str, dtype: str) -> None:
    for shape in SHAPES:
        check_error(name, dtype, shape)


@pytest.mark.built_together(5)
@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_error_is_no_larger_than_eagers_at_more_shapes(name: str, dtype: str) -> None:
    for shape in MORE_SHAPES:
        check_error(name, dtype, shape)


def check_error(name: str, dtype: str, shape: tuple[int, int]) -> None:
    inputs = torch_inputs(name, shape, dtype)
    case = make_case(name, inputs)
    got = run(case, inputs)
    eager = case.workload.outputs(*inputs)
    reference = expected(case, inputs)
    for index, (mine, theirs, exact) in enumerate(zip(got, eager, reference, strict=True)):
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        excess = rounding_excess(mine, theirs, exact, index in WEIGHT_OUTPUTS.get(name, ()))
        assert excess is None, f"{name} {dtype} {shape} output {index}: {excess}"


def torch_inputs(name: str, shape: tuple[int, int], dtype: str, exact: bool = False) -> tuple[Tensor, ...]:
    from weft.bench.workloads import WORKLOADS

    given = shape, DTYPES[dtype], "cpu", 3
    return exact_inputs(name, *given) if exact else WORKLOADS[name].make_inputs(*given)


@pytest.mark.built_together(2)
@pytest.mark.parametrize("dtype", OFTEN)
@pytest.mark.parametrize("name", THIRD)
def test_exact_inputs_give_equal_bits_for_any_tiling_and_thread_count(name: str, dtype: str) -> None:
    odd = TILINGS[2 + NAMES.index(name) // 3 % 2]  # the other one is in the tests of everything
    for shape in EXACT_SHAPES:
        check_exact(name, dtype, shape, (*TILINGS[:2], odd))


@pytest.mark.built_together(9)
@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_exact_inputs_give_equal_bits_at_more_shapes(name: str, dtype: str) -> None:
    for shape in MORE_EXACT_SHAPES:
        check_exact(name, dtype, shape, TILINGS)


def check_exact(name: str, dtype: str, shape: tuple[int, int], tilings: Sequence[tuple[int, int, int]]) -> None:
    """tilings: rows of a tile, rows of a chunk, threads."""
    before = torch.get_num_threads()
    try:
        inputs = torch_inputs(name, shape, dtype, exact=True)
        case = make_case(name, inputs)
        base = planned(case)
        reference = expected(case, inputs)
        for tile, chunk, threads in tilings:
            torch.set_num_threads(threads)
            got = run(case, inputs, retiled(base, tile, chunk))
            for mine, exact in zip(got, reference, strict=True):
                assert torch.equal(mine, exact.to(mine.dtype)), (shape, tile, chunk, threads)
    finally:
        torch.set_num_threads(before)


def retiled(base: Plan, tile: int, chunk: int) -> Plan:
    kernels = tuple(
        replace(k, schedule=replace(k.schedule, rows_per_tile=tile, rows_per_chunk=chunk)) for k in base.kernels
    )
    return replace(base, kernels=kernels)


@pytest.mark.built_together(1)
@pytest.mark.parametrize("name", OTHER_THIRD)
def test_bits_do_not_depend_on_threads(name: str) -> None:
    before = torch.get_num_threads()
    inputs = torch_inputs(name, SHAPE, "bf16")
    case = make_case(name, inputs)
    try:
        results: list[list[Tensor]] = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append(run(case, inputs))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_calls_of_several_threads_have_memory_of_their_own() -> None:
    """For their column sums. A size at a time: what a call leaves behind is too small for the next, or too large."""
    shapes = (SHAPE, (65, 1000), (4133, 1000))
    given = [torch_inputs("layer_norm_backward", shape, "f32") for shape in shapes]
    cases = [make_case("layer_norm_backward", inputs) for inputs in given]
    alone = [run(case, inputs) for case, inputs in zip(cases, given, strict=True)]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(run, cases * 20, given * 20))
    for found, expected in zip(together, alone * 20, strict=True):
        assert all(map(torch.equal, found, expected))


def test_no_library_of_a_kernel_has_variables_of_threads() -> None:
    """PT_TLS among the segments of an ELF file: glibc counts those, and ends processes that load many while threads
    start."""
    case = make_case("layer_norm_backward", torch_inputs("layer_norm_backward", SHAPE, "bf16"))
    (kernel,) = planned(case).kernels
    content = library(render(kernel), OPTIONS)
    start, size, count = struct.unpack_from("<Q14xHH", content, 32)
    kinds = [struct.unpack_from("<I", content, start + size * at)[0] for at in range(count)]
    assert 1 in kinds  # PT_LOAD
    assert 7 not in kinds


@pytest.mark.built_together(1)
@pytest.mark.parametrize("name", often(NAMES, NAMES[::6]))
def test_one_kernel_serves_every_number_of_rows(name: str) -> None:
    made = torch_inputs(name, (512, 96), "bf16")
    case = make_case(name, made, dynamic_rows=True)
    chosen = planned(case)
    if any(t.ndim > 2 for t in made):  # the batch is what changes
        others = [tuple(t[:batch] if t.ndim > 1 else t for t in made) for batch in (1, 2, 3, 8)]
    else:
        others = [torch_inputs(name, (rows, 96), "bf16") for rows in (1, 2, 63, 64, 65, 300)]
    for inputs in others:
        parameters = case.parameters_for(inputs)
        got = run_plan(chosen, case.program, case.bind(inputs), parameters, OPTIONS)
        reference = interpret(case.program, case.bind(inputs), parameters)
        for mine, exact in zip(got, reference, strict=True):
            rounding = torch.finfo(mine.dtype).eps / 2  # the largest, which matters for outputs in 8 bits
            assert rms(mine.double() - exact) <= max(0.01, rounding) * rms(exact) + 1e-6


@pytest.mark.built_together(1)
@pytest.mark.parametrize("name", BACKWARDS)
def test_a_backward_is_one_kernel_that_moves_each_tensor_once(name: str) -> None:
    rows, columns = SHAPE
    inputs = torch_inputs(name, SHAPE, "bf16")
    case = make_case(name, inputs)
    chosen = planned(case)
    assert len(chosen.kernels) == 1
    counters.reset()
    outputs = run(case, inputs, chosen)
    assert counters.launches == 1
    everything = {id(t): t for t in (*inputs, *outputs)}.values()
    assert counters.launch_bytes == sum(t.numel() * t.itemsize for t in everything)
    tiles = [t for t in everything if t.numel() == rows * columns]
    estimate = chosen.estimates[0]
    assert estimate.bytes_read + estimate.bytes_written == counters.launch_bytes
    assert sum(t.numel() * t.itemsize for t in tiles) > 0.95 * counters.launch_bytes
    (kernel,) = chosen.kernels
    buffers = [*kernel.program.inputs, *(o.buffer for o in kernel.program.outputs)]
    assert sum(len(b.dims) == len(kernel.program.dims) for b in buffers) == len(tiles)


@pytest.mark.built_together(1)
@pytest.mark.parametrize("name", OTHER_THIRD)
def test_outputs_are_written_whole(name: str) -> None:
    """A second run into poisoned memory of the allocator's gives the same bits."""
    inputs = torch_inputs(name, SHAPE, "bf16")
    case = make_case(name, inputs)
    first = [t.clone() for t in run(case, inputs)]
    for t in run(case, inputs):
        t.fill_(float("nan"))
    again = run(case, inputs)
    assert all(torch.equal(a, b) and not a.isnan().any() for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("name", ["row_column_sum", "row_column_amax", "cross_entropy_forward"])
def test_rows_and_columns_of_one_tensor_are_reduced_in_one_pass(name: str) -> None:
    inputs = torch_inputs(name, (512, 256), "bf16")
    chosen = planned(make_case(name, inputs))
    assert chosen.kinds == ("mixed-order",)
    assert chosen.estimates[0].bytes_read == sum(t.numel() * t.itemsize for t in inputs)


def test_batch_norm_is_cut_where_rows_need_the_statistics_of_all() -> None:
    inputs = torch_inputs("batch_norm_forward", (512, 256), "bf16")
    chosen = planned(make_case("batch_norm_forward", inputs))
    assert chosen.kinds == ("outer", "pointwise")
    refused = [d.refusal for d in chosen.decisions if d.refusal is not None]
    assert {r.rule for r in refused} == {"outer_dependency"}
    assert all("only after the whole pass" in r.message for r in refused)
