"""Which rows a part of a chunk has in CUDA C++, by the header as it is compiled for this machine, and where its partial
results lie."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cuda_kernels import SOME, kernel_of
from tests.cuda_rows import TEXT, WAYS, Part, finding, listed, places
from tests.host_cuda import library, section
from weft.backends.cuda import launches
from weft.backends.cuda.view import View
from weft.backends.listed import render

Lists = Callable[..., list[Part]]

_CASES = "".join(
    f"  if (apart == {a} && tile_rows == {r}) return list_parts<{a}, {r}>(out, rows, chunks, chunk);\n" for a, r in WAYS
)
_CALLED = f"""
inline void list_one(int64_t* out, int64_t rows, int64_t chunks, int64_t chunk, int apart, int tile_rows) {{
{_CASES}}}
extern "C" void list_all(int64_t* out, int64_t rows, int64_t chunks, int apart, int tile_rows) {{
  for (int64_t chunk = 0; chunk < chunks; ++chunk) list_one(out, rows, chunks, chunk, apart, tile_rows);
}}
extern "C" int64_t next_of(w::PartTiles* tiles) {{ return tiles->next(); }}
"""


@pytest.fixture(scope="module")
def header(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    text = f"namespace w {{\n{section('the rows of a chunk')}\n}}\n"
    made = library(text + TEXT + _CALLED, tmp_path_factory.mktemp("rows"))
    made.next_of.restype = ctypes.c_int64
    return made


@pytest.fixture(scope="module")
def parts_of(header: ctypes.CDLL) -> Lists:
    """Of so many rows and chunks."""

    def call(rows: int, chunks: int, apart: int, tile_rows: int = 1) -> list[Part]:
        words = (ctypes.c_int64 * places(chunks, apart))(*[-1] * places(chunks, apart))
        header.list_all(words, ctypes.c_int64(rows), ctypes.c_int64(chunks), apart, tile_rows)
        return listed(list(words))

    return call


@pytest.mark.parametrize(("apart", "tile_rows"), WAYS)
def test_every_row_is_of_one_part_whose_rows_all_begin_alike(parts_of: Lists, apart: int, tile_rows: int) -> None:
    for rows in (*range(1, 70), 1023, 1024, 1335):
        for chunks in {c for c in (*range(1, 20), 33, 66, 132, 264, 1056) if c <= rows}:
            parts = parts_of(rows, chunks, apart, tile_rows)
            assert finding(parts, rows, chunks, apart, tile_rows) is None, (rows, chunks)
            firsts = (first for part in parts for first in part.tiles(rows))
            found = [row for first in firsts for row in range(first, first + apart * tile_rows, apart) if row < rows]
            assert sorted(found) == [*range(rows)]


@settings(deadline=None, max_examples=500, derandomize=True)
@given(rows=st.integers(0, 2**45), chunks=st.integers(1, 1200), way=st.sampled_from(WAYS))
def test_rows_may_be_any_number(parts_of: Lists, rows: int, chunks: int, way: tuple[int, int]) -> None:
    """Also fewer than there are chunks; and of more than two billion the index has 64 bits."""
    assert finding(parts_of(rows, chunks, *way), rows, chunks, *way) is None


@pytest.mark.parametrize(("rows", "chunks"), [(20, 3), (70, 6), (1335, 66), (3, 3), (7, 12)])
@pytest.mark.parametrize(("apart", "tile_rows"), WAYS)
def test_tiles_of_a_part_follow_one_another(
    header: ctypes.CDLL, parts_of: Lists, rows: int, chunks: int, apart: int, tile_rows: int
) -> None:
    for part in parts_of(rows, chunks, apart, tile_rows):
        words = (ctypes.c_int64 * 6)(part.first, part.left, part.in_turn, part.step, part.round, part.from_round)
        found, row = list[int](), part.first
        while row < rows:
            found.append(row)
            row = header.next_of(words)
        assert found == [*part.tiles(rows)] == sorted({*found})


@pytest.mark.parametrize(("chunks", "apart"), [(66, 8), (30, 8), (132, 4), (15, 8), (30, 2), (264, 1)])
def test_what_all_chunks_are_at_lies_together(parts_of: Lists, chunks: int, apart: int) -> None:
    """A chunk whose rows all begin alike is never further from where it would be, if each had every so many rows, than
    two rounds of all places."""
    rows = 50 * chunks + 3
    parts = parts_of(rows, chunks, apart)
    alone = [p for p in parts if sum(q.chunk == p.chunk and q.first < rows for q in parts) == 1 and p.first < rows]
    assert len(alone) >= chunks // apart
    for part in alone:
        furthest = max(abs(row - chunks * turn) for turn, row in enumerate(part.tiles(rows)))
        assert furthest <= 2 * part.from_round


def test_a_chunk_has_a_part_more_for_each_place_that_begins_in_it(parts_of: Lists) -> None:
    """Of 20 rows, with four that do not exist, each of three chunks has eight: two or three of each place are one round
    of it. A chunk that ends where rows that begin alike do has an empty part of the next ones."""
    found = [(p.number, p.chunk, [*p.tiles(20)]) for p in parts_of(20, 3, 8)]
    assert found == [
        (0, 0, [0, 8, 16]), (1, 0, [1, 9, 17]), (2, 0, [2, 10]),
        (3, 1, [18]), (4, 1, [3, 11, 19]), (5, 1, [4, 12]), (6, 1, [5]),
        (7, 2, [13]), (8, 2, [6, 14]), (9, 2, [7, 15]),
    ]  # fmt: skip
    assert [(p.number, p.chunk, [*p.tiles(6)]) for p in parts_of(6, 2, 2)] == [
        (0, 0, [0, 2, 4]),
        (1, 0, []),
        (2, 1, [1, 3, 5]),
    ]


def test_rows_are_dealt_out_in_rounds_behind_what_these_leave(parts_of: Lists) -> None:
    """Three chunks have two places, so a round of a place has three rows, of which the middle chunk has one: 13 rows of
    a place are four rounds and one row."""
    found = [(p.number, p.chunk, [*p.tiles(26)]) for p in parts_of(26, 3, 2)]
    assert found == [
        (0, 0, [2, 4, 8, 10, 14, 16, 20, 22]),
        (1, 1, [0, 6, 12, 18, 24]), (2, 1, [3, 9, 15, 21]),
        (3, 2, [1, 5, 7, 11, 13, 17, 19, 23, 25]),
    ]  # fmt: skip


RIGHT = (Part(0, 0, 0, 0, 1, 1, 2, 2, 2), Part(1, 0, 1, 1, 1, 1, 2, 3, 2))
"""Of four rows, in one chunk, two apart."""


@pytest.mark.parametrize(
    ("number", "change", "wrong"),
    [
        (0, {}, None),
        (1, {"number": 2}, "numbers"),
        (1, {"first": 0}, "begins somewhere else"),
        (1, {"alike": 0}, "begins as others do"),
        (1, {"step": 4}, "has other tiles"),
        (1, {"first": 3}, "not each tile once"),
        (1, {"in_turn": 2}, "not each tile once"),
        (1, {"from_round": 4}, "rounds of"),
        (0, {"left": 0}, "leaves out tiles"),
        (0, {"round": 4}, "leaves out tiles"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_found(number: int, change: dict[str, int], wrong: str | None) -> None:
    parts = [replace(part, **change) if i == number else part for i, part in enumerate(RIGHT)]
    found = finding(parts, 4, 1, 2, 1)
    assert found is None if wrong is None else wrong in str(found)


def test_chunks_that_are_unequal_are_found() -> None:
    """Of eight rows, two apart, the first chunk has one of four of the first place, the other all others."""
    parts = [Part(0, 0, 0, 0, 1, 1, 2, 8, 8), Part(1, 1, 0, 2, 3, 3, 2, 10, 8), Part(2, 1, 1, 1, 4, 4, 2, 9, 8)]
    assert "rounds of" in str(finding(parts, 8, 2, 2, 1))
    parts = [
        replace(part, from_round=4, round=part.first + 4, **change)
        for part, change in zip(
            parts, ({"left": 1, "in_turn": 1}, {"left": 1, "in_turn": 1}, {"left": 2, "in_turn": 2}), strict=True
        )
    ]
    assert finding(parts, 8, 2, 2, 1) == "chunk 0 has 2 tiles"


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
    rows = "auto tiles = w::tiles_of<apart, 1>(part, chunk, rows, chunks);"
    plain = "const int64_t first_row = chunk, end_row = rows, stride = chunks;"
    assert lines.count(f"constexpr int apart = {apart};") == lines.count(loop) == lines.count(rows) == 2 * (apart > 1)
    assert lines.count(plain) == 2 * (apart == 1)
    assert lines.count("for (int64_t row = first_row; row < end_row; row += stride) {") == 2 * (apart == 1)
    head = "for (int64_t row = first_row, next_row; row < end_row; row = next_row) {"
    assert lines.count(head) == lines.count("next_row = ring.next_row();") + 1 == 2 * (apart > 1) or apart == 1
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
