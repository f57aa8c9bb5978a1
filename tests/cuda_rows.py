"""The parts of chunks of rows, as the header of CUDA kernels numbers them, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from tests.cuda_header import THREADS

APART = (1, 2, 4, 8)
"""How far rows are apart that begin at one place between two vectors."""
TILE_ROWS = (1, 3)
WORDS = 9
"""Of a part in a list of them."""
TEXT = """
/// The parts of a chunk, in the place of as many as it can have and one more: number, chunk, a row that begins alike,
/// and what is known of its tiles.
template <int apart, int tile_rows>
inline void list_parts(int64_t* out, int64_t rows, int64_t chunks, int64_t chunk) {
  int64_t* to = out + chunk * (apart + 1) * 9;
  const int64_t first = w::first_part<apart>(chunk, chunks), last = w::last_part<apart>(chunk, chunks);
  for (int64_t part = first; part <= last && part <= first + apart; ++part, to += 9) {
    const w::PartTiles tiles = w::tiles_of<apart, tile_rows>(part, chunk, rows, chunks);
    to[0] = part, to[1] = chunk, to[2] = w::first_row<apart>(part, chunks);
    to[3] = tiles.first, to[4] = tiles.left, to[5] = tiles.in_turn, to[6] = tiles.step;
    to[7] = tiles.round, to[8] = tiles.from_round;
  }
}
"""
WAYS = [*product(APART, TILE_ROWS)]


def parts_kernel() -> str:
    """The text of functions ``parts_2_1``, ..., which take a place for the parts, and the numbers of rows and chunks; a
    thread lists those of a chunk."""
    head = f'extern "C" __global__ void __launch_bounds__({THREADS})'
    functions = (
        f"{head} parts_{apart}_{tile_rows}(int64_t* out, int64_t rows, int64_t chunks) {{\n"
        f"  const int64_t chunk = int64_t(blockIdx.x) * {THREADS} + threadIdx.x;\n"
        f"  if (chunk < chunks) list_parts<{apart}, {tile_rows}>(out, rows, chunks, chunk);\n}}\n"
        for apart, tile_rows in WAYS
    )
    return TEXT + "".join(functions)


@dataclass(frozen=True)
class Part:
    """Of a chunk. alike: a row that is said to begin as its rows do. The first tile begins with row ``first``, ``left``
    of them follow one another at a distance of ``step``, then ``in_turn`` of them from ``round`` on, and again after
    every ``from_round`` rows."""

    number: int
    chunk: int
    alike: int
    first: int
    left: int
    in_turn: int
    step: int
    round: int
    from_round: int

    @property
    def place(self) -> int:
        """Which of the places where rows begin is that of its rows."""
        return self.number - self.chunk

    def tiles(self, rows: int) -> Iterator[int]:
        """The first rows of its tiles."""
        first, left, turn = self.first, self.left, self.round
        while first < rows:
            yield from (row for row in range(first, first + left * self.step, self.step) if row < rows)
            first, left, turn = turn, self.in_turn, turn + self.from_round
            if left == 0:
                return


def places(chunks: int, apart: int) -> int:
    """Words that the parts of all chunks have place in."""
    return chunks * (apart + 1) * WORDS


def listed(words: Sequence[int]) -> list[Part]:
    """From what the text has written, over minus ones."""
    every = (words[i : i + WORDS] for i in range(0, len(words), WORDS))
    return [Part(*part) for part in every if part[0] >= 0]


def finding(parts: Sequence[Part], rows: int, chunks: int, apart: int, tile_rows: int) -> str | None:
    """What is wrong with the parts of all chunks, if anything is. Rows may be too many to look at each."""
    if [part.number for part in parts] != list(range(chunks + apart - 1)):
        return f"numbers {[part.number for part in parts]}"
    if [part.chunk for part in parts] != sorted(part.chunk for part in parts):
        return "chunks are not in order"
    if {part.chunk for part in parts} != {*range(chunks)}:
        return "a chunk has no part"
    for part in parts:
        if not 0 <= part.place < apart or part.first % apart != part.place or part.first < 0:
            return f"{part} begins somewhere else"
        if part.alike != part.place:
            return f"{part} begins as others do"
        if part.step != apart * tile_rows or part.from_round % part.step:
            return f"{part} has other tiles"
    step = apart * tile_rows
    tiles = -(-rows // step)
    counts = [0] * chunks
    for place in range(apart):
        own = [part for part in parts if part.place == place]
        (each_round,) = found if len(found := {part.from_round // step for part in own}) == 1 else (0,)
        if not 0 < each_round <= chunks:
            return f"place {place}: rounds of {found}"
        rest = tiles % each_round
        # what is left of whole rounds, and the first round
        left = [(part.first // step, part.left) for part in own if part.first // step < rest]
        turns = [part.round if part.first // step < rest else part.first for part in own]
        turns = [(turn // step, part.in_turn) for turn, part in zip(turns, own, strict=True) if part.in_turn > 0]
        if runs(left) != rest or runs(turns, rest) != rest + each_round:
            return f"place {place}: {left} and {turns} are not each tile once"
        for part in own:
            if part.first // step >= rest and (part.left, part.round) != (
                (part.in_turn, part.first + part.from_round) if part.in_turn else (0, part.first + part.from_round)
            ):
                return f"{part} leaves out tiles"
            if part.in_turn == 0 and part.round < rows:
                return f"{part} has tiles of another"
            counts[part.chunk] += tiles // each_round * part.in_turn + part.left * (part.first // step < rest)
    for chunk, count in enumerate(counts):
        if not apart * tiles // chunks <= count <= -(-apart * tiles // chunks):
            return f"chunk {chunk} has {count} tiles"
    return None


def runs(found: Sequence[tuple[int, int]], begin: int = 0) -> int:
    """Where runs end, each of a beginning and a length, of which every one begins where that before it ends; -1 if
    some do not."""
    for first, length in sorted(found):
        if first != begin or length <= 0:
            return -1
        begin += length
    return begin
