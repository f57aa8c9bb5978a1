"""Compiles the kernels of a case as one text: the compiler reads the header once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from weft.options import Options
from weft.render.source import Source
from weft.runtime import build


def compile_sources(sources: Sequence[Source]) -> dict[str, Callable[..., None]]:
    """Functions of all kernels by name; the names differ. The library leaves no file behind."""
    text = Source("cpp", sources[0].entry, "\n".join(source.text for source in sources))
    path: Path = build.library(text, Options.read())
    functions = {source.entry: build.open_library(path, source.entry) for source in sources}
    for leftover in path.parent.glob(f"{path.stem}*"):
        leftover.unlink(missing_ok=True)
    return functions
