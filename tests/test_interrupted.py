"""Regions that an operation without a lowering cuts out of a larger one: judged together with what is left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import weft
from weft.capture.regions import as_if_lowered, capture
from weft.capture.trace import trace
from weft.compiler import CompiledRegion, compile_graph
from weft.errors import Refusal, RefusedError
from weft.explain.graphs import post_grad_graphs
from weft.ir.simplify import simplify
from weft.target import Target

TARGETS = ("cpu", "h200")


def interrupted_softmax(x: Tensor) -> Tensor:
    """Weights go through a function that weft has not before they are divided by their sum."""
    weights = torch.asinh((x - x.amax(-1, keepdim=True)).exp())
    return weights / weights.sum(-1, keepdim=True)


def interrupted_norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(torch.asinh(x), (x.shape[-1],), weight)


def norm_gradients(x: Tensor, dy: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The backward of an RMS norm, with such a function of the gradient of the weight."""
    rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    hat, scaled = x * rstd, dy * weight
    return rstd * (scaled - hat * (scaled * hat).mean(-1, keepdim=True)), torch.asinh((dy * hat).sum(0))


def explained(function: Callable[..., Any], *inputs: Any, target: str = "cpu") -> list[tuple[int, list[Refusal]]]:
    """Of each graph of a function the number of regions, and what was left out as interrupted."""
    graphs = weft.explain(function, *inputs, target=target).graphs
    found = [graph.compilation for graph in graphs]
    return [(len(c.regions), [r for r in c.refusals if r.rule == "interrupted"]) for c in found]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_pieces_of_a_softmax_are_left_to_inductor(target: str, dtype: torch.dtype) -> None:
    ((regions, refusals),) = explained(interrupted_softmax, torch.empty(4096, 2048, dtype=dtype), target=target)
    assert regions == 0
    assert [r.subject for r in refusals] == ["row_max_exp", "row_sum"]
    for refusal in refusals:
        assert "cut off by aten.asinh.default" in refusal.message
        assert refusal.have is not None
        assert refusal.limit is not None
        assert float(refusal.have) > float(refusal.limit)
        assert refusal.where is not None
        assert "test_interrupted.py" in refusal.where


@pytest.mark.parametrize(("target", "backward_taken"), [("cpu", True), ("h200", False)])
def test_a_norm_is_left_out_and_its_backward_where_the_border_costs_more(target: str, backward_taken: bool) -> None:
    """In the backward rows and columns share a kernel. On a CPU that is worth more than what the border costs; on a GPU
    it saves two tensors of the six that are moved with the border, of five without; of fewer rows, one launch."""
    x, w = torch.empty(16384, 2048, dtype=torch.bfloat16), torch.empty(2048, dtype=torch.bfloat16)
    forward, backward = explained(interrupted_norm, x.requires_grad_(), w.requires_grad_(), target=target)
    assert (forward[0], [r.subject for r in forward[1]]) == (0, ["row_sum_rsqrt"])
    assert backward[0] == int(backward_taken)
    assert [r.rule for r in backward[1]] == ([] if backward_taken else ["interrupted"])


@pytest.mark.parametrize("target", TARGETS)
def test_an_interruption_of_few_bytes_costs_next_to_nothing(target: str) -> None:
    inputs = [torch.empty(4096, 2048), torch.empty(4096, 2048), torch.empty(2048)]
    ((regions, refusals),) = explained(norm_gradients, *inputs, target=target)
    assert (regions, refusals) == (1, [])


def scanned(parts: list[Tensor], weight: Tensor) -> tuple[Tensor, Tensor]:
    """Steps of a sequence that are put into their places of zeros, as the gradient of a tensor is made whose steps were
    read one by one: its sums over steps and along rows."""
    rows, steps, width = parts[0].shape[0], len(parts), parts[0].shape[-1]
    zeros = parts[0].new_zeros(rows, steps, width)
    placed = [torch.slice_scatter(zeros, part, 1, i, i + 1) for i, part in enumerate(parts)]
    whole = sum(placed[1:], placed[0])
    return (whole * weight).sum(-1), whole.sum((0, 1))


