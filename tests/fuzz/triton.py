"""The random programs as Triton kernels, under Triton's interpreter, against weft's."""

from __future__ import annotations

import random
from dataclasses import replace

import torch

from tests.fuzz.memory import written
from tests.fuzz.outcome import Mismatch, Outcome
from tests.fuzz.programs import Case, Expected, bind_inputs, bits, describe, is_valid, legal_plans, make, smaller
from tests.triton_schedules import drawn, is_quick
from weft.backends.triton import text as triton
from weft.ir.interpret import sizes_of
from weft.ir.simplify import simplify
from weft.ir.verify import verify
from weft.plan.kernel import Plan
from weft.target import Target

__all__ = ["check", "describe", "is_valid", "make", "script", "smaller"]
GPU = Target.named("h200")
FEW_UNITS = replace(GPU, units=2)
"""With so few multiprocessors that most programs have more rows."""
PROGRAMS = (2**31, 2)
"""Programs of a persistent launch at the most."""


def check(case: Case) -> Outcome:
    """Raise Mismatch, or whatever weft and Triton raise, if anything about the program goes wrong."""
    from tests.triton_runner import run_plan

    program = verify(simplify(case.program))
    sizes = sizes_of(case.program, case.parameters)

    def vary(plan: Plan, draw: random.Random) -> Plan:
        return drawn(plan, sizes, draw)

    plans = [
        p for p in legal_plans(program, case.seed, GPU if case.seed % 2 else FEW_UNITS, vary) if is_quick(p, sizes)
    ]
    plans = [p for p in plans if not any(map(triton.supports, p.kernels))]
    if not plans:
        return Outcome(0, 0)
    tensors = bind_inputs(case)
    expected = Expected(case, program, tensors)
    names = [b.name for b in case.program.inputs]
    inputs = [tensors[names.index(b.name)] for b in program.inputs]
    parameters = [sizes[p] for p in program.parameters]
    compared = 0
    for plan in plans:
        try:
            made = [run_plan(plan, program, inputs, parameters, limit) for limit in PROGRAMS]
            outputs = [[written(o.buffer, t) for o, t in zip(program.outputs, some, strict=True)] for some in made]
            for number, some in enumerate(outputs[1:]):
                for first, second, output in zip(outputs[0], some, program.outputs, strict=True):
                    if not torch.equal(bits(first), bits(second)):
                        raise Mismatch(
                            "programs", f"{output.buffer.name}: other bits of {PROGRAMS[number + 1]} programs"
                        )
            expected.compare(outputs[0])
        except Exception as error:
            kind = error.kind if isinstance(error, Mismatch) else type(error).__name__
            raise Mismatch(kind, f"{error}\n" + "\n".join(triton.render(k).text for k in plan.kernels)) from error
        compared += len(outputs[0])
    return Outcome(sum(len(p.kernels) for p in plans), compared)


def script(case: Case, error: str) -> str:
    """How to run a case again: it takes this package, for the memory it runs in."""
    comment = "\n".join(f"# {line}" for line in error.splitlines())
    return f'{comment}\n# python -m tests.fuzz triton --seed {case.seed}, made smaller:\n"""\n{case.program}"""\n'
