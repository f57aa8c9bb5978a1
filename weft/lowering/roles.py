"""Producer and consumers: a rewrite of a nest whose programs loop over row tiles.

One warp of a program copies the inputs of row tiles to shared memory, as far ahead as there are stages, the others
compute with them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from weft.lowering.nest import Arrive, Chunks, Copy, Load, Release, Role, Statement, Tile, Tiles, flat


def specialised(loop: Chunks, copied: Sequence[str]) -> tuple[Role, Role]:
    """The roles of programs that do what a loop over chunks says. copied: inputs that its tiles load."""
    if not copied:
        raise ValueError("nothing is copied, and nobody waits for it")
    (tiles,) = (each for each in loop.body if isinstance(each, Tiles))
    producer = replace(loop, body=(replace(tiles, body=(Copy(tuple(copied)),)),))
    consumers = replace(loop, body=tuple(_waiting(each, copied) for each in loop.body))
    return Role((producer,), "producer"), Role((consumers,), "consumers")


def _waiting(statement: Statement, copied: Collection[str]) -> Statement:
    match statement:
        case Tiles():
            return replace(statement, body=tuple(_waiting(each, copied) for each in statement.body))
        case Tile():
            return replace(statement, body=tuple(_around(statement.body, copied)))
        case _:
            return statement


def _around(body: Sequence[Statement], copied: Collection[str]) -> Iterator[Statement]:
    """The statements of a tile, which wait for the copies before the first that loads one of them, and make room for
    the next ones behind the last."""
    at = [i for i, each in enumerate(body) if any(isinstance(s, Load) and s.buffer in copied for s in flat([each]))]
    for i, each in enumerate(body):
        if i == at[0]:
            yield Arrive()
        yield each
        if i == at[-1]:
            yield Release()
