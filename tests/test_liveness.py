"""What is alive does not depend on the order in which a function was traced."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tools.gpu_cells import Cell, parts_of
from weft.backends.triton.choice import gpu_schedule
from weft.backends.triton.liveness import liveness
from weft.bench.workloads import WORKLOADS
from weft.ir.builder import Builder
from weft.ir.program import Dim, Program
from weft.target import Target

NAMES = [name for name in WORKLOADS if "backward" in name and "cross_entropy" not in name]
H200 = Target.named("h200")


def shuffled(program: Program, draw: random.Random) -> Program:
    """The same values in another order that is as good."""
    builder = Builder.like(program)
    renamed = {b.name: builder.add_input(b) for b in program.inputs}
    waiting = list(program.values)
    while waiting:
        value = draw.choice([v for v in waiting if all(a in renamed for a in v.args)])
        waiting.remove(value)
        args = [renamed[a] for a in value.args]
        renamed[value.name] = builder.op(value.op, *args, dtype=value.dtype, attributes=value.attributes)
    for output in program.outputs:
        builder.add_output(output.buffer, renamed[output.value])
    return builder.finish()


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_statements_makes_no_difference(name: str) -> None:
    split = next(iter(parts_of(Cell(name, "bf16", 8192, 1152), H200).values()))
    program = split.program
    known = liveness(program, *split.dims), gpu_schedule(split)
    draw = random.Random(5)
    others = [shuffled(program, draw) for _ in range(6)]
    assert any(other != program for other in others)
    for other in others:
        found = liveness(other, *split.dims)
        assert (found.across, found.alive, found.sums, found.invariant) == (
            known[0].across,
            known[0].alive,
            known[0].sums,
            known[0].invariant,
        )
        assert gpu_schedule(replace(split, program=other)) == known[1]


def test_a_chain_of_thousands_is_no_deep_recursion() -> None:
    builder = Builder("p", (Dim("m", 64), Dim("n", 64)), ())
    value = builder.input("x", "f32", ("m", "n"), (64, 1))
    for i in range(3000):
        value = builder.op("exp" if i % 2 else "neg", value)
    builder.output("y", builder.reduce("sum", value, ("n",)), "f32", ("m",), (1,))
    found = liveness(builder.finish(), ("m",), ("n",))
    assert found.across == ((0.0, 0.0, 0.0, 0.0),)  # nothing waits while the row is reduced
    assert max(found.alive) == (2.0, 0.0, 0.0, 0.0)  # a value and what it is made from
