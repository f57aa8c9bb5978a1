"""The parts of chunks of rows, as the header of CUDA kernels numbers them, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.cuda_header import THREADS

APART = (1, 2, 4, 8)
"""How far rows are apart that begin at one place between two vectors."""
WORDS = 6
"""Of a part in a list of them."""
TEXT = """
/// The parts of a chunk, in the place of as many as it can have and one more: number, chunk, the first row of them, the
/// end of them, how far they are apart, a row that begins alike.
template <int apart>
inline void list_parts(int64_t* out, int64_t rows, int64_t chunks, int64_t chunk) {
  int64_t* to = out + chunk * (apart + 1) * 6;
  const int64_t first = w::first_part<apart>(chunk, chunks), last = w::last_part<apart>(chunk, chunks);
  for (int64_t part = first; part <= last && part <= first + apart; ++part, to += 6) {
    const w::Rows own = w::rows_of<apart>(part, chunk, rows, chunks);
    to[0] = part, to[1] = chunk, to[2] = own.first, to[3] = own.end, to[4] = own.stride;
    to[5] = w::first_row<apart>(part, chunks);
  }
}
"""


def parts_kernel() -> str:
    """The text of functions ``parts_2``, ..., which take a place for the parts, and the numbers of rows and chunks; a
    thread lists those of a chunk."""
    head = f'extern "C" __global__ void __launch_bounds__({THREADS})'
    functions = (
        f"{head} parts_{apart}(int64_t* out, int64_t rows, int64_t chunks) {{\n"
        f"  const int64_t chunk = int64_t(blockIdx.x) * {THREADS} + threadIdx.x;\n"
        f"  if (chunk < chunks) list_parts<{apart}>(out, rows, chunks, chunk);\n}}\n"
        for apart in APART
    )
    return TEXT + "".join(functions)


@dataclass(frozen=True)
class Part:
    """Of a chunk: its rows are so many apart. alike: a row that is said to begin as they do."""

    number: int
    chunk: int
    rows: range
    alike: int

    @property
    def place(self) -> int:
        """Which of the places where rows begin is that of its rows."""
        return self.number - self.chunk


def places(chunks: int, apart: int) -> int:
    """Words that the parts of all chunks have place in."""
    return chunks * (apart + 1) * WORDS


def listed(words: Sequence[int]) -> list[Part]:
    """From what the text has written, over minus ones."""
    every = (words[i : i + WORDS] for i in range(0, len(words), WORDS))
    return [
        Part(number, chunk, range(first, end, stride), like)
        for number, chunk, first, end, stride, like in every
        if chunk >= 0
    ]


def finding(parts: Sequence[Part], rows: int, chunks: int, apart: int) -> str | None:
    """What is wrong with the parts of all chunks, if anything is."""
    if [part.number for part in parts] != list(range(chunks + apart - 1)):
        return f"numbers {[part.number for part in parts]}"
    if [part.chunk for part in parts] != sorted(part.chunk for part in parts):
        return "chunks are not in order"
    if {part.chunk for part in parts} != {*range(chunks)}:
        return "a chunk has no part"
    for part in parts:
        if not 0 <= part.place < apart or part.rows.start % apart != part.place or part.rows.start < 0:
            return f"{part} begins somewhere else"
        if part.alike != part.place:
            return f"{part} begins as others do"
    for place in range(apart):
        own = [part.rows for part in parts if part.place == place and part.rows]
        if apart == 1:
            if own != [range(chunk, rows, chunks) for chunk in range(min(rows, chunks))]:
                return f"{own} are not every so many rows"
            continue
        if any(each.step != apart for each in own):
            return f"place {place}: {own} begin at other places"
        bounds = [place, *(each[-1] + apart for each in own)]
        if [each[0] for each in own] != bounds[:-1] or bounds[-1] != place + apart * len(range(place, rows, apart)):
            return f"place {place}: {own} are not each row once"
    whole = apart * -(-rows // apart)  # with rows that do not exist
    counts = [0] * chunks
    for part in parts:
        counts[part.chunk] += len(part.rows)
    for chunk, count in enumerate(counts):
        if not whole // chunks - (whole - rows) <= count <= -(-whole // chunks):
            return f"chunk {chunk} has {count} rows"
    return None
