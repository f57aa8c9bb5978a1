"""How models are cut into kernels for an H200, as golden texts: one block of each at the width that people train."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import weft
from tests.cases import often
from tests.test_golden import compare
from tests.zoo.__main__ import LIBRARIES
from tests.zoo.entries import ENTRIES
from weft.compiler import Compilation
from weft.explain.explanation import Explanation
from weft.ir.program import Buffer, Program
from weft.rules import find_rule

FOLDER = Path(__file__).parent / "golden_plans"
MODELS = ("gpt2", "llama", "qwen3", "gemma3", "bert", "vit", "dit_batch_1")
OFTEN = ("qwen3", "bert")
"""Both kinds of language models; the others are for the tests of everything."""

pytestmark = pytest.mark.skipif(
    not all(find_spec(name) for name in LIBRARIES),
    reason="the zoo's libraries are not installed: pip install weft[zoo]",
)


@pytest.mark.parametrize("name", often(MODELS, OFTEN))
def test_a_block_is_cut_as_its_golden_text_says(name: str, update_golden: bool) -> None:
    compare(name, FOLDER / f"{name}.txt", "\n".join(lines(explained(name))) + "\n", update_golden)


def test_no_golden_plan_is_without_a_model() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(MODELS)


def explained(name: str) -> Explanation:
    """A training step of one block, of tensors that take no memory."""
    entry = ENTRIES[name]
    with torch.device("meta"):
        model = entry.make(**{**entry.extra, **entry.full, **entry.compared, **dict.fromkeys(entry.layers, 1)}).train()
    batch = model.make_batch(*entry.full_batch, 0)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        model.to_empty(device="cpu")
        batch = [mode.from_tensor(tensor) for tensor in batch]
        with torch.autocast("cpu", torch.bfloat16):
            return weft.explain(model, *batch, target="h200")


def lines(explanation: Explanation) -> Iterator[str]:
    """Of each graph its kernels, with what they read and write and how they pass over it, and which regions were left
    out by which rule. Predicted times and schedules are not said: they move with each fit of the constants."""
    for graph in explanation.graphs:
        yield f"{graph.kind}:"
        yield from kernels(graph.compilation)
        rules = (refusal.rule for refusal in graph.compilation.refusals if find_rule(refusal.rule).stage == "plan")
        yield from (f"  left out: {count} x {rule}" for rule, count in sorted(Counter(rules).items()))


def kernels(compilation: Compilation) -> Iterator[str]:
    for region in compilation.regions:
        for kernel, kind in zip(region.plan.kernels, region.plan.kinds, strict=True):
            program, schedule = kernel.program, kernel.schedule
            rows, columns = (
                f"({', '.join(str(program.size_of(d)) for d in dims)})" for dims in (schedule.rows, schedule.columns)
            )
            yield f"  {kernel.name}: {kind}, {schedule.scheme}, rows {rows}, columns {columns}"
            yield f"    reads {', '.join(shape(b, program) for b in program.inputs)}"
            yield f"    writes {', '.join(shape(o.buffer, program) for o in program.outputs)}"


def shape(buffer: Buffer, program: Program) -> str:
    return f"{buffer.dtype}[{', '.join(str(program.size_of(d)) for d in buffer.dims)}]"
