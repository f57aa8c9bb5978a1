"""Producer and consumers: a rewrite of a nest whose programs loop over row tiles.

One warp of a program copies the inputs of row tiles to shared memory, as far ahead as there are stages, the others
compute with them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from weft.lowering.nest import Arrive, Chunks, Copy, Load, Release, Role, Statement, Tile, Tiles, flat


def specialised(body: Sequence[Statement], copied: Sequence[str]) -> tuple[Role, Role]:
    """The roles of programs that do what statements say, of which one is a loop over row tiles, or over chunks of them.
    copied: inputs that tiles load."""
    if not copied:
        raise ValueError("nothing is copied, and nobody waits for it")
    producer = Role(tuple(_copying(body, copied)), "producer")
    return producer, Role(tuple(_waiting(each, copied) for each in body), "consumers")


def _copying(body: Sequence[Statement], copied: Sequence[str]) -> Iterator[Statement]:
    """The loops over row tiles alone, in which they are copied."""
    for each in body:
        if isinstance(each, Chunks):
            yield replace(each, body=tuple(_copying(each.body, copied)))
        elif isinstance(each, Tiles):
            yield replace(each, body=(Copy(tuple(copied)),))


def _waiting(statement: Statement, copied: Collection[str]) -> Statement:
    match statement:
        case Chunks() | Tiles():
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
