"""The header of CUDA kernels computes what the table of operations says, and casts as torch does."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest
import torch
from torch import Tensor

from tests.cuda_header import (
    SLOT_BYTES,
    THREADS,
    Case,
    casts,
    kernel,
    online_finding,
    online_kernel,
    online_ways,
    results,
    rows,
    values,
)
from tests.cuda_rows import WAYS, finding, listed, parts_kernel, words
from tests.triton_cases import COMPUTED
from weft.backends.cuda import build
from weft.ir.dtypes import HALVES, TORCH_DTYPES
from weft.runtime.gpu import driver

pytestmark = pytest.mark.skipif(build.missing() != "", reason=f"{build.missing()} is not installed")


def architecture() -> int:
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


def start(content: bytes, entry: str, programs: int, words: Sequence[int]) -> None:
    function = driver.load_function(content, entry, 0, torch.cuda.current_device())
    stream = torch.cuda.current_stream().cuda_stream
    driver.start(function, (programs, 1), THREADS, 0, stream, words, False)
    torch.cuda.synchronize()


def findings(dtype: str, given: Sequence[Tensor], cases: Sequence[Case], **macros: str) -> dict[str, str]:
    """What is wrong with results of a kernel that computes all cases."""
    content, _ = build.compiled(kernel(dtype, cases, len(given)), "cases", architecture(), macros)
    elements, operands = len(given[0]), [x.cuda() for x in given]
    out = torch.zeros(len(cases), SLOT_BYTES * elements, dtype=torch.uint8, device="cuda")
    words = [*(x.data_ptr() for x in operands), out.data_ptr(), elements]
    start(content, "cases", -(-elements // THREADS), words)
    found = zip(cases, results(out.cpu(), cases, elements), strict=True)
    return {case.name: text for case, mine in found if (text := case.finding(mine)) is not None}


@pytest.mark.parametrize("dtype", [*COMPUTED, *HALVES])
def test_an_operation_computes_what_torch_does(dtype: str) -> None:
    assert findings(dtype, *values(dtype)) == {}


@pytest.mark.parametrize("source", list(TORCH_DTYPES))
def test_casts_round_as_torch_does(source: str) -> None:
    assert findings(source, *casts(source)) == {}


@pytest.mark.parametrize(("saturates", "beyond"), [("0", float("nan")), ("1", 448.0)])
def test_eight_bits_are_nan_or_the_largest_number_beyond_it(saturates: str, beyond: float) -> None:
    x = torch.tensor([0.0, 448.0, 464.0, 464.1, -500.0, 1e30, -float("inf"), float("nan")])
    right = x.clamp(-448, 448)
    right = torch.where(x.abs() > (448.0 if saturates == "1" else 464.0), x.sign() * beyond, right)
    case = Case("f8e4m3", "w::cast<w::f8e4m3>(x0)", "f8e4m3", right.to(torch.float8_e4m3fn))
    assert findings("f32", [x], [case], WEFT_F8E4M3_SATURATES=saturates) == {}


@pytest.mark.parametrize("columns", [2, 100, 4099])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_reductions_in_one_pass(dtype: str, columns: int) -> None:
    ways = online_ways(architecture())
    content, _ = build.compiled(online_kernel(dtype, ways), "online", architecture(), {})
    x = rows(dtype, columns)
    given, found = x.cuda(), dict[str, str | None]()
    for k, way in enumerate(ways):
        out = torch.zeros(len(x), dtype=x.dtype, device="cuda")
        start(content, f"online_{k}", len(x), [given.data_ptr(), out.data_ptr(), columns])
        found[way] = online_finding(way, x, out.cpu())
    assert {way: text for way, text in found.items() if text is not None} == {}


@pytest.mark.parametrize("way", WAYS)
def test_every_row_is_of_one_part_of_a_chunk(way: tuple[int, int, int]) -> None:
    """As a GPU divides, too: see tests/test_cuda_rows.py."""
    content, _ = build.compiled(parts_kernel(), "parts", architecture(), {})
    found = dict[tuple[int, int, int], str | None]()
    for case in product((1, 7, 64, 513, 1335, 2**33 + 5), (1, 8), (1, 2, 3, 5, 8, 24, 66, 131, 132, 1056)):
        count, segments, chunks = case
        out = torch.full((words(chunks, way[0] * segments),), -1, dtype=torch.int64, device="cuda")
        start(content, f"parts_{'_'.join(map(str, way))}", -(-chunks // THREADS), [out.data_ptr(), *case])
        found[case] = finding(listed(out.cpu()), count, chunks, *way, segments)
    assert {case: text for case, text in found.items() if text is not None} == {}
