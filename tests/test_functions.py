"""Functions beyond the named workloads, compiled and compared with the float64 interpreter and with eager."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.cases import often
from tests.run_program import run_program
from tests.together import prepare
from weft.capture.regions import capture
from weft.capture.trace import trace
from weft.ir.interpret import interpret
from weft.ir.simplify import simplify
from weft.options import Options
from weft.plan.kernel import Plan
from weft.plan.planner import plan_split, splits
from weft.runtime.launch import run_plan
from weft.target import Target

CPU = Target.named("cpu")


def modulated(x: Tensor, dy: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients per batch element and per channel: two segments and one sum over everything but the channels."""
    variance, mean = torch.var_mean(x, -1, keepdim=True, correction=0)
    hat = (x - mean) * torch.rsqrt(variance + 1e-5)
    return (dy * hat).sum(1), dy.sum(1) * scale, dy.sum((0, 1))


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits, target)


def cross_entropy_rows(logits: Tensor, target: Tensor) -> Tensor:
    return -torch.log_softmax(logits, -1).gather(1, target[:, None])


def qk_norm(x: Tensor) -> Tensor:
    """Heads transposed, normalised, laid out anew."""
    return F.rms_norm(x.view(2, 24, 3, 16).transpose(1, 2), (16,)).contiguous()


def repeated_heads(x: Tensor) -> Tensor:
    return F.rms_norm(x.view(2, 24, 3, 16).transpose(1, 2), (16,)).repeat_interleave(2, 1)


