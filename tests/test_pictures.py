"""Pictures and measured figures of the pages show what they are made of today; ``make docs`` makes them anew."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from docs import performance, performance_readme, performance_zoo, pictures
from tests.zoo.__main__ import step_ratios

ROOT = Path(__file__).parent.parent


def test_the_picture_of_an_explanation_is_of_the_page_of_today(update_golden: bool) -> None:
    """``update_golden`` skips it for releases of torch that trace other graphs; a browser takes the picture."""
    torch._dynamo.reset()  # sizes that another test varied would be symbols
    assert pictures.source_of(pictures.EXPLANATION) == pictures.digest(pictures.explanation()), "run `make docs`"


def test_the_page_on_performance_is_made_of_the_results() -> None:
    """Both the page and its picture."""
    text, cells, drawn = performance.written()
    assert performance.PAGE_FILE.read_text() == text, "run `make docs`"
    assert pictures.source_of(performance.PICTURE) == performance.plot_source(cells, drawn), "run `make docs`"


def test_tables_and_ratios_of_the_readme_are_made_of_the_results() -> None:
    page = performance.README.read_text()
    assert page == performance_readme.with_tables(page, performance.readme_tables()), "run `make docs`"
    h200, h100 = (
        performance_readme.range_of_steps(performance.zoo(performance.results_of(names)))
        for names in (performance.ZOO, performance.ZOO_H100)
    )
    assert f"{h200} of TorchInductor's time on an H200, {h100} on an H100" in " ".join(page.split())


def test_no_other_picture_is_there_and_none_is_missing() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    shown = {
        (page.parent / name).resolve()
        for page in pages
        for name in re.findall(r"!\[[^]]*\]\(([^)]*)\)", page.read_text())
    }
    checked = {pictures.EXPLANATION, performance.PICTURE}
    assert shown == {path.resolve() for path in checked}
    assert {path for path in ROOT.glob("docs/**/*") if path.suffix in (".png", ".svg", ".jpg", ".gif")} == checked


def test_a_picture_says_what_it_was_made_of(tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    assert pictures.source_of(picture) == ""
    picture.write_bytes(pictures.EXPLANATION.read_bytes())
    pictures.keep_source(picture, "another page")
    assert pictures.source_of(picture) == "another page"


def test_what_the_last_processes_found_of_a_model_is_shown() -> None:
    """A step is that of the training that is shown, and of processes that came with it or behind it."""

    def training(ms: float) -> dict[str, object]:
        return {"comparison": {"runs": {"weft": {"median_ms": ms}, "inductor": {"median_ms": 10.0}}}}

    first = {"training": training(9.0), "steps 1": {"median_ms": {"weft": 9.5, "inductor": 10.0}}, "f32": {"wrong": []}}
    last = {"training": training(8.0)}
    again = {"steps 1": {"median_ms": {"weft": 7.0, "inductor": 10.0}}}
    results = [{"models": {"gpt2": each}} for each in (first, last, again)]
    assert step_ratios(performance_zoo.zoo(results[:1])["gpt2"]) == [0.9, 0.95]
    assert step_ratios(performance_zoo.zoo(results[:2])["gpt2"]) == [0.8]
    assert step_ratios(performance_zoo.zoo(results)["gpt2"]) == [0.8, 0.7]
    assert "f32" in performance_zoo.zoo(results)["gpt2"]
