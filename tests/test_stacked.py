"""Column sums of tensors that are put together."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import weft
from tests.cases import often
from tests.region_checks import changed_by
from weft.capture import stacked
from weft.capture.prepare import prepare
from weft.capture.stacked import sum_parts
from weft.capture.trace import trace
from weft.compiler import compile_graph
from weft.plan import planner
from weft.target import Target

aten = torch.ops.aten
BATCH, HEADS, TOKENS, WIDTH = 3, 2, 8, 16
ROWS = BATCH * TOKENS


@pytest.fixture(autouse=True)
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacked, "LEAST_BYTES", 0)


def heads(batch: int = BATCH) -> Tensor:
    return torch.randn(batch, HEADS, TOKENS, WIDTH)


def packed(*given: Tensor) -> Tensor:
    """What the gradient of ``unbind`` is, as rows of a product."""
    stack = torch.stack([x.exp() @ x.mT @ x for x in given])  # of what no kernel computes
    return stack.permute(1, 3, 0, 2, 4).reshape(-1, len(given) * HEADS * WIDTH)


def queries(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    rows = packed(q, k, v)
    return rows @ torch.ones(rows.shape[1], 4), rows.sum(0)


def kept(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    rows = packed(q, k)
    return rows.sum(0, keepdim=True), rows @ torch.ones(rows.shape[1], 4)


def beside(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Of other lengths, and put together along an axis that is there."""
    rows = torch.cat([q @ k[:1].mT @ k[:1], k @ k.mT @ k], 0).transpose(0, 1).contiguous()
    return rows.reshape(HEADS, -1).sum(0), rows * 2


FOUND: dict[str, tuple[Callable[..., object], list[Tensor], int]] = {
    "queries, keys, values": (queries, [heads(), heads(), heads()], 3),
    "rows are kept": (kept, [heads(), heads()], 2),
    "along an axis": (beside, [heads(1), heads()], 2),
}


@pytest.mark.parametrize(("function", "inputs", "parts"), FOUND.values(), ids=FOUND)
def test_each_part_is_copied_and_summed_up(function: Callable[..., object], inputs: list[Tensor], parts: int) -> None:
    graph = changed_by(sum_parts, function, inputs).graph
    copies = graph.find_nodes(op="call_function", target=aten.clone.default)
    sums = graph.find_nodes(op="call_function", target=aten.sum.dim_IntList)
    assert len(copies) == len(sums) == parts


def test_a_kernel_writes_a_part_and_its_sums_where_they_belong() -> None:
    made = compile_graph(trace(queries, [heads(), heads(), heads()]).graph, target=Target.named("h200"))
    assert len(made.regions) == 3
    for region in made.regions:
        (kernel,) = region.plan.kernels
        assert [len(o.buffer.dims) for o in kernel.program.outputs] == [4, 2]  # positions of heads, and heads alone
        assert len(kernel.program.inputs) == 1
        assert all(slot is not None for slot in region.region.slots)


def read_as_well(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    stack = torch.stack([q, k])
    return stack.transpose(0, 1).contiguous().sum(0), stack


LEFT: dict[str, tuple[Callable[..., object], list[Tensor]]] = {
    "nobody sums": (lambda q, k: packed(q, k) @ torch.ones(2 * HEADS * WIDTH, 4), [heads(), heads()]),
    "sums within a row": (lambda q, k: packed(q, k).sum(1), [heads(), heads()]),
    "the stack is read": (read_as_well, [heads(), heads()]),
}


@pytest.mark.parametrize(("function", "inputs"), LEFT.values(), ids=LEFT)
def test_others_are_left(function: Callable[..., object], inputs: list[Tensor]) -> None:
    before = str(trace(function, inputs).graph)
    assert str(changed_by(sum_parts, function, inputs).graph) == before


def test_small_ones_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = [heads(), heads(), heads()]
    monkeypatch.setattr(stacked, "LEAST_BYTES", ROWS * 3 * HEADS * WIDTH * 4 + 1)
    graph = trace(queries, inputs).graph
    before = str(graph)
    prepare(graph)
    assert str(graph) == before


class Attention(nn.Module):
    """As timm has it."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(HEADS * WIDTH, 3 * HEADS * WIDTH), nn.Linear(HEADS * WIDTH, 8)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, tokens, 3, HEADS, WIDTH).permute(2, 0, 3, 1, 4).unbind(0)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, tokens, width))


@pytest.mark.parametrize("dynamic", often([False, True], [True]))
def test_gradients_of_attention(dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "check_worthwhile", lambda *_: None)
    torch._dynamo.reset()
    weft.counters.reset()
    model, x = Attention(), torch.randn(BATCH, TOKENS, HEADS * WIDTH, requires_grad=True)
    wanted = [x, *model.parameters()]
    found = torch.autograd.grad(torch.compile(model, backend="weft", dynamic=dynamic)(x).square().sum(), wanted)
    expected = torch.autograd.grad(model(x).square().sum(), wanted)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert weft.counters.launches >= 3
    assert weft.counters.fallbacks == 0
    assert weft.counters.refusals["not_assembled"] == 0
