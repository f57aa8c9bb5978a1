"""The parts of chunks of rows, as the header of CUDA kernels numbers them, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from tests.cuda_header import THREADS

APART = (1, 2, 4, 8)
"""How far rows are apart that begin at one place between two vectors."""
TILE_ROWS_AND_TURNS = ((1, 0), (3, 0), (1, 4), (2, 3))
"""Rows of a tile, and tiles that a chunk has fewer for each place that it goes on to."""
WORDS = 14
"""Of a part in a list of them."""
TEXT = """
/// The parts of a chunk, in the place of as many as it can have and one more: number, chunk, a row that begins alike,
/// and what is known of its tiles.
template <int apart, int tile_rows, int turn>
inline void list_parts(int64_t* out, int64_t rows, int64_t chunks, int64_t chunk) {
  int64_t* to = out + chunk * (apart + 1) * 14;
  const int64_t first = w::first_part<apart>(chunk, chunks), last = w::last_part<apart>(chunk, chunks);
  for (int64_t part = first; part <= last && part <= first + apart; ++part, to += 14) {
    const w::PartTiles tiles = w::tiles_of<apart, tile_rows, turn>(part, chunk, rows, chunks);
    to[0] = part, to[1] = chunk, to[2] = w::first_row<apart>(part, chunks);
    to[3] = tiles.round, to[4] = tiles.end, to[5] = tiles.whole, to[6] = tiles.leave, to[7] = tiles.enter;
    to[8] = tiles.last, to[9] = tiles.rank, to[10] = tiles.last_rank;
    to[11] = tiles.place, to[12] = tiles.step, to[13] = tiles.none;
  }
}
"""
WAYS = [(apart, *way) for apart, way in product(APART, TILE_ROWS_AND_TURNS)]


def parts_kernel() -> str:
    """The text of functions ``parts_2_1_0``, ..., which take a place for the parts, and the numbers of rows and chunks;
    a thread lists those of a chunk."""
    head = f'extern "C" __global__ void __launch_bounds__({THREADS})'
    functions = (
        f"{head} parts_{apart}_{tile_rows}_{turn}(int64_t* out, int64_t rows, int64_t chunks) {{\n"
        f"  const int64_t chunk = int64_t(blockIdx.x) * {THREADS} + threadIdx.x;\n"
        f"  if (chunk < chunks) list_parts<{apart}, {tile_rows}, {turn}>(out, rows, chunks, chunk);\n}}\n"
        for apart, tile_rows, turn in WAYS
    )
    return TEXT + "".join(functions)


@dataclass(frozen=True)
class Part:
    """Of a chunk, as the header has it. alike: a row that is said to begin as its rows do."""

    number: int
    chunk: int
    alike: int
    round: int
    end: int
    whole: int
    leave: int
    enter: int
    last: int
    rank: int
    last_rank: int
    place: int
    step: int
    none: int

    def row(self, turn: int) -> int:
        """The first row of the tile that it has in a round."""
        before = self.whole * turn + min(turn, self.leave) + max(turn - self.enter + 1, 0)
        return self.place + self.step * (before + (self.rank if turn < self.last else self.last_rank))

    @property
    def rows(self) -> list[int]:
        """The first rows of its tiles."""
        return [self.row(turn) for turn in range(self.round, self.end)]

    def done(self, turn: int) -> int:
        """How many of its tiles are of rounds before one."""
        return min(max(turn - self.round, 0), self.end - self.round)


def places(chunks: int, apart: int) -> int:
    """Words that the parts of all chunks have place in."""
    return chunks * (apart + 1) * WORDS


def listed(words: Sequence[int]) -> list[Part]:
    """From what the text has written, over minus ones."""
    every = (words[i : i + WORDS] for i in range(0, len(words), WORDS))
    return [Part(*part) for part in every if part[0] >= 0]


def finding(parts: Sequence[Part], rows: int, chunks: int, apart: int, tile_rows: int, turn: int) -> str | None:
    """What is wrong with the parts of all chunks, if anything is. Rows may be too many to look at each: those of rounds
    are looked at in which some chunk begins or ends."""
    if [part.number for part in parts] != list(range(chunks + apart - 1)):
        return f"numbers {[part.number for part in parts]}"
    if [part.chunk for part in parts] != sorted(part.chunk for part in parts):
        return "chunks are not in order"
    if {part.chunk for part in parts} != {*range(chunks)}:
        return "a chunk has no part"
    step = apart * tile_rows
    tiles = -(-rows // step)
    for part in parts:
        if not 0 <= part.place < apart or part.place != part.number - part.chunk or part.end < part.round:
            return f"{part} begins somewhere else"
        if part.alike != part.place:
            return f"{part} begins as others do"
        if part.step != step or part.none < rows or part.none % apart != part.place:
            return f"{part} has other tiles"
    for place in range(apart):
        own = [part for part in parts if part.place == place]
        ends = {end + by for part in own for end in (part.round, part.end, part.last) for by in (-1, 0, 1)}
        if sum(part.end - part.round for part in own) != tiles:
            return f"place {place} has other tiles"
        for number in sorted(ends):
            before = sum(part.done(number) for part in own)
            found = sorted(part.row(number) for part in own if part.round <= number < part.end)
            if found != [place + step * (before + i) for i in range(len(found))]:
                return f"place {place}: round {number} has {found}, behind {before}"
    left_out = turn if apart > 1 and apart * tiles > chunks else 0
    share = apart * (tiles + left_out) // chunks
    for chunk in range(chunks):
        own = [part for part in parts if part.chunk == chunk]
        count = sum(part.end - part.round for part in own)
        most = max((p.end for p in own if p.end > p.round), default=0)
        if not share - left_out * len(own) <= count <= share + 1 or most > share + 1:
            return f"chunk {chunk} has {count} tiles"
    return None
