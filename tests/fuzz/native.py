"""Compiles the kernels of a case as one text: the compiler reads the header once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from weft.backends.source import Source
from weft.options import Options
from weft.runtime import build
from weft.runtime.cache import Cache


def compile_sources(sources: Sequence[Source]) -> dict[str, Callable[..., None]]:
    """Functions of all kernels by name; names of kernels that differ do. Only the last few are kept: nobody asks for
    random kernels again."""
    texts = dict.fromkeys(source.text for source in sources)
    text = Source("cpp", sources[0].name, "\n".join(texts))
    content = _compiled(text, Options.read(), build._compile_kernel)
    return {source.name: build.open_library(content, source.entry) for source in sources}


@lru_cache(maxsize=8)
def _compiled(text: Source, options: Options, compile_kernel: Callable[[Source, str, Cache], bytes]) -> bytes:
    """compile_kernel: weft's, or what a test has put in its place."""
    return compile_kernel(text, build.find_compiler(options), Cache(options.cache_dir, options.cache_bytes))
