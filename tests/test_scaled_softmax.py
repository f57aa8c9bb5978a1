"""Softmax of scaled logits, which TorchInductor rewrites so that the scale comes after the maximum: one region, one
kernel, and the results of eager mode, whatever the scale is and whatever the rows hold."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import weft
from tests.accuracy import rounding_excess
from tests.cases import often
from weft.capture.sources import origin
from weft.errors import RefusedError
from weft.explain.graphs import post_grad_graphs
from weft.integration.report import Report, clear_reports

Function = Callable[[Tensor, Tensor], Tensor]
INF, NAN = float("inf"), float("nan")

NUMBERS: dict[str, Function] = {
    "softmax of a product": lambda s, _: torch.softmax(s * 0.3, -1),
    "softmax of a quotient": lambda s, _: torch.softmax(s / 8, -1),
    "softmax of a negative product": lambda s, _: torch.softmax(s * -1.7, -1),
    "softmax in float32": lambda s, _: torch.softmax(s * 0.3, -1, dtype=torch.float32),
    "log-softmax of a product": lambda s, _: torch.log_softmax(s * 0.3, -1),
}
TENSORS: dict[str, Function] = {
    "softmax of a product with a tensor": lambda s, c: torch.softmax(s * c, -1),
    "softmax of a quotient by a tensor": lambda s, c: torch.softmax(s / c, -1),
    "log-softmax of a product with a tensor": lambda s, c: torch.log_softmax(c * s, -1),
}
FUNCTIONS = NUMBERS | TENSORS
CASES = [(name, torch.bfloat16) for name in FUNCTIONS] + [
    (name, dtype)
    for name in ("softmax of a product", "softmax of a product with a tensor")
    for dtype in (torch.float32, torch.float64)
]
OFTEN = [
    ("softmax of a product", torch.float64),
    ("softmax of a product with a tensor", torch.float32),
    ("softmax of a quotient by a tensor", torch.bfloat16),
    ("softmax in float32", torch.bfloat16),
    ("softmax of a negative product", torch.bfloat16),
    ("log-softmax of a product with a tensor", torch.bfloat16),
]
"""Of products and quotients, by numbers and tensors, each once."""


@pytest.fixture(autouse=True)
def _apart() -> None:
    torch._dynamo.reset()
    clear_reports()


def reports() -> list[Report]:
    """Of the graphs compiled in this test."""
    found = [report for report in weft.last_reports() if isinstance(report, Report)]
    assert len(found) == len(weft.last_reports())
    return found


@pytest.mark.parametrize(("name", "dtype"), often(CASES, OFTEN))
def test_one_kernel_forward_and_one_backward(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")
    torch.manual_seed(0)
    function, scale = FUNCTIONS[name], torch.tensor(0.7)
    logits, seed = torch.randn(96, 200, dtype=dtype) * 8, torch.randn(96, 200, dtype=dtype)

    def both(run: Function, x: Tensor, c: Tensor, tangents: Tensor) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_()
        result = run(x, c)
        return result.detach(), torch.autograd.grad(result, x, tangents.to(result.dtype))[0]

    mine = both(weft.fuse(function, strict=True), logits, scale, seed)
    for report in reports():
        (region,) = report.regions
        assert len(region.plan.kernels) == 1
        assert not report.refusals
    assert len(reports()) == 2

    eager = both(function, logits, scale, seed)
    exact = both(function, logits.double(), scale.double(), seed.double())
    for a, b, want in zip(mine, eager, exact, strict=True):
        assert a.dtype == b.dtype
        if dtype == torch.float64:
            torch.testing.assert_close(a, want, rtol=1e-12, atol=1e-14)
        else:
            assert rounding_excess(a, b, want) is None


def test_scores_of_attention_are_one_region_behind_their_product() -> None:
    torch.manual_seed(0)
    q, k = torch.randn(64, 64), torch.randn(48, 64)

    def scores(q: Tensor, k: Tensor) -> Tensor:
        return torch.softmax(q @ k.T / 8, -1)

    mine = torch.compile(scores, backend="weft")(q, k)
    (report,) = reports()
    (region,) = report.regions
    assert len(region.plan.kernels) == 1
    assert [refusal.rule for refusal in report.refusals] == ["unsupported_op"]
    exact = scores(q.double(), k.double())
    assert rounding_excess(mine, scores(q, k), exact) is None


@pytest.mark.parametrize("name", TENSORS)
def test_rows_that_are_not_finite_and_any_scale(name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(7, 19)
    x[0, 3], x[1, 3], x[2, 3], x[3], x[4] = INF, -INF, NAN, -INF, 3e38
    fused = weft.fuse(FUNCTIONS[name], strict=True)
    for scale in (0.5, -0.5, 0.0, -0.0, INF, NAN):
        c = torch.tensor(scale)
        torch.testing.assert_close(fused(x, c), FUNCTIONS[name](x, c), rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_operation_of_the_rewritten_graph_has_the_line_of_the_softmax(name: str) -> None:
    graphs = post_grad_graphs(FUNCTIONS[name], [torch.empty(8, 16).requires_grad_(), torch.tensor(0.5)])
    for graph in graphs:
        lines = {origin(node) for node in graph.module.graph.nodes if node.op == "call_function"}
        assert lines
        assert all(line is not None and "softmax(" in line for line in lines)


def test_refusals_of_a_rewritten_graph_name_lines() -> None:
    """weft has no 16-bit integers: the product, and what the pattern makes of it, are refused."""

    def function(s: Tensor) -> Tensor:
        return torch.softmax(torch.asinh(torch.softmax(s * 3, -1, dtype=torch.float32)), -1)

    with pytest.raises(RefusedError) as caught:
        weft.fuse(function, strict=True)(torch.ones(64, 64, dtype=torch.int16))
    assert {refusal.rule for refusal in caught.value.refusals} == {"unsupported_form", "unsupported_op", "interrupted"}
    for refusal in caught.value.refusals:
        assert refusal.where is not None
        assert "test_scaled_softmax.py" in refusal.where
