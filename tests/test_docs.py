"""What the pages show is what their code prints."""

from __future__ import annotations

import re
from difflib import unified_diff
from glob import glob
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import get_args

import pytest

from tests.docs_blocks import find_blocks, is_output, rerun
from weft.plan.schedule import Scheme

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))
"""Whose outputs are written here; those of docs/extending are by ``tests/test_extending.py``."""
ALL = ("README.md", "CONTRIBUTING.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md")))
AS_MEASURED = ("docs/performance.md",)
"""Names that commands of measurements have in it are of the day that they were run."""


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


@pytest.mark.parametrize("name", ALL)
def test_links_lead_to_files(name: str) -> None:
    page = ROOT / name
    prose = [re.sub("`[^`]*`", "", text) for text in page.read_text().split("```")[::2]]
    targets = [part.split(")")[0] for text in prose for part in text.split("](")[1:]]
    missing = [t for t in targets if "://" not in t and not (page.parent / t.split("#")[0]).exists()]
    assert not missing


@pytest.mark.parametrize("name", ALL)
def test_what_looks_like_an_output_is_one_or_says_that_it_is_an_example(name: str) -> None:
    """An example cannot be printed anew, as it differs from machine to machine or takes a GPU. The text around it says
    so."""
    lines = (ROOT / name).read_text().splitlines()
    blocks = find_blocks(lines)
    known = ("python", "sh", "console", "diff", "text example", "text drawing")
    unknown = [
        f"line {block.first + 1}"
        for before, block in pairwise([None, *blocks])
        if block is not None
        and block.language not in known
        and not (before is not None and before.language == "python" and is_output(block, before, lines))
    ]
    assert unknown == []


@pytest.mark.parametrize("name", [name for name in ALL if name not in AS_MEASURED])
def test_files_and_modules_that_a_page_names_are_there(name: str) -> None:
    page = (ROOT / name).read_text()
    blocks = find_blocks(page.splitlines())
    typed = [line for block in blocks if block.language == "sh" for line in block.lines]
    drawn = [line for block in blocks if block.language == "text drawing" for line in block.lines]
    typed += [word.rstrip(",:;") for line in drawn for word in line.split()]
    missing: list[str] = []
    for words in (*re.findall(r"`([^`\n]+)`", "".join(page.split("```")[::2])), *typed):
        paths = re.findall(r"(?<![\w/.~-])((?:weft|tests|tools|docs|benchmarks)/[\w./*-]+)", words)
        missing += [path for path in paths if not glob(path, root_dir=ROOT)]
        if re.fullmatch(r"[\w/]+\.(?:py|json|csv|h|cpp|md)", words):
            missing += [words] if not any(glob(f"{p}{words}", root_dir=ROOT, recursive=True) for p in PLACES) else []
        names = re.findall(r"(?<![\w.\"=/])((?:weft|tools|tests)(?:\.[a-z_]\w*)+)", words)
        missing += [each for each in names if not is_named_in_python(each)]
    assert missing == []


PLACES = ("", *(f"{folder}/**/" for folder in ("weft", "tests", "tools", "docs", "benchmarks")))
"""Of files that are named without a folder, or with a part of theirs."""


def is_named_in_python(dotted: str) -> bool:
    """Whether a dotted name is a module, or something in one."""
    parts = dotted.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: object = import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for part in parts[count:]:
            found = getattr(found, part, None)
        return found is not None
    return False


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


def test_commands_print_below_themselves(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    begin = "# A\n\n```console\n$ weft rules no_reduction\n"
    rest = "$ COLUMNS=60 weft rules max_reads\nold\n```\nB\n"
    page.write_text(f"{begin}old\n{rest}")
    new = rerun(page, "page.md")
    assert new.startswith(f"{begin}no_reduction (capture)\n  No sum,")
    assert "$ COLUMNS=60 weft rules max_reads\nmax_reads (plan)\n" in new
    assert new.endswith("Leave `max_reads` at 0.\n```\nB\n")
    page.write_text(new)
    assert rerun(page, "page.md") == new
    for shown in ("no_red...tion (capture)\n...\n  What you can do: ...\n", "...\n"):
        page.write_text(f"{begin}{shown}```\n")
        assert rerun(page, "page.md") == page.read_text()
    page.write_text(f"{begin}no_red...tion (plan)\n...\n```\n")
    assert rerun(page, "page.md").startswith(f"{begin}no_reduction (capture)\n  No sum,")


def test_a_console_block_begins_with_a_command(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A\n```console\nmax_reads\n```\n")
    with pytest.raises(ValueError, match="line 3: a console block begins with a command"):
        rerun(page, "page.md")
