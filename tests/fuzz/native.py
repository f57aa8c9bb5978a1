"""Compiles the kernels of a case as one text: the compiler reads the header once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.options import Options
from weft.render.source import Source
from weft.runtime import build
from weft.runtime.cache import Cache


def compile_sources(sources: Sequence[Source]) -> dict[str, Callable[..., None]]:
    """Functions of all kernels by name; names of kernels that differ do. Random kernels are not kept: nobody asks for
    them again."""
    texts = dict.fromkeys(source.text for source in sources)
    text = Source("cpp", sources[0].name, "\n".join(texts))
    options = Options.read()
    store = Cache(options.cache_dir, options.cache_bytes)
    content = build._compile_kernel(text, build.find_compiler(options), store)
    return {source.name: build.open_library(content, source.entry) for source in sources}
