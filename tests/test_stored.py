"""What TorchInductor computes, and launches read views of, is stored once; and where inputs of launches begin."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._inductor.utils import run_and_get_code

from tests.region_checks import rows
from tests.test_assembly import rewritten
from tests.test_rotations import BATCH, HEADS, TOKENS, WIDTH, halves
from weft.capture.parts import place_bytes, whole_of
from weft.capture.trace import trace
from weft.compiler import compile_graph
from weft.integration.stored import STORED, store_once
from weft.plan import planner

aten = torch.ops.aten
LAYERS = 3


@pytest.fixture(autouse=True)
def _however_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "check_worthwhile", lambda *_: None)


def turned_often(x: Tensor, weights: Tensor, positions: Tensor, table: Tensor) -> Tensor:
    """Norms of queries between products, each turned by the same angles, which are looked up."""
    cos, sin = table[positions], F.embedding(positions, table)
    for weight in weights.unbind(0):
        q = (x @ weight).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)
        q = q * torch.rsqrt(q.square().mean(-1, keepdim=True) + 1e-6)
        x = x + (q * cos + halves(q) * sin).transpose(1, 2).flatten(-2)
    return x


def inputs() -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    width = HEADS * WIDTH
    x, weights, table = (torch.randn(*s) for s in ((BATCH, TOKENS, width), (LAYERS, width, width), (9, WIDTH)))
    return x, weights, torch.randint(9, (TOKENS,)), table


def test_angles_of_all_layers_are_two_tensors() -> None:
    graph, _ = rewritten(turned_often, inputs())
    stored = [node.target for node in graph.graph.nodes if STORED in node.meta]
    assert stored == [aten.index.Tensor, aten.embedding.default]


def test_inductor_stores_them_once() -> None:
    compiled = torch.compile(turned_often, backend="weft")
    found, (code,) = run_and_get_code(compiled, *inputs())
    assert code.count("weft_launch(") >= LAYERS
    made = re.findall(r"empty_strided_cpu\(\(([0-9, ]+)\)", code)
    assert sum(math.prod(map(int, sizes.split(", "))) <= TOKENS * WIDTH for sizes in made) == 2
    torch.testing.assert_close(found, turned_often(*inputs()), rtol=1e-4, atol=1e-4)


def in_two(x: Tensor) -> tuple[Tensor, ...]:
    return x.exp().split(4)


@pytest.mark.parametrize(
    ("read", "stored"),
    [
        (in_two, 1),
        (lambda x: (x.exp().view(2, 4, 64), x.abs().t()), 2),
        (lambda x: (x.exp()[:2], x.abs()[3]), 0),  # computed where it is read, it is less
        (lambda x: (x.exp()[:4], x.exp()[:4]), 0),  # the same half
        (lambda x: (x.split(4)[1], x.exp()), 0),  # in memory, or no view
        (lambda x: ((x @ x.t())[:4], (x @ x.t())[4:]), 0),  # a product is
    ],
)
def test_what_is_read_by_parts_is_stored_if_all_of_it_is_read(
    read: Callable[[Tensor], tuple[Tensor, ...]], stored: int
) -> None:
    graph = trace(read, (rows(8, 64),)).graph
    graph.eliminate_dead_code()
    (output,) = graph.find_nodes(op="output")
    launch = graph.call_function(aten.alias.default, (), {"inputs": [*output.all_input_nodes]})
    store_once([launch])
    assert sum(STORED in node.meta for node in graph.nodes) == stored


# where inputs begin


def normed_part(x: Tensor) -> Tensor:
    return torch.softmax(x[:, 1:65], -1)


@pytest.mark.parametrize(
    ("function", "bytes_"),
    [
        (normed_part, 4),
        (lambda x: torch.softmax(x[:, 4:], -1), 16),
        (lambda x: torch.softmax(x[2:].flatten(), -1), 2 * 65 * 4),
        (lambda x: torch.softmax(x.split((1, 64), 1)[1], -1), 4),
        (lambda x: torch.softmax(x, -1), 0),
        (lambda x: torch.softmax((x @ x.t())[:, 1:], -1), 0),
    ],
)
def test_a_plan_knows_where_inputs_begin(function: Callable[[Tensor], Tensor], bytes_: int) -> None:
    graph = trace(function, (rows(8, 65).float(),))
    (region,) = compile_graph(graph.graph).regions
    (node,), (buffer,) = region.region.inputs, region.region.program.inputs
    assert place_bytes(node) == bytes_
    assert whole_of(node).op == ("placeholder" if bytes_ or node.op == "placeholder" else "call_function")
    assert region.plan.hints.get(buffer.name, 0) == bytes_