def test_zeros_around_the_steps_of_a_sequence_are_not_put_into_memory() -> None:
    """A kernel of its own would read as many tensors of all steps as there are steps."""
    parts = [torch.empty(4096, 1, 2048) for _ in range(4)]
    ((regions, refusals),) = explained(scanned, parts, torch.empty(2048), target="h200")
    assert regions == 0
    assert refusals
    assert all("cut off by aten.slice_scatter.default" in r.message for r in refusals)


def test_what_inductor_does_not_fuse_interrupts_nothing() -> None:
    """It has kernels of its own for the digamma function, whatever is around it."""

    def function(x: Tensor) -> Tensor:
        return torch.digamma(torch.softmax(x, -1))

    graph = trace(function, [torch.empty(4096, 2048)]).graph
    assert capture(graph).interrupted == ()
    assert len(compile_graph(graph, target=Target.named("cpu")).regions) == 1


def test_the_mask_of_a_dropout_and_a_product_interrupt_nothing() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return F.dropout(torch.softmax(x, -1), 0.5) @ w

    for graph in post_grad_graphs(function, [torch.empty(64, 64).requires_grad_(), torch.empty(64, 64)]):
        assert capture(graph.module.graph).interrupted == ()


def test_a_group_is_interrupted_where_it_would_be_one() -> None:
    graph = trace(interrupted_softmax, [torch.empty(64, 32)]).graph
    captured = capture(graph)
    (group,) = captured.interrupted
    assert [node.name for node in group.opaque] == ["asinh"]
    assert {node for region in captured.regions for node in region.members} == group.nodes - {*group.opaque}
    (whole,) = as_if_lowered(graph, group.opaque, group.nodes) or []
    assert {*whole.members} == group.nodes
    assert [node.op for node in whole.inputs] == ["placeholder"]
    (alone,) = as_if_lowered(graph, group.opaque, {*group.opaque}) or []
    assert [node.name for node in (*alone.inputs, *alone.members, *alone.outputs)] == ["exp", "asinh", "asinh"]
    assert [value.op for value in simplify(alone.program).values] == ["neg"]


def test_an_operation_on_several_dtypes_interrupts_as_well() -> None:
    """Shifted integers and signs, which are booleans, have prices."""

    def function(x: Tensor, i: Tensor) -> tuple[Tensor, Tensor]:
        kept = torch.where(torch.signbit(x), x, x * (i << 2))
        return torch.softmax(kept, -1), torch.hypot(kept, x)

    inputs = [torch.empty(4096, 2048), torch.empty(4096, 2048, dtype=torch.int32)]
    ((regions, refusals),) = explained(function, *inputs)
    assert regions == 0
    assert "aten.signbit.default and aten.__lshift__.Scalar and aten.hypot.default" in refusals[0].message


def test_only_what_is_taken_is_told() -> None:
    """Nobody begins to compile the kernels of pieces that are left out."""

    def function(x: Tensor, w: Tensor) -> Tensor:
        return torch.softmax(interrupted_softmax(x) @ w, -1)

    told: list[CompiledRegion] = []
    graph = trace(function, [torch.empty(4096, 2048), torch.empty(2048, 2048)]).graph
    found = compile_graph(graph, target=Target.named("cpu"), rendered=told.append)
    assert [*found.regions] == told
    assert [compiled.program.name for compiled in told] == ["row_max_exp_row_sum"]


def test_results_are_those_of_eager_mode() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    x = torch.randn(512, 2048)
    with pytest.raises(RefusedError, match=r"interrupted: row_sum: cut off by aten\.asinh\.default"):
        weft.fuse(interrupted_softmax, strict=True)(x)
    torch.testing.assert_close(weft.fuse(interrupted_softmax)(x), interrupted_softmax(x))
