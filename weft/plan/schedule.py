"""How a kernel runs: what the schedules of all backends have in common, and their printed form, which parses back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from dataclasses import fields as dataclass_fields
from functools import cache
from typing import Any, ClassVar, Literal, Self, get_args, get_origin, get_type_hints

from weft.backends.listed import backends
from weft.errors import ParseError
from weft.hashing import hash_once
from weft.ir.names import Names, renamed

Scheme = Literal["ONE_SHOT", "STREAM", "LOOP", "COLUMN", "CLUSTER"]
Finish = Literal["none", "same", "separate"]


@hash_once
@dataclass(frozen=True)
class Schedule:
    """How a kernel runs; each backend has a class of its own, with more fields.

    backend: the name of the code generator. rows, columns: the split of the program's dimensions, slowest first.
    segments: row dimensions that an outer reduction keeps; a chunk never straddles two of them. rows_per_tile: rows
    along the fastest row dimension that are taken together; their column sums are added up first. finish: where column
    sums are completed: in the same launch, in a separate one, or nowhere, since there are none or a program has all
    rows. held: values kept from one loop over the columns to the next instead of being computed again: in the output
    that they are, or in memory of their own.
    """

    backend: ClassVar[str] = ""
    has_pivots: ClassVar[bool] = False
    """Whether partial means are relative to an element, which they have beside them."""

    scheme: Scheme
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    segments: tuple[str, ...] = ()
    rows_per_tile: int = 8
    finish: Finish = "none"
    held: tuple[str, ...] = ()

    @property
    def starts(self) -> int:
        """How often threads start: once, and once more for a finish of its own."""
        return 1 + (self.finish == "separate")

    def part_count(self, rows: int, segments: int) -> int:
        """Partial results of each column sum. rows: of a segment."""
        raise NotImplementedError

    def holds(self, columns: int) -> bool:
        """Whether a program that keeps a row has place for so many columns."""
        return True

    @property
    def split_text(self) -> str:
        """Of what all schedules have but the finish."""
        return (
            f"{self.scheme} rows=({', '.join(self.rows)}) columns=({', '.join(self.columns)}) "
            f"segments=({', '.join(self.segments)}) rows_per_tile={self.rows_per_tile}"
        )

    def but(self, **changes: Any) -> Self:
        """The same with other values of some fields, as ``dataclasses.replace`` makes it in ten times the time: a plan
        has thousands of candidates."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__, **changes)
        made.__dict__.pop("_hash", None)
        return made

    def renamed(self, names: Names) -> Self:
        """The same under new names. Raises KeyError for a dimension or a value that has none."""
        rows, columns, segments = (renamed(dims, names.dims) for dims in (self.rows, self.columns, self.segments))
        return replace(self, rows=rows, columns=columns, segments=segments, held=renamed(self.held, names.values))

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The schedule of this class that prints as ``text``, if one does."""
        fields: dict[str, Any] = {"scheme": text.partition(" ")[0], **cls._fields(text)}
        plain = cls("ONE_SHOT", (), ())
        if not fields.keys() <= {field.name for field in dataclass_fields(cls)}:
            return None
        are_typed = all(type(value) is type(getattr(plain, name)) for name, value in fields.items())
        if not are_typed or any(name in fields and fields[name] not in kind for name, kind in _kinds(cls).items()):
            return None
        found = replace(plain, **fields)
        return found if str(found) == text else None

    @classmethod
    def _fields(cls, text: str) -> Mapping[str, Any]:
        """Fields but the scheme, as they are printed."""
        found: dict[str, Any] = {}
        for name, value in re.findall(r"(\w+)=(\(.*?\)|\S+)", text.replace(f" backend={cls.backend}", "")):
            if value.startswith("("):
                found[name] = tuple(part.strip() for part in value[1:-1].split(",") if part.strip())
            else:
                found[name] = int(value) if value.isdecimal() else value
        return found


@cache
def _kinds(cls: type[Schedule]) -> dict[str, tuple[Any, ...]]:
    """Words that fields may have."""
    hints = get_type_hints(cls)
    return {name: get_args(hint) for name, hint in hints.items() if get_origin(hint) is Literal}


def parse_schedule(text: str) -> Schedule:
    """The schedule, of whatever backend, that prints as ``text``; raises ParseError."""
    found = next((made for backend in backends() if (made := backend.parse(text)) is not None), None)
    if found is None:
        raise ParseError(f"line 1: not a schedule: {text!r}")
    return found
