"""The pages of docs/extending in a copy of the checkout that has their changes.

``python -m tests.extending PAGE...``, run in such a copy with ``TRITON_INTERPRET=1``, prints JSON: page -> its text
with what its code and its commands print there. Before, the tests that the page runs with ``pytest`` have to pass, but
for those whose line says how long they take.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDER = Path("docs", "extending")
NAMES = ("op", "schedule_field", "refusal")
LEFT_OUT = ("benchmarks", "tests/golden", "tests/golden_plans")
"""Of the copy: large, and not needed."""
CONTEXT = 2
"""Lines around a change."""


def main(names: Sequence[str]) -> int:
    """Run the tests of the pages and then the pages; 1 if a test fails."""
    import pytest

    from tests.docs_blocks import rerun

    pages = {name: FOLDER / f"{name}.md" for name in names}
    with redirect_stdout(sys.stderr):
        for page in pages.values():
            for arguments in commands(page.read_text()):
                if pytest.main(["-q", "-p", "no:cacheprovider", *arguments]) != 0:
                    return 1
        found = {name: rerun(page, str(page)) for name, page in pages.items()}
    print(json.dumps(found))
    return 0


def commands(page: str) -> list[list[str]]:
    """Arguments of each command of a page that runs a few tests."""
    import shlex

    lines = re.findall(r"(?m)^\.venv/bin/pytest (.*)$", page)
    return [shlex.split(line) for line in lines if "#" not in line]


def copy_checkout(target: Path) -> None:
    """What git knows of the checkout, or would add to it, as a repository of one commit."""
    names = run(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    for name in sorted(set(filter(None, names))):
        if not name.startswith(LEFT_OUT) and (ROOT / name).is_file():
            made = target / name
            made.parent.mkdir(parents=True, exist_ok=True)
            made.write_bytes((ROOT / name).read_bytes())
    run(target, "init", "-q")
    run(target, "add", "--all")
    author = ("-c", "user.name=nobody", "-c", "user.email=nobody@localhost", "-c", "commit.gpgsign=false")
    run(target, *author, "commit", "-q", "-m", "the checkout")


def run(folder: Path, *arguments: str) -> str:
    """What git prints. Raises AssertionError with what it complains of."""
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def sections(diff: str) -> dict[str, str]:
    """What a unified diff changes, by file."""
    parts = re.split(r"(?m)^(?=--- a/)", diff)
    return {part.splitlines()[1].removeprefix("+++ b/"): part for part in parts if part}


def shown(page: str) -> str:
    """All that the diffs of a page change, in their order."""
    return "".join(re.findall(r"(?ms)^```diff\n(.*?)^```$", page))


def with_diff(page: str, diff: str) -> str:
    """A page that shows each file's part of a diff where it showed that file."""
    known = sections(diff)

    def renewed(block: re.Match[str]) -> str:
        return "```diff\n" + "".join(known[path] for path in sections(block[1])) + "```"

    return re.sub(r"(?ms)^```diff\n(.*?)^```$", renewed, page)


def made_again(copy: Path, diff: str) -> str:
    """A diff that was applied to a copy, with today's lines around it, its files in the same order."""
    new = re.sub(r"(?m)^(diff --git|index) .*\n", "", run(copy, "diff", f"-U{CONTEXT}", "--no-color"))
    by_file = sections(new)
    return "".join(by_file[path] for path in sections(diff))


def printed_in(copy: Path, names: Sequence[str]) -> dict[str, str]:
    """The pages as they are printed in a copy with their changes, in a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(copy), "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "tests.extending", *names]
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
