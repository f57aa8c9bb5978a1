"""Errors and refusals: everything weft says when it does not do something."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any

from weft.rules import find_rule


@dataclass(frozen=True)
class Refusal:
    """A reasoned no.

    rule: name of the rule that said no, e.g. ``unsupported_op``; ``weft/rules.toml`` has them all, with what have and
    limit count. subject: the node, value or kernel it speaks of; message: one sentence for a person; have, limit: the
    two figures that were compared, where there are any; where: the user's source line (``file.py:12: code``) where it
    is known. figures: what the two figures were made of.

    Raises ValueError for a rule that is not in the table, and for figures that the table does not explain.
    """

    rule: str
    subject: str
    message: str
    have: float | int | str | None = None
    limit: float | int | str | None = None
    where: str | None = None
    figures: Mapping[str, Any] = field(default_factory=dict[str, Any], compare=False, repr=False)

    def __post_init__(self) -> None:
        explained = find_rule(self.rule).figures
        if (self.have is None) != (self.limit is None):
            raise ValueError(f"{self.rule}: have and limit are two figures or none")
        if self.have is not None and explained is None:
            raise ValueError(f"{self.rule}: the table of rules has no figures for it")

    @property
    def compared(self) -> str:
        """The two figures with their unit, as in ``have 1 row dimension, limit 0``; empty if there are none."""
        explained = find_rule(self.rule).figures
        if explained is None or self.have is None or self.limit is None:
            return ""
        return explained.text(self.have, self.limit)

    def __str__(self) -> str:
        figures = f" ({self.compared})" if self.compared else ""
        place = "" if self.where is None else f" at {self.where}"
        return f"{self.rule}: {self.subject}: {self.message}{figures}{place}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class WeftError(Exception):
    """Base class of all errors weft raises. ``stage`` names the pipeline stage that was at work, where known."""

    stage: str | None = None

    def __str__(self) -> str:
        text = super().__str__()
        return text if self.stage is None else f"[{self.stage}] {text}"


class VerificationError(WeftError):
    """A program, plan or kernel breaks a rule of its own form: a defect of weft, never of the user's code."""


class OptionError(WeftError, ValueError):
    """An option that there is not, or one with a value that it cannot have."""


class ParseError(WeftError):
    """Text that is not a printed program or kernel; the message names the line."""


class CompilerNotFoundError(WeftError):
    """No C++ compiler on this machine, or none that answers."""


class BrokenCompilerError(CompilerNotFoundError):
    """The C++ compiler of this machine cannot compile an empty kernel."""


class BuildError(WeftError):
    """A compiler refused a generated kernel, or is not there to be asked. printed: by the compiler, empty
    if it was not asked."""

    def __init__(self, message: str, printed: str = "") -> None:
        self.printed = printed
        super().__init__(message)


class CallError(WeftError):
    """A function that was to be looked at fails by itself on the inputs it was given; the cause is what it raised."""


class LaunchError(WeftError, RuntimeError):
    """Tensors given to a kernel do not have the dtype, device, shape or strides it was compiled for. An error that
    crosses the operator ``weft::launch`` arrives as a plain RuntimeError with the same message."""


class RefusedError(WeftError):
    """Raised in strict mode: something would have been left out. ``refusals`` holds every reason."""

    def __init__(self, refusals: tuple[Refusal, ...]) -> None:
        self.refusals = refusals
        shown = "\n".join(f"  - {refusal}" for refusal in refusals)
        super().__init__(
            f"strict mode: {len(refusals)} operation(s) are not fused:\n{shown}\n"
            "Take them out of the function, or call weft.fuse(fn) without strict=True to leave them to Inductor."
        )


class InternalError(WeftError):
    """A stage failed in a way it does not know: a defect of weft. The cause is what was raised."""


@contextmanager
def in_stage(stage: str) -> Generator[None]:
    """Attach the name of the pipeline stage to a WeftError raised inside; any other exception becomes one."""
    try:
        yield
    except WeftError as error:
        if error.stage is None:
            error.stage = stage
        raise
    except Exception as error:
        internal = InternalError(f"{type(error).__name__}: {error}")
        internal.stage = stage
        raise internal from error


@cache
def warn_once(message: str) -> None:
    """Warn of something that a process should hear of, but not again."""
    warnings.warn(message, stacklevel=3)
