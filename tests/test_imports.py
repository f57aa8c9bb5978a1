"""Imports point one way: what is installed reads nothing that only a checkout has, nothing names a backend but the list
of them, and no file needs itself."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from pathlib import Path

import networkx as nx
import pytest

from weft.backends.listed import BACKENDS

ROOT = Path(__file__).parent.parent
CHECKOUT = {"tools", "tests", "docs", "benchmarks"}
"""Folders beside the package, which no wheel has."""


def modules(text: str) -> Iterator[str]:
    """Modules that a text of Python imports anywhere, what it imports from them, and what it names in a string:
    ``"tools.speed"``."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            parts = node.value.split(".")
            if len(parts) > 1 and all(part.isidentifier() for part in parts):
                yield node.value


def imported(text: str) -> set[str]:
    """Top-level packages of these."""
    return {name.partition(".")[0] for name in modules(text)}


def backends(text: str) -> set[str]:
    """Backends whose folders a text names."""
    parts = (name.split(".") for name in modules(text))
    return {names[2] for names in parts if names[:2] == ["weft", "backends"] and len(names) > 2}.intersection(BACKENDS)


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


def test_nothing_outside_a_backends_folder_names_it() -> None:
    folder = ROOT / "weft" / "backends"
    assert {path.name for path in folder.iterdir() if (path / "backend.py").exists()} == set(BACKENDS)
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "weft").rglob("*.py")):
        own = path.relative_to(folder).parts[0] if path.is_relative_to(folder) else ""
        if others := backends(path.read_text()) - {own}:
            found[str(path.relative_to(ROOT))] = others
    assert found == {}


@pytest.mark.parametrize(
    "text",
    [
        "import weft.backends.triton.text",
        "def f():\n    from weft.backends import triton",
        "from weft.backends.triton.schedule import TritonSchedule",
        "import_module('weft.backends.triton.backend')",
    ],
)
def test_a_backend_that_is_named_is_found(text: str) -> None:
    assert backends(text) == {"triton"}


def needed(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a module but for what only annotations need."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield node
            yield from needed(node)


def edges(text: str, known: Collection[str]) -> set[str]:
    """Which of the known modules a module imports, at its head or later."""
    names = {
        f"{node.module}.{alias.name}"
        for node in needed(ast.parse(text))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return {name if name in known else name.rpartition(".")[0] for name in names}.intersection(known)


def test_no_module_needs_itself() -> None:
    files = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in (ROOT / "weft").rglob("*.py")}
    graph = nx.DiGraph((name, other) for name, path in files.items() for other in edges(path.read_text(), files))
    assert graph.number_of_edges() > 500
    assert [sorted(each) for each in nx.strongly_connected_components(graph) if len(each) > 1] == []


def test_what_only_annotations_need_is_no_circle() -> None:
    text = "from weft.a import b\nif TYPE_CHECKING:\n    from weft.c import d\ndef f():\n    from weft import e"
    assert edges(text, {"weft.a", "weft.c", "weft.e"}) == {"weft.a", "weft.e"}
