"""Values of which only a few elements are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from tests.region_checks import changed_by
from weft.capture.taken import take_early
from weft.capture.trace import trace
from weft.compiler import compile_graph

aten = torch.ops.aten
X, W, B = torch.randn(16, 24, 64), torch.randn(64), torch.randn(64)


def normed(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, (64,), w, b)


def sizes(module: fx.GraphModule, target: Any) -> list[tuple[int, ...]]:
    return [tuple(n.meta["val"].shape) for n in module.graph.find_nodes(op="call_function", target=target)]


TAKEN = {
    "token": lambda x, *_: x[:, 0],
    "last token": lambda x, *_: x[:, -1],
    "slice": lambda x, *_: x[:, 3:7].sum(-1),
    "two tokens": lambda x, *_: x[:, 0] + x[:, 5],
    "behind a view": lambda x, *_: x.reshape(16, 4, 6, 64)[:, 2].sum(0),
    "behind a permutation": lambda x, *_: x.transpose(0, 1)[3],
    "rows by number": lambda x, rows, others: x[rows, others],
    "rows by one number": lambda x, rows, others: x[others],
}


@pytest.mark.parametrize("take", TAKEN.values(), ids=TAKEN)
def test_what_is_taken_of_a_norm_is_computed_alone(take: Callable[..., Tensor]) -> None:
    def function(x: Tensor, w: Tensor, b: Tensor, *numbers: Tensor) -> Tensor:
        return take(normed(x, w, b), *numbers) * 2

    module = changed_by(take_early, function, [X, W, B, torch.arange(8), torch.randint(16, (8,))])
    for size in (*sizes(module, aten.mul.Tensor), *sizes(module, aten.add.Tensor)):
        assert torch.Size(size).numel() <= X.numel() / 2


def test_what_is_saved_for_a_backward_is_where_parts_are_taken_of() -> None:
    """Nothing before it is computed twice."""

    def function(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        hat = (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True))
        return (hat * w + b)[:, 0] * 2, hat

    module = changed_by(take_early, function, [X, W, B])
    assert sizes(module, aten.sub.Tensor) == [(16, 24, 64)]
    (taken,) = module.graph.find_nodes(op="call_function", target=aten.slice.Tensor)
    assert taken.args[0] is next(n for n in reversed(module.graph.nodes) if n.op == "output").args[0][1]
    (region,) = compile_graph(module.graph).regions
    assert [n.name for n in region.region.outputs] == [taken.args[0].name]


LEFT: dict[str, Callable[[Tensor], object]] = {
    "all of it is read as well": lambda y: (y[:, 0] * 2, y),
    "most of it is taken": lambda y: y[:, 1:] * 2,
    "all of it is taken in parts": lambda y: [part * 2 for part in y.chunk(3, 1)],
    "the graph returns a view of it": lambda y: y[:, 0],
    "a mask": lambda y: torch.where(y > 0, y, 0).sum(),
    "every second one": lambda y: y[:, :8:2] * 2,
}


@pytest.mark.parametrize("read", LEFT.values(), ids=LEFT)
def test_other_values_are_left(read: Callable[[Tensor], object]) -> None:
    def function(x: Tensor, w: Tensor, b: Tensor) -> object:
        return read(normed(x, w, b))

    before = str(trace(function, [X, W, B]).graph)
    assert str(changed_by(take_early, function, [X, W, B]).graph) == before


def test_an_index_of_axes_that_an_operand_repeats_is_left() -> None:
    def function(x: Tensor, w: Tensor, rows: Tensor) -> Tensor:
        return (x.exp() + w)[rows, rows] * 2

    given = torch.randn(24, 16, 64), torch.randn(24, 1, 64), torch.arange(8)
    assert sizes(changed_by(take_early, function, [*given]), aten.add.Tensor) == [(24, 16, 64)]
