"""Why a candidate of a benchmark was not timed, or not in one of the ways."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from weft.errors import RefusedError

Made = TypeVar("Made")


@dataclass(frozen=True)
class Reason:
    """As a ``Refusal``, of candidates: a peer that is not installed, a result that is wrong. kind: a name for machines;
    subject: the candidate; have, limit: the two figures that were compared, where there are any."""

    kind: str
    subject: str
    message: str
    have: float | int | str | None = None
    limit: float | int | str | None = None

    def __str__(self) -> str:
        figures = "" if self.have is None else f" (have {self.have}, limit {self.limit})"
        return f"{self.kind}: {self.subject}: {self.message}{figures}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class UntimedError(Exception):
    """A candidate cannot be timed in this way."""

    def __init__(self, reason: Reason) -> None:
        self.reason = reason
        super().__init__(str(reason))


def attempt(name: str, make: Callable[[], Made | Reason]) -> Made | Reason:
    """What ``make`` makes, or why it does not: whatever a candidate raises is a reason not to time it."""
    try:
        return make()
    except RefusedError as error:
        first = error.refusals[0]
        return Reason(first.rule, name, first.message, first.have, first.limit)
    except UntimedError as error:
        return replace(error.reason, subject=name)
    except Exception as error:
        line = " ".join(str(error).split("\n")[0].split())
        return Reason("failed", name, f"{type(error).__name__}: {line}")
