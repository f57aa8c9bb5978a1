"""How a row is cut into pieces whose widths are powers of two."""

from __future__ import annotations

MOST_PIECES, MOST_EQUAL_PIECES = 3, 9
"""Pieces of a row: each has its own instructions for every value. Equal ones are laid out in one way."""
LEAST_EQUAL_PIECE = 128
"""Columns of each of several equal pieces: with four for a thread of one warp, 1152 columns as 9 pieces of 128 took a
layer norm's backward with a bias from 0.80 of a copy to 0.93."""
LEAST_PIECE = 256
"""Columns of all pieces but the first: those of one warp with a vector for each thread. Smaller ones cannot be laid on
others before threads exchange sums; a layer norm's backward at 1152 = 1024 + 128 columns lost 5 % to it."""
PIECE_COST = 1 / 32
"""What one more piece of a row costs, as a part of the row. A guess."""


def splits_of(width: int) -> tuple[tuple[int, ...], ...]:
    """Pieces that a row is worth being cut into: falling ones, and equal ones where they make up the row."""
    falling, part = pieces_of(width), width & -width
    equal = (part,) * (width // part)
    fits = LEAST_EQUAL_PIECE <= part < width <= part * MOST_EQUAL_PIECES
    return (falling, equal) if fits and equal != falling else (falling,)


def pieces_of(width: int) -> tuple[int, ...]:
    """Powers of two, falling, that make up a row with as little beyond it as is worth the pieces."""
    best: tuple[int, ...] = (power_of_two(width),)
    pieces = best[:0]
    rest = width
    while rest > 0 and len(pieces) < MOST_PIECES and width > LEAST_PIECE:
        whole = (*pieces, max(LEAST_PIECE, power_of_two(rest)))
        if _cost(whole, width) < _cost(best, width):
            best = whole
        pieces = (*pieces, max(LEAST_PIECE, power_of_two(rest + 1) // 2))
        rest = width - sum(pieces)
    return best


def _cost(pieces: tuple[int, ...], width: int) -> float:
    return sum(pieces) + PIECE_COST * width * len(pieces)


def power_of_two(number: int) -> int:
    """The smallest one that is no less."""
    return 1 << max(0, number - 1).bit_length()
