"""The text of a kernel, and a small writer for indented blocks."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Source:
    """One compilable text. name: that of its kernel."""

    language: str
    name: str
    text: str

    def __str__(self) -> str:
        return self.text

    @property
    def entry(self) -> str:
        """The exported function, whose name no library of C has: a kernel may be called ``exp``."""
        return entry_of(self.name)

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(f"{self.language}\0{self.name}\0{self.text}".encode()).hexdigest()[:32]


def entry_of(kernel: str) -> str:
    """The exported function of a kernel."""
    return f"weft_{kernel}"


class Writer:
    """Collects lines; ``block`` indents what is written inside."""

    indent = "  "

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 0

    def line(self, text: str = "") -> None:
        self._lines.append(self.indent * self._depth + text if text else "")

    @contextmanager
    def block(self, head: str, tail: str = "}") -> Generator[None]:
        self.line(f"{head} {{" if head else "{")
        self._depth += 1
        yield
        self._depth -= 1
        self.line(tail)

    @contextmanager
    def index(self, name: str, text: str) -> Generator[None]:
        """Defines an index before what is written inside, if that uses it."""
        at, indent = len(self._lines), self.indent * self._depth
        yield
        if any(re.search(rf"\b{name}\b", line) for line in self._lines[at:]):
            self._lines.insert(at, f"{indent}const int64_t {name} = {text};")

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


class PythonWriter(Writer):
    """The same for Python: a block without a head is no block."""

    indent = "    "

    @contextmanager
    def block(self, head: str, tail: str = "") -> Generator[None]:
        if head:
            self.line(f"{head}:")
        self._depth += bool(head)
        yield
        self._depth -= bool(head)
        if tail:
            self.line(tail)
