"""Why a candidate of a benchmark was not timed, or not in one of the ways."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


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
