"""Plans that TorchInductor's compile workers make."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
import torch

from tests.test_compile_workers import Pool, done, failed
from weft import planning
from weft.capture.trace import trace
from weft.compiler import Compilation, compile_graph
from weft.runtime import compile_workers
from weft.runtime.compile_workers import Task
from weft.target import Target

H200 = Target.named("h200")


def norms(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Three regions, two of which are the same program."""
    x = torch.softmax(torch.softmax(x @ w, -1) @ w, -1)
    return x @ w + (y * torch.rsqrt(y.square().mean(-1, keepdim=True))).sum(0)


def compiled(target: Target = H200) -> Compilation:
    inputs = torch.randn(4096, 1024), torch.randn(4096, 1024), torch.randn(1024, 1024)
    return compile_graph(trace(norms, list(inputs)).graph, target=target)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Pool]:
    """Takes a pool for TorchInductor's."""

    def take(pool: Pool, workers: int = 4) -> Pool:
        monkeypatch.setattr(compile_workers, "_pool", lambda: pool)
        monkeypatch.setattr(compile_workers, "count", lambda: workers)
        return pool

    return take


@pytest.fixture
def made_here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the programs that this process planned."""
    plan, seen = planning.plan, list[str]()

    def seeing(program: Any, *rest: Any, **named: Any) -> Any:
        seen.append(program.name)
        return plan(program, *rest, **named)

    monkeypatch.setattr(planning, "plan", seeing)
    return seen


def test_each_program_is_planned_once_and_by_a_worker(use: Callable[..., Pool]) -> None:
    expected = compiled()
    pool = use(Pool(done))
    found = compiled()
    assert pool.asked == ["plan", "plan"]
    assert [region.plan for region in found.regions] == [region.plan for region in expected.regions]
    assert str(found) == str(expected)
    assert len(found.regions) == 3


def test_all_are_begun_before_the_first_is_waited_for(use: Callable[..., Pool]) -> None:
    happened: list[str] = []

    class Late(Future[Any]):
        def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
            super().__init__()
            self.set_result(function(*arguments))
            happened.append("begun")

        def result(self, timeout: float | None = None) -> Any:
            happened.append("waited")
            return super().result(timeout)

    use(Pool(Late))
    compiled()
    assert happened == ["begun", "begun", "waited", "waited"]


@pytest.mark.parametrize("answer", [failed(RuntimeError("killed")), failed(ValueError("planned to fail"))])
def test_what_a_worker_does_not_plan_is_planned_here(
    use: Callable[..., Pool], made_here: list[str], answer: Any
) -> None:
    expected = str(compiled())
    made_here.clear()
    pool = use(Pool(answer))
    assert str(compiled()) == expected
    assert len(pool.asked) == len(made_here) == 2


def test_workers_plan_for_gpus_if_there_are_several(use: Callable[..., Pool], made_here: list[str]) -> None:
    pool = use(Pool(done))
    compiled(Target.named("cpu"))
    use(pool, workers=1)
    compiled()
    assert pool.asked == []
    assert len(made_here) == 4


def test_plans_of_other_processes_are_as_good(real_pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal to those that are made here, and found under the same keys: hashes of text differ between processes."""
    with monkeypatch.context() as here:
        here.setattr(compile_workers, "count", lambda: 0)
        expected = [region.plan for region in compiled().regions]
    result, received = Task.result, list[Any]()
    monkeypatch.setattr(Task, "result", lambda task: received.append(result(task)) or received[-1])
    assert compile_workers.count() > 1
    found = [region.plan for region in compiled().regions]
    assert found == expected
    assert len(received) == 2
    assert all(any(plan is each for each in received) for plan in found)
    kernels = {kernel for plan in expected for kernel in plan.kernels}
    assert {kernel for plan in found for kernel in plan.kernels} == kernels
