"""Tests of the tests: a fault planted in the code generator makes the ordinary test fail that the table names.

Without the fault the same test passes, in the same surroundings. Kernels with a fault are kept nowhere: neither in the
cache nor in this process.
"""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from collections.abc import Callable
from dataclasses import replace
from types import CodeType
from typing import Any

import pytest

from tests.cases import often
from tests.faults import CHECKS, FAULTS, HEADER, Fault
from weft.backends.source import Source
from weft.capture.refine import MisalignedError
from weft.errors import BuildError, WeftError
from weft.options import Options
from weft.runtime import build, launch
from weft.runtime.cache import Cache

TEXT = (build._header_folder() / HEADER).read_text()


@pytest.fixture(autouse=True)
def _nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are known by their programs and schedules, which a fault in what is made of them does not change."""
    monkeypatch.setattr(launch, "_KERNELS", {})
    monkeypatch.setattr(launch, "FOUND_BY_TEXT", [])


def build_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels come from the compiler, and do not go into the cache."""

    def library(source: Source, options: Options) -> bytes:
        store = Cache(options.cache_dir, options.cache_bytes)  # where the precompiled header is
        return build._compile_kernel(source, build.find_compiler(options), store)

    monkeypatch.setattr(build, "library", library)


def plant(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    build_anew(monkeypatch)
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
    own = re.sub(r"^#(include|pragma once).*$", "", text, flags=re.MULTILINE)
    right = build._compile_kernel

    def compile_kernel(source: Source, compiler: str, store: Cache) -> bytes:
        kernels = source.text.replace('#include "weft_cpu.h"', "")
        whole = f'#include "weft_cpu.h"\nnamespace changed {{\n{own}\n{kernels}\n}}\n'
        return right(replace(source, text=whole), compiler, store)

    monkeypatch.setattr(build, "_compile_kernel", compile_kernel)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS[name]
    plant(fault, monkeypatch)
    with pytest.raises((AssertionError, WeftError, MisalignedError)) as found:
        CHECKS[fault.caught_by]()
    assert not isinstance(found.value, BuildError), f"this is no kernel at all: {found.value}"


@pytest.mark.parametrize("name", often(CHECKS, [fault.caught_by for fault in FAULTS.values() if fault.place == HEADER]))
def test_nothing_is_found_without_a_fault(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the right header put into kernels as a changed one would be, where a fault of the header has this check.
    Others are ordinary tests, and run as such."""
    if any(fault.caught_by == name and fault.place == HEADER for fault in FAULTS.values()):
        build_anew(monkeypatch)
        use_header(TEXT, monkeypatch)
    CHECKS[name]()


def test_every_check_finds_a_fault() -> None:
    assert {fault.caught_by for fault in FAULTS.values()} == CHECKS.keys()
