"""Regions of traced graphs: what shares one, what does not, and that each computes what its nodes did."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx

from weft.capture.regions import Capture, Region, capture
from weft.capture.trace import trace
from weft.errors import Refusal
from weft.ir import Program
from weft.ir.interpret import interpret
from weft.ir.simplify import simplify

Function = Callable[..., Any]


def rows(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def traced(function: Function, inputs: Sequence[Tensor], mode: str = "fake") -> fx.GraphModule:
    """A graph with real views in it, as Inductor hands it over, where ``trace`` makes copies of them."""
    table = select_decomp_table()
    graph = make_fx(function, decomposition_table=table, tracing_mode=mode)(*inputs)  # type: ignore[arg-type]
    functional = torch.func.functionalize(graph, remove="mutations")
    return make_fx(functional, decomposition_table=table, tracing_mode=mode)(*inputs)  # type: ignore[arg-type]


def values_of(graph: fx.GraphModule, inputs: Sequence[Tensor]) -> dict[fx.Node, Any]:
    """What every node of a graph computes."""
    found: dict[fx.Node, Any] = {}

    class Recorder(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            found[n] = super().run_node(n)
            return found[n]

    Recorder(graph).run(*inputs)
    return found


def checked(function: Function, *inputs: Tensor, views: bool = True) -> Capture:
    """The regions of a function, each of them compared with what its nodes compute, and ordered without a cycle."""
    graph = traced(function, inputs) if views else trace(function, inputs)
    found = capture(graph.graph, "f")
    values = values_of(graph, inputs)
    parameters: tuple[int, ...] = ()
    for region in found.regions:
        for program in (region.program, simplify(region.program)):
            assert [o.buffer.name for o in program.outputs] == [o.buffer.name for o in region.program.outputs]
            by_name = dict(zip((b.name for b in region.program.inputs), region.inputs, strict=True))
            bound = [values[by_name[b.name]] for b in program.inputs]
            results = interpret(program, bound, parameters)
            for node, result, output in zip(region.outputs, results, program.outputs, strict=True):
                want = values[node]
                strides = [int(s) for s in output.buffer.strides]
                laid_out = want.as_strided(result.shape, strides, want.storage_offset())
                torch.testing.assert_close(result, laid_out.to(result.dtype), rtol=1e-9, atol=1e-9, msg=node.name)
                assert result.numel() == want.numel()
    check_order(graph.graph, found.regions)
    check_complete(graph.graph, found)
    return found


def check_order(graph: fx.Graph, regions: Sequence[Region]) -> None:
    """Regions and the nodes outside them can be run one after the other: no cycle once each region is one node."""
    owner: dict[fx.Node, object] = {n: n for n in graph.nodes} | {n: id(r) for r in regions for n in r.members}
    assert len({n for r in regions for n in r.members}) == sum(len(r.members) for r in regions)
    needs: dict[object, set[object]] = {owner[n]: set() for n in graph.nodes}
    for region in regions:
        needs[id(region)] |= {owner[n] for n in region.inputs}
    for node in graph.nodes:
        if owner[node] is node:
            needs[node] |= {owner[n] for n in node.all_input_nodes}
    done: set[object] = set()
    while ready := {key for key, wanted in needs.items() if key not in done and wanted <= done}:
        done |= ready
    assert done == needs.keys(), "regions wait for each other"


def check_complete(graph: fx.Graph, found: Capture) -> None:
    """What is read from outside a region is among its outputs, and no member is refused as well."""
    refused = {r.subject for r in found.refusals}
    for region in found.regions:
        members = set(region.members)
        assert not refused & {n.name for n in members}
        for node in region.members:
            direct = [u for u in node.users if u not in members and u.op == "output"]
            assert not direct or node in region.outputs, node
        assert set(region.outputs) <= members
        assert not members & set(region.inputs)


def names(region: Region) -> list[str]:
    return [n.name for n in region.members]


def only(found: Capture) -> Region:
    (region,) = found.regions
    assert not found.refusals, found.refusals
    return region


def refusal(found: Capture, rule: str) -> Refusal:
    (match,) = [r for r in found.refusals if r.rule == rule]
    return match


def text_of(region: Region) -> str:
    return str(simplify(region.program))


# convexity


def residual(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """A product between two norms that also feeds the residual."""
    first = F.rms_norm(x, (16,))
    y = x + first @ w
    return F.rms_norm(y, (16,)), y + first


def test_a_product_between_two_norms_makes_two_regions() -> None:
    found = checked(residual, rows(8, 16), rows(16, 16))
    first, second = found.regions
    assert refusal(found, "unsupported_op").subject == "mm"
    assert [n.name for n in first.inputs] == [first.inputs[0].name]
    assert first.inputs[0].op == "placeholder"
    assert set(first.outputs) < set(second.inputs)


def waits_for_itself(x: Tensor, z: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Two readers of x that may not share a pass: the second needs a product of h, and h needs one of the first."""
    first = torch.softmax(x, -1)
    h = z.exp()
    second = (x * (h @ v)).sum(-1)
    return second, ((first @ w) * h).sum(-1)


