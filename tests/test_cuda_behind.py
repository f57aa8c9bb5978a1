"""CUDA C++ kernels whose row tiles overlap: what follows from the last row reductions of a tile comes behind by one."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from tests.cases import checkered
from tests.cuda_kernels import WORKLOADS_OF_ROWS, compiled, kernel_of, needs_nvrtc, of_rows
from weft.backends.cuda import launches
from weft.backends.cuda.schedule import CudaKernel
from weft.backends.listed import render

BEHIND: dict[str, Any] = {"warps": 4, "vectors": 2, "stages": 3, "lag": 1}
COMMON = {"sent": "unsigned", "row": "int64_t"}
"""What is held of every tile: the number by which row reductions are received, and its first row."""
KIND = r"(?:const )?(?:auto|bool|float|double|int|unsigned|u?int\d+_t|w::[\w:]+(?:<[\w:, ]+>)?)[*&]*(?: const)?"


@dataclass(frozen=True)
class Tiles:
    """The text of a loop over tiles that overlap: members of what is held of a tile, with their types; lines of the
    first part of a tile, and of the second, without those that name the members again."""

    members: dict[str, str]
    first: list[str]
    second: list[str]
    rest: list[str]

    @staticmethod
    def of(kernel: CudaKernel) -> Tiles:
        lines = render(kernel).text.partition("struct Tile {\n")[2].splitlines()
        indent = len(lines[0]) - len(lines[0].lstrip()) - 2
        end = lines.index(f"{' ' * indent}}} held, fresh;")
        found = (re.fullmatch(r"\s*(.*?) (\w+)((?:\[tile_rows\])?);", line) for line in lines[:end])
        members = {match[2]: match[1] + match[3] for match in found if match}
        assert len(members) == end
        inner = " " * (indent + 2)
        starts = [lines.index(f"{inner}if ({condition}) {{") for condition in ("ahead < end_row", "ahead != first_row")]
        first, second = (lines[at + 1 : lines.index(f"{inner}}}", at)] for at in starts)
        assert lines[end + 1 : starts[0] - 1] == [f"{' ' * indent}#pragma unroll 1"]
        at = lines.index(f"{inner}}}", starts[1])
        rest = [lines[starts[0] - 1], *lines[at + 1 : lines.index(f"{' ' * indent}}}", at)]]
        first, second, rest = ([line.strip() for line in some] for some in (first, second, rest))
        again = [f"const auto& {name} = held.{name};" for name in members]
        assert second[: len(again)] == again
        return Tiles(members, first, second[len(again) :], rest)


def declared(lines: list[str]) -> set[str]:
    """Names that lines define, of several in a line too."""
    found = set[str]()
    for line in lines:
        if match := re.match(rf"{KIND} (\w+)(?:\[\w+\])*(?: =|;|,)", line):
            found |= {match[1], *re.findall(r", (\w+)(?:\[\w+\])*(?= =|;|,)", line.split("(")[0])}
    return found


def named(lines: list[str]) -> set[str]:
    return set(re.findall(r"(?<![\w.:])[A-Za-z_]\w*", "\n".join(lines)))


@pytest.mark.parametrize(
    ("name", "tile"), checkered(WORKLOADS_OF_ROWS, [(1, 1001), (2, 2048), (2, 1001), (1, 2048)], of=4), ids=str
)
def test_what_is_held_of_a_tile_is_what_its_second_part_takes_from_the_first(name: str, tile: tuple[int, int]) -> None:
    rows, columns = tile
    _, kernel = kernel_of(name, (515, columns), **BEHIND, rows_per_tile=rows)
    assert launches.supports(kernel) is None
    tiles = Tiles.of(kernel)
    defined = declared(tiles.first)
    assert {*tiles.members} <= defined
    assert {*tiles.members} == {"row"} | (named(tiles.second) & defined) - declared(tiles.second)
    copied = re.findall(r"fresh\.(\w+)(?:\[r\])? = (\w+)(?:\[r\])?", "\n".join(tiles.first))
    assert copied == [(member, member) for member in tiles.members]
    assert {kind.endswith("[tile_rows]") for member, kind in tiles.members.items() if member not in COMMON} <= {
        rows > 1
    }


HELD: list[tuple[str, int, dict[str, Any], dict[str, str]]] = [
    ("softmax_forward", 2048, {}, {"before": "int", "x_stage": "const w::bf16*"}),
    ("layer_norm_forward", 2048, {}, {"x_stage": "const w::bf16*"}),
    ("rms_norm_forward", 1001, {}, {"x_stage": "const w::bf16*"}),
    (
        "rms_norm_backward",
        1001,
        {},
        {"rstd_number": "float", "dy_stage": "const w::bf16*", "x_stage": "const w::bf16*"},
    ),
    (
        "layer_norm_backward",
        1001,
        {"rows_per_tile": 2},
        {"mul": "float[tile_rows]", "rstd_number": "float[tile_rows]", "dy_stage": "const w::bf16*[tile_rows]",
         "x_stage": "const w::bf16*[tile_rows]"},
    ),
    (
        "cross_entropy_forward",
        2048,
        {"rows_per_tile": 2},
        {"ne": "bool[tile_rows]", "cast_2": "float[tile_rows]", "logical_and_1": "bool[tile_rows]",
         "cast_3": "int64_t[tile_rows]"},
    ),
]  # fmt: skip
"""Beside what is held of every tile: results of those before the last, numbers of a row, as the product of mean and
rstd, where its vectors begin, and where they lie in shared memory, if the second part needs them."""


@pytest.mark.parametrize(("name", "columns", "fields", "held"), HELD, ids=[case[0] for case in HELD])
def test_some_of_what_is_held(name: str, columns: int, fields: dict[str, Any], held: dict[str, str]) -> None:
    tiles = Tiles.of(kernel_of(name, (515, columns), **BEHIND | fields)[1])
    assert tiles.members == COMMON | held


@needs_nvrtc
@pytest.mark.parametrize("name", ["layer_norm_forward", "softmax_forward", "cross_entropy_forward"])
@pytest.mark.parametrize("columns", [1001, 2048])
def test_tiles_that_overlap_compile(name: str, columns: int) -> None:
    compiled(kernel_of(name, (515, columns), **BEHIND, cluster=2)[1], 90)
    compiled(kernel_of(name, (515, columns), **BEHIND, rows_per_tile=2)[1], 100, aligned=False)


@pytest.mark.parametrize(
    ("name", "columns", "rows", "step"),
    [("rms_norm_backward", 2048, 1, "stride"), ("rms_norm_backward", 2048, 2, "stride"),
     ("layer_norm_forward", 1001, 1, "next_row"), ("layer_norm_forward", 1001, 2, "next_row"),
     ("softmax_forward", 1001, 1, "next_row"), ("layer_norm_forward", 2048, 2, "next_row")],
)  # fmt: skip
def test_the_second_part_of_a_tile_is_done_behind_the_first_one_of_the_next(
    name: str, columns: int, rows: int, step: str
) -> None:
    """Also for the last tile, behind which there is none, and for no tile where a part of a chunk has no rows."""
    tiles = Tiles.of(kernel_of(name, (515, columns), **BEHIND, rows_per_tile=rows)[1])
    ahead = "next_row = first_row; ; ahead = next_row" if step == "next_row" else f"; ahead += {step}"
    loop = f"for (int64_t ahead = first_row{', ' if step == 'next_row' else '; '}{ahead}) {{"
    assert tiles.rest == [loop, "if (ahead >= end_row) break;", "held = fresh;"]
    assert tiles.first[0] == "const int64_t row = ahead;"


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize(
    ("name", "reduced", "sent"),
    [
        ("softmax_forward", [], "w::Merge>(sumexp_state)"),
        ("layer_norm_backward", [], "w::Sum>(sum, sum_1)"),
    ],
)
def test_only_the_last_of_row_reductions_one_after_the_other_are_not_waited_for(
    name: str, reduced: list[str], sent: str, rows: int
) -> None:
    """They have two more places in shared memory, since they are sent before the one before was received."""
    _, kernel = kernel_of(name, (512, 2048), **BEHIND, rows_per_tile=rows)
    tiles = Tiles.of(kernel)
    exchanged = [line for line in tiles.first if "exchange." in line]
    assert exchanged == [
        *(f"exchange.template reduce<{each};" for each in reduced),
        f"const unsigned sent = exchange.template send<{sent};",
    ]
    assert tiles.first[tiles.first.index(exchanged[-1]) + 1] == "fresh.sent = sent, fresh.row = row;"
    received = f"exchange.template receive<{sent.replace('>(', '>(sent, ')};"
    assert [line for line in tiles.second if "exchange." in line] == [received]
    words = 2 if name == "layer_norm_backward" else 1
    assert f"w::Exchange<cluster, warps, {words * rows}, 4> exchange(" in render(kernel).text
    plain = render(replace(kernel, schedule=replace(kernel.schedule, lag=0))).text
    assert f"w::Exchange<cluster, warps, {words * rows}, 2> exchange(" in plain
    assert re.findall(r"exchange\.template (\w+)", plain) == ["reduce"] * (len(reduced) + 1)


SEVERAL_KINDS = (
    "  input x: f32 [m:16, n:1]\n  total: f32{m} = sumexp[n](x)\n  least: f32{m} = min[n](x)\n"
    "  both: f32{m} = add(total, least)\n  output y: f32 [m:1] = both\n"
)


def test_of_row_reductions_of_several_kinds_the_last_are_not_waited_for() -> None:
    tiles = Tiles.of(of_rows(SEVERAL_KINDS, cluster=2, lag=1))
    exchanged = [line for line in (*tiles.first, *tiles.second) if "exchange." in line]
    assert exchanged == [
        "exchange.template reduce<w::Merge>(total_state);",
        "const unsigned sent = exchange.template send<w::Min>(least);",
        "exchange.template receive<w::Min>(sent, least);",
    ]
    assert (tiles.members["total"], "least" in tiles.members) == ("float", False)


def test_where_no_column_is_passed_over_again_nothing_is_held_of_columns() -> None:
    tiles = Tiles.of(of_rows(SEVERAL_KINDS, cluster=2, lag=1))
    assert tiles.members == COMMON | {"total": "float"}


@pytest.mark.parametrize(("name", "behind"), [("softmax_forward", True), ("cross_entropy_forward", False)])
def test_a_stage_is_free_when_the_last_loop_over_its_columns_is_done(name: str, *, behind: bool) -> None:
    _, kernel = kernel_of(name, (512, 2048), torch.float32, **BEHIND)
    tiles = Tiles.of(kernel)
    assert ("ring.release();" in tiles.first, "ring.release();" in tiles.second) == (not behind, behind)
    assert tiles.first.count("ring.wait_until_filled();") == tiles.first.count("ring.next();") == 1
    assert "ring.next();" not in tiles.second


@pytest.mark.parametrize("columns", [1000, 1001])
def test_numbers_of_rows_come_with_copies_and_are_held_until_they_are_used(columns: int) -> None:
    tiles = Tiles.of(kernel_of("rms_norm_backward", (515, columns), **BEHIND)[1])
    assert tiles.first.count("const float rstd_number = *rstd_stage;") == 1
    assert tiles.members["rstd_number"] == "float"
    assert not any("rstd_stage" in line for line in tiles.second)


def test_shared_memory_has_the_places_of_both() -> None:
    _, kernel = kernel_of("layer_norm_backward", (512, 2048), **BEHIND, cluster=2, rows_per_tile=2)
    found = dict[int, launches.Layout]()
    for lag in (0, 1):
        each = replace(kernel, schedule=replace(kernel.schedule, lag=lag))
        found[lag] = launches.Layout(*launches.lowered(each))
        layout, places = found[lag], 2 + 2 * lag
        assert layout.barriers_at - layout.exchange_at == places * 8 * 2 * 4 * (2 * 2)
        assert 0 <= layout.end - layout.barriers_at - 8 * (2 * 3 + places) < 128
        assert "barriers + 6, rank);" in render(each).text
    assert found[0].exchange_at == found[1].exchange_at
