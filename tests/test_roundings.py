"""What an exponential is of is rounded as the graph says, whoever computes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._inductor.utils import fresh_inductor_cache

import weft
from weft import planning
from weft.capture.trace import trace
from weft.errors import Refusal
from weft.integration.roundings import keep_roundings
from weft.ir.program import Program
from weft.plan import planner
from weft.plan.kernel import Plan

ROWS, WORDS = 64, 512


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    weft.counters.reset()
    with fresh_inductor_cache():
        yield


def capped_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """As Gemma 2 has it: capped in the logits' own type."""
    return F.cross_entropy((torch.tanh(logits / 30) * 30).float(), labels)


def inputs() -> tuple[Tensor, Tensor]:
    """Rows in which one logit is large, and most often no label."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(ROWS, WORDS, generator=generator)
    logits[torch.arange(ROWS), torch.randint(WORDS, (ROWS,), generator=generator)] = 25
    return logits.bfloat16(), torch.randint(WORDS, (ROWS,), generator=generator)


def gradient(function: Callable[..., Tensor], logits: Tensor, labels: Tensor) -> Tensor:
    given = logits.clone().requires_grad_()
    (found,) = torch.autograd.grad(function(given, labels), given)
    return found


def leave(monkeypatch: pytest.MonkeyPatch, which: Callable[[Program], bool]) -> None:
    """Some programs are left to TorchInductor, all others are taken."""
    plan = planner.plan

    def planned(program: Program, *given: object, **named: object) -> Plan | Refusal:
        if which(program):
            return Refusal("not_worthwhile", program.name, "is to be left")
        return plan(program, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(planner, "check_worthwhile", lambda *_: None)
    monkeypatch.setattr(planning, "plan", planned)


def is_loss(program: Program) -> bool:
    return any(value.op == "log" for value in program.values)


SIDES: dict[str, Callable[[Program], bool]] = {
    "loss": is_loss,
    "gradient": lambda program: not is_loss(program),
    "both": lambda _: True,
    "neither": lambda _: False,
}


@pytest.mark.parametrize("side", SIDES)
def test_a_loss_and_its_gradient_agree(side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    leave(monkeypatch, SIDES[side])
    logits, labels = inputs()
    exact = gradient(capped_loss, logits.double(), labels)
    eager = gradient(capped_loss, logits, labels)
    mine = gradient(torch.compile(capped_loss, backend="weft"), logits, labels)
    assert weft.counters.regions == {"both": 0, "neither": 2}.get(side, 1)

    def error(found: Tensor) -> float:
        return float((found.double() - exact).norm() / exact.norm())

    assert error(mine) < 2 * error(eager)
    assert error(eager) < 0.005


def test_one_side_without_roundings_is_far_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this is for: the fault that would be there."""
    leave(monkeypatch, is_loss)
    monkeypatch.setattr("weft.integration.backend.keep_roundings", lambda _: 0)
    logits, labels = inputs()
    exact = gradient(capped_loss, logits.double(), labels)
    mine = gradient(torch.compile(capped_loss, backend="weft"), logits, labels)
    assert float((mine.double() - exact).norm() / exact.norm()) > 0.01


def test_only_what_an_exponential_is_of_is_rounded() -> None:
    x = torch.randn(8, 16).bfloat16()

    def count(function: Callable[[Tensor], Tensor]) -> int:
        graph = trace(function, (x,)).graph
        before = len(list(graph.nodes))
        found = keep_roundings(graph)
        graph.lint()
        assert len(list(graph.nodes)) == before + 2 * found
        return found

    assert count(lambda x: torch.softmax((x * 0.3 + 1).float(), 1)) == 2
    assert count(lambda x: torch.softmax(x.float(), 1)) == 0
    assert count(lambda x: torch.tanh(x * 0.3) * 2) == 0
    assert count(lambda x: torch.softmax((x * 0.3).view(16, 8).float(), 1) + (x.view(16, 8) * 2)) == 1
    assert count(lambda x: torch.softmax((x @ x.t()).float(), 1)) == 0


def test_torchinductors_own_statistics_of_a_row_count() -> None:
    from torch._inductor import inductor_prims

    x = torch.randn(8, 16).bfloat16()
    assert str(inductor_prims.prepare_softmax_online) == "prims.prepare_softmax_online.default"
    graph = trace(lambda x: (x * 0.3).float().amax(1), (x,)).graph
    (largest,) = (node for node in graph.nodes if node.target is torch.ops.aten.amax.default)
    assert keep_roundings(graph) == 0
    with graph.inserting_before(largest):
        graph.call_function(inductor_prims.prepare_softmax_online, (largest.args[0], 1))
    assert keep_roundings(graph) == 1
