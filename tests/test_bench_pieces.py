"""Pieces of models that are timed on a GPU: what they compute, and what is said of wrong results."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import weft
from tools import pieces
from tools.pieces import Piece, trained, wrong_of

pytestmark = pytest.mark.where_changed("tools")


def small(name: str) -> Piece:
    return pieces.pieces(2, 6, 3, 16, 40, "cpu")[name]


@pytest.mark.parametrize("name", ["query_norm", "shifted_loss"])
def test_weft_has_all_of_a_piece(name: str) -> None:
    piece = small(name)
    torch._dynamo.reset()
    weft.counters.reset()
    mine = trained(torch.compile(piece.function, backend="weft"), piece.inputs, piece)
    assert weft.counters.launches >= 2, "forward and backward"
    assert not wrong_of(piece, mine.tensors)
    assert len(mine.tensors) == 1 + len(piece.learned)


def test_a_wrong_gradient_is_named() -> None:
    piece = small("query_norm")
    right = trained(piece.function, piece.inputs, piece).tensors
    for change in (lambda x: x + 1, lambda x: x * torch.nan):
        wrong = [right[0], change(right[1]), right[2]]
        assert [text.split(" is ")[0] for text in wrong_of(piece, wrong)] == ["result 1"]


def test_a_query_norm_is_that_of_the_model() -> None:
    """By its definition: each head normed, each pair of elements turned by its position's angle."""
    x, weight, cos, sin = (t.double() for t in small("query_norm").inputs)
    found = pieces.query_norm(x, weight, cos, sin)
    heads = x.view(2, 6, 3, 16)
    normed = weight * heads / (heads.square().mean(-1, keepdim=True) + pieces.EPS).sqrt()
    pairs = torch.complex(normed[..., :8], normed[..., 8:]) * torch.complex(cos[:, :8], sin[:, :8])[:, None]
    wanted = torch.cat((pairs.real, pairs.imag), -1)
    torch.testing.assert_close(found, wanted)


def test_the_table_has_all_figures() -> None:
    figures = {"copy": (1.0, 2.0), "inductor": (2.0, 4.0), "weft": (1.25, 2.5)}
    found: dict[str, dict[str, object]] = {
        "piece": {who: dict(zip(("forward", "backward"), times, strict=True)) for who, times in figures.items()}
    }
    found["piece"]["wrong"] = ["result 0 is far from float64"]
    shown = pieces.table(found)
    columns: list[list[object]] = [list(column.cells) for column in shown.columns]
    assert columns[1] == ["forward", "backward", "both", "wrong"]
    assert columns[5][:3] == ["0.625"] * 3
    assert columns[6][:3] == ["0.800"] * 3


def test_no_gpu_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        pieces.main([])
    assert "torch sees no GPU" in capsys.readouterr().err


def test_what_is_timed_is_what_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    piece = small("query_norm")
    calls: list[int] = []

    def timed(runs: list[object], rounds: int, device: torch.device) -> list[float]:
        calls.append(rounds)
        for run in runs:
            result = run()  # type: ignore[operator]
            assert all(isinstance(each, Tensor) for each in (result if isinstance(result, tuple) else [result]))
        return [float(i + 1) for i in range(len(runs))]

    monkeypatch.setattr(pieces, "medians_us", timed)
    monkeypatch.setattr(pieces, "DEVICE", "cpu")
    torch._dynamo.reset()
    found = pieces.measured(piece, 3)
    assert calls == [3]
    assert found["copy"] == {"forward": 1.0, "backward": 4.0}
    assert found["weft"] == {"forward": 3.0, "backward": 6.0}
    assert not found["wrong"]
