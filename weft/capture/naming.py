"""Names a program after what it computes, so that warnings, reports and lists of kernels can be told apart.

The name is part of a kernel's identity. It is made of the program alone, in which equal blocks of a model are equal;
the user's functions or lines would give the same kernel several names, and each its own build.
"""

from __future__ import annotations

from weft.ir.ops import lookup
from weft.ir.program import Program, Value

FUNCTION_COST = 10.0
"""Operations on one number from this cost on are functions that tell programs apart: rsqrt, exp, erf."""
MAX_WORDS = 6
DIRECTIONS = ("row_", "column_", "total_")
FASTEST = "n"
"""The name that ``merge_dimensions`` gives the dimension that is fastest in memory."""


def name_of(program: Program) -> str:
    """Its reductions and functions in order, each once: ``row_max_exp_row_sum`` is a softmax. A row reduction drops the
    dimension that is fastest in memory, a column reduction others, a total both. ``pointwise`` has none of either."""
    found = dict.fromkeys(word for value in program.values if (word := _word(value)))
    words = [*found]
    reductions = [word for word in words if word.startswith(DIRECTIONS)]
    return "_".join(words if len(words) <= MAX_WORDS else reductions) or "pointwise"


def _word(value: Value) -> str | None:
    op = lookup(value.op)
    if op.kind == "reduction":
        row, column, total = DIRECTIONS
        if FASTEST not in value.attributes:
            return column + op.name
        return (row if len(value.attributes) == 1 else total) + op.name
    return op.name if op.kind == "pointwise" and op.arity == 1 and op.cost >= FUNCTION_COST else None
