"""Row tiles that overlap: a rewrite of a nest in which nobody waits for the row reductions of a tile.

What follows from the last of them is done once the next tile has come as far. Until then what threads have sent has
time to arrive.
"""

from __future__ import annotations

from dataclasses import replace

from weft.lowering.nest import Behind, Chunks, Receive, Reduce, Role, Send, Statement, Tile, Tiles


def overlapped(role: Role) -> Role:
    """The same role, in which the part of a tile from its last row reductions on comes behind. Raises ValueError if a
    tile has none."""
    return replace(role, body=tuple(map(_overlapped, role.body)))


def _overlapped(statement: Statement) -> Statement:
    match statement:
        case Chunks() | Tiles():
            return replace(statement, body=tuple(map(_overlapped, statement.body)))
        case Tile(body=body):
            at = max((i for i, each in enumerate(body) if isinstance(each, Reduce)), default=None)
            if at is None:
                raise ValueError("a tile without row reductions has nothing to wait for")
            last = body[at]
            assert isinstance(last, Reduce)
            behind = Behind((Receive(last.values), *body[at + 1 :]))
            return Tile((*body[:at], Send(last.values), behind))
        case _:
            return statement
