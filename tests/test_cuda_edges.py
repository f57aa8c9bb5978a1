"""Which vectors of a row a thread of a CUDA C++ kernel has, and which are known to lie within the row, by the text of
kernels as it is compiled for this machine."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from tests.cuda_kernels import kernel_of, of_any_width, of_rows
from tests.host_cuda import function, library, section
from weft.backends.cuda.column_loops import WHOLE
from weft.backends.cuda.schedule import CudaKernel
from weft.backends.listed import render
from weft.ir.program import Dim

_HEAD = f"""
namespace w {{
int of_block;
template <int cluster> int rank_in_cluster() {{ return of_block; }}
{function("whole")}
{section("the rows of a chunk")}
}}
"""
_FUNCTION = """
extern "C" void vectors_NUMBER(int s0, int rank_, int before, int* out) {
  w::of_block = rank_;
  LINES
  const int sizes[] = {lanes, cluster, columns, thread_vectors, threads, surely, early};
  for (int size : sizes) *out++ = size;
  for (int k = 0; k < thread_vectors; ++k)
    for (int thread = 0; thread < threads; ++thread) {
      VECTOR
      const int column = (first + vector) * lanes - before;
      WHOLE
      *out++ = column, *out++ = has_vector(k, vector, column), *out++ = at_edge(k), *out++ = whole;
    }
}
"""
_SIZES, _NUMBERS, _MOST = 7, 4, 2**16


@dataclass(frozen=True)
class Block:
    """What one of a cluster has of a row: for each of a thread's vectors, and each thread, the first column, whether
    there is such a vector, whether the text says that it may lie at an edge, and whether all of it is of the row.
    rotates: whether its first vector comes last."""

    lanes: int
    cluster: int
    columns: int
    vectors: int
    threads: int
    surely: int
    early: bool
    rotates: bool
    column: np.ndarray
    has: np.ndarray
    at_edge: np.ndarray
    whole: np.ndarray

    @property
    def within(self) -> np.ndarray:
        """Whether all elements of a vector are of the row."""
        return (self.column >= 0) & (self.column + self.lanes <= self.columns)

    def covered(self) -> np.ndarray:
        """Columns of the row that vectors have, as often as they do. Vectors lie over at least one."""
        found = self.column[self.has][:, None] + np.arange(self.lanes)
        inside = (found >= 0) & (found < self.columns)
        assert inside.any(1).all()
        return found[inside]


def _arithmetic(text: str, *, aligned: bool, divisible: bool = False) -> str:
    """Lines that say how a row is divided. aligned: whether tensors start at a multiple of 16 bytes; divisible: whether
    the width is a multiple of 16, where it is known at run time only."""
    head = text.partition(") {\n")[2].partition("if (threadIdx.x == 0) {")[0].splitlines()
    lines = [line.strip() for line in head if line.startswith(("  constexpr ", "  const int "))]
    for name in ("vector_of", "has_vector", "at_edge"):
        for at in (i for i, line in enumerate(head) if f"const auto {name} = [&]" in line):
            lines += [line.strip() for line in head[at : at + 3 + (name == "vector_of")]]
    known = {"ALIGNED": aligned, "DIVISIBLE": divisible}
    macros = sorted(set(re.findall(r"\bWEFT_(ALIGNED|DIVISIBLE)_(\w+)", "\n".join(lines))))
    told = (f"constexpr bool WEFT_{what}_{name} = {str(known[what]).lower()};" for what, name in macros)
    return "\n  ".join([*told, *lines])


KNOWN = [
    (columns, cluster, warps, aligned, sums)
    for columns in (7, 513, 519, 520, 1001, 1016, 1024, 4104, 50257)
    for cluster, warps in ((1, 1), (1, 4), (2, 3), (4, 2), (16, 7))
    for aligned in (True, False)
    for sums in (False, True)
]
"""Widths that are known when a kernel is compiled, of bfloat16: a vector has eight elements. sums: of columns."""
ANY = [
    (cluster, warps, apart, divisible)
    for cluster, warps in ((1, 4), (2, 4), (4, 1))
    for apart, divisible in (("s0", False), ("s0", True), (4096, False), (4096, True))
]
"""Where they are known at run time, of float32: rows begin between vectors where they are s0 apart and that
is no multiple of 16."""


def of_width(columns: int, *, sums: bool, **fields: Any) -> CudaKernel:
    """Rows of bfloat16 from which their sum is taken. sums: whether columns are added up, too."""
    added = "  total: f32{n} = sum[m](wide)\n  output z: f32 [n:1] = total\n" if sums else ""
    kernel = of_rows(
        f"  input x: bf16 [m:{columns}, n:1]\n  wide: f32{{m, n}} = cast(x)\n  sum: f32{{m}} = sum[n](wide)\n"
        "  rest: f32{m, n} = sub(wide, sum)\n  narrow: bf16{m, n} = cast(rest)\n"
        f"  output y: bf16 [m:{columns}, n:1] = narrow\n{added}",
        finish="separate" if sums else "none",
        **fields,
    )
    rows, _ = kernel.program.dims
    return replace(kernel, program=replace(kernel.program, dims=(rows, Dim("n", columns))))


def texts() -> Iterator[tuple[str, str]]:
    """Lines that say how a row is divided, and the one that says which vector a thread has."""
    for columns, cluster, warps, aligned, sums in KNOWN:
        text = render(of_width(columns, sums=sums, cluster=cluster, warps=warps)).text
        yield _arithmetic(text, aligned=aligned), _vector(text)
    for cluster, warps, apart, divisible in ANY:
        text = render(of_any_width(apart, cluster=cluster, warps=warps, vectors=2)).text
        yield _arithmetic(text, aligned=True, divisible=divisible), _vector(text)


def _vector(text: str) -> str:
    (line,) = {line.strip() for line in text.splitlines() if re.match(r"\s*const int vector = ", line)}
    return line


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[list[Block]]]:
    """Of a case, by its number: all blocks of a cluster, for each number of elements that a vector may begin early."""
    text, made_of = _HEAD, list(texts())
    for number, (lines, vector) in enumerate(made_of):
        text += (
            _FUNCTION.replace("NUMBER", str(number))
            .replace("LINES", lines)
            .replace("VECTOR", vector)
            .replace("WHOLE", WHOLE)
        )
    made = library(text, tmp_path_factory.mktemp("edges"))

    def call(number: int, rank: int, before: int, width: int) -> Block:
        words = np.full(_MOST, -1, np.int32)
        getattr(made, f"vectors_{number}")(width, rank, before, words.ctypes.data_as(ctypes.c_void_p))
        lanes, cluster, columns, vectors, threads, surely, early = map(int, words[:_SIZES])
        found = words[_SIZES : _SIZES + _NUMBERS * vectors * threads].reshape(vectors, threads, _NUMBERS)
        column, (has, at_edge, whole) = found[..., 0], (found[..., k].astype(bool) for k in range(1, _NUMBERS))
        rotates = "vector_of" in made_of[number][1]
        return Block(
            lanes, cluster, columns, vectors, threads, surely, bool(early), rotates, column, has, at_edge, whole
        )

    def of_case(number: int, width: int = 0) -> list[list[Block]]:
        one = call(number, 0, 0, width)
        befores = range(one.lanes if one.early else 1)
        return [[call(number, rank, before, width) for rank in range(one.cluster)] for before in befores]

    return of_case


def check(clusters: list[list[Block]]) -> None:
    for cluster in clusters:
        covered = np.concatenate([block.covered() for block in cluster])
        assert np.array_equal(np.sort(covered), np.arange(cluster[0].columns))
        for block in cluster:
            sure = [k for k in range(block.vectors) if (k + 1) * block.threads + block.rotates <= block.surely]
            assert block.has[sure].all()
            assert np.array_equal(block.whole[block.has], block.within[block.has])


@pytest.mark.parametrize("number", range(len(KNOWN)), ids=[str(case) for case in KNOWN])
def test_each_column_is_of_one_vector_and_what_is_not_at_an_edge_lies_within(blocks: Any, number: int) -> None:
    """Little else has to be looked at while the kernel runs: the first of a thread's vectors, and the last ones, or
    these alone where the first vector of a block comes last."""
    columns, cluster, _, aligned, sums = KNOWN[number]
    clusters = blocks(number)
    one = clusters[0][0]
    early = not aligned or columns % 8 != 0
    assert (one.early, len(clusters), len(clusters[0]), one.columns) == (early, 8 if early else 1, cluster, columns)
    check(clusters)
    for block in (block for each in clusters for block in each):
        assert sum((k + 1) * block.threads > block.surely for k in range(block.vectors)) <= 2
        assert (block.at_edge.all(1) == block.at_edge.any(1)).all()
        assert block.at_edge.any(1).sum() <= (3 if early else 0)
        assert block.rotates == (sums and columns % 8 > 0)
        assert not block.rotates or block.threads + 2 >= block.surely or not block.at_edge[0].any()


@pytest.mark.parametrize("number", range(len(ANY)), ids=[str(case) for case in ANY])
def test_so_it_is_where_the_width_is_known_at_run_time_only(blocks: Any, number: int) -> None:
    cluster, warps, apart, divisible = ANY[number]
    early = apart == "s0" and not divisible
    most = 2 * 32 * warps * 4 * cluster - 3 * (not divisible)
    for width in range(16, most + 1, 16) if divisible else (*range(1, 70), *range(70, most, 37), most - 1, most):
        clusters = blocks(len(KNOWN) + number, width)
        one = clusters[0][0]
        assert (one.early, len(clusters), len(clusters[0])) == (early, 4 if early else 1, cluster)
        assert (one.lanes, one.columns, one.vectors) == (4, width, 2)
        check(clusters)
        assert not divisible or not any(block.at_edge.any() for block in clusters[0])


# in kernels


def test_a_block_has_no_vectors_of_the_next_one_where_a_thread_has_place_for_more() -> None:
    """128 of them for each block of a cluster of two, say, in threads that have place for 3 times 128."""
    text_ = render(of_any_width(cluster=2, warps=4, vectors=2)).text
    assert "return (k + 1) * threads < surely || (vector < own && column < columns);" in text_
    assert text_.count("has_vector(k, vector, column)") == text_.count(_vector(text_)) > 0


def test_the_edges_of_a_row_are_looked_for_where_vectors_may_lie_at_them() -> None:
    """What lies beside a row is zero, which sums of products with it do not notice, and is not stored; weights are
    loaded whole but for the last two vectors."""
    _, kernel = kernel_of("layer_norm_backward", (512, 2003), warps=4, vectors=2)
    lines = [line.strip() for line in render(kernel).text.splitlines()]
    loads = [line for line in lines if "w::load_copied<" in line]
    assert len(loads) == 4
    assert lines.count(WHOLE) == 2
    assert lines.count("if (at_edge(k)) row_lanes[k] = {column, columns};") == 1
    for name in ("dy", "x"):  # where row reductions are told of them
        found = f"w::load_copied<lanes, {name}_together>({name}_stage, column, columns, whole)"
        told = [f"const auto {name}_tile = {each};" for each in (f"row_lanes[k].of({found}, at_edge(k))", found)]
        assert [line for line in loads if f"{name}_tile" in line] == told
    assert not any("keep_inside" in line for line in lines)
    (store,) = (line for line in lines if "w::store_row<" in line)
    assert store.startswith("w::store_row<out0_together>(out0_row + (vector - thread) * lanes, ")
    assert store.endswith(", column, columns, whole);")
    assert lines.count("auto* const out0_row = w::once(out0_at(row) + (first + thread) * lanes - before);") == 1
    at = lines.index("const bool inner = !at_edge(k) || w::whole<2 * lanes>(column, columns);")
    load = "w::load_row<lanes, weight_together>(weight_at(first_row), column, columns, inner)"
    assert lines[at + 1] == f"weight_tile[k] = {load};"


@pytest.mark.parametrize(
    ("name", "nothing"), [("softmax_forward", "w::Max"), ("softmax_backward", "w::Sum"), ("of_any_width", "w::Max")]
)
def test_elements_beside_a_row_make_no_difference_to_a_reduction(name: str, nothing: str) -> None:
    kernel = of_any_width(warps=4, vectors=2) if name == "of_any_width" else kernel_of(name, (64, 1001), warps=4)[1]
    blocks = re.findall(r"w::keep_inside<(.*)>\((\w+)_block, ", render(kernel).text)
    added = re.findall(r"(\w+)_state\.add\((\w+)_block\);", render(kernel).text)
    assert added
    assert blocks == [(nothing, name) for name, _ in added]
    assert all(a == b for a, b in added)
