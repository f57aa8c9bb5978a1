"""Options, read once at the edge into one frozen value."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from torch._inductor.runtime.cache_dir_utils import default_cache_dir

Check = Literal["off", "first", "always"]
VARIABLES = (
    *("WEFT_CACHE_DIR", "WEFT_CACHE_BYTES", "WEFT_CHECK", "WEFT_LOGS", "WEFT_PRINT_SOURCE", "WEFT_SM_MARGIN"),
    "WEFT_TUNED",
)
"""Every variable of weft's own."""


@dataclass(frozen=True)
class LaunchOptions:
    """What of the options travels in every launch of a graph, printed: a process that takes the graph from Inductor's
    cache has nothing else."""

    check: Check = "off"
    sm_margin: int = 0

    def __str__(self) -> str:
        return self.check if self.sm_margin == 0 else f"{self.check} sm_margin={self.sm_margin}"

    @staticmethod
    @cache
    def parse(text: str) -> LaunchOptions:
        """The options that print as ``text``."""
        check, _, margin = text.partition(" sm_margin=")
        return LaunchOptions(check, int(margin or 0))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Options:
    """strict: raise with the refusals instead of leaving nodes out. cache_dir: where compiled kernels are kept;
    cache_bytes: how much it may hold, the least recently used kernels go first. cxx: the C++ compiler; empty:
    ``$CXX``, else the first of g++, clang++, c++ on the path. build_threads: kernels of a model that are
    compiled side by side; those of a GPU by TorchInductor's compile workers where they run, unless it is 1.
    check: when a kernel's outputs are compared with the reference: in its first call of a process, in every call
    ("always") or never ("off"); ``weft/runtime/check.py`` says how. sm_margin: SMs of a GPU that kernels whose
    programs share out their work leave to other kernels, e.g. of communication; it changes no result. tuned: whether
    kernels take the schedules that ``weft tune`` measured. logs: what is printed to standard error, names of
    ``weft/logs.py``."""

    strict: bool = False
    cache_dir: str = ""
    cache_bytes: int = field(default=2 * 1024**3, repr=False)  # not shown: it changes no graph, and keys show options
    cxx: str = ""
    build_threads: int = 0
    check: Check = "off"
    logs: tuple[str, ...] = field(default=(), repr=False)  # not shown either: it changes no graph
    sm_margin: int = 0
    tuned: bool = True

    def of_launch(self, device: str) -> LaunchOptions:
        """What travels in launches on that type of device."""
        return LaunchOptions(self.check, 0 if device == "cpu" else self.sm_margin)

    @staticmethod
    def read(given: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None) -> Options:
        """Options given by the caller, then ``WEFT_CACHE_DIR``, ``WEFT_CACHE_BYTES``, ``WEFT_CHECK``, ``WEFT_LOGS`` and
        ``CXX``, then defaults: a folder inside Inductor's cache if ``TORCHINDUCTOR_CACHE_DIR`` says where that is, else
        ``~/.cache/weft``. Inductor puts its own default into that variable when it is first imported: that says
        nothing. ``WEFT_SM_MARGIN`` is a number, ``WEFT_TUNED`` is 0 or 1. ``WEFT_PRINT_SOURCE=1`` adds the log of
        sources to the others.

        Raises ValueError that names an unknown option and the known ones, the values that ``check`` can have, a number
        of bytes or SMs that is none, or a switch that is neither on nor off.
        """
        env = os.environ if environment is None else environment
        given = dict(given or {})
        known = {f.name for f in fields(Options)}
        if unknown := sorted(given.keys() - known):
            raise ValueError(f"unknown option {', '.join(unknown)}; weft knows {', '.join(sorted(known))}")
        given.setdefault("cache_dir", env.get("WEFT_CACHE_DIR") or _default_folder(env))
        given.setdefault("cxx", env.get("CXX", ""))
        given.setdefault("build_threads", os.cpu_count() or 1)
        given.setdefault("check", env.get("WEFT_CHECK") or "off")
        if given["check"] not in get_args(Check):
            raise ValueError(f"check is {given['check']!r}; it can be {', '.join(get_args(Check))}")
        given["logs"] = _names(given.get("logs", env.get("WEFT_LOGS") or ""))
        if env.get("WEFT_PRINT_SOURCE", "0") not in ("", "0"):
            given["logs"] = tuple(dict.fromkeys((*given["logs"], "source")))
        if "cache_bytes" in given or env.get("WEFT_CACHE_BYTES"):
            given["cache_bytes"] = _bytes(given.get("cache_bytes", env.get("WEFT_CACHE_BYTES")))
        given["sm_margin"] = _units(given.get("sm_margin", env.get("WEFT_SM_MARGIN") or 0))
        given["tuned"] = _switch(given.get("tuned", env.get("WEFT_TUNED") or True))
        return Options(**given)


def chosen_inductor_folder(env: Mapping[str, str]) -> str | None:
    """Where the user keeps Inductor's cache; None if that is where Inductor puts it by itself."""
    folder = env.get("TORCHINDUCTOR_CACHE_DIR")
    return folder if folder and Path(folder).absolute() != Path(default_cache_dir()).absolute() else None


def _default_folder(env: Mapping[str, str]) -> str:
    parent = chosen_inductor_folder(env) or env.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return str(Path(parent) / "weft")


def _names(given: str | Iterable[str]) -> tuple[str, ...]:
    """Names in one text, separated by commas, or several."""
    parts = given.split(",") if isinstance(given, str) else given
    return tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))


def _bytes(given: Any) -> int:
    if not str(given).isdecimal():
        raise ValueError(f"the size of the cache (cache_bytes, WEFT_CACHE_BYTES) is a number of bytes, not {given!r}")
    return int(given)


def _switch(given: Any) -> bool:
    if str(given) not in _SWITCHES:
        raise ValueError(f"tuned schedules are used (tuned, WEFT_TUNED) or not, 1 or 0, not {given!r}")
    return _SWITCHES[str(given)]


_SWITCHES = {"0": False, "False": False, "1": True, "True": True}


def _units(given: Any) -> int:
    if not str(given).isdecimal():
        raise ValueError(f"the SMs to leave free (sm_margin, WEFT_SM_MARGIN) are a number of SMs, not {given!r}")
    return int(given)
