"""``tools.training``: that all train the same, and which differences of losses are too large."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.cases import SMALL_MODELS
from tools import training
from tools.training import Comparison, Run, Setup, Trainee, comparison_of
from weft.bench.models import MODELS, Model

pytestmark = pytest.mark.where_changed("tools")


def test_all_backends_train_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has the same weights and batches, step by step; what is compiled is eager here."""
    compiled: list[str] = []
    order: list[str] = []

    def compile_nothing(model: Model, *, backend: str, fullgraph: bool) -> Model:
        assert fullgraph
        compiled.append(backend)
        return model

    step = Trainee.step

    def recorded(trainee: Trainee, number: int, batch: list[Tensor]) -> None:
        order.append(trainee.run.backend)
        step(trainee, number, batch)

    monkeypatch.setattr(torch, "compile", compile_nothing)
    monkeypatch.setattr(Trainee, "step", recorded)
    setup = Setup("cpu", batch=2, sequence=16, steps=3, warm_up=1, learning_rate=0.1)
    eager, inductor, weft, backwards = training.train(lambda: MODELS["plain"](**SMALL_MODELS["plain"]), setup)
    assert compiled == ["inductor", "weft"]
    once = ["eager", "inductor", "weft", "reversed"]
    assert order == [*once, *reversed(once), *once]
    assert eager.losses == inductor.losses == weft.losses
    assert 0 < training.largest_difference(backwards.losses, eager.losses) < 1e-3
    assert len(set(eager.losses)) == 3
    assert [(len(run.step_ms), run.first_s > 0, run.launches) for run in (eager, inductor, weft)] == [(2, True, 0)] * 3


def compared(inductor: float, weft: float, backwards: float = 0.0) -> Comparison:
    losses = {"eager": 0.0, "inductor": inductor, "weft": weft, "reversed": backwards}
    return comparison_of([Run(b, [8.0, 7.0 + gap], [1.0], launches=b == "weft") for b, gap in losses.items()])


@pytest.mark.parametrize(
    ("inductor", "backwards", "weft", "agrees"),
    [
        (0.002, 0.0, 0.0055, True),
        (0.002, 0.0, 0.0065, False),
        (0.002, 0.001, -0.0065, False),
        (0.001, -0.002, 0.0055, True),
        (0.001, 0.002, 0.0065, False),
        (0.0, 0.0, 0.0019, True),
        (0.0, 0.0, 0.0021, False),
        (0.002, 0.002, math.nan, False),
        (math.nan, 0.0, 0.0021, False),
        (math.nan, 0.002, 0.0055, True),
    ],
)
def test_what_lies_between_runs_that_are_right_is_the_measure(
    inductor: float, backwards: float, weft: float, agrees: bool
) -> None:
    assert compared(inductor, weft, backwards).agrees is agrees


def test_a_bad_end_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert training.show("plain", compared(0.002, 0.5))
    expected = "DIFFER from eager's: by 0.5 at most, allowed 0.006; those of inductor by 0.002, reversed by 0"
    assert expected in " ".join(capsys.readouterr().out.split())
    found = comparison_of([Run(b, [8.0], [1.0]) for b in ("eager", "inductor", "weft")])
    assert training.show("plain", found)
    assert "weft launched no kernels" in capsys.readouterr().out


def test_steps_have_to_be_more_than_the_warm_up() -> None:
    with pytest.raises(SystemExit):
        training.main(["--steps", "4", "--warm-up", "4"])
