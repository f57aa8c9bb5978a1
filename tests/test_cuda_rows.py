"""Which rows a part of a chunk has in CUDA C++, by the header as it is compiled for this machine, and where its partial
results lie."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cuda_kernels import SOME, kernel_of
from tests.cuda_rows import APART, TEXT, Part, finding, listed, places
from tests.host_cuda import library, section
from weft.backends.cuda import launches
from weft.backends.cuda.view import View
from weft.backends.listed import render

Lists = Callable[[int, int, int], list[Part]]

_CALLED = """
extern "C" void list_all(int64_t* out, int64_t rows, int64_t chunks, int apart) {
  for (int64_t chunk = 0; chunk < chunks; ++chunk)
    apart == 1 ? list_parts<1>(out, rows, chunks, chunk)
    : apart == 2 ? list_parts<2>(out, rows, chunks, chunk)
    : apart == 4 ? list_parts<4>(out, rows, chunks, chunk)
    : list_parts<8>(out, rows, chunks, chunk);
}
"""


@pytest.fixture(scope="module")
def parts_of(tmp_path_factory: pytest.TempPathFactory) -> Lists:
    """Of so many rows and chunks."""
    header = f"namespace w {{\n{section('the rows of a chunk')}\n}}\n"
    made = library(header + TEXT + _CALLED, tmp_path_factory.mktemp("rows"))

    def call(rows: int, chunks: int, apart: int) -> list[Part]:
        words = (ctypes.c_int64 * places(chunks, apart))(*[-1] * places(chunks, apart))
        made.list_all(words, ctypes.c_int64(rows), ctypes.c_int64(chunks), apart)
        return listed(list(words))

    return call


@pytest.mark.parametrize("apart", APART)
def test_every_row_is_of_one_part_whose_rows_all_begin_alike(parts_of: Lists, apart: int) -> None:
    for rows in (*range(1, 70), 1023, 1024, 1335):
        for chunks in {c for c in (*range(1, 20), 33, 66, 132, 264, 1056) if c <= rows}:
            assert finding(parts_of(rows, chunks, apart), rows, chunks, apart) is None, (rows, chunks)


@settings(deadline=None, max_examples=500, derandomize=True)
@given(rows=st.integers(0, 2**45), chunks=st.integers(1, 1200), apart=st.sampled_from(APART))
def test_rows_may_be_any_number(parts_of: Lists, rows: int, chunks: int, apart: int) -> None:
    """Also fewer than there are chunks; and of more than two billion the index has 64 bits."""
    assert finding(parts_of(rows, chunks, apart), rows, chunks, apart) is None


def test_a_chunk_has_a_part_more_for_each_place_that_begins_in_it(parts_of: Lists) -> None:
    """Of 20 rows, with four that do not exist, each of three chunks has eight. A chunk that ends where rows that begin
    alike do has an empty part of the next ones."""
    found = [(p.number, p.chunk, [*p.rows]) for p in parts_of(20, 3, 8)]
    assert found == [
        (0, 0, [0, 8, 16]), (1, 0, [1, 9, 17]), (2, 0, [2, 10]),
        (3, 1, [18]), (4, 1, [3, 11, 19]), (5, 1, [4, 12]), (6, 1, [5]),
        (7, 2, [13]), (8, 2, [6, 14]), (9, 2, [7, 15]),
    ]  # fmt: skip
    assert [(p.number, p.chunk, [*p.rows]) for p in parts_of(6, 2, 2)] == [
        (0, 0, [0, 2, 4]),
        (1, 0, []),
        (2, 1, [1, 3, 5]),
    ]


@pytest.mark.parametrize(
    ("parts", "wrong"),
    [
        ([Part(0, 0, range(0, 4, 2), 0), Part(1, 0, range(1, 4, 2), 1)], None),
        ([Part(0, 0, range(0, 4, 2), 0), Part(2, 0, range(1, 4, 2), 1)], "numbers"),
        ([Part(0, 0, range(0, 4, 2), 0), Part(1, 0, range(0, 4, 2), 1)], "begins somewhere else"),
        ([Part(0, 0, range(0, 4, 2), 0), Part(1, 0, range(1, 4, 2), 0)], "begins as others do"),
        ([Part(0, 0, range(0, 4, 2), 0), Part(1, 0, range(1, 2, 2), 1)], "not each row once"),
        ([Part(0, 0, range(0, 4, 2), 0), Part(1, 0, range(3, 4, 2), 1)], "not each row once"),
        ([Part(0, 0, range(0, 6, 2), 0), Part(1, 0, range(1, 4, 2), 1)], "not each row once"),
        ([Part(0, 0, range(0, 4, 2), 0), Part(1, 0, range(1, 4, 4), 1)], "begin at other places"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_found(parts: list[Part], wrong: str | None) -> None:
    found = finding(parts, 4, 1, 2)
    assert found is None if wrong is None else wrong in str(found)


@pytest.mark.parametrize("second", [range(1, 4, 1), range(0, 4, 2), range(1, 2, 2)])
def test_rows_that_are_not_every_so_many_are_found(second: range) -> None:
    assert finding([Part(0, 0, range(0, 4, 2), 0), Part(1, 1, range(1, 4, 2), 0)], 4, 2, 1) is None
    assert "every so many" in str(finding([Part(0, 0, range(0, 4, 2), 0), Part(1, 1, second, 0)], 4, 2, 1))


def test_chunks_that_are_unequal_are_found() -> None:
    parts = [Part(0, 0, range(0, 2, 2), 0), Part(1, 1, range(2, 8, 2), 0), Part(2, 1, range(1, 8, 2), 1)]
    assert finding(parts, 8, 2, 2) == "chunk 0 has 1 rows"


# in kernels


def test_partial_results_are_whole_vectors_wherever_rows_begin() -> None:
    _, kernel = kernel_of("rms_norm_backward", (515, 1001), **SOME["a finish of its own"])
    text_ = render(kernel).text
    assert "w::store(sum_1_partial + part * padded + before + column, w::vector(sum_1[k]));" in text_
    begins = "beginning(dy + w::first_row<apart>(part, chunks) * 1001)"
    assert text_.count(f"const auto begins = [&](int part) {{ return {begins}; }};") == 1
    assert text_.count("constexpr int64_t parts = chunks + apart - 1;") == 2
    assert "(memory, sum_1_partial, parts, padded, begins, begin, columns)" in text_
    assert launches.abi(kernel).partials[0].elements == (64 + 8 - 1) * 1008


@pytest.mark.parametrize(("columns", "apart"), [(1001, 8), (1002, 4), (1004, 2), (1008, 1)])
def test_a_chunk_has_a_part_for_each_place_where_rows_begin_between_vectors(columns: int, apart: int) -> None:
    """All warps go through the same rows of it, and partial results of a part are its own."""
    _, kernel = kernel_of("rms_norm_backward", (515, columns), **SOME["a finish of its own"])
    lines = [line.strip() for line in render(kernel).text.splitlines()]
    loop = "for (int64_t part = w::first_part<apart>(chunk, chunks); part <= last; ++part) {"
    rows = "const auto own_rows = w::rows_of<apart>(part, chunk, rows, chunks);"
    plain = "const int64_t first_row = chunk, end_row = rows, stride = chunks;"
    assert lines.count(f"constexpr int apart = {apart};") == lines.count(loop) == lines.count(rows) == 2 * (apart > 1)
    assert lines.count(plain) == 2 * (apart == 1)
    assert lines.count("for (int64_t row = first_row; row < end_row; row += stride) {") == 2
    place = "part" if apart > 1 else "chunk"
    assert f"w::store(sum_1_partial + {place} * padded + before + column, w::vector(sum_1[k]));" in lines
    assert launches.abi(kernel).partials[0].elements == (64 + apart - 1) * 8 * -(-(columns + 7) // 8)


def test_where_no_thread_keeps_anything_of_its_columns_rows_of_a_tile_are_neighbours() -> None:
    _, kernel = kernel_of("softmax_forward", (515, 1001), warps=4, rows_per_tile=2)
    lines = [line.strip() for line in render(kernel).text.splitlines()]
    assert lines.count("const int before = beginning(x_at(row + r));") == 1
    assert lines.count("before[r] = beginning(x_at(row + r));") == 1
    assert "apart" not in render(kernel_of("softmax_forward", (515, 1001), warps=4)[1]).text


def test_parts_of_segments_lie_one_after_the_other() -> None:
    _, kernel = kernel_of("modulated_layer_norm_backward", (512, 1001), warps=4, vectors=2, finish="separate")
    assert kernel.schedule.segments
    segments = View(kernel).count(kernel.schedule.segments)
    assert segments is not None
    assert segments > 1
    text_ = render(kernel).text
    assert "_partial + (segment * parts + part) * padded + before + column, " in text_
    row = f"segment * {512 // segments * 1001} + w::first_row<apart>(part, chunks) * 1001"
    assert f"const auto begins = [&](int64_t segment, int part) {{ return beginning(dy + {row}); }};" in text_
    assert (
        "_partial + segment * parts * padded, parts, padded, [&](int part) { return begins(segment, part); }," in text_
    )
    assert {p.elements for p in launches.abi(kernel).partials} == {segments * (64 + 8 - 1) * 1008}
