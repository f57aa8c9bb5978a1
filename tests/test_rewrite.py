"""Launches in place of regions: order, sizes known at run time, and graphs that still compute what they did."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import sympy
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.utils import run_and_get_code
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._sympy.functions import FloorDiv, Max, Mod

from weft.capture.trace import trace
from weft.compiler import Compilation, build, compile_graph
from weft.errors import VerificationError
from weft.integration.rewrite import rewrite, sort
from weft.integration.sizes import SizeNodes, UnknownSymbolError, symbol_hints
from weft.options import Options
from weft.plan import planner
from weft.plan.kernel import Kernel
from weft.runtime import launch
from weft.runtime.counters import counters
from weft.runtime.executable import Executable, digest_of

aten = torch.ops.aten
Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel is known yet, nothing was counted, and every region is taken, however small."""
    monkeypatch.setattr(launch, "_KERNELS", {})
    monkeypatch.setattr(planner, "check_worthwhile", lambda *_: None)
    counters.reset()


def on_aten(compilation: Compilation) -> None:
    """Make the kernels known without compiling them: their programs are evaluated."""
    for kernel in compilation.kernels:
        launch._KERNELS[digest_of(kernel)] = Executable(kernel, None)


def rewritten(
    function: Function, inputs: Sequence[Tensor], dynamic: bool = False
) -> tuple[fx.GraphModule, Compilation]:
    graph = trace(function, inputs, dynamic_rows=dynamic)
    compilation = compile_graph(graph.graph, symbols=symbol_hints(graph.graph))
    assert compilation.regions
    on_aten(compilation)
    rewrite(graph.graph, compilation)
    graph.recompile()
    return graph, compilation


def same(graph: fx.GraphModule, function: Function, *inputs: Tensor) -> None:
    mine, theirs = graph(*inputs), function(*inputs)
    for a, b in zip(
        mine if isinstance(mine, tuple | list) else [mine],
        theirs if isinstance(theirs, tuple | list) else [theirs],
        strict=True,
    ):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5)


def launches(graph: fx.GraphModule) -> list[fx.Node]:
    return [n for n in graph.graph.nodes if n.target is torch.ops.higher_order.auto_functionalized_v2]


def targets(graph: fx.GraphModule) -> list[Any]:
    return [n.target for n in graph.graph.nodes if n.op == "call_function"]


# whole graphs


