"""Tensors that are put into zeros at one place of an axis."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from tests.region_checks import changed_by
from weft.capture.prepare import prepare
from weft.capture.regions import capture
from weft.capture.trace import trace

aten = torch.ops.aten
X, G = torch.randn(6, 10, 32), torch.randn(6, 32)


def scattered(grad: Tensor, axis: int, index: int) -> Tensor:
    zeros = torch.zeros(X.shape, dtype=grad.dtype)
    return torch.select_scatter(zeros, grad, axis, index)


@pytest.mark.parametrize(("axis", "index"), [(1, 0), (1, -1), (0, 3), (-1, 5)])
def test_what_is_scattered_is_a_choice(axis: int, index: int) -> None:
    grad = torch.randn([size for at, size in enumerate(X.shape) if at != axis % 3])
    module = changed_by(prepare, lambda x, g: (x * scattered(g, axis, index)).sum(-1), [X, grad])
    assert not module.graph.find_nodes(op="call_function", target=aten.select_scatter.default)
    assert not [n for n in module.graph.find_nodes(op="call_function", target=aten.full.default) if n.args[0]]


def test_the_gradient_of_a_token_that_is_taken_is_read_as_that_token() -> None:
    """The gradient of a norm of which a classifier reads one token."""

    def backward(x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        whole = scattered(grad, 1, 0)
        scaled = F.layer_norm(x, (32,))
        return (whole - scaled * (whole * scaled).mean(-1, keepdim=True)), (whole * scaled).sum((0, 1))

    graph = trace(backward, [X, G]).graph
    prepare(graph)
    found = capture(graph, "f")
    (region,) = found.regions
    assert sorted(tuple(n.meta["val"].shape) for n in region.inputs) == [tuple(X.shape), tuple(G.shape)]


def test_parts_of_a_sum_stay() -> None:
    """They may be parts of one tensor, each written into its place."""

    def summed(g: Tensor, h: Tensor) -> Tensor:
        return scattered(g, 1, 0) + scattered(h, 1, 1)

    module = changed_by(prepare, summed, [G, G + 1])
    assert len(module.graph.find_nodes(op="call_function", target=aten.select_scatter.default)) == 2


def steps(count: int, take: tuple[int, ...] | None = None) -> Callable[[Tensor], Tensor]:
    """Of ``[6, 10, 32]`` rows that are put into zeros one by one, and added up."""

    def function(x: Tensor) -> Tensor:
        rows = [scattered(x[:, at].sin(), 1, at) for at in take or range(count)]
        return sum(rows[1:], rows[0]) * x.exp()

    return function


@pytest.fixture
def small_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.capture.prepare.LEAST_BYTES", 0)


def stacks(module: fx.GraphModule) -> list[int]:
    """Of how many parts."""
    return [len(n.args[0]) for n in module.graph.find_nodes(op="call_function", target=aten.cat.default)]


@pytest.mark.usefixtures("small_stacks")
def test_all_places_of_an_axis_are_a_stack() -> None:
    """The gradient of what is read step by step."""
    module = changed_by(prepare, steps(10), [X])
    assert not module.graph.find_nodes(op="call_function", target=aten.select_scatter.default)
    assert stacks(module) == [10]


def test_a_small_sum_is_no_stack() -> None:
    assert stacks(changed_by(prepare, steps(10), [X])) == []


@pytest.mark.usefixtures("small_stacks")
@pytest.mark.parametrize("take", [range(9), (*range(9), 8), range(1, 10)], ids=["too few", "twice", "from the second"])
def test_other_sums_are_no_stack(take: tuple[int, ...]) -> None:
    assert stacks(changed_by(prepare, steps(10, tuple(take)), [X])) == []


@pytest.mark.usefixtures("small_stacks")
def test_a_sum_in_another_order_of_its_axes_is_no_stack() -> None:
    """Its strides may be what somebody asked for."""

    def turned(g: Tensor, h: Tensor) -> Tensor:
        zeros = torch.zeros(32, 2, 6).permute(2, 1, 0)
        return torch.select_scatter(zeros, g, 1, 0) + torch.select_scatter(zeros, h, 1, 1)

    assert stacks(changed_by(prepare, turned, [G, G + 1])) == []


def test_what_is_added_to_something_else_is_a_choice() -> None:
    module = changed_by(prepare, lambda x, g: (x.exp() + scattered(g, 1, 0)).sum(-1), [X, G])
    assert not module.graph.find_nodes(op="call_function", target=aten.select_scatter.default)


def test_a_choice_that_would_lie_in_another_way_is_none() -> None:
    """Here what is put into zeros is a column of a larger tensor turned around, and the whole is a result."""
    module = changed_by(prepare, lambda g: scattered(g.t(), 1, 0), [torch.randn(32, 6)])
    result = module.graph.output_node().args[0]
    assert result.meta["val"].stride() == X.stride()


def test_what_is_put_into_something_else_stays() -> None:
    module = changed_by(prepare, lambda x, g: torch.select_scatter(x.exp(), g, 1, 0).sum(-1), [X, G])
    assert module.graph.find_nodes(op="call_function", target=aten.select_scatter.default)
