"""Triton's front end: from the text of a source to what ``triton.compile`` takes. Needs Triton to be imported."""

from __future__ import annotations

import linecache
from threading import Lock
from typing import Any

from triton.compiler import ASTSource

from weft.backends.source import Source

_FRONT_END = Lock()


class SerialSource(ASTSource):
    """A function that ``triton.compile`` parses while no other thread of weft's parses one. Up to 3.11.7 Python counts
    how deep it is in a tree for all threads together: of two that parse at the same time one may get a SystemError
    (python/cpython issue 106905). Nothing is lost, since Python's lock is held throughout the front end."""

    def hash(self) -> str:
        with _FRONT_END:
            return super().hash()

    def make_ir(self, *arguments: Any, **named: Any) -> Any:
        with _FRONT_END:
            return super().make_ir(*arguments, **named)


def functions_of(source: Source) -> dict[str, Any]:
    """What the text of a source defines, by name: ``triton.jit`` functions that find their own text again, and so do
    tracebacks. Raises whatever the text raises."""
    name = f"<weft {source.name} {source.digest}>"
    linecache.cache[name] = (len(source.text), None, source.text.splitlines(keepends=True), name)
    module: dict[str, Any] = {"__name__": f"weft_kernel_{source.digest}"}
    exec(compile(source.text, name, "exec"), module)
    return module
