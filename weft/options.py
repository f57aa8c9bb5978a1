"""Options, read once at the edge into one frozen value."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, get_args

from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from weft.errors import OptionError

Check = Literal["off", "first", "always"]


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
class MixedOrder:
    """What of the options limits kernels of rows and of columns, which reduce both: whether there are any, and how many
    buffers one may read, 0 for as many as it likes."""

    allowed: bool = True
    max_reads: int = 0


ANY = MixedOrder()
"""Predicted times decide."""


@dataclass(frozen=True)
class Options:
    """strict: raise with the refusals instead of leaving nodes out. cache_dir: where compiled kernels are kept;
    cache_bytes: how much it may hold, the least recently used kernels go first. cxx: the C++ compiler; empty:
    ``$CXX``, else the first of g++, clang++, c++ on the path. build_threads: kernels of a model that are
    compiled side by side; those of a GPU by TorchInductor's compile workers where they run, unless it is 1.
    check: when a kernel's outputs are compared with the reference: in its first call of a process, in every call
    ("always") or never ("off"); ``weft/runtime/check.py`` says how. sm_margin: SMs of a GPU that kernels whose
    programs share out their work leave to other kernels, e.g. of communication; it changes no result. tuned: whether
    kernels take the schedules that ``weft tune`` measured. race: whether each region is timed in its kernels and in
    TorchInductor's code for the same nodes when it is compiled, and left to TorchInductor if that is faster. mix_order:
    whether rows and columns may be reduced in one kernel; max_reads: the most buffers that such a kernel may read, a
    weight counting as much as a matrix, or 0 for any number: TorchInductor's ``mix_order_reduction`` and
    ``mix_order_reduction_max_reads``, for comparison with it. remat: whether values that PyTorch keeps for a backward
    are computed again where that moves fewer bytes and keeps no more. exact_widths: how many widths, the first that are
    met, have kernels of their own where the columns of a GPU kernel are known at run time only. logs: what is printed
    to standard error, names of ``weft/logs.py``."""

    strict: bool = False
    cache_dir: str = ""
    cache_bytes: int = 2 * 1024**3
    cxx: str = ""
    build_threads: int = 0
    check: Check = "off"
    logs: tuple[str, ...] = ()
    sm_margin: int = 0
    tuned: bool = True
    race: bool = False
    max_reads: int = 0
    mix_order: bool = True
    remat: bool = True
    exact_widths: int = 4

    @property
    def mixed_order(self) -> MixedOrder:
        """What planning obeys."""
        return MixedOrder(self.mix_order, self.max_reads)

    @property
    def of_graph(self) -> tuple[Any, ...]:
        """What of the options changes a compiled graph: this part of them is in the keys of Inductor's cache.

        A graph from the cache raises nothing that ``strict`` would raise; regions whose kernels ``cxx`` cannot compile
        are not in it; ``check`` and ``sm_margin`` travel in its launches. Kernels are found by their text: where they
        are kept, how many are built side by side and for how many widths is another matter. ``tuned`` matters as far as
        there is a table of measurements, whose digest keys have.
        """
        return self.strict, self.cxx, self.check, self.sm_margin, self.race, self.mixed_order, self.remat

    def of_launch(self, device: str) -> LaunchOptions:
        """What travels in launches on that type of device."""
        return LaunchOptions(self.check, 0 if device == "cpu" else self.sm_margin)

    @staticmethod
    def read(given: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None) -> Options:
        """Options given by the caller, then the variables of ``_SETTINGS``, then defaults; None and an empty variable
        are as good as nothing. cache_dir is by default a folder inside Inductor's cache if ``TORCHINDUCTOR_CACHE_DIR``
        says where that is, else ``~/.cache/weft``. Inductor puts its own default into that variable when it is first
        imported: that says nothing. ``WEFT_PRINT_SOURCE=1`` adds the log of sources to the others.

        Raises OptionError that names an unknown option and the known ones, or an option with the value that it cannot
        have and those that it can.
        """
        env = os.environ if environment is None else environment
        given = given or {}
        if unknown := sorted(given.keys() - _SETTINGS.keys()):
            raise OptionError(f"unknown option {', '.join(unknown)}; weft knows {', '.join(sorted(_SETTINGS))}")
        values: dict[str, Any] = {}
        for name, setting in _SETTINGS.items():
            value = env.get(setting.variable) or None if given.get(name) is None else given[name]
            if value is not None:
                values[name] = setting.value_of(value)
        if "cache_dir" not in values:
            values["cache_dir"] = _default_folder(env)
        values.setdefault("build_threads", os.cpu_count() or 1)
        if env.get("WEFT_PRINT_SOURCE", "0") not in ("", "0"):
            values["logs"] = tuple(dict.fromkeys((*values.get("logs", ()), "source")))
        return Options(**values)


def chosen_inductor_folder(env: Mapping[str, str]) -> str | None:
    """Where the user keeps Inductor's cache; None if that is where Inductor puts it by itself."""
    folder = env.get("TORCHINDUCTOR_CACHE_DIR")
    return folder if folder and Path(folder) != Path(default_cache_dir()) else None


