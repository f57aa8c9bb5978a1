"""What several tests need: a workload as a compiled program, with inputs for its buffers in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.bench.workloads import WORKLOADS, Workload
from weft.capture.regions import Capture, capture
from weft.capture.trace import trace
from weft.ir.program import Program
from weft.ir.simplify import simplify

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
NAMES = tuple(WORKLOADS)
BACKWARDS = tuple(name for name in NAMES if "backward" in name)


@dataclass(frozen=True)
class Case:
    """A workload at one shape and dtype: its program, and which of the function's inputs and outputs each buffer is."""

    workload: Workload
    program: Program
    order: tuple[int, ...]
    results: tuple[int, ...]
    parameters: tuple[int, ...]

    def bind(self, inputs: tuple[Tensor, ...]) -> list[Tensor]:
        return [inputs[i] for i in self.order]

    def outputs(self, made: Sequence[Tensor]) -> list[Tensor]:
        """What the program made, in the order of the function."""
        return [made[i] for i in self.results]


def captured(name: str, inputs: tuple[Tensor, ...], dynamic_rows: bool = False) -> Capture:
    graph = trace(WORKLOADS[name].fn, inputs, dynamic_rows=dynamic_rows)
    return capture(graph.graph, name)


def make_case(name: str, inputs: tuple[Tensor, ...], dynamic_rows: bool = False) -> Case:
    """The one region of a workload; a test that gets none or several fails here."""
    found = captured(name, inputs, dynamic_rows)
    assert len(found.regions) == 1, f"{name}: {len(found.regions)} regions"
    assert not found.refusals, found.refusals
    (region,) = found.regions
    placeholders = [n for n in region.members[0].graph.nodes if n.op == "placeholder"]
    program = simplify(region.program)
    by_name = dict(zip((b.name for b in region.program.inputs), region.inputs, strict=True))
    order = tuple(placeholders.index(by_name[b.name]) for b in program.inputs)
    (returned,) = (n.args[0] for n in region.members[0].graph.nodes if n.op == "output")
    flat = returned if isinstance(returned, list | tuple) else [returned]
    results = tuple(region.outputs.index(node) for node in flat)
    assert len(program.parameters) == int(dynamic_rows)
    parameters = (max(t.shape[0] for t in inputs if t.ndim == 2),) if dynamic_rows else ()
    return Case(WORKLOADS[name], program, order, results, parameters)
