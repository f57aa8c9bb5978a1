"""One program from start to end on tensors at hand."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from weft.errors import Refusal, RefusedError
from weft.ir.program import Program
from weft.ir.simplify import simplify
from weft.ir.verify import verify
from weft.logs import turn_on
from weft.machines import check_device, target_of
from weft.options import Options
from weft.planning import Asked, Plans
from weft.runtime import launch, tuning


def run_program(
    program: Program, inputs: Sequence[Tensor], parameters: Sequence[int] = (), options: Options | None = None
) -> list[Tensor]:
    """Compile and run one program on tensors at hand; outputs have the shapes and strides of its buffers.

    Raises RefusedError if no plan is legal or worthwhile.
    """
    options = options or Options.read()
    turn_on(options.logs)
    program = verify(simplify(program))
    hints = dict(zip(program.parameters, parameters, strict=True))
    machine = target_of(inputs[0].device if inputs else torch.device("cpu"), program.name)
    if isinstance(machine, Refusal):
        raise RefusedError((machine,))
    planned = Plans(tuning.load(options), options.mixed_order).of(Asked(program, machine, hints))
    if isinstance(planned, Refusal):
        raise RefusedError((planned,))
    if (refusal := check_device(planned, machine)) is not None:
        raise RefusedError((refusal,))
    return launch.run_plan(planned, program, inputs, parameters, options)
