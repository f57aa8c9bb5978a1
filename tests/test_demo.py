"""``tools.demo``: what the page and the terminal say of runs that are made up."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from tools import demo
from tools.training import Run, comparison_of

pytestmark = pytest.mark.where_changed("tools")


def found_of(weft: float, inductor: float) -> demo.Found:
    """Runs whose last losses are eager's and so much more."""
    gaps = {"weft": weft, "inductor": inductor, "eager": 0.0}
    runs = [Run(backend, [8.0, 7.0 + gap], [20.0, 30.0, 25.0], first_s=1.5) for backend, gap in gaps.items()]
    return demo.Found(demo.choose_demo(40), comparison_of(runs, demo.LEAST_TOLERANCE), [])


@pytest.mark.parametrize(
    ("weft", "inductor", "verdict"),
    [
        (0.015, 0.0, "weft agrees with eager within bfloat16 noise (tolerance 0.02)"),
        (0.05, 0.02, "weft agrees with eager within bfloat16 noise (tolerance 0.06)"),
        (0.05, 0.01, "weft DIFFERS from eager within bfloat16 noise (tolerance 0.03)"),
        (float("nan"), 0.01, "weft DIFFERS from eager within bfloat16 noise (tolerance 0.03)"),
    ],
)
def test_the_verdict_follows_the_distance_from_eager(weft: float, inductor: float, verdict: str) -> None:
    found = found_of(weft, inductor)
    assert found.verdict == verdict
    assert found.comparison.agrees == ("agrees" in verdict)
    assert found.to_dict()["agrees"] == found.comparison.agrees


def test_page_and_terminal_have_times_losses_and_differences_of_pairs() -> None:
    found, output = found_of(0.01, 0.25), StringIO()
    demo.show(found, Console(file=output, width=100))
    page = demo.render_page(found)
    assert f"<p>{demo.choose_demo(40).text()}; PyTorch " in page
    for text in (output.getvalue(), page):
        for part in ("25.0 ms", "1.5 s", "8.0000", "7.0100", "0.24", "weft and inductor", "inductor and eager"):
            assert part in text
        assert found.verdict in text
    assert page.count("<svg") == 1
