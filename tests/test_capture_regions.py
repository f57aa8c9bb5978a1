"""Regions of traced graphs: what shares one, what does not, and that each computes what its nodes did."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from tests.cases import often
from tests.region_checks import Function, checked, names, only, refusal, rows, text_of, traced
from weft.capture.growth import Growth
from weft.capture.regions import capture
from weft.capture.trace import trace
from weft.ir import Program

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


@pytest.mark.parametrize("seed", often(range(12), range(4)))
def test_a_way_outside_is_looked_for_where_there_may_be_one(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In graphs of products, norms and sums of these at random, as in all that follows."""
    draw, search, grown = random.Random(seed), Growth._has_path_outside, list[Growth]()

    def kept(growth: Growth, a: list[fx.Node], b: list[fx.Node]) -> bool:
        grown[:] = [growth]
        return search(growth, a, b)

    def function(x: Tensor, w: Tensor) -> list[Tensor]:
        values = [x, x.exp()]
        for _ in range(40):
            one, other = draw.choice(values[-6:]), draw.choice(values)
            made = (one @ w, torch.softmax(one, -1), one + other, one * other.sum(-1, keepdim=True), other.sum(0) + one)
            values.append(draw.choice(made))
        return values[-3:]

    graph = trace(function, [rows(8, 16), rows(16, 16)])
    monkeypatch.setattr(Growth, "_has_path_outside", kept)
    capture(graph.graph, "f")
    (growth,) = grown
    pairs = [*itertools.permutations(growth.groups(), 2)]
    found = [search(growth, *pair) for pair in pairs]
    monkeypatch.setattr(growth, "_last_way_back", lambda _: len(growth.order))
    assert found == [search(growth, *pair) for pair in pairs]
    assert {*found} == {True, False}


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


def of_a_number(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    """Norms of three tensors of other shapes, each multiplied by one number."""
    number = z.sum().exp()
    return tuple(torch.softmax(each * number, -1) * number for each in (x, y, z))


def test_tensors_with_only_a_number_in_common_do_not_join() -> None:
    """In one program every dimension would be a loop around all others."""
    found = checked(of_a_number, rows(8, 16), rows(5, 12), rows(7, 10))
    assert sorted(len(region.program.dims) for region in found.regions) == [2, 2, 2]


def queries_and_keys(q: Tensor, k: Tensor, angles: Tensor) -> tuple[Tensor, ...]:
    """Norms of more queries than keys, turned by the same angles."""
    cos = angles.cos()
    return tuple(F.rms_norm(each, (16,)) * cos for each in (q, k))


def test_tensors_with_positions_in_common_do_not_share_their_heads() -> None:
    """In one program each query would be computed for every key's head."""
    found = checked(queries_and_keys, rows(2, 5, 4, 16), rows(2, 5, 3, 16), rows(5, 1, 16))
    assert len(found.regions) == 2
    assert sorted(max(len(v.dims) for v in r.program.buffers) for r in found.regions) == [4, 4]
    assert all(len(region.program.dims) <= 4 for region in found.regions)


def sums_of_both(x: Tensor, y: Tensor) -> Tensor:
    """Of rows of two widths."""
    return x.exp().sum(1) + y.exp().sum(1)


def test_rows_of_two_widths_are_added_up_in_two_programs() -> None:
    found = checked(sums_of_both, rows(6, 16), rows(6, 10))
    assert [len(region.program.dims) for region in found.regions] == [2, 2]


def test_a_number_of_two_tensors_is_added_up_behind_both() -> None:
    found = checked(lambda x, y: torch.softmax(x, -1).max() + torch.softmax(y, -1).max(), rows(8, 16), rows(5, 12))
    assert sorted(len(region.program.dims) for region in found.regions) == [2, 2]


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
    "unsqueeze": (lambda x: x.unsqueeze(1).unsqueeze(0), (3, 4)),
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
