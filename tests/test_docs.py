"""What the pages show is what their code prints."""

from __future__ import annotations

import re
from difflib import unified_diff
from pathlib import Path
from typing import get_args

import pytest

from tests.docs_blocks import find_blocks, rerun
from weft.plan.schedule import Scheme

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))


@pytest.mark.parametrize("name", PAGES)
def test_outputs_are_what_the_code_prints(name: str, update_golden: bool) -> None:
    page = ROOT / name
    found = rerun(page, name)
    if update_golden:
        page.write_text(found)
    difference = "\n".join(unified_diff(page.read_text().splitlines(), found.splitlines(), "page", "code", lineterm=""))
    if difference:
        pytest.fail(
            f"{name}: write it anew with `pytest tests/test_docs.py --update-golden`\n{difference}", pytrace=False
        )


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_to_files(name: str) -> None:
    page = ROOT / name
    prose = [re.sub("`[^`]*`", "", text) for text in page.read_text().split("```")[::2]]
    targets = [part.split(")")[0] for text in prose for part in text.split("](")[1:]]
    missing = [t for t in targets if "://" not in t and not (page.parent / t.split("#")[0]).exists()]
    assert not missing


def test_commands_are_quoted_for_shells_that_expand_brackets() -> None:
    """zsh takes ``bf16[8192,4096]`` for a pattern of files, and runs nothing where none has such a name."""
    blocks = [block for name in PAGES for block in re.findall(r"```sh\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)]
    lines = [line.partition("#")[0] for block in blocks for line in block.splitlines()]
    for path in (ROOT / "weft" / "commands").glob("*.py"):
        lines += re.findall(r"^    (weft .*)$", path.read_text(), re.MULTILINE)
    typed = [line for line in lines if "[" in line]
    assert len(typed) > 8
    assert [line for line in typed if "[" in re.sub(r"'[^']*'", "", line)] == []


def test_the_schemes_of_a_page_are_those_that_the_planner_chooses_from() -> None:
    lines = (ROOT / "docs" / "ir.md").read_text().splitlines()
    (row,) = (line for line in lines if line.startswith("| scheme |"))
    choosing = "".join(file.read_text() for file in (ROOT / "weft" / "backends").rglob("*.py"))
    chosen = {scheme for scheme in get_args(Scheme) if f'"{scheme}"' in choosing}
    assert set(re.findall("`([A-Z_]+)`", row)) == set(get_args(Scheme)) == chosen


def test_the_rules_of_a_page_are_rules_that_weft_has() -> None:
    rows = [line for line in (ROOT / "docs" / "debugging.md").read_text().splitlines() if line.startswith("| `")]
    rules = {rule for row in rows for rule in re.findall(r"`([a-z]+_[a-z_]+|misaligned)`", row.split(" | ")[0])}
    code = "".join(path.read_text() for path in (ROOT / "weft").rglob("*.py"))
    assert len(rules) > 10
    assert [rule for rule in sorted(rules) if f'"{rule}"' not in code] == []


def test_outputs_are_replaced_and_added_where_there_are_none(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    first, second = "# A\n```python\na = 1\nprint(a)\n```\n", "B\n```python\nprint(a + 1)\n```\n"
    rest = "```sh\nx\n```\n"
    page.write_text(f"{first}\n```cpp\nold\n```\n{second}{rest}")
    new = f"{first}\n```cpp\n1\n```\n{second}\n```text\n2\n```\n{rest}"
    assert rerun(page, "page.md") == new
    page.write_text(new)
    assert rerun(page, "page.md") == new


def test_code_has_the_line_numbers_of_its_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    code = "import inspect\n\n\ndef f():\n    return 1\n\n\nprint(inspect.getsourcelines(f))"
    page.write_text(f"# A\n\n```python\n{code}\n```\n")
    assert "(['def f():\\n', '    return 1\\n'], 7)" in rerun(page, "page.md")


def test_a_block_that_is_not_closed_is_an_error() -> None:
    with pytest.raises(ValueError, match="line 2: the block is not closed"):
        find_blocks(["# A", "```python", "a = 1"])
