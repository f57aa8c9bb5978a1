"""What pointwise operations cost on a GPU, in float32 additions."""

from __future__ import annotations

from weft.ir import dtypes
from weft.ir.ops import lookup
from weft.ir.program import Value

MOST_COST = 4.0
"""Of an operation that no table has."""
ROUNDING_COST = 20.0
"""Of a cast to 8 bits, which is rounded in several steps."""
INSTRUCTIONS = {
    "acos": 16.0,
    "asin": 15.0,
    "atan": 43.0,
    "atan2": 60.0,
    "cos": 82.0,
    "cosh": 19.0,
    "div": 15.0,
    "erf": 28.0,
    "erfc": 48.0,
    "exp": 9.0,
    "exp2": 8.0,
    "expm1": 25.0,
    "floor_divide": 113.0,
    "fmod": 62.0,
    "log": 25.0,
    "log10": 26.0,
    "log1p": 29.0,
    "log2": 27.0,
    "pow": 110.0,
    "reciprocal": 14.0,
    "remainder": 71.0,
    "rsqrt": 8.0,
    "sigmoid": 17.0,
    "sin": 80.0,
    "sinh": 33.0,
    "sqrt": 15.0,
    "tan": 77.0,
    "tanh": 22.0,
    "trunc": 3.0,
}
"""Instructions of one in float32, as ``python -m tools.instructions`` counts them in what ptxas makes of Triton
3.6's for compute capability 9.0. Those of the unit for special functions count eight, which is its share of the others'
speed. All others are one at the most."""
ROUGH_INSTRUCTIONS = {"div": 8.0, "exp": 8.0, "reciprocal": 8.0, "tanh": 16.0}
"""Where the result is rounded to 16 bits in the end (``weft.ir.rounding``)."""


HALF_COST = 0.5
"""Of arithmetic in 16 bits, which is two elements' at a time."""


def cost_of(value: Value, rough: bool) -> float:
    """Of an operation on an element. rough: whether its result is rounded to 16 bits in the end."""
    if value.op == "cast" and dtypes.itemsize(value.dtype) == 1 and dtypes.is_float(value.dtype):
        return ROUNDING_COST
    if value.op != "cast" and value.dtype in dtypes.HALVES:
        return HALF_COST
    known = INSTRUCTIONS.get(value.op)
    if known is None:
        return min(lookup(value.op).cost, MOST_COST)
    return ROUGH_INSTRUCTIONS.get(value.op, known) if rough else known