def chained(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The second region reads what the first one wrote, directly and through a product."""
    first = torch.softmax(x, -1)
    product = first @ w
    return torch.softmax(first + product, -1), first.sum(0), product


def test_a_region_reads_the_result_of_another_compiled() -> None:
    inputs = (torch.randn(8, 16), torch.randn(16, 16))
    graph = trace(chained, inputs)
    compilation = compile_graph(graph.graph)
    build(compilation, Options.read())
    rewrite(graph.graph, compilation)
    graph.recompile()
    same(graph, chained, *inputs)
    same(graph, chained, torch.randn(8, 16), torch.randn(16, 16))
    assert counters.launches == 4
    assert counters.fallbacks == 0


def test_nothing_of_the_regions_is_left() -> None:
    graph, compilation = rewritten(chained, (torch.randn(8, 16), torch.randn(16, 16)))
    assert len(compilation.regions) == len(launches(graph)) == 2
    left = set(targets(graph))
    assert left == {
        aten.empty_strided.default,
        torch.ops.higher_order.auto_functionalized_v2,
        operator.getitem,
        aten.mm.default,
    }
    first, second = launches(graph)
    assert any(n.args[0] is first for n in second.kwargs["inputs"])


FUNCTIONS: dict[str, tuple[Function, tuple[tuple[int, ...], ...]]] = {
    "chained": (chained, ((8, 16), (16, 16))),
    "batch norm": (lambda x, w: F.batch_norm(x, None, None, w, w, training=True), ((256, 24), (24,))),
    "views": (lambda x: (torch.softmax(x.view(2, 4, 6), -1).transpose(0, 1), x.sum(0)), ((8, 6),)),
    "view result": (lambda x: (x * 2).view(4, 12).t().sum(0) + torch.softmax(x * 2, -1).view(4, 12).sum(1), ((8, 6),)),
    "select": (lambda x: torch.softmax(torch.softmax(x, -1)[1], -1), ((4, 5, 6),)),
    "constant": (lambda x: torch.softmax(x + torch.full((6,), 2.0), -1), ((8, 6),)),
    "the input itself": (lambda x: (x, x.sum(0)), ((8, 6),)),
    "a result twice": (lambda x: (torch.softmax(x, -1),) * 2, ((8, 6),)),
    "scalar": (lambda x: x.square().mean().sqrt(), ((8, 6),)),
    "transpose": (lambda x: (x + 2 * x.t()).sum(-1), ((6, 6),)),
    "used in front": (lambda x, w: ((x - x.mean(0)) @ w, torch.softmax(x, -1) + (x @ w).exp()), ((8, 6), (6, 6))),
    "pointwise result": (lambda x: ((x * 3).exp(), (x * 3).exp().sum(-1)), ((8, 6),)),
    "broadcast": (lambda x: x.mean(-1, keepdim=True).expand(8, 6) * 1.0 + x.sum(0), ((8, 6),)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_rewritten_graph_computes_the_same(name: str) -> None:
    function, shapes = FUNCTIONS[name]
    inputs = tuple(torch.randn(shape) for shape in shapes)
    graph, compilation = rewritten(function, inputs)
    same(graph, function, *inputs)
    assert counters.fallbacks == len(compilation.kernels) == len(launches(graph))
    members = {n for r in compilation.regions for n in r.region.members}
    assert not members & set(graph.graph.nodes)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.rms_norm(x, (16,)),
        lambda x: (torch.softmax(x, -1), x.sum(0)),
        lambda x: (x - x.mean(0)).square().sum(0),
        lambda x: torch.softmax(x.unsqueeze(1).expand(x.shape[0], 3, 16).transpose(0, 1).contiguous(), -1),
    ],
)
def test_one_graph_serves_every_number_of_rows(function: Function) -> None:
    graph, compilation = rewritten(function, (torch.randn(12, 16),), dynamic=True)
    assert any(r.region.parameters for r in compilation.regions)
    for rows in (2, 12, 33):
        same(graph, function, torch.randn(rows, 16))
    assert counters.fallbacks == 3 * len(compilation.kernels)


def test_intermediates_of_run_time_size_are_allocated() -> None:
    """The column result of the first kernel and the data of the second go through memory."""

    def function(x: Tensor) -> Tensor:
        y = (x * 2).exp()
        return torch.softmax(y - y.mean(0), -1)

    graph, compilation = rewritten(function, (torch.randn(12, 16),), dynamic=True)
    assert len(compilation.kernels) >= 2
    for rows in (2, 12, 33):
        same(graph, function, torch.randn(rows, 16))


def test_outputs_have_the_strides_of_the_graph() -> None:
    x = torch.randn(6, 4, 5).permute(2, 0, 1)
    graph, _ = rewritten(lambda x: torch.exp(x) / torch.exp(x).sum(-1, keepdim=True), (x,))
    result = graph(x)
    (node,) = [n for n in graph.graph.nodes if n.op == "output"]
    returned = node.args[0]
    value = (returned[0] if isinstance(returned, list | tuple) else returned).meta["val"]
    assert result.stride() == value.stride()
    torch.testing.assert_close(result, torch.softmax(x, -1))


def test_a_graph_without_regions_is_left_alone() -> None:
    graph = trace(lambda x, w: (x @ w).exp(), (torch.randn(4, 4), torch.randn(4, 4)))
    before = targets(graph)
    rewrite(graph.graph, compile_graph(graph.graph))
    assert targets(graph) == before


def test_a_launch_has_values_of_the_right_shape() -> None:
    graph, _ = rewritten(chained, (torch.randn(8, 16), torch.randn(16, 16)))
    for node in graph.graph.nodes:
        if node.op == "call_function":
            assert "val" in node.meta, node
    first, _ = launches(graph)
    bases = first.kwargs["_all_bases"]
    assert [b.meta["val"].shape for b in bases] == [(8, 16), (16,)]
    assert [v.shape for v in first.meta["val"][1:]] == [(8, 16), (16,)]


def loss(logits: Tensor, classes: Tensor) -> Tensor:
    return F.cross_entropy(logits, classes)


def test_a_number_is_a_view_of_memory_that_has_a_dimension() -> None:
    logits, classes = torch.randn(64, 100), torch.randint(100, (64,))
    graph, _ = rewritten(loss, (logits, classes))
    made = graph.graph.find_nodes(op="call_function", target=aten.empty_strided.default)
    assert made
    assert all(node.meta["val"].dim() for node in made)
    same(graph, loss, logits, classes)


def test_inductor_fills_no_memory_of_a_number() -> None:
    logits, classes = torch.randn(64, 100), torch.randint(100, (64,))
    found, (code,) = run_and_get_code(torch.compile(loss, backend="weft"), logits, classes)
    assert "weft_launch(" in code
    assert "cpp_fused" not in code
    torch.testing.assert_close(found, loss(logits, classes))


def test_no_argument_of_a_launch_has_a_newline(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, compilation = rewritten(chained, (torch.randn(16, 16), torch.randn(16, 16)))
    texts = [node.kwargs["kernel"] for node in launches(graph)]
    assert texts == [kernel.line for kernel in compilation.kernels]
    assert not any("\n" in str(value) for node in launches(graph) for value in node.kwargs.values())
    # rewriting any graph ends with that check
    monkeypatch.setattr(Kernel, "line", property(str))
    with pytest.raises(VerificationError, match="newline"):
        rewritten(chained, (torch.randn(16, 16), torch.randn(16, 16)))


def test_regions_that_wait_for_each_other_are_never_made() -> None:
    """The second reader of x needs a product of h, and h is reduced with a product of the first reader."""

    def function(x: Tensor, z: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        first = torch.softmax(x, -1)
        h = z.exp()
        second = (x * (h @ w)).sum(-1)
        return second, ((first @ w) * h).sum(-1)

    inputs = tuple(torch.randn(6, 6) for _ in range(3))
    graph, _ = rewritten(function, inputs)
    same(graph, function, *inputs)


def data_dependent(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    chosen = torch.masked_select(x, x > 0)
    rows = torch.softmax(x, -1)
    parts = chosen.exp()
    return rows.sum(0), parts / parts.sum(), rows @ rows.t()


def test_a_region_whose_size_no_input_has_leaves_a_graph_that_runs() -> None:
    """What cannot be rewritten stays as it was: all of the graph, or the region."""
    table = select_decomp_table()
    graph = make_fx(data_dependent, decomposition_table=table, tracing_mode="symbolic")(torch.randn(6, 8))
    compilation = compile_graph(graph.graph, symbols=symbol_hints(graph.graph))
    assert len(compilation.regions) == 2
    on_aten(compilation)
    done = rewrite(graph.graph, compilation)
    assert len(done.regions) == 1
    (refusal,) = (r for r in done.refusals if r.rule == "internal_error")
    assert "[rewrite] UnknownSymbolError: no input of the graph has the size" in refusal.message
    graph.graph.lint()
    graph.recompile()
    x = torch.randn(6, 8)
    same(graph, data_dependent, x)


def test_every_region_whose_size_no_input_has_is_left_out() -> None:
    """A softmax of what a mask chooses has a maximum of something longer by one, a region of its own."""

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.softmax(x, -1), torch.softmax(torch.masked_select(x, x > 0), 0)

    table = select_decomp_table()
    graph = make_fx(function, decomposition_table=table, tracing_mode="symbolic")(torch.randn(6, 8))
    compilation = compile_graph(graph.graph, symbols=symbol_hints(graph.graph))
    on_aten(compilation)
    done = rewrite(graph.graph, compilation)
    refusals = [r.message for r in done.refusals if r.rule == "internal_error"]
    assert (len(compilation.regions), len(done.regions), len(refusals)) == (3, 1, 2)
    assert all("UnknownSymbolError: no input of the graph has the size" in message for message in refusals)
    graph.recompile()
    x = torch.randn(6, 8)
    same(graph, function, x)


# order


def graph_of(*names: str) -> tuple[fx.Graph, dict[str, fx.Node]]:
    graph = fx.Graph()
    return graph, {name: graph.placeholder(name) for name in names}


def order(graph: fx.Graph) -> list[str]:
    sort(graph)
    graph.lint()
    return [n.name for n in graph.nodes]


def test_a_sorted_graph_stays_as_it_is() -> None:
    graph, nodes = graph_of("x", "y")
    b = graph.call_function(aten.neg.default, (nodes["y"],), name="b")
    a = graph.call_function(aten.neg.default, (nodes["x"],), name="a")
    graph.output((a, b))
    before = [n.name for n in graph.nodes]
    assert order(graph) == before


def test_a_reader_moves_behind_what_it_reads_and_nothing_else_does() -> None:
    graph, nodes = graph_of("x")
    reader = graph.call_function(aten.neg.default, (nodes["x"],), name="reader")
    other = graph.call_function(aten.exp.default, (nodes["x"],), name="other")
    late = graph.call_function(aten.tanh.default, (nodes["x"],), name="late")
    reader.args = (late,)
    graph.output((reader, other))
    assert order(graph) == ["x", "other", "late", "reader", "output"]


def test_a_mutation_stays_between_what_stood_before_and_after_it() -> None:
    """A reader of the old value may not slip behind, a reader of the new one may not slip in front."""
    graph, nodes = graph_of("x", "y")
    old = graph.call_function(aten.neg.default, (nodes["x"],), name="old")
    waiting = graph.call_function(aten.exp.default, (nodes["y"],), name="waiting")
    late = graph.call_function(aten.tanh.default, (nodes["y"],), name="late")
    waiting.args = (late,)  # has to move behind late, and still in front of the mutation
    write = graph.call_function(aten.copy_.default, (nodes["x"], nodes["y"]), name="write")
    new = graph.call_function(aten.neg.default, (nodes["x"],), name="new")
    graph.output((old, new, waiting, write))
    found = order(graph)
    assert found == ["x", "y", "old", "late", "waiting", "write", "new", "output"]


def test_mutations_keep_their_order() -> None:
    graph, nodes = graph_of("x", "y")
    last = graph.call_function(aten.mul_.Tensor, (nodes["y"], 2), name="first")
    one = graph.call_function(aten.add_.Tensor, (nodes["x"], 1), name="second")
    two = graph.call_function(aten.mul_.Tensor, (nodes["x"], 3), name="third")
    graph.output((last, one, two))
    assert order(graph) == ["x", "y", "first", "second", "third", "output"]


def test_a_reader_that_needs_what_follows_a_mutation_is_a_cycle() -> None:
    graph, nodes = graph_of("x")
    old = graph.call_function(aten.neg.default, (nodes["x"],), name="old")
    graph.call_function(aten.add_.Tensor, (nodes["x"], 1), name="write")
    new = graph.call_function(aten.exp.default, (nodes["x"],), name="new")
    old.args = (new,)
    graph.output((old,))
    with pytest.raises(RuntimeError, match="the rewritten graph has a cycle"):
        sort(graph)


def test_a_cycle_is_an_error_and_changes_nothing() -> None:
    graph, nodes = graph_of("x")
    a = graph.call_function(aten.neg.default, (nodes["x"],), name="a")
    b = graph.call_function(aten.exp.default, (a,), name="b")
    graph.output((b,))
    a.args = (b,)
    before = list(graph.nodes)
    with pytest.raises(RuntimeError, match="the rewritten graph has a cycle"):
        sort(graph)
    assert list(graph.nodes) == before


def test_an_input_that_is_written_afterwards_is_read_before() -> None:
    def step(x: Tensor, state: Tensor) -> Tensor:
        y = torch.softmax(x + state, -1)
        torch.ops.aten.copy_.default(state, state + 1)
        return y

    graph = make_fx(step, decomposition_table=select_decomp_table(), tracing_mode="fake")(
        torch.randn(4, 8), torch.randn(4, 8)
    )
    assert aten.copy_.default in targets(graph)
    compilation = compile_graph(graph.graph)
    on_aten(compilation)
    rewrite(graph.graph, compilation)
    graph.recompile()
    x, state = torch.randn(4, 8), torch.randn(4, 8)
    mine, theirs = state.clone(), state.clone()
    torch.testing.assert_close(graph(x, mine), step(x, theirs))
    torch.testing.assert_close(mine, theirs)


# sizes


def symbolic_graph(*shapes: tuple[int, ...]) -> tuple[fx.GraphModule, list[sympy.Symbol]]:
    """A graph with inputs of run-time shape, and the symbols of all their sizes in order."""
    graph = make_fx(lambda *xs: tuple(x.neg() for x in xs), tracing_mode="symbolic")(*map(torch.randn, shapes))
    inputs = [n.meta["val"] for n in graph.graph.nodes if n.op == "placeholder"]
    return graph, [size.node.expr for value in inputs for size in value.shape]


def size_at(graph: fx.GraphModule, wanted: fx.Node, *inputs: Tensor) -> Any:
    """What a size node holds when the graph runs."""
    (end,) = [n for n in graph.graph.nodes if n.op == "output"]
    end.args = ((*end.args[0], wanted),)  # type: ignore[misc]
    graph.graph.lint()
    graph.recompile()
    return graph(*inputs)[-1]


EXPRESSIONS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[int, int], int]]] = {
    "symbol": (lambda s, t: t, lambda s, t: t),
    "product": (lambda s, t: s * t, lambda s, t: s * t),
    "product with a number": (lambda s, t: 12 * s * t, lambda s, t: 12 * s * t),
    "sum": (lambda s, t: s + t + 5, lambda s, t: s + t + 5),
    "difference": (lambda s, t: 3 * s - t - 1, lambda s, t: 3 * s - t - 1),
    "square": (lambda s, t: s**2 * t, lambda s, t: s**2 * t),
    "cube": (lambda s, t: t**3, lambda s, t: t**3),
    "floor": (lambda s, t: FloorDiv(s, 3), lambda s, t: s // 3),
    "floor of a product": (lambda s, t: FloorDiv(s * t + 1, 4), lambda s, t: (s * t + 1) // 4),
    "floor by a symbol": (lambda s, t: FloorDiv(s, t), lambda s, t: s // t),
    "all together": (lambda s, t: 2 * (FloorDiv(s - 1, 2) + 1) * t, lambda s, t: 2 * ((s - 1) // 2 + 1) * t),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_an_expression_over_sizes_is_arithmetic_on_nodes(name: str) -> None:
    make, expected = EXPRESSIONS[name]
    graph, (s, _, t, _) = symbolic_graph((11, 3), (5, 7))
    node = SizeNodes(graph.graph).get(make(s, t))
    assert isinstance(node, fx.Node)
    assert isinstance(node.meta["val"], torch.SymInt)
    assert node.meta["val"].node.hint == expected(11, 5)
    assert size_at(graph, node, torch.randn(23, 3), torch.randn(4, 7)) == expected(23, 4)


def test_a_number_is_no_node() -> None:
    graph, _ = symbolic_graph((11, 3))
    sizes = SizeNodes(graph.graph)
    before = len(graph.graph.nodes)
    assert sizes.get(7) == 7
    assert sizes.get(sympy.Integer(9)) == 9
    assert type(sizes.get(sympy.Integer(9))) is int
    assert len(graph.graph.nodes) == before


def test_an_expression_is_computed_once_and_before_everything_else() -> None:
    graph, (s, t) = symbolic_graph((11, 3))
    sizes = SizeNodes(graph.graph)
    first = sizes.get(s * t + 1)
    count = len(graph.graph.nodes)
    assert sizes.get(s * t + 1) is first
    assert sizes.get(1 + t * s) is first
    assert len(graph.graph.nodes) == count
    product = sizes.get(s * t)
    assert isinstance(first, fx.Node)
    assert product in first.args
    assert len(graph.graph.nodes) == count
    names = [n.op for n in graph.graph.nodes]
    work = next(i for i, n in enumerate(graph.graph.nodes) if n.target is aten.neg.default)
    assert list(graph.graph.nodes).index(first) < work
    assert names[0] == "placeholder"


def test_a_size_that_is_an_input_is_that_input() -> None:
    graph, (s, *_) = symbolic_graph((11, 3))
    with graph.graph.inserting_before(next(iter(graph.graph.nodes))):
        given = graph.graph.placeholder("s")
    tensor = next(n for n in graph.graph.nodes if n.op == "placeholder" and n is not given)
    given.meta["val"] = tensor.meta["val"].shape[0]
    assert SizeNodes(graph.graph).get(s) is given


def test_a_symbol_nobody_brings_is_an_error_that_names_it() -> None:
    graph, (s, _) = symbolic_graph((11, 3))
    unknown = sympy.Symbol("q7", integer=True, positive=True)
    with pytest.raises(UnknownSymbolError, match="no input of the graph has the size q7"):
        SizeNodes(graph.graph).get(s * unknown)


def test_the_larger_of_two_sizes_is_a_node() -> None:
    graph, (s, t, _) = symbolic_graph((11, 3), (5,))
    nodes = SizeNodes(graph.graph)
    nodes.check(Max(s, 2 * t))
    node = nodes.get(Max(s, 2 * t))
    assert isinstance(node, fx.Node)
    assert node.target is torch.sym_max
    assert node.meta["val"].node.hint == 11


def test_an_unknown_function_of_sizes_is_an_error() -> None:
    graph, (s, _) = symbolic_graph((11, 3))
    with pytest.raises(UnknownSymbolError, match="no node for the size"):
        SizeNodes(graph.graph).get(Mod(s, 3) + 1)


def test_hints_are_the_sizes_of_the_trace() -> None:
    graph, (s, t, u) = symbolic_graph((11, 3), (5,))
    assert symbol_hints(graph.graph) == {s: 11, t: 3, u: 5}
    assert symbol_hints(trace(lambda x: x.neg(), (torch.randn(3, 4),)).graph) == {}
