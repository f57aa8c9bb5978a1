"""Every option: what it can be, and one clear error for everything else."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from weft.options import _SETTINGS, Options

CAN_BE: dict[str, list[tuple[Any, Any]]] = {
    "strict": [(True, True), (False, False), ("1", True), ("0", False), (1, True), ("False", False)],
    "cache_dir": [("/a/b", "/a/b"), (Path("/a/b"), "/a/b"), ("relative", "relative")],
    "cache_bytes": [(0, 0), (1000, 1000), ("1000", 1000)],
    "cxx": [("g++", "g++"), (Path("/usr/bin/g++"), "/usr/bin/g++"), ("", "")],
    "build_threads": [(1, 1), (64, 64), ("2", 2)],
    "check": [("off", "off"), ("first", "first"), ("always", "always")],
    "logs": [("plan, cache,", ("plan", "cache")), (["plan", "plan"], ("plan",)), ((), ()), ("", ())],
    "sm_margin": [(0, 0), (8, 8), ("8", 8)],
    "tuned": [(True, True), (False, False), ("1", True), ("0", False)],
    "max_reads": [(0, 0), (10, 10), ("10", 10)],
    "mix_order": [(True, True), (False, False), ("1", True), ("0", False)],
    "race": [(True, True), (False, False), ("1", True), ("0", False)],
    "remat": [(True, True), (False, False), ("1", True), ("0", False)],
    "exact_widths": [(0, 0), (8, 8), ("8", 8)],
}
CANNOT_BE: dict[str, list[Any]] = {
    "strict": ["no", "yes", 2, "", []],
    "cache_dir": [3, "", b"/a/b", "/a\0b", True, ["a"]],
    "cache_bytes": [-1, 1.5, "2 GB", "", True, []],
    "cxx": [3, ["g++"], b"g++", "g\0++"],
    "build_threads": [-1, 0, "many", 1.5, True, "0", ""],
    "check": ["sometimes", "", True, 1, ["first"]],
    "logs": [3, ["plan", 3], b"plan", {"plan": 1}.values],
    "sm_margin": [-1, "8 SMs", 1.5, True],
    "tuned": ["yes", "", 2, []],
    "max_reads": [-1, "ten", 1.5, True],
    "mix_order": ["yes", "", 2, []],
    "race": ["yes", "", 2, []],
    "remat": ["yes", "", 2, []],
    "exact_widths": [-1, "all", 1.5, True],
}
OPTIONS = [field.name for field in fields(Options)]


def test_every_option_is_read_and_tried() -> None:
    assert sorted(_SETTINGS) == sorted(OPTIONS) == sorted(CAN_BE) == sorted(CANNOT_BE)


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_is_what_was_given(name: str) -> None:
    variable = _SETTINGS[name].variable
    for given, expected in CAN_BE[name]:
        found = getattr(Options.read({name: given}, {}), name)
        assert (found, type(found)) == (expected, type(expected))
        if variable and isinstance(given, str) and given:
            assert getattr(Options.read({}, {variable: given}), name) == expected


@pytest.mark.parametrize("name", OPTIONS)
def test_none_is_as_if_it_were_not_given(name: str) -> None:
    variable = _SETTINGS[name].variable
    assert Options.read({name: None}, {}) == Options.read({}, {})
    text, expected = next((given, found) for given, found in CAN_BE[name] if isinstance(given, str))
    if variable:
        assert getattr(Options.read({name: None}, {variable: text}), name) == expected


@pytest.mark.parametrize("name", OPTIONS)
def test_what_an_option_cannot_be_is_an_error_that_names_it(name: str) -> None:
    variable = _SETTINGS[name].variable
    for given in CANNOT_BE[name]:
        with pytest.raises(ValueError) as raised:  # noqa: PT011
            Options.read({name: given}, {})
        message = str(raised.value)
        assert name in message
        assert repr(given) in message
        assert variable in message or name == "check"
        if variable and isinstance(given, str) and given:
            with pytest.raises(ValueError) as raised:  # noqa: PT011
                Options.read({}, {variable: given})
            assert str(raised.value) == message


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"build_threads": -1}, r"\(build_threads\) are a number of kernels, at least 1, not -1$"),
        ({"build_threads": "many"}, r"\(build_threads\) are a number of kernels, at least 1, not 'many'$"),
        ({"strict": "no"}, r"^what is left out is an error \(strict\) or not, 1 or 0, not 'no'$"),
        ({"cache_dir": 3}, r"^the folder of the cache \(cache_dir, WEFT_CACHE_DIR\) is a path, not 3$"),
    ],
)
def test_fuse_says_so_before_the_first_call(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        weft.fuse(torch.sin, **given)


def test_no_home_folder_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's user may have none; the cache says so when it is asked to keep something."""

    def none(path: str) -> str:
        return path

    monkeypatch.setattr(os.path, "expanduser", none)
    assert Options.read({}, {}).cache_dir == "~/.cache/weft"
