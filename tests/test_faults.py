"""Tests of the tests: a fault planted in the code generator makes the ordinary test fail that the table names.

Without the fault the same test passes, in the same surroundings. Kernels with a fault are kept nowhere: neither in the
cache nor in this process. The first kernels of several faults are compiled as one text, each in a namespace of its own.
"""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from types import CodeType
from typing import Any

import pytest
import torch

from tests.cases import often
from tests.faults import CHECKS, FAULTS, HEADER, Fault
from tests.together import AT_A_TIME, Wanted
from weft.backends.source import Source
from weft.capture.refine import MisalignedError
from weft.errors import BuildError, WeftError
from weft.options import Options
from weft.runtime import build, launch
from weft.runtime.cache import Cache

TEXT = (build._header_folder() / HEADER).read_text()
INCLUDE = f'#include "{HEADER}"'
HARMLESS = {
    fault.caught_by: Fault(HEADER, "#pragma once", "#pragma once  // as it was", fault.caught_by)
    for fault in FAULTS.values()
    if fault.place == HEADER
}
"""For each check that finds a fault of the header, a change that is none."""


class Library(bytes):
    """One with kernels of several faults. entry: the function that is the kernel of one of them."""

    entry: str


@pytest.fixture(autouse=True)
def _nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are known by their programs and schedules, which a fault in what is made of them does not change."""
    monkeypatch.setattr(launch, "_KERNELS", {})
    monkeypatch.setattr(launch, "FOUND_BY_TEXT", [])


def build_anew(monkeypatch: pytest.MonkeyPatch, made: Mapping[str, Library] | None = None) -> None:
    """Kernels come from the compiler, and do not go into the cache. made: those that are there, by digest."""
    right = build.open_library

    def library(source: Source, options: Options) -> bytes:
        if made and source.digest in made:
            return made[source.digest]
        store = Cache(options.cache_dir, options.cache_bytes)  # where the precompiled header is
        return build._compile_kernel(source, build.find_compiler(options), store)

    def open_library(content: bytes, entry: str) -> Callable[..., None]:
        return right(content, content.entry if isinstance(content, Library) else entry)

    monkeypatch.setattr(build, "library", library)
    monkeypatch.setattr(build, "open_library", open_library)


def made_with_others(fault: Fault, faults: Iterable[Fault]) -> dict[str, Library]:
    """By digest the kernel that the check of a fault asks for first, if that is compiled by itself: here with those of
    the faults that are next to it."""
    every = list(faults)
    first = every.index(fault) // AT_A_TIME * AT_A_TIME
    return made_together(tuple(every[first : first + AT_A_TIME]))[fault]


@cache
def made_together(faults: tuple[Fault, ...]) -> dict[Fault, dict[str, Library]]:
    found: list[tuple[Fault, Source, str]] = []
    for number, fault in enumerate(faults):
        if (source := first_of(fault)) is not None:
            found.append((fault, source, f"{source.entry}_{number}"))
    parts = [INCLUDE, *(apart(*each) for each in found)]
    options = Options.read()
    made: dict[Fault, dict[str, Library]] = {fault: {} for fault in faults}
    try:
        text, store = Source("cpp", "faults", "\n".join(parts)), Cache(options.cache_dir, options.cache_bytes)
        content = build._compile_kernel(text, build.find_compiler(options), store) if found else b""
    except BuildError:
        return made  # each by itself, to see which
    for fault, source, entry in found:
        made[fault][source.digest] = Library(content)
        made[fault][source.digest].entry = entry
    return made


def first_of(fault: Fault) -> Source | None:
    asked: list[Source] = []

    def ask(source: Source, *_: object) -> bytes:
        asked.append(source)
        raise Wanted

    def compile_several(*_: object) -> bytes:
        raise Wanted

    with pytest.MonkeyPatch.context() as patch:
        plant(fault, patch)
        patch.setattr(build, "library", ask)
        patch.setattr(build, "_compile_kernel", compile_several)
        with suppress(Wanted, Exception):
            CHECKS[fault.caught_by]()
    torch.manual_seed(0)
    return asked[0] if asked else None


def apart(fault: Fault, source: Source, entry: str) -> str:
    """A kernel under another name, in a namespace of its own: with the changed header, if that has the fault."""
    kernel = re.sub(rf"\b{source.entry}\b", entry, source.text.replace(INCLUDE, ""))
    own = declarations(changed(TEXT, fault)) if fault.place == HEADER else ""
    return f"namespace {entry}_apart {{\n{own}\n{kernel}\n}}\n"


def plant(fault: Fault, monkeypatch: pytest.MonkeyPatch, made: Mapping[str, Library] | None = None) -> None:
    build_anew(monkeypatch, made)
    if fault.place == HEADER:
        use_header(changed(TEXT, fault), monkeypatch)
    else:
        function = function_at(fault.place)
        monkeypatch.setattr(function, "__code__", changed_code(function, fault))


def changed(text: str, fault: Fault) -> str:
    assert text.count(fault.was) == 1, f"{fault.place} has {fault.was!r} {text.count(fault.was)} times"
    assert fault.was != fault.becomes
    return text.replace(fault.was, fault.becomes)


def function_at(place: str) -> Any:
    """The function behind its decorators."""
    module, _, path = place.partition(":")
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return inspect.unwrap(found)


def changed_code(function: Callable[..., Any], fault: Fault) -> CodeType:
    """The code of a function with the fault in its text. It replaces the code of the function itself, so that every
    module that imported it has the fault."""
    text = changed(textwrap.dedent(inspect.getsource(function)), fault)
    made: dict[str, Any] = {}
    compiled = compile(text, fault.place, "exec", annotations.compiler_flag, dont_inherit=True)
    exec(compiled, dict(function.__globals__), made)
    return inspect.unwrap(made[function.__name__]).__code__


def use_header(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put that text of the header into each kernel, in a namespace around its own ``w``. The real header stays on top,
    precompiled, for what it includes."""
    own, right = declarations(text), build._compile_kernel

    def compile_kernel(source: Source, compiler: str, store: Cache) -> bytes:
        kernels = source.text.replace(INCLUDE, "")
        whole = f"{INCLUDE}\nnamespace changed {{\n{own}\n{kernels}\n}}\n"
        return right(replace(source, text=whole), compiler, store)

    monkeypatch.setattr(build, "_compile_kernel", compile_kernel)


def declarations(header: str) -> str:
    return re.sub(r"^#(include|pragma once).*$", "", header, flags=re.MULTILINE)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS[name]
    plant(fault, monkeypatch, made_with_others(fault, FAULTS.values()))
    with pytest.raises((AssertionError, WeftError, MisalignedError)) as found:
        CHECKS[fault.caught_by]()
    assert not isinstance(found.value, BuildError), f"this is no kernel at all: {found.value}"


@pytest.mark.parametrize("name", often(CHECKS, list(HARMLESS)))
def test_nothing_is_found_without_a_fault(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the right header put into kernels as a changed one would be, and these compiled together as those would be,
    where a fault of the header has this check. Others are ordinary tests, and run as such."""
    if name in HARMLESS:
        plant(HARMLESS[name], monkeypatch, made_with_others(HARMLESS[name], HARMLESS.values()))
    CHECKS[name]()


def test_every_check_finds_a_fault() -> None:
    assert {fault.caught_by for fault in FAULTS.values()} == CHECKS.keys()