def test_readers_of_one_tensor_do_not_join_around_a_later_product() -> None:
    square = rows(16, 16)
    found = checked(waits_for_itself, square, rows(16, 16), rows(16, 16), rows(16, 16))
    assert len(found.regions) == 3


def test_a_diamond_through_a_product_stays_apart() -> None:
    def diamond(x: Tensor, w: Tensor) -> Tensor:
        y = torch.softmax(x, -1)
        return (y * (y @ w)).sum(-1)

    first, second = checked(diamond, rows(8, 16), rows(16, 16)).regions
    assert "mul" in names(second)
    assert "mul" not in names(first)


def test_blocks_around_a_residual_are_the_same_regions() -> None:
    def blocks(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(4):
            x = x + torch.softmax(x, -1) @ w
        return x

    found = checked(blocks, rows(8, 16), rows(16, 16))
    assert len(found.regions) == 4
    texts = [text_of(r) for r in found.regions]
    assert texts[2] == texts[3]
    operations = [[v.op for v in r.program.values] for r in found.regions]
    assert operations[0] == operations[1][1:]  # nothing is added before the first
    assert operations[1] == operations[2]


def random_function(seed: int) -> Function:
    """A random graph of pointwise operations, reductions, views and products on square matrices."""

    def function(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        choose = random.Random(seed)
        made = [x, y]
        for _ in range(choose.randint(4, 12)):
            a, b = choose.choice(made), choose.choice(made)
            made.append(
                choose.choice(
                    [
                        lambda a, b: a + b,
                        lambda a, b: torch.tanh(a),
                        lambda a, b: a * b.t(),
                        lambda a, b: a @ w,
                        lambda a, b: a - a.mean(-1, keepdim=True),
                        lambda a, b: a * b.sum(0),
                        lambda a, b: torch.sigmoid(a) * b.sum(1, keepdim=True),
                        lambda a, b: a.amax(0) + b,
                        lambda a, b: (a.view(2, 3, 6) * b.view(2, 3, 6).mean(1, keepdim=True)).view(6, 6),
                        lambda a, b: (a.reshape(36).view(3, 2, 6).sum(0).unsqueeze(1).expand(2, 3, 6)).reshape(6, 6),
                        lambda a, b: a[choose.randint(0, 5)] + b,
                        lambda a, b: b.permute(1, 0).contiguous().view(6, 6),
                    ]
                )(a, b)
            )
        results = [made[-1], choose.choice(made[2:]), made[-2].sum(0)]
        return tuple(t * 1.5 for t in results)

    return function


@pytest.mark.parametrize("views", [True, False], ids=["views", "copies"])
@pytest.mark.parametrize("seed", range(24))
def test_regions_of_random_graphs_are_convex_and_compute_the_same(seed: int, views: bool) -> None:
    checked(random_function(seed), rows(6, 6), rows(6, 6), rows(6, 6) / 3, views=views)


# siblings


def test_a_column_sum_joins_the_gradient_that_reads_the_same_tensor() -> None:
    def gradients(dy: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return dy * w - (dy * w * x).sum(-1, keepdim=True) * x, dy.sum(0)

    region = only(checked(gradients, rows(8, 16), rows(8, 16), rows(16)))
    assert len(region.outputs) == 2
    assert sorted(n.name for n in region.inputs) == sorted({n.name for n in region.inputs})


def test_siblings_join_through_views() -> None:
    def gradients(dy: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.softmax(dy.view(2, 4, 16) * x, -1), dy.sum(0)

    region = only(checked(gradients, rows(8, 16), rows(2, 4, 16)))
    assert len(region.outputs) == 2


@pytest.mark.parametrize("order", [0, 1])
def test_readers_of_different_size_stay_apart(order: int) -> None:
    """The weight is all of one group and a broadcast operand of the other."""

    def apart(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        results = [lambda: (x * w).sum(-1), lambda: (w * w).sum()]
        return tuple(results[i]() for i in (order, 1 - order))

    found = checked(apart, rows(8, 16), rows(16))
    assert sorted(len(r.program.dims) for r in found.regions) == [1, 2]


def test_readers_whose_views_do_not_align_stay_apart() -> None:
    found = checked(lambda x: (x.view(4, 6).sum(0), x.view(6, 4).sum(0)), rows(24))
    assert len(found.regions) == 2
    aligned = only(checked(lambda x: (x.view(4, 6).sum(0), x.view(2, 12).sum(0)), rows(24)))
    assert [d.size for d in aligned.program.dims] == [2, 2, 6]


def test_pointwise_readers_do_not_join_each_other() -> None:
    found = checked(lambda x: (x.exp(), x.tanh()), rows(8, 16))
    assert found.regions == ()
    assert {r.rule for r in found.refusals} == {"no_reduction"}


def test_a_pointwise_reader_joins_a_reduction() -> None:
    region = only(checked(lambda x: (x.exp(), x.sum(0)), rows(8, 16)))
    assert len(region.outputs) == 2


# diagonals


def test_a_tensor_and_its_transpose_are_two_operands() -> None:
    """Of a square matrix both would fit the same dimensions; the weights tell rows from columns."""

    def both(x: Tensor, u: Tensor) -> Tensor:
        return ((x + 2 * x.t()) * u).sum(-1)

    region = only(checked(both, rows(6, 6), rows(6)))
    assert [n.op for n in region.inputs] == ["placeholder"] * 3
    assert len(set(region.inputs)) == 2
    assert [d.size for d in region.program.dims] == [6, 6]


def test_a_row_result_against_itself_is_a_border() -> None:
    def distances(x: Tensor) -> Tensor:
        v = x.sum(-1)
        return ((v[:, None] - v[None, :]) * 0.1).exp().sum(-1)

    found = checked(distances, rows(6, 9))
    assert len(found.regions) == 2
    assert not found.refusals
    second = found.regions[1]
    assert len(second.inputs) == 2
    assert len(set(second.inputs)) == 1


def test_a_softmax_against_its_transpose_is_a_border() -> None:
    def function(x: Tensor) -> Tensor:
        y = torch.softmax(x, -1)
        return (y - y.t().exp()).sum(0)

    found = checked(function, rows(6, 6))
    assert len(found.regions) == 2


def test_two_reads_that_agree_are_one_operand() -> None:
    region = only(checked(lambda x: (x.view(2, 3, 5) * x.reshape(6, 5).view(2, 3, 5)).sum(-1), rows(6, 5)))
    assert len(region.inputs) == 1


# views

VIEWS: dict[str, tuple[Function, tuple[int, ...]]] = {
    "reshape": (lambda x: x.reshape(6, 20), (2, 3, 4, 5)),
    "permute": (lambda x: x.permute(2, 0, 3, 1), (2, 3, 4, 5)),
    "transpose": (lambda x: x.transpose(-1, 0), (2, 3, 4, 5)),
    "expand": (lambda x: x.unsqueeze(1).expand(3, 7, 4), (3, 4)),
    "expand in front": (lambda x: x.expand(7, 3, 4), (3, 4)),
    "squeeze": (lambda x: x.squeeze(), (3, 1, 4, 1)),
    "squeeze one": (lambda x: x.squeeze(1), (3, 1, 4)),
    "squeeze nothing": (lambda x: x.squeeze(0), (3, 1, 4)),
    "unsqueeze": (lambda x: x.unsqueeze(-1).unsqueeze(0), (3, 4)),
    "heads": (lambda x: x.view(2, 3, 2, 4).transpose(1, 2), (6, 8)),
    "t": (lambda x: x.t(), (3, 4)),
    "flatten": (lambda x: x.flatten(), (3, 4)),
    "detach": (lambda x: x.detach(), (3, 4)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_between_operations_disappear(name: str) -> None:
    view, shape = VIEWS[name]

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        viewed = view(x * 2)
        return viewed.exp().sum(-1), (viewed + 1).amax(0)

    region = only(checked(function, rows(*shape)))
    assert {v.op for v in region.program.values} <= {"mul", "const", "exp", "add", "sum", "max"}
    assert [n.op for n in region.inputs] == ["placeholder"]


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_may_be_a_result(name: str) -> None:
    """The region writes what the view is taken of, if anything outside reads it."""
    view, shape = VIEWS[name]

    def function(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = x * 2
        z = torch.softmax(y, -1)
        return view(y), view(z), z.sum(0)

    region = only(checked(function, rows(*shape)))
    assert len(region.outputs) == 3


def test_a_reshape_that_cuts_across_is_a_border() -> None:
    def function(x: Tensor) -> Tensor:
        return (torch.softmax(x, -1).reshape(8, 3) * 2).sum(-1)

    found = checked(function, rows(6, 4))
    assert len(found.regions) == 2


def test_an_input_may_have_any_strides() -> None:
    def function(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        return torch.softmax(x * y + w, -1)

    storage = rows(5, 40)
    for x in (storage[:, 3:11], storage[:, ::5], rows(8, 5).t(), rows(5, 1).expand(5, 8), rows(8).expand(5, 8)):
        region = only(checked(function, x, rows(5, 8), rows(8)))
        assert len(region.inputs) == 3
        assert len(region.program.inputs[0].dims) == sum(stride != 0 for stride in x.stride())


@pytest.mark.parametrize("cut", ["select", "slice", "diagonal"])
def test_a_cut_through_a_result_stays_outside(cut: str) -> None:
    """The region before writes it whole, the region after reads the part."""
    part: Function = {
        "select": lambda y: y[1],
        "slice": lambda y: y[:, 1:3],
        "diagonal": lambda y: y.diagonal(),
    }[cut]

    def function(x: Tensor) -> Tensor:
        return part(torch.softmax(x, -1)).exp().sum(-1)

    found = checked(function, rows(4, 5, 6))
    first, second = found.regions
    assert not found.refusals
    (read,) = second.inputs
    assert read not in first.outputs
    assert read.args[0] in first.outputs


# constants


def test_a_constant_belongs_to_every_region_that_reads_it() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        three = torch.full((16,), 3.0, dtype=torch.float64)
        return torch.softmax(torch.softmax(x + three, -1) @ w + three, -1)

    found = checked(function, rows(8, 16), rows(16, 16))
    assert len(found.regions) == 2
    for region in found.regions:
        assert [v.attributes for v in region.program.values if v.op == "const"][:1] == [(3.0,)]
        assert len(region.inputs) == 1
    assert "full" not in {n for r in found.regions for n in names(r)}


def test_positions_are_counted_along_split_dimensions() -> None:
    def function(x: Tensor) -> Tensor:
        place = torch.arange(24).view(4, 6)
        return torch.where(place > 9, x.view(5, 4, 6), 0).sum((1, 2))

    region = only(checked(function, rows(5, 24)))
    assert sum(v.op == "iota" for v in region.program.values) >= 1


def test_a_constant_alone_is_summed() -> None:
    found = checked(lambda x: x.sum(-1) + torch.full((3, 5), 2.0, dtype=torch.float64).sum(), rows(4, 6))
    assert len(found.regions) == 1


@pytest.mark.parametrize(("start", "step"), [(3, 1), (0, 2), (-5, 3), (9, -4)])
def test_positions_are_counted_from_any_number_by_any_step(start: int, step: int) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.where(torch.arange(start, start + 6 * step, step) > 4, x, 0).sum(-1)

    region = only(checked(function, rows(4, 6)))
    numbers = [v.attributes[0] for v in region.program.values if v.op == "const"]
    assert all(n in numbers for n in (start, step) if n not in (0, 1))


def test_positions_along_a_dimension_split_by_a_run_time_size_are_refused() -> None:
    def function(x: Tensor) -> Tensor:
        place = torch.arange(x.shape[0] * x.shape[1]).view(x.shape[:2])
        return torch.where(place[..., None] > 9, x, 0).sum(-1)

    graph = traced(function, [rows(5, 7, 6)], mode="symbolic")
    found = capture(graph.graph, "f")
    assert found.regions == ()
    assert ("misaligned", "an index over a dimension of run-time size") in {(r.rule, r.message) for r in found.refusals}


# refusals


def test_pointwise_work_alone_stays_with_inductor() -> None:
    found = checked(lambda x, w: (x * 2).tanh() @ w + 1, rows(8, 16), rows(16, 16))
    assert found.regions == ()
    rules = {r.subject: r.rule for r in found.refusals}
    assert rules == {"mul": "no_reduction", "tanh": "no_reduction", "mm": "unsupported_op", "add": "no_reduction"}
    assert "a pointwise kernel of Inductor's" in next(r for r in found.refusals if r.subject == "mul").message


def test_an_unsupported_operation_names_itself_and_the_users_line() -> None:
    graph = traced(lambda x: torch.softmax(x.cumsum(0), -1), [rows(4, 6)])
    (node,) = [n for n in graph.graph.nodes if "cumsum" in n.name]
    node.meta["stack_trace"] = (
        '  File "/home/user/model.py", line 7, in forward\n    return self.inner(x)\n'
        '  File "/home/user/layers.py", line 12, in inner\n    y = x.cumsum(0)\n'
        '  File "/usr/lib/python3/site-packages/torch/functional.py", line 3, in cumsum\n    return _cumsum(x)\n'
    )
    found = capture(graph.graph, "f")
    no = refusal(found, "unsupported_op")
    assert no.subject == node.name
    assert no.message == "aten.cumsum.default is no operation weft fuses"
    assert no.where == "layers.py:12: y = x.cumsum(0)"
    assert str(no).endswith("at layers.py:12: y = x.cumsum(0)")
    assert len(found.regions) == 1


def test_a_region_knows_the_users_lines() -> None:
    graph = traced(lambda x: torch.softmax(x * 2, -1), [rows(4, 6)])
    for i, node in enumerate(n for n in graph.graph.nodes if n.op == "call_function"):
        node.meta["stack_trace"] = f'  File "/home/user/model.py", line {1 + i // 3}, in f\n    line {1 + i // 3}\n'
    (region,) = capture(graph.graph, "f").regions
    assert region.lines == ("model.py:1: line 1", "model.py:2: line 2")


UNSUPPORTED: dict[str, tuple[Function, Tensor, str]] = {
    "complex": (lambda x: (x * 2).sum(-1), torch.ones(4, 6, dtype=torch.complex64), "dtype complex64 is not supported"),
    "shorts": (lambda x: x.float().sum(-1), torch.ones(4, 6, dtype=torch.int16), "dtype int16 is not supported"),
    "float8": (
        lambda x: x.float().sum(-1),
        torch.ones(4, 6, dtype=torch.float32).to(torch.float8_e5m2fnuz),
        "dtype float8_e5m2fnuz is not supported",
    ),
    "empty": (lambda x: torch.softmax(x, -1), torch.ones(0, 6), "has a tensor without elements"),
    "empty rows": (lambda x: x.sum(-1), torch.ones(4, 0), "has a tensor without elements"),
    "integer power": (lambda x: (x**4).sum(-1), torch.ones(4, 6, dtype=torch.int64), "is not supported on integers"),
    "integer quotient": (
        lambda x: torch.div(x, 3, rounding_mode="trunc").sum(-1),
        torch.ones(4, 6, dtype=torch.int32),
        "is not supported on integers",
    ),
    "shifts": (
        lambda x: (x << 3).sum(-1),
        torch.ones(4, 6, dtype=torch.int32),
        "aten.__lshift__.Scalar is no operation weft fuses",
    ),
    "boolean product": (lambda x: (x * x).sum(-1), torch.ones(4, 6) > 0, "arithmetic on booleans is not supported"),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_tensors_are_refused_with_the_reason(name: str) -> None:
    function, x, message = UNSUPPORTED[name]
    found = capture(trace(function, [x]).graph, "f")
    matching = [r for r in found.refusals if message in r.message]
    assert matching, found.refusals
    assert {r.rule for r in matching} <= {"unsupported_form", "unsupported_op"}
    members = {n for region in found.regions for n in names(region)}
    assert not members & {r.subject for r in found.refusals}


SUPPORTED: dict[str, tuple[Function, torch.dtype]] = {
    "bytes": (lambda x: (x.float().sum(-1), x.double().mul(0.5).to(x.dtype)), torch.uint8),
    "signed bytes": (lambda x: (x.float().sum(-1), x.double().mul(0.5).to(x.dtype)), torch.int8),
    "byte sum": (lambda x: x.sum(-1), torch.uint8),
    "integers": (lambda x: (x + 1).sum(-1), torch.int64),
    "integer product": (lambda x: (x * x - 3).sum(0), torch.int32),
    "integer maximum": (lambda x: (x.amax(-1), x.amin(0)), torch.int32),
    "integer quotient": (lambda x: (torch.div(x, 3, rounding_mode="floor") + x % 3).sum(-1), torch.int64),
    "bits": (lambda x: ((x & 3).sum(-1), (x | 4).sum(-1), (x ^ 5).sum(-1), (~x).sum(-1)), torch.int32),
    "square": (lambda x: (x**2).sum(-1), torch.int64),
}


@pytest.mark.parametrize("name", SUPPORTED)
def test_integers_and_bytes_are_fused(name: str) -> None:
    function, dtype = SUPPORTED[name]
    only(checked(function, torch.randint(0, 100, (4, 6)).to(dtype)))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_8_bit_floats_are_read_and_written(dtype: torch.dtype) -> None:
    x = torch.randn(4, 6).to(dtype)
    region = only(checked(lambda x: x.double().sum(-1), x))
    assert [v.op for v in region.program.values] == ["cast", "sum"]
    graph = trace(lambda y: (y / y.abs().amax(-1, keepdim=True)).to(dtype), [rows(4, 6)])
    written = only(capture(graph.graph, "f"))
    assert [o.buffer.dtype for o in written.program.outputs] == [region.program.inputs[0].dtype]


def test_integers_are_compared_chosen_counted_and_summed() -> None:
    def function(x: Tensor, i: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return i.sum(0), torch.where(i > 2, x, 0).sum(-1), (i == 3).sum(-1)

    region = only(checked(function, rows(4, 6), torch.randint(0, 5, (4, 6))))
    assert len(region.outputs) == 3


BOOLEANS: dict[str, Function] = {
    "product": lambda x: (x > 0) * (x < 1),
    "sum": lambda x: (x > 0) + (x < -1),
    "maximum": lambda x: torch.maximum(x > 1, x < -1),
    "choice": lambda x: torch.where(x > 0, x > 1, x < -1),
    "and": lambda x: (x > 0) & (x < 1),
    "not": lambda x: ~(x > 0),
    "comparison": lambda x: (x > 0) == (x < 1),
    "gather": lambda x: (x > 0).gather(1, torch.zeros(4, 1, dtype=torch.int64)),
}


@pytest.mark.parametrize("name", BOOLEANS)
def test_operations_on_masks_are_fused_or_refused(name: str) -> None:
    """Counted where weft has the operation, refused with a reason where it has not; never an error."""
    found = checked(lambda x: (BOOLEANS[name](x).sum(-1), torch.softmax(x, -1)), rows(4, 6))
    assert any("exp" in names(region) for region in found.regions)


SCALARS: dict[str, Function] = {
    "sum": lambda x: x.sum().sum(-1),
    "softmax": lambda x: torch.softmax(x.sum(), -1),
    "mean": lambda x: (x.sum() * 2).mean(),
    "transpose": lambda x: (x.sum().t() * x).sum(),
}


@pytest.mark.parametrize("name", SCALARS)
def test_a_single_number_may_be_reduced(name: str) -> None:
    found = checked(lambda x: (SCALARS[name](x), torch.softmax(x, -1)), rows(4, 6))
    assert any("exp" in names(region) for region in found.regions)


def sized(x: Tensor) -> Tensor:
    return torch.softmax(x, -1) / x.shape[0]


def filled(x: Tensor) -> Tensor:
    return torch.softmax(x, -1) * torch.full((), x.shape[0], dtype=torch.float64)


@pytest.mark.parametrize("function", [sized, filled])
def test_arithmetic_with_a_run_time_size_is_fused_or_refused(function: Function) -> None:
    graph = traced(function, [rows(5, 6)], mode="symbolic")
    found = capture(graph.graph, "f")
    assert any("exp" in names(region) for region in found.regions)


# lowering


def test_a_gather_is_a_sum_over_positions() -> None:
    def function(x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        logs = torch.log_softmax(x, -1)
        return logs.gather(1, index), logs.sum(-1)

    region = only(checked(function, rows(5, 7), torch.tensor([[3], [0], [6], [1], [3]])))
    assert [v.attributes for v in region.program.values if v.op == "iota"] == [("n",)]
    assert not [v for v in region.program.values if set(v.dims) == {"m", "n"} and v.dtype == "i64"]


def test_a_gather_along_rows_counts_rows() -> None:
    region = only(checked(lambda x, i: x.gather(0, i) * 2, rows(5, 7), torch.randint(0, 5, (1, 7))))
    assert [v.attributes for v in region.program.values if v.op == "iota"] == [("m",)]


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((5, 2), "gathers more than one element along its dimension (have 2 elements, limit 1)"),
        ((3, 1), "gathers from a part of its operand"),
    ],
)
def test_a_gather_of_several_or_of_fewer_rows_is_refused(shape: tuple[int, int], message: str) -> None:
    found = checked(lambda x, i: x.gather(1, i), rows(5, 7), torch.zeros(shape, dtype=torch.int64))
    assert found.regions == ()
    assert str(refusal(found, "unsupported_form")) == f"unsupported_form: gather: {message}"


@pytest.mark.parametrize("correction", [0, 1, 2.5])
@pytest.mark.parametrize("dims", [(1,), (0,), (0, 1)])
def test_variance_and_mean_are_both_results(dims: tuple[int, ...], correction: float) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.var_mean(x, dims, correction=correction)

    region = only(checked(function, rows(5, 7)))
    assert [n.name for n in region.outputs] == ["getitem", "getitem_1"]


def test_one_result_of_a_variance_may_be_left_unused() -> None:
    region = only(checked(lambda x: torch.var_mean(x, -1)[1] * 2, rows(5, 7)))
    assert len(region.outputs) == 1
    assert len(simplify(region.program).values) < len(region.program.values)
    assert sum(v.op == "sum" for v in simplify(region.program).values) == 1


def test_a_variance_along_a_broadcast_dimension_counts_it() -> None:
    only(checked(lambda x: torch.var_mean(x.unsqueeze(1).expand(5, 3, 7), (1, 2)), rows(5, 7)))


def test_a_mean_along_a_broadcast_dimension_counts_it() -> None:
    only(checked(lambda x: x.unsqueeze(1).expand(5, 3, 7).mean((1, 2)), rows(5, 7)))
    region = only(checked(lambda x: x.unsqueeze(1).expand(5, 3, 7).sum(1), rows(5, 7)))
    assert not [v for v in region.program.values if v.op == "sum"]
    only(checked(lambda x: (x.unsqueeze(1).expand(5, 3, 7) + 1).amax(1), rows(5, 7)))


# names and dimensions


def text_after_block(x: Tensor, blocks: int, weight: Tensor) -> Tensor:
    for _ in range(blocks):
        x = F.layer_norm(torch.tanh(x) @ weight, (16,))
    return x


def test_equal_blocks_have_equal_programs() -> None:
    graph = traced(lambda x, w: text_after_block(x, 4, w), [rows(8, 16), rows(16, 16)])
    found = capture(graph.graph, "region")
    texts = [text_of(region) for region in found.regions]
    assert len(texts) == 4
    assert len(set(texts[:-1])) == 1  # the last block is not followed by tanh
    assert "mm" in {b.name for b in found.regions[0].program.inputs}


def symbolic_layout(layout: str) -> Program:
    """The program of a norm with one run-time size, of an input [B, T, N] in a certain order in memory."""
    orders = {"contiguous": (0, 1, 2), "time first": (1, 0, 2)}
    order = orders[layout]
    shape = (5, 4, 16)
    x = torch.randn([shape[i] for i in order]).permute([order.index(i) for i in range(3)])

    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = F.rms_norm(x, (16,), w)
        return y.contiguous(), y.sum((0, 1))

    graph = trace(function, (x, torch.randn(16)), dynamic_rows=True)
    (region,) = capture(graph.graph, "f").regions
    assert len(region.parameters) == len(region.program.parameters)
    return region.program


def test_batch_and_time_are_one_dimension_where_they_always_are_together() -> None:
    program = symbolic_layout("contiguous")
    assert [(d.name, d.size) for d in program.dims] == [("m", "s0"), ("n", 16)]
    assert len(program.parameters) == 1


def test_rows_with_gaps_between_them_stay_two_dimensions() -> None:
    region = only(checked(lambda x: (x * 2).sum(), rows(6, 9)[:, :5]))
    assert [d.size for d in region.program.dims] == [6, 5]
    region = only(checked(lambda x: (x * 2).sum(), rows(6, 5)))
    assert [d.size for d in region.program.dims] == [30]


def test_a_transposed_layout_keeps_its_dimensions() -> None:
    program = symbolic_layout("time first")
    assert len(program.dims) == 3
    assert program.dims[-1].size == 16
    assert program.dims[-1].name == "n"
    x = next(b for b in program.inputs if len(b.dims) == 3)
    y = next(o.buffer for o in program.outputs if len(o.buffer.dims) == 3)
    assert x.dims[:2] != y.dims[:2] or x.strides != y.strides


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_any_layout_is_read_as_it_is(order: tuple[int, ...]) -> None:
    x = rows(3, 4, 5).permute(order)

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.softmax(x, -1)
        return y.contiguous(), y.sum((0, 1))

    region = only(checked(function, x))
    together = x.stride(0) == x.shape[1] * x.stride(1)
    assert len(region.program.dims) == (2 if together else 3)


def test_a_reduction_over_part_of_the_rows_keeps_them_apart() -> None:
    region = only(checked(lambda x: (torch.softmax(x, -1), x.sum(1)), rows(3, 4, 5)))
    assert [d.size for d in region.program.dims] == [3, 4, 5]
    assert [d.name for d in region.program.dims] == ["m0", "m1", "n"]


def test_dimensions_of_size_one_vanish() -> None:
    region = only(checked(lambda x: torch.softmax(x, -1).sum((0, 2)), rows(1, 4, 1, 5)))
    assert [d.size for d in region.program.dims] == [4, 5]


def test_nothing_to_do_is_nothing() -> None:
    found = checked(lambda x: x.view(6, 4).t(), rows(4, 6))
    assert (found.regions, found.refusals, found.borders.moved_bytes) == ((), (), 0)
