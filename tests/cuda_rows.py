"""The parts of chunks of rows, as the header of CUDA kernels numbers them, and what is wrong with them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from torch import Tensor

from tests.cuda_header import THREADS

APART = (1, 2, 4, 8)
"""How far rows are apart that begin at one place between two vectors."""
TILE_ROWS_AND_TURNS = ((1, 0), (3, 0), (1, 4), (2, 3))
"""Rows of a tile, and tiles that a chunk has fewer for each place that it goes on to."""
WORDS = 16
"""Of a part in a list of them."""
TEXT = """
/// The parts of a chunk, in the place of as many as it can have and one more: number, chunk, place, what is known of
/// its tiles, and which parts are of its place.
template <class Int, int apart, int tile_rows, int turn>
inline void list_parts_in(int64_t* out, int64_t rows, int64_t segments, int64_t chunks, int64_t chunk) {
  const w::ChunkParts<Int> parts{static_cast<Int>(segments * apart), static_cast<Int>(chunks)};
  int64_t* to = out + chunk * (parts.places + 1) * 16;
  const Int first = parts.first(chunk), last = parts.last(chunk);
  for (Int part = first; part <= last && part <= first + parts.places; ++part, to += 16) {
    const w::PartTiles<Int> tiles = w::tiles_of<apart, tile_rows, turn>(parts, part, chunk, rows);
    to[0] = part, to[1] = chunk, to[2] = parts.place(part);
    to[14] = parts.begin(to[2]), to[15] = parts.begin(to[2] + 1);
    to[3] = tiles.round, to[4] = tiles.end, to[5] = tiles.whole, to[6] = tiles.leave, to[7] = tiles.enter;
    to[8] = tiles.last, to[9] = tiles.rank, to[10] = tiles.last_rank;
    to[11] = tiles.first, to[12] = tiles.step, to[13] = tiles.none;
  }
}

/// In 32 bits where they do.
template <int apart, int tile_rows, int turn>
inline void list_parts(int64_t* out, int64_t rows, int64_t segments, int64_t chunks, int64_t chunk) {
  const int64_t step = apart * tile_rows, tiles = (rows + step - 1) / step + turn, places = segments * apart;
  if (max(max((places * tiles + 1) * (chunks + 1), places * (places + chunks + 1)), rows + step) < 1ll << 31)
    list_parts_in<int, apart, tile_rows, turn>(out, rows, segments, chunks, chunk);
  else
    list_parts_in<int64_t, apart, tile_rows, turn>(out, rows, segments, chunks, chunk);
}
"""
WAYS = [(apart, *way) for apart, way in product(APART, TILE_ROWS_AND_TURNS)]


def parts_kernel() -> str:
    """The text of functions ``parts_2_1_0``, ..., which take memory for the parts, and the numbers of rows of a
    segment, of segments and of chunks; a thread lists those of a chunk."""
    head = f'extern "C" __global__ void __launch_bounds__({THREADS})'
    functions = (
        f"{head} parts_{apart}_{tile_rows}_{turn}(int64_t* out, int64_t rows, int64_t segments, int64_t chunks) {{\n"
        f"  const int64_t chunk = int64_t(blockIdx.x) * {THREADS} + threadIdx.x;\n"
        f"  if (chunk < chunks) list_parts<{apart}, {tile_rows}, {turn}>(out, rows, segments, chunks, chunk);\n}}\n"
        for apart, tile_rows, turn in WAYS
    )
    return TEXT + "".join(functions)


@dataclass(frozen=True)
class Part:
    """Of a chunk, as the header has it. begin, behind: the first part of its place, and that behind the last one."""

    number: int
    chunk: int
    place: int
    round: int
    end: int
    whole: int
    leave: int
    enter: int
    last: int
    rank: int
    last_rank: int
    first: int
    step: int
    none: int
    begin: int
    behind: int

    def row(self, turn: int) -> int:
        """The first row of the tile that it has in a round."""
        before = self.whole * turn + min(turn, self.leave) + max(turn - self.enter + 1, 0)
        return self.first + self.step * (before + (self.rank if turn < self.last else self.last_rank))

    @property
    def rows(self) -> list[int]:
        """The first rows of its tiles."""
        return [self.row(turn) for turn in range(self.round, self.end)]

    def done(self, turn: int) -> int:
        """How many of its tiles are of rounds before one."""
        return min(max(turn - self.round, 0), self.end - self.round)


def words(chunks: int, places: int) -> int:
    """That the parts of all chunks are."""
    return chunks * (places + 1) * WORDS


def listed(found: Tensor) -> list[Part]:
    """From what the text has written, over minus ones."""
    every = found.view(-1, WORDS)
    return [Part(*part) for part in every[every[:, 0] >= 0].tolist()]


def finding(
    parts: Sequence[Part], rows: int, chunks: int, apart: int, tile_rows: int, turn: int, segments: int = 1
) -> str | None:
    """What is wrong with the parts of all chunks, if anything is. Rows, of a segment, may be too many to look at each:
    those of rounds are looked at in which some chunk begins or ends."""
    places = segments * apart
    turns = chunks % places != 0
    if [part.number for part in parts] != list(range(chunks + (places - 1) * turns)):
        return f"numbers {[part.number for part in parts]}"
    if [part.chunk for part in parts] != sorted(part.chunk for part in parts):
        return "chunks are not in order"
    if {part.chunk for part in parts} != {*range(chunks)}:
        return "a chunk has no part"
    step = apart * tile_rows
    tiles = -(-rows // step)
    for part in parts:
        if not 0 <= part.place < places or part.end < part.round:
            return f"{part} is of another place"
        if part.first != part.place % apart or part.step != step or part.none < rows or part.none % apart != part.first:
            return f"{part} has other tiles"
    of_place, of_chunk = defaultdict[int, list[Part]](list), defaultdict[int, list[Part]](list)
    for part in parts:
        of_place[part.place].append(part)
        of_chunk[part.chunk].append(part)
    for place in range(places):
        own = of_place[place]
        if {(part.begin, part.behind) for part in own} != {(own[0].number, own[-1].number + 1)}:
            return f"place {place} has other parts"
        ends = {end + by for part in own for end in (part.round, part.end, part.last) for by in (-1, 0, 1)}
        if sum(part.end - part.round for part in own) != tiles:
            return f"place {place} has other tiles"
        for number in sorted(ends):
            before = sum(part.done(number) for part in own)
            found = sorted(part.row(number) for part in own if part.round <= number < part.end)
            if found != [place % apart + step * (before + i) for i in range(len(found))]:
                return f"place {place}: round {number} has {found}, behind {before}"
    left_out = turn if turns and places * tiles > chunks else 0
    share = places * (tiles + left_out) // chunks
    for chunk in range(chunks):
        own = of_chunk[chunk]
        count = sum(part.end - part.round for part in own)
        most = max((p.end for p in own if p.end > p.round), default=0)
        if not share - left_out * len(own) <= count <= share + 1 or most > share + 1:
            return f"chunk {chunk} has {count} tiles"
    return None
