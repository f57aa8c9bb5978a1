"""Imports point one way: what is installed reads nothing that only a checkout has."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CHECKOUT = {"tools", "tests", "docs", "benchmarks"}
"""Folders beside the package, which no wheel has."""


def imported(text: str) -> Iterator[str]:
    """Top-level packages of modules that a text of Python imports anywhere, or names in a string: ``"tools.speed"``."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            head, dot, rest = node.value.partition(".")
            if dot and rest.isidentifier():
                yield head


def test_the_package_imports_only_what_is_installed_with_it() -> None:
    modules = sorted((ROOT / "weft").rglob("*.py"))
    assert len(modules) > 200
    found = {str(path.relative_to(ROOT)): CHECKOUT.intersection(imported(path.read_text())) for path in modules}
    assert {name: packages for name, packages in found.items() if packages} == {}


@pytest.mark.parametrize(
    "text",
    [
        "import tools.gpu_gates",
        "def f():\n    from tools import training",
        "from tools.swept import read",
        "import_module('tools.gpu_gates')",
    ],
)
def test_an_import_of_tools_is_found(text: str) -> None:
    assert "tools" in imported(text)
