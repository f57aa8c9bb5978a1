"""Runs the code and the commands of a Markdown page and puts what they print into the page.

A ``python`` block that is followed, after blank lines only, by a ``text`` or ``cpp`` block is a pair of code and its
output. All blocks of a page share one namespace and run in order, as one program would in a fresh process.

A ``console`` block has commands of weft, each behind ``$``, and below each what it prints. Where that differs from
machine to machine, ``...`` stands for any part of a line or, alone in a line, for any lines; once something else has
changed, all that is printed is put there, to be shortened again by hand.
"""

from __future__ import annotations

import linecache
import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import torch
from torch._inductor.utils import fresh_cache

import weft
from weft.cli import run as run_command

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
            if block.language == "console":
                written += [*lines[at : block.first + 1], *_typed(block), "```"]
                at = block.end
            if block.language != "python":
                continue
            written += lines[at : block.end]
            at = block.end
            printed = _run(block, len(written) - len(block.lines) - 1, written, module)
            old = blocks[index + 1] if index + 1 < len(blocks) and is_output(blocks[index + 1], block, lines) else None
            if printed:
                written += ["", f"```{old.language if old else 'text'}", *printed, "```"]
            if old is not None:
                at = old.end
    return "\n".join([*written, *lines[at:], ""])


def is_output(block: Block, code: Block, lines: list[str]) -> bool:
    """Whether a block is the output of one of code."""
    return block.language in OUTPUTS and not any(lines[code.end : block.first])


def _run(block: Block, offset: int, page: list[str], module: ModuleType) -> list[str]:
    """Lines that a block prints. Its code has the line numbers of the page as it is being written."""
    name = str(module.__file__)
    linecache.cache[name] = (0, None, [line + "\n" for line in page], name)
    code = compile("\n" * offset + "\n".join(block.lines), name, "exec")
    printed = StringIO()
    with redirect_stdout(printed):
        exec(code, vars(module))
    return _lines(printed)


def _lines(printed: StringIO) -> list[str]:
    return [line.rstrip() for line in printed.getvalue().strip("\n").splitlines()]


def _typed(block: Block) -> list[str]:
    """Lines of a console block, every command with what it prints now."""
    starts = [at for at, line in enumerate(block.lines) if line.startswith("$ ")]
    if starts[:1] != [0]:
        raise ValueError(f"line {block.first + 2}: a console block begins with a command")
    found: list[str] = []
    for start, end in pairwise([*starts, len(block.lines)]):
        shown = list(block.lines[start + 1 : end])
        printed = _printed_by(block.lines[start].removeprefix("$ "))
        found += [block.lines[start], *(shown if _fits(shown, printed) else printed)]
    return found


def _printed_by(command: str) -> list[str]:
    """Lines that a command of weft prints: variables, ``weft``, arguments."""
    words = shlex.split(command)
    count = words.index("weft")
    variables = dict(word.split("=", 1) for word in words[:count])
    printed = StringIO()
    with patch.dict(os.environ, variables), redirect_stdout(printed):
        run_command(words[count + 1 :])
    return _lines(printed)


def _fits(shown: list[str], printed: list[str]) -> bool:
    """Whether lines are others, but for what ``...`` stands for."""
    pattern = "".join(".*" if line == "..." else re.escape(f"{line}\n").replace(r"\.\.\.", "[^\n]*") for line in shown)
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in printed), re.DOTALL) is not None


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
