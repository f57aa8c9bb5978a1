"""Compiles the kernels of a case as one text: the compiler reads the header once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.options import Options
from weft.render.source import Source
from weft.runtime import build


def compile_sources(sources: Sequence[Source]) -> dict[str, Callable[..., None]]:
    """Functions of all kernels by name; the names differ."""
    text = Source("cpp", sources[0].entry, "\n".join(source.text for source in sources))
    content = build.library(text, Options.read())
    return {source.entry: build.open_library(content, source.entry) for source in sources}
