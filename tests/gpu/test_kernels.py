"""Every workload on a GPU against the float64 interpreter."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch

import weft
from tests.accuracy import rms
from tests.cases import DTYPES, NAMES
from tests.gpu.workloads import (
    COLUMN_SUMS,
    MIXED,
    compiled,
    equal,
    exact_inputs_of,
    expected,
    has_sums,
    in_chunks,
    inputs_of,
    plan_of,
    program_of,
    run,
)
from weft.backends.triton.candidates import candidates
from weft.backends.triton.choice import ranked
from weft.backends.triton.schedule import Remat
from weft.plan.kernel import Kernel
from weft.plan.split import Split
from weft.target import Target

SOME = [pytest.param(d, marks=pytest.mark.slow) if d == "f16" else d for d in DTYPES]


@pytest.mark.parametrize("shape", [(130, 1000), (3072, 512)], ids=str)
@pytest.mark.parametrize("dtype", SOME)
@pytest.mark.parametrize("name", NAMES)
def test_exact_inputs_give_equal_bits(name: str, dtype: str, shape: tuple[int, int]) -> None:
    inputs = exact_inputs_of(name, DTYPES[dtype], shape)
    case = program_of(name, inputs)
    for mine, exact in zip(run(case, inputs), expected(case, inputs), strict=True):
        assert torch.equal(mine, exact.to(mine.dtype)), (name, dtype, shape)
    assert weft.counters.fallbacks == 0
    assert weft.counters.launches > 0


@pytest.mark.parametrize("dtype", SOME)
@pytest.mark.parametrize("name", NAMES)
def test_rounding_explains_every_difference(name: str, dtype: str) -> None:
    """The check at run time compares with the float64 reference, and warns."""
    inputs = inputs_of(name, DTYPES[dtype], (1031, 1160))
    case = program_of(name, inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(case, inputs, check="always")
    assert weft.counters.fallbacks == 0


@pytest.mark.parametrize("name", NAMES)
def test_bits_are_the_same_in_a_hundred_runs(name: str) -> None:
    inputs = inputs_of(name, torch.bfloat16)
    case = program_of(name, inputs)
    call = compiled(plan_of(case, inputs), case, inputs)
    first = call()
    different = [at for at in range(100) if not equal(first, call())]
    assert not different, f"runs {different} differ from the first"
    assert weft.counters.fallbacks == 0


@pytest.mark.parametrize("margin", [1, 8, 16, 64, 10_000])
@pytest.mark.parametrize("name", NAMES)
def test_a_margin_changes_no_bits(name: str, margin: int) -> None:
    inputs = inputs_of(name, torch.bfloat16)
    case = program_of(name, inputs)
    first = run(case, inputs)
    assert equal(first, run(case, inputs, sm_margin=margin))
    assert weft.counters.fallbacks == 0


@pytest.mark.parametrize("name", COLUMN_SUMS)
def test_programs_that_share_many_chunks_change_no_bits(name: str) -> None:
    """More chunks than programs can be resident, so that every margin gives each program others."""
    inputs = inputs_of(name, torch.bfloat16, (4133, 1024))
    case = program_of(name, inputs)
    found = in_chunks(plan_of(case, inputs), 1000)
    assert any(map(has_sums, found.kernels))
    call = compiled(found, case, inputs)
    first = call()
    for margin in (16, 64, 131):
        for _ in range(10):
            assert equal(first, call(sm_margin=margin)), margin
    for mine, exact in zip(first, expected(case, inputs), strict=True):
        assert rms(mine.double() - exact) <= 0.01 * rms(exact) + 1e-6
    assert weft.counters.fallbacks == 0


TILES = [
    ("layer_norm_backward_bias", 5120),
    ("thunder_layer_norm_backward", 5120),
    ("rms_norm_backward", 12288),
    ("modulated_layer_norm_backward", 12288),
    ("layer_norm_backward", 16384),
    ("add_rms_norm_backward", 16384),
    ("layer_norm_backward_bias", 16384),
]


def rematerialising(remat: Remat, kernel: Kernel) -> Kernel:
    """The kernel with the best schedule with that rematerialisation, if it passes over rows."""
    if kernel.schedule.scheme != "STREAM":
        return kernel
    split = Split.of_kernel(kernel, Target.named("h200"), {})
    every = ranked(split, candidates(split, 1.5))
    return replace(kernel, schedule=next(s for s in every if s.remat == remat))


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("remat", ["tiles", "inputs"])
@pytest.mark.parametrize(("name", "columns"), TILES)
def test_a_row_that_is_kept_as_it_was_loaded(name: str, columns: int, remat: Remat, dtype: str) -> None:
    exact = exact_inputs_of(name, DTYPES[dtype], (4096, columns))
    case = program_of(name, exact)
    found = plan_of(case, exact)
    found = replace(found, kernels=tuple(rematerialising(remat, kernel) for kernel in found.kernels))
    assert (found.kernels[0].schedule.scheme, found.kernels[0].schedule.remat) == ("STREAM", remat)
    for mine, right in zip(compiled(found, case, exact)(), expected(case, exact), strict=True):
        assert torch.equal(mine, right.to(mine.dtype))
    inputs = inputs_of(name, DTYPES[dtype], (4096, columns))
    call = compiled(found, case, inputs)
    first = call()
    for mine, right in zip(first, expected(case, inputs), strict=True):
        assert rms(mine.double() - right) <= 0.01 * rms(right) + 1e-6
    assert all(equal(first, call(sm_margin=margin)) for margin in (0, 0, 8, 64))
    assert weft.counters.fallbacks == 0


@pytest.mark.parametrize("offset", [1, 2, 4])
@pytest.mark.parametrize("name", [MIXED, "softmax_forward"])
def test_unaligned_tensors_take_another_variant(name: str, offset: int) -> None:
    """The same bits: a variant loads fewer elements at a time, and adds in the same order."""
    inputs = inputs_of(name, torch.bfloat16)
    shifted = tuple(_shifted(t, offset) for t in inputs)
    assert any(t.data_ptr() % 16 for t in shifted)
    case = program_of(name, inputs)
    for mine, exact in zip(run(case, shifted), expected(case, inputs), strict=True):
        assert rms(mine.double() - exact) <= 0.01 * rms(exact) + 1e-6
    assert weft.counters.fallbacks == 0


def _shifted(tensor: torch.Tensor, offset: int) -> torch.Tensor:
    memory = torch.empty(tensor.numel() + offset, dtype=tensor.dtype, device=tensor.device)
    return memory[offset:].view(tensor.shape).copy_(tensor)


ANY_ROWS = (MIXED, "layer_norm_forward", "layer_norm_backward", "softmax_forward", "cross_entropy_forward")


@pytest.mark.parametrize("name", ANY_ROWS)
def test_one_kernel_serves_every_number_of_rows(name: str) -> None:
    inputs = inputs_of(name, torch.bfloat16)
    case = program_of(name, inputs, dynamic_rows=True)
    for rows in (2048, 2047, 64, 1, 4096):
        given = inputs_of(name, torch.bfloat16, (rows, 1024))
        for mine, exact in zip(run(case, given), expected(case, given), strict=True):
            assert rms(mine.double() - exact) <= 0.01 * rms(exact) + 1e-6, rows
    assert weft.counters.fallbacks == 0


@pytest.mark.parametrize("name", ANY_ROWS)
def test_no_rows_give_reductions_of_nothing(name: str) -> None:
    case = program_of(name, inputs_of(name, torch.bfloat16), dynamic_rows=True)
    given = inputs_of(name, torch.bfloat16, (0, 1024))
    for mine, exact in zip(run(case, given), expected(case, given), strict=True):
        torch.testing.assert_close(mine.double(), exact, rtol=0, atol=0, equal_nan=True)
