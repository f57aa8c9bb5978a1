"""Kernels of many tests, compiled as few texts: the compiler takes half a second before it comes to a kernel.

Tests marked ``built_together`` are begun before the first of them in a module, as far as each comes without the kernel
that it asks for. Those are compiled, several at a time, with the flags and the header of all kernels, and are in the
cache when the tests run. A text that does not compile is left for the test of its kernels to find. So it is with the
kernels that are asked for at once, of a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import wraps
from unittest.mock import patch

from weft.backends.listed import render
from weft.backends.source import Source
from weft.errors import BuildError
from weft.options import Options
from weft.plan.kernel import Plan
from weft.runtime import build, launch
from weft.runtime.cache import Cache

AT_A_TIME = 8
"""Kernels of one text."""
Case = Callable[[], object]
_AS_IT_IS = (build.library, build._compile_kernel)


class Wanted(BaseException):
    """A kernel is asked for that has not been compiled. Nothing that handles errors takes it for one."""


def build_together(cases: Iterable[tuple[Case, int]]) -> None:
    """Compile the kernels of all cases into the cache. With each is the number of kernels that it asks for one after
    another: it is begun so many times. One that asks for more compiles those alone."""
    options, waiting = Options.read(), list(cases)
    while waiting := [(case, kernels) for case, kernels in waiting if kernels > 0]:
        asked: dict[str, Source] = {}
        waiting = [(case, kernels - 1) for case, kernels in waiting if is_waiting(case, asked, options)]
        for batch in batches(list(asked.values())):
            keep(batch, options)


def build_what_is_asked_for_together() -> None:
    """Kernels that are asked for at once and go into the cache of all tests are compiled together from now on. A test
    that changes how they are compiled has them compiled so."""
    build_all, shared = build.build_all, Options.read().cache_dir
    if hasattr(build_all, "__wrapped__"):  # pytest ran in this process before
        return

    @wraps(build_all)
    def built(sources: Sequence[Source], options: Options) -> dict[str, bytes]:
        if options.cache_dir == shared and (build.library, build._compile_kernel) == _AS_IT_IS:
            store = Cache(options.cache_dir, options.cache_bytes)
            unique = {source.digest: source for source in sources}.values()
            for batch in batches([source for source in unique if store.find(key_of(source, options)) is None]):
                if len(batch) > 1:
                    keep(batch, options)
        return build_all(sources, options)

    build.build_all = built


def prepare(plans: Iterable[Plan]) -> None:
    """Ask for the kernels of plans at once, before the first of them runs."""
    kernels = [kernel for plan in plans for kernel in plan.kernels]
    launch.prepare(kernels, [render(kernel) for kernel in kernels], Options.read())


def is_waiting(case: Case, asked: dict[str, Source], options: Options) -> bool:
    """Whether a case waits for kernels, put into ``asked``. What else becomes of it is for its test to say."""
    store = Cache(options.cache_dir, options.cache_bytes)

    def library(source: Source, _: Options) -> bytes:
        content = store.find(key_of(source, options))
        if content is None:
            asked[source.digest] = source
            raise Wanted
        return content

    with patch.object(build, "library", library):
        try:
            case()
        except Wanted:
            return True
        except Exception:
            return False
    return False


def batches(sources: Sequence[Source]) -> list[list[Source]]:
    """Kernels that one text can have: of different names, and not too many."""
    found: list[list[Source]] = []
    for source in sources:
        names = (batch for batch in found if len(batch) < AT_A_TIME and all(s.name != source.name for s in batch))
        batch = next(names, None)
        found.append([source]) if batch is None else batch.append(source)
    return found


def keep(batch: Sequence[Source], options: Options) -> None:
    """Compile kernels of different names as one text, and put the library into the cache as that of each."""
    compiler, store = build.find_compiler(options), Cache(options.cache_dir, options.cache_bytes)
    text = Source("cpp", batch[0].name, "\n".join(source.text for source in batch))
    with suppress(BuildError):
        content = build._compile_kernel(text, compiler, store)
        for source in batch:
            store.get(key_of(source, options), "kernel", source.name, lambda: content)


def key_of(source: Source, options: Options) -> str:
    """What ``build.library`` knows a kernel by."""
    return build._key(source.digest, (build._header_folder() / build.HEADER).read_text(), build.find_compiler(options))
