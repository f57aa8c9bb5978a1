"""Operations and tensors in regions: constants, gathers and variances, and what is refused with its reason."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from tests.cases import POINTWISE_OF_ONE_ROW, captured
from tests.region_checks import Function, checked, names, only, refusal, rows, traced
from tests.run_program import run_program
from weft.bench.workloads import WORKLOADS
from weft.capture.regions import capture
from weft.capture.trace import trace
from weft.ir.simplify import simplify

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
    assert sorted(len(region.inputs) for region in found.regions) == [0, 2]


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


def test_a_sum_over_one_element_is_pointwise_work() -> None:
    found = checked(lambda x, w: ((x * 2).sum(0) + 1).tanh() @ w, rows(1, 16), rows(16, 16))
    assert found.regions == ()
    assert {r.rule for r in found.refusals} == {"no_reduction", "unsupported_op"}


@pytest.mark.parametrize("name", POINTWISE_OF_ONE_ROW)
def test_a_workload_of_one_row_whose_sums_are_over_rows_leaves_pointwise_work_out(name: str) -> None:
    found = captured(name, WORKLOADS[name].make_inputs((1, 37), torch.bfloat16, "cpu", 3))
    assert {r.rule for r in found.refusals} == {"no_reduction"}
    assert all(value.op != "sum" or value.attributes == ("n",) for r in found.regions for value in r.program.values)


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
    "boolean sign": (lambda x: x.sign().sum(-1), torch.ones(4, 6) > 0, "arithmetic on booleans is not supported"),
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


COMBINED: dict[str, Function] = {
    "product": lambda x: (x > 0) * (x < 1),
    "product with a number": lambda x: (x > 0) * True,
    "sum": lambda x: (x > 0) + (x < -1),
    "sum with a number": lambda x: (x > 0) + False,
    "sum of one": lambda x: torch.add(x > 0, x < 1, alpha=False),
    "maximum": lambda x: torch.maximum(x > 1, x < -1),
    "minimum": lambda x: torch.minimum(x > 0, x < 1),
    "bound": lambda x: torch.clamp_min(x > 1, x < -1),
}
BOOLEANS: dict[str, Function] = {
    **COMBINED,
    "sign": lambda x: (x > 0).sign(),
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


def test_arithmetic_on_masks_is_logic() -> None:
    """In the interpreter, and in a kernel that has all of it."""
    x = rows(4, 6)

    def counts(x: Tensor) -> list[Tensor]:
        return [function(x).sum(-1) for function in COMBINED.values()]

    region = only(checked(lambda x: (*counts(x), x.softmax(-1)), x))
    *found, _ = run_program(region.program, [x])
    for name, count, expected in zip(COMBINED, found, counts(x), strict=True):
        assert torch.equal(count, expected), name


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


PLACES = ((64, 32), "cuda:0"), ((), "cpu")


def test_a_number_on_another_device_is_left_to_inductor() -> None:
    """Eager mode takes it for tensors on a GPU; a kernel could not read it."""
    graph = fx.Graph()
    with FakeTensorMode() as mode:
        x, number = (FakeTensor(mode, torch.empty(s, device="meta"), torch.device(d)) for s, d in PLACES)
        row = FakeTensor(mode, torch.empty(64, device="meta"), torch.device("cuda:0"))
    first, second = graph.placeholder("x"), graph.placeholder("number")
    first.meta["val"], second.meta["val"] = x, number
    scaled = graph.call_function(torch.ops.aten.mul.Tensor, (first, second))
    square = graph.call_function(torch.ops.aten.mul.Tensor, (scaled, scaled))
    total = graph.call_function(torch.ops.aten.sum.dim_IntList, (square, [1]))
    scaled.meta["val"] = square.meta["val"] = x
    total.meta["val"] = row
    graph.output((total, scaled))
    found = capture(graph, "f")
    assert [r.message for r in found.refusals if r.subject == "mul_tensor"] == ["has tensors on cpu and cuda:0"]
    (region,) = found.regions
    assert [str(n.meta["val"].device) for n in region.inputs] == ["cuda:0"]


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
