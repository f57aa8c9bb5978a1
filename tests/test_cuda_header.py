"""The header of CUDA kernels compiles, for all operations on all types; what it computes is for a GPU to say."""

from __future__ import annotations

import pytest

from tests.cases import often
from tests.cuda_header import EXCHANGED, ONLINE, casts, kernel, online_kernel, online_ways, values
from tests.cuda_rows import parts_kernel
from tests.triton_cases import COMPUTED
from weft.backends.cuda import build
from weft.ir.dtypes import HALVES, TORCH_DTYPES

pytestmark = pytest.mark.skipif(build.missing() != "", reason=f"{build.missing()} is not installed")
H100, B200 = 90, 100
ARCHITECTURES = often((H100, B200, 80, 89, 103, 120), (H100,))


def compiled(text: str, architecture: int) -> tuple[str, str]:
    """What is compiled with the header, and the log."""
    content, log = build.compiled(text, "cases", architecture, {})
    assert content.startswith(b"\x7fELF")
    assert "warning" not in log
    return text, log


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", [*COMPUTED, *HALVES])
def test_every_operation_compiles(dtype: str, architecture: int) -> None:
    given, cases = values(dtype)
    text, log = compiled(kernel(dtype, cases, len(given)), architecture)
    assert all(case.text in text for case in cases)
    assert "0 bytes gmem" in log or dtype in ("f32", "f64")  # tables of functions, and nothing else


@pytest.mark.parametrize("architecture", often((H100, B200, 89, 103, 120), (H100,)))
@pytest.mark.parametrize("source", list(TORCH_DTYPES))
def test_every_cast_compiles(source: str, architecture: int) -> None:
    given, cases = casts(source)
    assert {case.out for case in cases} == set(TORCH_DTYPES)
    _, log = compiled(kernel(source, cases, len(given)), architecture)
    assert "0 bytes gmem" in log


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_reductions_in_one_pass_compile(dtype: str, architecture: int) -> None:
    ways = online_ways(architecture)
    assert {*ONLINE} - {*ways} == (set() if architecture >= 90 else {*EXCHANGED})
    _, log = compiled(online_kernel(dtype, ways), architecture)
    for k in range(len(ways)):
        assert build.resource_usage(log, f"online_{k}", 0).spill_bytes == 0


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_lists_of_the_parts_of_chunks_compile(architecture: int) -> None:
    compiled(parts_kernel(), architecture)
