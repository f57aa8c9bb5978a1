"""Runs the Python blocks of a Markdown page and puts what they print into the block behind each.

A ``python`` block that is followed, after blank lines only, by a ``text`` or ``cpp`` block is a pair of code and its
output. All blocks of a page share one namespace and run in order, as one program would in a fresh process.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import torch
from torch._inductor.utils import fresh_cache

import weft

OUTPUTS = ("text", "cpp")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its lines, and the lines of the page that it takes, fences included."""

    language: str
    lines: tuple[str, ...]
    first: int
    end: int


def find_blocks(lines: list[str]) -> list[Block]:
    """The fenced blocks of a page. Raises ValueError if one is not closed."""
    blocks: list[Block] = []
    opened: int | None = None
    for number, line in enumerate(lines):
        if opened is None and line.startswith("```"):
            opened = number
        elif opened is not None and line == "```":
            blocks.append(Block(lines[opened][3:], tuple(lines[opened + 1 : number]), opened, number + 1))
            opened = None
    if opened is not None:
        raise ValueError(f"line {opened + 1}: the block is not closed")
    return blocks


def rerun(page: Path, name: str) -> str:
    """The text of a page with every output replaced by what its code prints; ``name`` is its file in messages."""
    lines = page.read_text().splitlines()
    blocks = find_blocks(lines)
    written: list[str] = []
    at = 0
    with _fresh_module(name) as module:
        for index, block in enumerate(blocks):
            if block.language != "python":
                continue
            written += lines[at : block.end]
            at = block.end
            printed = _run(block, len(written) - len(block.lines) - 1, written, module)
            old = blocks[index + 1] if index + 1 < len(blocks) and _is_output(blocks[index + 1], block, lines) else None
            if printed:
                written += ["", f"```{old.language if old else 'text'}", *printed, "```"]
            if old is not None:
                at = old.end
    return "\n".join([*written, *lines[at:], ""])


def _is_output(block: Block, code: Block, lines: list[str]) -> bool:
    return block.language in OUTPUTS and not any(lines[code.end : block.first])


def _run(block: Block, offset: int, page: list[str], module: ModuleType) -> list[str]:
    """Lines that a block prints. Its code has the line numbers of the page as it is being written."""
    name = str(module.__file__)
    linecache.cache[name] = (0, None, [line + "\n" for line in page], name)
    code = compile("\n" * offset + "\n".join(block.lines), name, "exec")
    printed = StringIO()
    with redirect_stdout(printed):
        exec(code, vars(module))
    return [line.rstrip() for line in printed.getvalue().strip("\n").splitlines()]


@contextmanager
def _fresh_module(name: str) -> Iterator[ModuleType]:
    """A module for the code of a page, with compilers and counters as a new process has them."""
    module = ModuleType("weft_docs_page")
    module.__file__ = name
    sys.modules[module.__name__] = module
    torch._dynamo.reset()
    weft.counters.reset()
    weft.clear_reports()
    try:
        # a graph from Inductor's cache does not pass through weft's stages; predictions are those of any CPU
        with fresh_cache(), patch("weft.target.vendor", lambda: ""):
            yield module
    finally:
        del sys.modules[module.__name__]
        linecache.cache.pop(name, None)
