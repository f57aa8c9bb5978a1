"""The order of rewritten graphs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, fx

from weft.capture.trace import trace
from weft.integration.order import sort

aten = torch.ops.aten
ROWS, IN, OUT = 512, 8, 16


def products(graph: fx.Graph) -> list[tuple[int, ...]]:
    """Shapes of matrix products in the order of a graph."""
    return [tuple(node.meta["val"].shape) for node in graph.find_nodes(op="call_function", target=aten.mm.default)]


def linear_backward(grad: Tensor, saved: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """What is saved is read by the second product alone."""
    hidden = saved.exp()
    scaled = grad * 2
    return (scaled @ weight).sin(), scaled.t() @ hidden


def traced(rows: int = ROWS) -> fx.Graph:
    shapes = [(rows, OUT), (rows, IN), (OUT, IN)]
    return trace(linear_backward, [torch.randn(shape) for shape in shapes]).graph


def test_a_product_that_frees_more_than_it_takes_comes_early() -> None:
    graph = traced()
    assert products(graph) == [(ROWS, IN), (OUT, IN)]
    sort(graph)
    graph.lint()
    assert products(graph) == [(OUT, IN), (ROWS, IN)]


def test_one_that_takes_more_keeps_its_place() -> None:
    graph = traced(rows=4)
    sort(graph)
    assert products(graph) == [(4, IN), (OUT, IN)]


@pytest.mark.parametrize("name", ["primals_1", "tangents_1"])
def test_inputs_that_are_not_given_back_free_nothing(name: str) -> None:
    def function(x: Tensor, w: Tensor, saved: Tensor) -> tuple[Tensor, Tensor]:
        return x.exp() @ w, saved.t() @ saved

    def sorted_with(name: str) -> list[tuple[int, ...]]:
        graph = trace(function, [torch.randn(ROWS, OUT), torch.randn(OUT, IN), torch.randn(ROWS, IN)]).graph
        [*graph.find_nodes(op="placeholder")][-1].name = name
        sort(graph)
        return products(graph)

    assert sorted_with("saved") == [(IN, IN), (ROWS, IN)]
    assert sorted_with(name) == [(ROWS, IN), (IN, IN)]


def test_other_nodes_keep_their_order() -> None:
    graph = trace(lambda x, y: ((x.exp() + y).sum(0), (y.sin() * x).sum(-1)), [torch.randn(8, 4)] * 2).graph
    before = [node.name for node in graph.nodes]
    sort(graph)
    assert [node.name for node in graph.nodes] == before


def test_a_cycle_is_an_error() -> None:
    graph = trace(lambda x: x.exp().sin(), [torch.randn(4)]).graph
    first, second = (node for node in graph.nodes if node.op == "call_function")
    first.args = (second,)
    with pytest.raises(RuntimeError, match="cycle"):
        sort(graph)
