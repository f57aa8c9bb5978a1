"""Which rows a part of a chunk has in CUDA C++, by the header as it is compiled for this machine, and where its partial
results lie."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import astuple, replace
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cuda_kernels import SOME, kernel_of
from tests.cuda_rows import TEXT, WAYS, Part, finding, listed, words
from tests.host_cuda import library, section
from weft.backends.cuda import launches
from weft.backends.cuda.view import View
from weft.backends.listed import render

Lists = Callable[..., list[Part]]

_CASES = "".join(
    f"  if (apart == {apart} && tile_rows == {tile_rows} && turn == {turn})"
    f" return list_parts<{apart}, {tile_rows}, {turn}>(out, rows, segments, chunks, chunk);\n"
    for apart, tile_rows, turn in WAYS
)
_CALLED = f"""
inline void list_one(
    int64_t* out, int64_t rows, int64_t segments, int64_t chunks, int64_t chunk, int apart, int tile_rows, int turn) {{
{_CASES}}}
extern "C" void list_all(
    int64_t* out, int64_t rows, int64_t segments, int64_t chunks, int apart, int tile_rows, int turn) {{
  for (int64_t chunk = 0; chunk < chunks; ++chunk) list_one(out, rows, segments, chunks, chunk, apart, tile_rows, turn);
}}
extern "C" int64_t next_of(w::PartTiles<int64_t>* tiles) {{ return tiles->next(); }}
extern "C" int64_t next_in_32_bits(w::PartTiles<int>* tiles) {{ return tiles->next(); }}
"""


@pytest.fixture(scope="module")
def header(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    text = f"namespace w {{\n{section('the rows of a chunk')}\n}}\n"
    made = library(text + TEXT + _CALLED, tmp_path_factory.mktemp("rows"))
    made.next_of.restype = made.next_in_32_bits.restype = ctypes.c_int64
    return made


@pytest.fixture(scope="module")
def parts_of(header: ctypes.CDLL) -> Lists:
    """Of so many rows of a segment, and chunks."""

    def call(rows: int, chunks: int, apart: int, tile_rows: int = 1, turn: int = 0, segments: int = 1) -> list[Part]:
        found = torch.full((words(chunks, apart * segments),), -1)
        place = ctypes.c_void_p(found.data_ptr())
        header.list_all(place, *map(ctypes.c_int64, (rows, segments, chunks)), apart, tile_rows, turn)
        return listed(found)

    return call


@pytest.mark.parametrize("way", WAYS)
def test_every_row_is_of_one_part_whose_rows_all_begin_alike(parts_of: Lists, way: tuple[int, int, int]) -> None:
    apart, tile_rows, _ = way
    for rows in (*range(1, 70), 1023, 1024, 1335):
        for chunks in {c for c in (*range(1, 20), 33, 66, 132, 264, 1056) if c <= rows}:
            parts = parts_of(rows, chunks, *way)
            assert finding(parts, rows, chunks, *way) is None, (rows, chunks)
            firsts = (first for part in parts for first in part.rows)
            found = [row for first in firsts for row in range(first, first + apart * tile_rows, apart) if row < rows]
            assert sorted(found) == [*range(rows)]


@pytest.mark.parametrize("way", [(1, 1, 4), (2, 2, 3), (8, 1, 4), (4, 3, 0)])
def test_chunks_go_on_from_one_segment_to_the_next(parts_of: Lists, way: tuple[int, int, int]) -> None:
    """Of fewer segments than chunks, and of more."""
    apart, tile_rows, _ = way
    for rows, segments in product([1, 2, 9, 16, 31], [1, 2, 3, 7, 8, 16, 60]):
        for chunks in {c for c in (1, 2, 3, 7, 8, 15, 16, 30, 66) if c <= rows * segments}:
            parts = parts_of(rows, chunks, *way, segments)
            assert finding(parts, rows, chunks, *way, segments) is None, (rows, segments, chunks)
            firsts = [(part.place // apart, first) for part in parts for first in part.rows]
            behind = apart * tile_rows
            found = [(s, row) for s, first in firsts for row in range(first, first + behind, apart) if row < rows]
            assert sorted(found) == [*product(range(segments), range(rows))]


@settings(deadline=None, max_examples=500, derandomize=True)
@given(rows=st.integers(0, 2**45), chunks=st.integers(1, 1200), way=st.sampled_from(WAYS), segments=st.integers(1, 40))
def test_rows_may_be_any_number(
    parts_of: Lists, rows: int, chunks: int, way: tuple[int, int, int], segments: int
) -> None:
    """Also fewer than there are chunks; and of more than two billion the index has 64 bits."""
    assert finding(parts_of(rows, chunks, *way, segments), rows, chunks, *way, segments) is None


@pytest.mark.parametrize("segments", [46_000, 50_000])
def test_segments_may_be_more_than_32_bits_count_the_square_of(parts_of: Lists, segments: int) -> None:
    parts = parts_of(3, 3, 1, segments=segments)
    assert [part.number for part in parts] == [*range(3 + segments - 1)]
    assert sorted({part.place for part in parts}) == [*range(segments)]
    assert sum(part.end - part.round for part in parts) == 3 * segments


@pytest.mark.parametrize(("rows", "chunks"), [(20, 3), (70, 6), (1335, 66), (3, 3), (7, 12)])
@pytest.mark.parametrize("way", WAYS)
def test_tiles_of_a_part_follow_one_another(
    header: ctypes.CDLL, parts_of: Lists, rows: int, chunks: int, way: tuple[int, int, int]
) -> None:
    """And behind them comes a row that does not exist and would begin as they do, however often it is asked for."""
    for part in parts_of(rows, chunks, *way):
        for word, next_of in ((ctypes.c_int64, header.next_of), (ctypes.c_int, header.next_in_32_bits)):
            tiles = (word * 11)(*astuple(part)[3:14])
            found = [next_of(tiles) for _ in part.rows]
            assert found == part.rows == sorted({*found})
            assert next_of(tiles) == next_of(tiles) == part.none >= rows


@pytest.mark.parametrize(("chunks", "apart"), [(66, 8), (30, 8), (132, 4), (15, 8), (30, 2), (264, 1)])
@pytest.mark.parametrize("turn", [0, 4])
def test_what_all_chunks_are_at_lies_together(parts_of: Lists, chunks: int, apart: int, turn: int) -> None:
    """Places go on as fast as one another, but for the chunk that each has more or less than on average for a while: at
    the most half of the time, and it is a part of the chunks that a place has."""
    rows = 50 * chunks + 3
    parts = parts_of(rows, chunks, apart, *((1, 4) if turn else (1, 0)))
    rounds = max(part.end for part in parts)
    ahead = rows * apart / (4 * chunks) + (2 + turn) * chunks
    for part in parts:
        for number in range(part.round, part.end):
            assert abs(part.row(number) - rows / rounds * number) <= ahead


def test_a_chunk_has_a_part_more_for_each_place_that_begins_in_it(parts_of: Lists) -> None:
    """Of 20 rows, with four that do not exist, each of three chunks has eight: two or three of each place. A chunk that
    ends where rows that begin alike do has an empty part of the next ones."""
    found = [(p.number, p.chunk, p.rows) for p in parts_of(20, 3, 8)]
    assert found == [
        (0, 0, [0, 8, 16]), (1, 0, [1, 9, 17]), (2, 0, [10, 18]),
        (3, 1, [2]), (4, 1, [3, 11, 19]), (5, 1, [4, 12, 20]), (6, 1, [21]),
        (7, 2, [5, 13]), (8, 2, [6, 14, 22]), (9, 2, [7, 15, 23]),
    ]  # fmt: skip
    assert [(p.number, p.chunk, p.place, p.rows) for p in parts_of(3, 4, 2, segments=3)][:5] == [
        (0, 0, 0, [0, 2]), (1, 0, 1, [3]), (2, 1, 1, [1]), (3, 1, 2, [0, 2]), (4, 1, 3, []),
    ]  # fmt: skip


def test_where_places_are_whole_numbers_of_chunks_these_have_one_part(parts_of: Lists) -> None:
    assert [(p.number, p.chunk, p.place, p.rows) for p in parts_of(7, 4, 2, turn=4)] == [
        (0, 0, 0, [0, 4]), (1, 1, 0, [2, 6]), (2, 2, 1, [1, 5]), (3, 3, 1, [3, 7]),
    ]  # fmt: skip


def test_rows_are_dealt_out_in_rounds(parts_of: Lists) -> None:
    """Three chunks have two places with 13 rows each. The middle one has the first rounds of the first place, and the
    last ones of the second."""
    assert [(p.number, p.chunk, p.rows) for p in parts_of(26, 3, 2)] == [
        (0, 0, [0, 4, 8, 12, 16, 20, 22, 24]),
        (1, 1, [2, 6, 10, 14, 18]), (2, 1, [9, 13, 17, 21]),
        (3, 2, [1, 3, 5, 7, 11, 15, 19, 23, 25]),
    ]  # fmt: skip


def test_a_chunk_that_goes_on_to_another_place_has_fewer_tiles(parts_of: Lists) -> None:
    """Of 60 rows of a place, and four that take as long as going on. Not where no chunk has more than one tile."""

    def counts(rows: int, turn: int) -> list[int]:
        return [sum(len(p.rows) for p in parts_of(rows, 3, 2, 1, turn) if p.chunk == chunk) for chunk in range(3)]

    assert counts(120, 0) == [40, 40, 40]
    assert counts(120, 4) == [42, 39, 39]  # the last chunk has the four behind the last place
    assert counts(2, 4) == counts(2, 0)


RIGHT = (
    Part(0, 0, 0, 0, 2, 0, 2, 5, 4, 0, 0, 0, 2, 4, 0, 1),
    Part(1, 0, 1, 2, 4, 0, 0, 2, 4, -1, -1, 1, 2, 5, 1, 2),
)
"""Of four rows, in one chunk, two apart."""


@pytest.mark.parametrize(
    ("number", "change", "wrong"),
    [
        (0, {}, None),
        (1, {"number": 2}, "numbers"),
        (1, {"place": 2}, "is of another place"),
        (0, {"end": -1}, "is of another place"),
        (1, {"place": 0}, "has other tiles"),
        (1, {"first": 0}, "has other tiles"),
        (1, {"begin": 0}, "has other parts"),
        (0, {"behind": 2}, "has other parts"),
        (1, {"step": 4}, "has other tiles"),
        (1, {"none": 3}, "has other tiles"),
        (1, {"none": 6}, "has other tiles"),
        (1, {"end": 3}, "has other tiles"),
        (1, {"rank": 0}, "round 2 has"),
        (1, {"enter": 1}, "round 2 has"),
        (0, {"leave": 0}, "round 1 has"),
        (0, {"whole": 1}, "round 1 has"),
        (0, {"last": 1, "last_rank": 1}, "round 1 has"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_found(number: int, change: dict[str, int], wrong: str | None) -> None:
    parts = [replace(part, **change) if i == number else part for i, part in enumerate(RIGHT)]
    found = finding(parts, 4, 1, 2, 1, 0)
    assert found is None if wrong is None else wrong in str(found)


def test_chunks_that_are_unequal_are_found() -> None:
    """Of eight rows, two apart, the first chunk has one of four of the first place, the second one the others."""
    parts = [
        Part(0, 0, 0, 0, 1, 1, 1, 9, 1, 0, 0, 0, 2, 8, 0, 2),
        Part(1, 1, 0, 0, 3, 1, 1, 9, 1, 1, 0, 0, 2, 8, 0, 2),
        Part(2, 2, 1, 0, 2, 2, 0, 9, 9, 0, 0, 1, 2, 9, 2, 4),
        Part(3, 3, 1, 0, 2, 2, 0, 9, 9, 1, 1, 1, 2, 9, 2, 4),
    ]
    assert finding(parts, 8, 4, 2, 1, 0) == "chunk 0 has 1 tiles"


# in kernels


def test_partial_results_are_whole_vectors_wherever_rows_begin() -> None:
    _, kernel = kernel_of("rms_norm_backward", (515, 1001), **SOME["a finish of its own"])
    text_ = render(kernel).text
    assert "w::store(sum_1_partial + part * padded + before + column, w::vector(sum_1[k]));" in text_
    assert text_.count("return beginning(dy + parts.place(part) * 1001);") == 1
    assert text_.count("constexpr w::ChunkParts<int> parts{apart, chunks};") == 2
    assert "(memory, sum_1_partial, parts.count(), padded, begins, begin, columns)" in text_
    assert launches.abi(kernel).partials[0].elements == (64 + 8 - 1) * 1008


@pytest.mark.parametrize(("columns", "apart"), [(1001, 8), (1002, 4), (1004, 2), (1008, 1)])
def test_a_chunk_has_a_part_for_each_place_where_rows_begin_between_vectors(columns: int, apart: int) -> None:
    """All warps go through the same rows of it, and partial results of a part are its own."""
    _, kernel = kernel_of("rms_norm_backward", (515, columns), **SOME["a finish of its own"])
    lines = [line.strip() for line in render(kernel).text.splitlines()]
    loop = "for (int part = parts.first(chunk); part <= parts.last(chunk); ++part) {"
    rows = "auto tiles = w::tiles_of<apart, 1, turn>(parts, part, chunk, rows);"
    plain = "const int64_t first_row = chunk, end_row = rows, stride = chunks;"
    assert lines.count(f"constexpr int apart = {apart};") == lines.count(loop) == lines.count(rows) == 2 * (apart > 1)
    assert lines.count("constexpr int turn = 4;") == (apart > 1)
    assert lines.count(plain) == 2 * (apart == 1)
    assert lines.count("for (int64_t row = first_row; row < end_row; row += stride) {") == 2 * (apart == 1)
    head = "for (int64_t row = first_row, next_row; row < end_row; row = next_row) {"
    assert lines.count(head) == lines.count("next_row = ring.next_row();") + 1 == 2 * (apart > 1) or apart == 1
    place = "part" if apart > 1 else "chunk"
    assert f"w::store(sum_1_partial + {place} * padded + before + column, w::vector(sum_1[k]));" in lines
    assert launches.abi(kernel).partials[0].elements == (64 + apart - 1) * 8 * -(-(columns + 7) // 8)


def test_where_no_thread_keeps_anything_of_its_columns_rows_of_a_tile_are_neighbours() -> None:
    _, kernel = kernel_of("softmax_forward", (515, 1001), warps=4, rows_per_tile=2, cluster=2)
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
    assert "_partial + part * padded + before + column, " in text_
    assert text_.count("constexpr w::ChunkParts<int> parts{segments * apart, chunks};") == 2
    assert text_.count("const int64_t segment = parts.place(part) / apart;") == 3
    assert f"return beginning(dy + segment * {512 // segments * 1001} + (parts.place(part) % apart) * 1001);" in text_
    assert "const int64_t first_part = parts.begin(segment * apart)," in text_
    assert "own_parts = parts.begin((segment + 1) * apart) - first_part;" in text_
    begins = "[&](int part) { return begins(first_part + part); }"
    assert f"_partial + first_part * padded, own_parts, padded, {begins}," in text_
    assert {p.elements for p in launches.abi(kernel).partials} == {(64 + segments * 8 - 1) * 1008}
