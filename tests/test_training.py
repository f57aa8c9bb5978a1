"""``weft.bench.training``: that all train the same, and which differences of losses are too large."""

from __future__ import annotations

import math

import pytest

from tests.cases import SMALL_MODELS
from weft.bench import training
from weft.bench.models import MODELS
from weft.bench.training import Comparison, Run, Setup, comparison_of


def test_all_backends_train_alike(capsys: pytest.CaptureFixture[str]) -> None:
    setup = Setup("cpu", batch=2, sequence=16, steps=3, warm_up=1, learning_rate=0.1)
    name = "scale_shift_table"
    runs = training.train(lambda: MODELS[name](**SMALL_MODELS[name]), setup)
    assert [run.backend for run in runs] == ["eager", "inductor", "weft"]
    assert [(len(run.losses), len(run.step_ms)) for run in runs] == [(3, 2)] * 3
    assert all(run.first_s > 0 for run in runs)
    assert [bool(run.launches) for run in runs] == [False, False, True]
    assert not training.show(name, comparison_of(runs))
    assert "weft's losses agree with eager's: by " in capsys.readouterr().out


def compared(inductor: float, weft: float) -> Comparison:
    losses = {"eager": 0.0, "inductor": inductor, "weft": weft}
    return comparison_of([Run(b, [8.0, 7.0 + gap], [1.0], launches=b == "weft") for b, gap in losses.items()])


@pytest.mark.parametrize(
    ("inductor", "weft", "agrees"),
    [
        (0.002, 0.0055, True),
        (0.002, 0.0065, False),
        (0.002, -0.0065, False),
        (0.0, 0.0019, True),
        (0.0, 0.0021, False),
        (0.002, math.nan, False),
        (math.nan, 0.0021, False),
    ],
)
def test_what_lies_between_eager_and_inductor_is_the_measure(inductor: float, weft: float, agrees: bool) -> None:
    assert compared(inductor, weft).agrees is agrees


def test_a_bad_end_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert training.show("plain", compared(0.002, 0.5))
    expected = "weft's losses DIFFER from eager's: by 0.5 at most, allowed 0.006; TorchInductor's do by 0.002"
    assert expected in " ".join(capsys.readouterr().out.split())
    found = comparison_of([Run(b, [8.0], [1.0]) for b in ("eager", "inductor", "weft")])
    assert training.show("plain", found)
    assert "weft launched no kernels" in capsys.readouterr().out


def test_steps_have_to_be_more_than_the_warm_up() -> None:
    with pytest.raises(SystemExit):
        training.main(["--steps", "4", "--warm-up", "4"])
