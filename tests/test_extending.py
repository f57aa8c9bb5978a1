"""The pages on how weft is extended: their diffs apply to this checkout, and what they say of it is true there."""

from __future__ import annotations

import importlib.util
import re
from difflib import unified_diff
from pathlib import Path

import pytest

from tests import extending
from tests.extending import FOLDER, NAMES, ROOT

pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="git does not know which files are the checkout's")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkout without any of the changes."""
    folder = tmp_path_factory.mktemp("checkout")
    extending.copy_checkout(folder)
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_the_diff_applies_and_the_page_shows_it(name: str, copy: Path, update_golden: bool) -> None:
    """Lines may have moved since: ``--update-golden`` writes where they are."""
    page, file = (ROOT / FOLDER / f"{name}.{kind}" for kind in ("md", "diff"))
    diff = file.read_text()
    extending.run(copy, "apply", str(file))
    try:
        new = extending.made_again(copy, diff)
    finally:
        extending.run(copy, "checkout", "-q", ".")
    assert without_places(new) == without_places(diff)
    if update_golden:
        file.write_text(new)
        page.write_text(extending.with_diff(page.read_text(), new))
    assert extending.shown(page.read_text()) == file.read_text(), f"{page.name} shows another diff: {REWRITE}"


def without_places(diff: str) -> str:
    """A diff without the numbers of its lines and what they are in."""
    return re.sub(r"(?m)^@@ .*$", "@@", diff)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton's interpreter runs one of the kernels")
def test_with_the_diffs_the_pages_are_true(copy: Path, update_golden: bool) -> None:
    """All of them, in one copy and one process."""
    for name in NAMES:
        extending.run(copy, "apply", str(ROOT / FOLDER / f"{name}.diff"))
    try:
        printed = extending.printed_in(copy, NAMES)
    finally:
        extending.run(copy, "checkout", "-q", ".")
    for name, text in printed.items():
        page, file = (ROOT / FOLDER / f"{name}.{kind}" for kind in ("md", "diff"))
        found = extending.with_diff(text, file.read_text())  # where lines of the copy have moved, as it is written anew
        if update_golden:
            page.write_text(found)
        lines = unified_diff(page.read_text().splitlines(), found.splitlines(), "page", "code", lineterm="")
        if difference := "\n".join(lines):
            pytest.fail(f"{page.name}: {REWRITE}\n{difference}", pytrace=False)


REWRITE = "write it anew with `make docs`"
