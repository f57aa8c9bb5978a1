"""What several tests need: a workload as a compiled program, with inputs for its buffers in order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from weft.bench.workloads import WORKLOADS, Workload
from weft.capture.nodes import VIEWS
from weft.capture.refine import Extent
from weft.capture.regions import Capture, capture
from weft.capture.trace import trace
from weft.errors import Refusal
from weft.ir.program import Program
from weft.ir.simplify import simplify
from weft.plan.kernel import Plan
from weft.plan.planner import plan, plan_split
from weft.target import Target

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
NAMES = tuple(WORKLOADS)
POINTWISE_OF_ONE_ROW = ("batch_norm_forward", "gelu_backward_bias")
"""Workloads of which something is summed up over rows only: with one row it is left to Inductor."""
BACKWARDS = tuple(name for name in NAMES if "backward" in name)

SMALL_MODELS: dict[str, dict[str, int]] = {
    "plain": {"dim": 32, "blocks": 2, "heads": 4, "kv_heads": 2, "vocabulary": 96},
    "residual_mix": {"dim": 32, "blocks": 2, "heads": 4, "kv_heads": 2, "vocabulary": 96},
    "scale_shift_table": {"dim": 32, "tables": 1},
    "gpt2": {"dim": 32, "blocks": 2, "heads": 4, "vocabulary": 96, "positions": 64},
    "llama": {"dim": 32, "blocks": 2, "heads": 4, "kv_heads": 2, "hidden": 64, "vocabulary": 96},
    "dit": {"dim": 32, "blocks": 2, "heads": 4, "patch": 8, "classes": 10},
    "vit": {"dim": 32, "blocks": 2, "heads": 4, "patch": 4, "positions": 36, "classes": 100},
}
"""Sizes of every model for tests on a CPU."""


def often(every: Iterable[Any], kept: Sequence[Any]) -> list[Any]:
    """Parameters of a test: what is kept is for every run of the tests, the rest for those of everything. A tuple is of
    several parameters."""
    alone = ((each if isinstance(each, tuple) else (each,)) for each in every)
    return [pytest.param(*each, marks=() if each in kept or each[0] in kept else pytest.mark.slow) for each in alone]


def checkered(first: Iterable[Any], second: Iterable[Any], of: int = 2) -> list[Any]:
    """Pairs of two parameters: one in ``of`` is for every run of the tests, so that each value of either is there, and
    the rest for those of everything."""
    return [
        pytest.param(a, b, marks=() if (i + j) % of == 0 else pytest.mark.slow)
        for (i, a), (j, b) in product(enumerate(first), enumerate(second))
    ]


@dataclass(frozen=True)
class Case:
    """A workload at one shape and dtype: its program, and which of the function's inputs and outputs each buffer is.

    results: for each output of the function the buffer that holds it and the views that make it of that buffer.
    expressions: what the program's parameters are in terms of the symbols in the sizes and strides of ``placeholders``.
    """

    workload: Workload
    program: Program
    order: tuple[int, ...]
    results: tuple[tuple[int, tuple[fx.Node, ...]], ...]
    expressions: tuple[Extent, ...]
    placeholders: tuple[fx.Node, ...]
    parameters: tuple[int, ...]

    def bind(self, inputs: tuple[Tensor, ...]) -> list[Tensor]:
        return [inputs[i] for i in self.order]

    def outputs(self, made: Sequence[Tensor]) -> list[Tensor]:
        """What the program made, in the order and with the shapes of the function."""
        return [_viewed(made[i], views) for i, views in self.results]

    def parameters_for(self, inputs: tuple[Tensor, ...]) -> tuple[int, ...]:
        """Run-time parameters for inputs of other sizes."""
        values = {}
        for node, tensor in zip(self.placeholders, inputs, strict=True):
            fake = node.meta["val"]
            for symbol, size in zip((*fake.shape, *fake.stride()), (*tensor.shape, *tensor.stride()), strict=True):
                if isinstance(symbol, torch.SymInt) and symbol.node.expr.is_Symbol:
                    values.setdefault(symbol.node.expr, size)
        return tuple(e if isinstance(e, int) else int(e.subs(values)) for e in self.expressions)


def captured(name: str, inputs: tuple[Tensor, ...], dynamic_rows: bool = False) -> Capture:
    graph = trace(WORKLOADS[name].fn, inputs, dynamic_rows=dynamic_rows)
    return capture(graph.graph, name)


def make_case(name: str, inputs: tuple[Tensor, ...], dynamic_rows: bool = False) -> Case:
    """The one region of a workload; a test that gets none or several fails here."""
    return case_of(name, captured(name, inputs, dynamic_rows), inputs, dynamic_rows)


def case_of(name: str, found: Capture, inputs: tuple[Tensor, ...], dynamic_rows: bool = False) -> Case:
    """As ``make_case``, of what was captured."""
    assert len(found.regions) == 1, f"{name}: {len(found.regions)} regions"
    assert not found.refusals, found.refusals
    (region,) = found.regions
    placeholders = [n for n in region.members[0].graph.nodes if n.op == "placeholder"]
    program = simplify(region.program)
    by_name = dict(zip((b.name for b in region.program.inputs), region.inputs, strict=True))
    order = tuple(placeholders.index(by_name[b.name]) for b in program.inputs)
    (returned,) = (n.args[0] for n in region.members[0].graph.nodes if n.op == "output")
    flat = returned if isinstance(returned, list | tuple) else [returned]
    results = tuple(_result(node, region.outputs) for node in flat)
    assert bool(program.parameters) == dynamic_rows
    expressions = tuple(region.parameters[p] for p in program.parameters)
    case = Case(WORKLOADS[name], program, order, results, expressions, tuple(placeholders), ())
    return replace(case, parameters=case.parameters_for(inputs))


def _result(node: fx.Node, outputs: Sequence[fx.Node]) -> tuple[int, tuple[fx.Node, ...]]:
    """The output behind a returned node, that output itself and the views between them, in the order they apply."""
    views: list[fx.Node] = []
    while node not in outputs:
        assert node.target in VIEWS, f"{node} is no view of an output"
        views.append(node)
        node = node.args[0]  # type: ignore[assignment]
    return outputs.index(node), (node, *reversed(views))


def _viewed(made: Tensor, nodes: Sequence[fx.Node]) -> Tensor:
    """A buffer with the dimensions of its program, as the tensor of its node and then of the views of that."""
    base, *views = nodes
    value = base.meta["val"]
    made = torch.empty_strided(value.shape, value.stride(), dtype=made.dtype).copy_(made.reshape(value.shape))
    for view in views:
        made = view.target(made, *view.args[1:])  # type: ignore[operator]
    return made


def planned(case: Case, target: str | Target = "cpu") -> Plan:
    """The plan that is chosen; what is not worthwhile at this size runs under the natural split all the same."""
    found = plan_or_refusal(case, target)
    assert isinstance(found, Plan), found
    return found


def plan_or_refusal(case: Case, target: str | Target = "cpu") -> Plan | Refusal:
    """As ``planned``, but says why there is none."""
    program, hints = case.program, dict(zip(case.program.parameters, case.parameters, strict=True))
    machine = Target.named(target) if isinstance(target, str) else target
    found = plan(program, machine, hints)
    if isinstance(found, Refusal) and found.rule == "not_worthwhile":
        rows = tuple(d.name for d in program.dims if d.name != "n")
        found = plan_split(program, rows, tuple(d.name for d in program.dims if d.name == "n"), machine, hints)
    return found