def _default_folder(env: Mapping[str, str]) -> str:
    parent = chosen_inductor_folder(env) or env.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return str(Path(parent) / "weft")


@dataclass(frozen=True)
class _Setting:
    """How an option is read. read: what it becomes of what was given; raises ValueError or TypeError for what it cannot
    be. complaint: what is said then, with a place for the value. variable: that says it where the caller does not."""

    read: Callable[[Any], Any]
    complaint: str
    variable: str = ""

    def value_of(self, given: Any) -> Any:
        try:
            return self.read(given)
        except (TypeError, ValueError):
            raise OptionError(self.complaint.format(given)) from None


def _switch(given: Any) -> bool:
    if str(given) not in _SWITCHES:
        raise ValueError
    return _SWITCHES[str(given)]


_SWITCHES = {"0": False, "False": False, "1": True, "True": True}


def _number(given: Any, least: int = 0) -> int:
    if not str(given).isdecimal() or int(given) < least:
        raise ValueError
    return int(given)


def _path(given: Any) -> str:
    if isinstance(given, bytes) or "\0" in os.fspath(given):
        raise ValueError
    return os.fspath(given)


def _folder(given: Any) -> str:
    if not (found := _path(given)):
        raise ValueError
    return found


def _check(given: Any) -> Check:
    if given not in get_args(Check):
        raise ValueError
    return given


def _names(given: Any) -> tuple[str, ...]:
    """Names in one text, separated by commas, or several."""
    parts: list[Any] = given.split(",") if isinstance(given, str) else [*given]
    if not all(isinstance(part, str) for part in parts):
        raise TypeError
    return tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))


_SETTINGS = {
    "strict": _Setting(_switch, "what is left out is an error (strict) or not, 1 or 0, not {!r}"),
    "cache_dir": _Setting(
        _folder, "the folder of the cache (cache_dir, WEFT_CACHE_DIR) is a path, not {!r}", "WEFT_CACHE_DIR"
    ),
    "cache_bytes": _Setting(
        _number,
        "the size of the cache (cache_bytes, WEFT_CACHE_BYTES) is a number of bytes, not {!r}",
        "WEFT_CACHE_BYTES",
    ),
    "cxx": _Setting(_path, "the C++ compiler (cxx, CXX) is the name or the path of a program, not {!r}", "CXX"),
    "build_threads": _Setting(
        partial(_number, least=1),
        "the kernels to compile side by side (build_threads) are a number of kernels, at least 1, not {!r}",
    ),
    "check": _Setting(_check, f"check is {{!r}}; it can be {', '.join(get_args(Check))}", "WEFT_CHECK"),
    "logs": _Setting(
        _names, "logs (logs, WEFT_LOGS) are names, in a list or one text with commas, not {!r}", "WEFT_LOGS"
    ),
    "sm_margin": _Setting(
        _number, "the SMs to leave free (sm_margin, WEFT_SM_MARGIN) are a number of SMs, not {!r}", "WEFT_SM_MARGIN"
    ),
    "tuned": _Setting(_switch, "tuned schedules are used (tuned, WEFT_TUNED) or not, 1 or 0, not {!r}", "WEFT_TUNED"),
    "race": _Setting(_switch, "regions are raced (race, WEFT_RACE) or not, 1 or 0, not {!r}", "WEFT_RACE"),
    "max_reads": _Setting(
        _number,
        "the buffers that a kernel of rows and columns may read (max_reads, WEFT_MAX_READS) are a number, or 0 for "
        "any, not {!r}",
        "WEFT_MAX_READS",
    ),
    "mix_order": _Setting(
        _switch,
        "rows and columns are reduced in one kernel (mix_order, WEFT_MIX_ORDER) or not, 1 or 0, not {!r}",
        "WEFT_MIX_ORDER",
    ),
    "remat": _Setting(
        _switch,
        "what is kept for a backward is computed again where that pays (remat, WEFT_REMAT) or not, 1 or 0, not {!r}",
        "WEFT_REMAT",
    ),
    "exact_widths": _Setting(
        _number,
        "the widths that have kernels of their own (exact_widths, WEFT_EXACT_WIDTHS) are a number, not {!r}",
        "WEFT_EXACT_WIDTHS",
    ),
}
"""Of every option."""
VARIABLES = (*(s.variable for s in _SETTINGS.values() if s.variable.startswith("WEFT_")), "WEFT_PRINT_SOURCE")
"""Every variable of weft's own."""