def two_statistics(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    y = (x - low) / (high - low + 1)
    return y, y.sum(0), y.amax(0)


def straddling(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.square().sum(), x.mean(-1)


def square_sum_per_column_group(x: Tensor) -> tuple[Tensor, Tensor]:
    """Column sums of a view that splits the channels, and a row sum over all of them."""
    return x.view(-1, 4, 24).sum(0), x.sum(-1)


def counts(x: Tensor) -> tuple[Tensor, Tensor]:
    positive = x > 0
    return positive.sum(0), torch.where(positive, x, -x).sum(-1)


def row_invariant(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    scaled = w.float() * 2
    return (x * scaled).sum(0), scaled


def transposed(x: Tensor, y: Tensor) -> Tensor:
    return (x.t() * y).sum(-1)


def softmax_in_the_middle(x: Tensor) -> Tensor:
    return torch.softmax(x, 1)


def broadcast_result(x: Tensor) -> tuple[Tensor, Tensor]:
    mean = x.mean(-1, keepdim=True)
    return x - mean, (mean.expand(x.shape) * 1.0)


def long_chain(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    for _ in range(3):
        x = F.rms_norm(x, (x.shape[-1],), w)
        x = torch.tanh(x) + torch.softmax(x, -1)
    return x, x.sum(0)


def one_sign(x: Tensor) -> tuple[Tensor, ...]:
    """The largest of negative numbers and the smallest of positive ones, which are no zeros."""
    positive = x.abs() + 1
    return (-positive).amax(-1), (-positive).amax(0), positive.amin(-1), positive.amin(0)


def long_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of so many columns that all levels of the cascade of additions are needed, twice."""
    return x.sum(-1), x.mean(0)


def crossed(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """With the last dimension in columns, every row is a segment of its own: each sum keeps what the other drops."""
    return torch.var_mean(x, 0)[0], x.sum(1), x.amax(0)


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape)


CASES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Tensor, ...]]]] = {
    "modulated": (modulated, lambda: (randn(3, 20, 40), randn(3, 20, 40), randn(3, 40))),
    "cross_entropy": (cross_entropy, lambda: (randn(50, 70), torch.randint(0, 70, (50,)))),
    "cross_entropy_rows": (cross_entropy_rows, lambda: (randn(50, 70), torch.randint(0, 70, (50,)))),
    "qk_norm": (qk_norm, lambda: (randn(2, 24, 48),)),
    "repeated_heads": (repeated_heads, lambda: (randn(2, 24, 48),)),
    "two_statistics": (two_statistics, lambda: (randn(90, 37),)),
    "straddling": (straddling, lambda: (randn(90, 37),)),
    "column_groups": (square_sum_per_column_group, lambda: (randn(30, 96),)),
    "counts": (counts, lambda: (randn(90, 37),)),
    "row_invariant": (row_invariant, lambda: (randn(90, 37), randn(37))),
    "transposed": (transposed, lambda: (randn(48, 32), randn(32, 48))),
    "softmax_in_the_middle": (softmax_in_the_middle, lambda: (randn(4, 33, 20),)),
    "broadcast_result": (broadcast_result, lambda: (randn(12, 33),)),
    "long_chain": (long_chain, lambda: (randn(40, 48), randn(48))),
    "permuted_input": (lambda x: torch.softmax(x, -1), lambda: (randn(20, 30, 8).permute(2, 0, 1),)),
    "strided_rows": (lambda x: torch.softmax(x, -1), lambda: (randn(20, 64)[:, :30],)),
    "double": (lambda x: (torch.softmax(x, -1), x.sum(0)), lambda: (randn(20, 30).double(),)),
    "crossed": (crossed, lambda: (randn(6, 5, 40),)),
    "one_column_only": (lambda x: x.sum(0), lambda: (randn(300, 3),)),
    "one_sign": (one_sign, lambda: (randn(50, 37),)),
    "long_rows": (long_rows, lambda: (randn(3, 33003),)),
    "one_row": (lambda x: torch.softmax(x, -1), lambda: (randn(1, 50),)),
}


MANY_SPLITS = (
    *("long_chain", "qk_norm", "repeated_heads", "softmax_in_the_middle", "modulated", "permuted_input"),
    *("two_statistics", "cross_entropy_rows", "one_sign", "counts", "double", "strided_rows"),
)
"""Cases whose kernels take the compiler longest; others are of their kinds, or in the slice of the sweep: float64 and
rows with gaps between them."""
OFTEN = often(CASES, [name for name in CASES if name not in MANY_SPLITS])


@pytest.mark.built_together(2)
@pytest.mark.parametrize("name", OFTEN)
def test_every_legal_split_computes_the_same(name: str) -> None:
    function, make = CASES[name]
    inputs = make()
    graph = trace(function, inputs)
    found = capture(graph.graph, name)
    placeholders = [n for n in graph.graph.nodes if n.op == "placeholder"]
    (returned,) = (n.args[0] for n in graph.graph.nodes if n.op == "output")
    returned = returned if isinstance(returned, list | tuple) else [returned]
    eager = function(*inputs)
    eager = [eager] if isinstance(eager, Tensor) else list(eager)
    compared = 0
    for region in found.regions:
        program = simplify(region.program)
        by_name = dict(zip((b.name for b in region.program.inputs), region.inputs, strict=True))
        if not all(by_name[b.name] in placeholders for b in program.inputs):
            continue  # reads what another region makes
        bound = [inputs[placeholders.index(by_name[b.name])] for b in program.inputs]
        reference = interpret(program, bound)
        every = ((split, replace(program, name=f"{name}{at}")) for at, split in enumerate(splits(program)))
        planned = {split: plan_split(named, *split, CPU, {}) for split, named in every}
        legal = {split: plan for split, plan in planned.items() if isinstance(plan, Plan)}
        prepare(legal.values())
        for (rows, columns), plan in legal.items():
            got = run_plan(plan, program, bound, (), Options.read())
            for output, node, mine, exact in zip(program.outputs, region.outputs, got, reference, strict=True):
                error = (mine.double() - exact.double()).norm().item()
                assert error <= 2e-6 * exact.double().norm().item() + 1e-12, (
                    f"{rows} | {columns}: {output.buffer.name} {error}"
                )
                if node in returned:
                    theirs = eager[returned.index(node)]
                    assert (mine.numel(), mine.dtype) == (theirs.numel(), theirs.dtype)
                    shown = mine.reshape(node.meta["val"].shape)
                    torch.testing.assert_close(shown, theirs, rtol=1e-4, atol=1e-4)
        assert legal
        compared += 1
    assert compared >= 1


@pytest.mark.built_together(1)
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_few_rows_or_none(rows: int) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return torch.softmax(x, -1), x.sum(0), x.amax(0)

    graph = trace(function, (randn(64, 40),), dynamic_rows=True)
    (region,) = capture(graph.graph, "f").regions
    program = simplify(region.program)
    plan = plan_split(program, ("m",), ("n",), CPU, {})
    assert isinstance(plan, Plan)
    x = randn(rows, 40)
    made = dict(zip(region.outputs, run_plan(plan, program, [x], (rows,), Options.read()), strict=True))
    (returned,) = (n.args[0] for n in graph.graph.nodes if n.op == "output")
    softmax, total, largest = (made[node] for node in returned)  # type: ignore[union-attr]
    torch.testing.assert_close(softmax, torch.softmax(x, -1))
    torch.testing.assert_close(total, x.sum(0))
    torch.testing.assert_close(largest, x.amax(0) if rows else torch.full((40,), float("-inf")))


def test_a_program_runs_from_start_to_end_in_one_call() -> None:
    x = randn(30, 50)
    (region,) = capture(trace(lambda x: torch.softmax(x, -1), (x,)).graph, "softmax").regions
    (result,) = run_program(region.program, [x])
    torch.testing.assert_close(result, torch.softmax(x, -1))


def special(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """What NaN and infinities go through: reductions, and every pointwise operation that orders numbers."""
    largest = x.amax(-1, keepdim=True)
    x, y = torch.where(largest < x, largest, x), torch.where(largest < x, largest, y)  # the same, behind a reduction
    ordered = (x < y, x <= y, x > y, x >= y, x == y, x != y)
    chosen = (torch.maximum(x, y), torch.minimum(x, y), x.clamp(-1, 1), torch.relu(x))
    numbers = (torch.minimum(x.amax(-1), y.amin(-1)), torch.maximum(x.amin(-1), y.amax(-1)))
    return torch.softmax(x, -1), x.amax(-1), x.amin(-1), x.amax(0), x.amin(0), *ordered, *chosen, *numbers


def special_inputs() -> tuple[Tensor, Tensor]:
    x, y = randn(6, 40), randn(6, 40)
    x[0, 2], x[1, 3], x[2, 5], x[3, 7], x[4, 39] = float("nan"), float("nan"), float("inf"), float("-inf"), float("nan")
    y[1, 4], y[2, 5], y[3, 6], y[4, 39] = float("nan"), float("inf"), float("-inf"), float("nan")
    return x, y


def special_of_elements(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Part of it, which takes the compiler half as long: the larger of two elements, and a comparison."""
    largest = x.amax(-1, keepdim=True)
    x, y = torch.where(largest < x, largest, x), torch.where(largest < x, largest, y)  # the same, behind a reduction
    return torch.maximum(x, y), x >= y


def test_nan_and_infinity_travel_as_in_eager_mode() -> None:
    check_special(special)


def check_special(function: Callable[[Tensor, Tensor], tuple[Tensor, ...]]) -> None:
    """Rows without columns beyond a vector and with some: the last columns are 32 to 39."""
    inputs = special_inputs()
    graph = trace(function, inputs)
    (region,) = capture(graph.graph, "special").regions
    (returned,) = (n.args[0] for n in graph.graph.nodes if n.op == "output")
    made = dict(zip(region.outputs, run_program(region.program, inputs), strict=True))
    for node, theirs in zip(returned, function(*inputs), strict=True):  # type: ignore[arg-type]
        torch.testing.assert_close(made[node].reshape(theirs.shape), theirs, equal_nan=True)


def test_nan_travels_through_a_fused_function() -> None:
    import weft

    inputs = special_inputs()
    for mine, theirs in zip(weft.fuse(special)(*inputs), special(*inputs), strict=True):
        torch.testing.assert_close(mine, theirs, equal_nan=True)
