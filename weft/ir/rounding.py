"""What is rounded to 16 bits in the end, so that a float32 that is off by a few units in the last place will do."""

from __future__ import annotations

from weft.ir.dtypes import is_float, is_narrow
from weft.ir.program import Program

ROUGH = ("exp", "div", "reciprocal", "tanh")
"""Operations that are computed faster then."""
_STEPS = {"floor", "ceil", "trunc", "round", "fmod", "floor_divide", "remainder"}
"""Operations that may make quite another number of the next one."""


def is_rounded_again(program: Program) -> bool:
    """Whether a float32 that is off by a few units in the last place makes no difference: all floats that are results
    have 16 bits or fewer, and none is compared, cut off or cast to an integer on the way."""
    rough: set[str] = set()
    for value in program.values:
        if not rough.isdisjoint(value.args):
            if value.op in _STEPS or not is_float(value.dtype):
                return False
            rough.add(value.name)
        elif value.op in ROUGH and value.dtype == "f32":
            rough.add(value.name)
    results = [o.buffer.dtype for o in program.outputs if is_float(o.buffer.dtype)]
    return all(is_narrow(dtype) for dtype in results)


def rounded_at_once(program: Program) -> frozenset[str]:
    """Values of which nothing is made but a number of 16 bits."""
    made: dict[str, list[bool]] = {o.value: [False] for o in program.outputs}
    for value in program.values:
        for arg in value.args:
            made.setdefault(arg, []).append(value.op == "cast" and value.dtype in ("bf16", "f16"))
    return frozenset(name for name, narrow in made.items() if all(narrow))
