"""The table of measured schedules: a file of weft's cache, in JSON, that ``weft tune`` writes and a compile reads.

It is kept and verified as compiled kernels are, so that a damaged one counts as empty and the next measurement puts a
whole one in its place. It is never evicted: nothing makes it again.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from functools import lru_cache
from typing import Any

from weft.errors import ParseError
from weft.options import Options
from weft.plan.kernel import parse_kernel
from weft.plan.tuned import NONE, Key, Tuned, TunedSchedules, plain
from weft.runtime.cache import Cache

_LOG = logging.getLogger(__name__)
FORMAT = 2
"""Of the file; one of another format counts as empty. In the first one chunks of CUDA C++ were those of a segment."""
_NAME = "tuned_schedules"
_KEY = hashlib.sha256(_NAME.encode()).hexdigest()[:32]


def load(options: Options) -> TunedSchedules:
    """All measurements, of any machines; none if they are switched off."""
    content = _content(options)
    return NONE if content is None else _read(content)


def digest(options: Options) -> str:
    """Of what ``load`` returns; empty if that is nothing. Part of the keys of graphs in Inductor's cache."""
    content = _content(options)
    return "" if content is None else hashlib.sha256(content).hexdigest()


def save(found: Iterable[Tuned], options: Options) -> str | None:
    """Add measurements, in place of others of the same kernels; why they are not kept, if they are not."""
    added = {each.key: each for each in found}
    return _change(options, lambda known: {**known, **added})


def forget(keys: Iterable[Key] | None, options: Options) -> str | None:
    """Remove the measurements of these kernels, or all; why they are still there, if they are."""
    gone = None if keys is None else set(keys)
    return _change(options, lambda known: {} if gone is None else {k: v for k, v in known.items() if k not in gone})


def to_json(found: TunedSchedules) -> str:
    """A file that ``from_json`` reads."""
    schedules = [asdict(each) for each in sorted(found.values(), key=lambda each: (each.target, each.kernel))]
    return json.dumps({"format": FORMAT, "schedules": schedules}, indent=1) + "\n"


def from_json(text: str) -> dict[Key, Tuned]:
    """Raises ValueError, in one line that names the entry, for what no release of this format wrote."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is no JSON: {error}") from None
    if not isinstance(data, dict) or not isinstance(data.get("schedules"), list):
        raise ValueError("has no list of schedules")
    if data.get("format") != FORMAT:
        raise ValueError(f"is of format {data.get('format')!r}; this release reads {FORMAT}")
    found: dict[Key, Tuned] = {}
    for number, entry in enumerate(data["schedules"], 1):
        try:
            tuned = _entry(entry)
        except (ParseError, ValueError, KeyError) as error:
            raise ValueError(f"schedule {number}: {' '.join(str(error).split())}") from None
        found[tuned.key] = tuned
    return found


def _entry(entry: Any) -> Tuned:
    wanted = {f.name: f.type for f in fields(Tuned)}
    if not isinstance(entry, dict) or entry.keys() != wanted.keys():
        raise ValueError(f"is no object with {', '.join(wanted)}")
    for name, kind in wanted.items():
        if not isinstance(entry[name], _TYPES[str(kind)]) or isinstance(entry[name], bool):
            raise ValueError(f"{name} is {entry[name]!r}")
    for name, kind in (("sizes", int), ("versions", str)):
        if not all(isinstance(value, kind) for value in entry[name].values()):
            raise ValueError(f"{name} is {entry[name]!r}")
    if not (entry["us"] > 0 and entry["untuned_us"] > 0):
        raise ValueError(f"times are {entry['us']} and {entry['untuned_us']} us")
    kernel = parse_kernel(entry["kernel"])
    if str(plain(kernel)) != entry["kernel"]:
        raise ValueError("its kernel is not under plain names")
    return Tuned(**entry)


_TYPES: dict[str, Any] = {"str": str, "float": (int, float), "int": int, "Mapping[str, int]": dict}
_TYPES["Mapping[str, str]"] = dict


def _content(options: Options) -> bytes | None:
    return Cache(options.cache_dir, options.cache_bytes).find(_KEY) if options.tuned else None


def _change(options: Options, changed: Any) -> str | None:
    def content(known: bytes | None) -> bytes:
        return to_json(changed(NONE if known is None else _read(known))).encode()

    return Cache(options.cache_dir, options.cache_bytes).change(_KEY, "tuning", _NAME, content)


@lru_cache(maxsize=4)
def _read(content: bytes) -> TunedSchedules:
    """What was written by another release may not be what this one reads: nothing then. Programs are not looked at
    before a kernel has the same text."""
    try:
        data: Mapping[str, Any] = json.loads(content)
        if data["format"] != FORMAT:
            raise ValueError(f"format {data['format']!r}")
        found = [Tuned(**entry) for entry in data["schedules"]]
        return {each.key: each for each in found}
    except (ValueError, KeyError, TypeError, AttributeError, ParseError) as error:
        _LOG.warning("the table of tuned schedules cannot be read, and none is used: %s", error)
        return NONE
