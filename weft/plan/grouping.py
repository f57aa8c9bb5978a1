"""Which column sums of a pass may share a kernel with its rows or with each other, and the options that forbid it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from weft.errors import Refusal
from weft.ir.structure import is_outer
from weft.options import MixedOrder
from weft.plan.split import Split

MOST_PARTED = 3
"""Column sums of a pass up to which every partition of them and of the rows is a way."""
MOST_SHARED = 5
"""Column sums up to which every choice of those that stay with the rows is one, the others in one kernel. Of more,
there are all in one kernel and none."""
Groups = tuple[tuple[str, ...], ...]


def groupings(sums: Sequence[str]) -> Iterator[Groups]:
    """Ways to take column sums out of a kernel of rows and columns: those of a group share a kernel of their own, what
    is in no group stays. At least one is taken out, and all of them in one group come first."""
    if len(sums) > MOST_SHARED:
        yield (tuple(sums),)
        return
    for count in range(len(sums), 0, -1):
        for taken in combinations(sums, count):
            yield from partitions(taken) if len(sums) <= MOST_PARTED else [(taken,)]


def partitions(names: Sequence[str]) -> Iterator[Groups]:
    """Every partition of a set, the one of a single group first."""
    if not names:
        yield ()
        return
    first, *rest = names
    for count in range(len(rest), -1, -1):
        for others in combinations(rest, count):
            left = [name for name in rest if name not in others]
            for groups in partitions(left):
                yield ((first, *others), *groups)


def is_mixed(part: Split) -> bool:
    """Whether rows and columns are reduced."""
    return part.has_inner and part.has_outer


def check_mixed_order(whole: Split, mixed_order: MixedOrder) -> Refusal | None:
    """Rows and columns are reduced in one kernel if the options allow that."""
    if not is_mixed(whole):
        return None
    return check_mix_order(whole, mixed_order.allowed) or check_max_reads(whole, mixed_order.max_reads)


def check_mix_order(whole: Split, allowed: bool) -> Refusal | None:
    """Whether any kernel may reduce rows and columns is an option."""
    if allowed:
        return None
    count = sum(is_outer(value, whole.rows) for value in whole.program.values)
    return Refusal("mix_order", whole.program.name, "reduces rows and columns, and mix_order is off", count, 0)


def check_max_reads(whole: Split, limit: int) -> Refusal | None:
    """How many buffers a kernel of rows and columns may read is an option, 0 for any number. Parts of a tensor are one
    buffer."""
    count = len({buffer.within or buffer.name for buffer in whole.program.inputs})
    if not limit or count <= limit:
        return None
    message = "reduces rows and columns, and reads more buffers than max_reads"
    return Refusal("max_reads", whole.program.name, message, count, limit)
