"""What weft says while it works: through Python's loggers, and to standard error for those that ``WEFT_LOGS`` names."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable
from functools import cache

from weft.backends.source import Source

LOGS = {
    "fusion": "weft.integration.report",
    "plan": "weft.plan",
    "cache": "weft.runtime.cache",
    "source": "weft.backends.source",
}
"""The logger of each name. They are modules, so that ``TORCH_LOGS`` and ``torch._logging.set_logs`` know them as well.
Sources of kernels are long, and are of level DEBUG; all else is of level INFO."""

_SHOWN: set[str] = set()
"""Digests of the sources that were logged."""


@cache
def turn_on(names: tuple[str, ...]) -> None:
    """Print logs to standard error, and nowhere else. One warning says which names are unknown, and which are known.

    A logger that has a handler of its own, from ``TORCH_LOGS`` or the program, keeps that one alone.
    """
    if unknown := [name for name in names if name not in LOGS]:
        message = f"weft: no log named {', '.join(unknown)} (WEFT_LOGS); known: {', '.join(sorted(LOGS))}"
        warnings.warn(message, stacklevel=2)
    for name in LOGS.keys() & set(names):
        logger = logging.getLogger(LOGS[name])
        logger.setLevel(logging.DEBUG)
        if not logger.handlers:
            handler = logging.StreamHandler()
            handler.setFormatter(_Formatter("" if name == "source" else f"weft {name}: "))
            logger.addHandler(handler)
            logger.propagate = False


def log_sources(sources: Iterable[Source]) -> None:
    """The text of every kernel that was not logged before."""
    logger = logging.getLogger(LOGS["source"])
    if not logger.isEnabledFor(logging.DEBUG):
        return
    for source in sources:
        if source.digest not in _SHOWN:
            _SHOWN.add(source.digest)
            logger.debug("%s", source.text)


class _Formatter(logging.Formatter):
    """Every line behind a prefix, so that a log can be picked out with grep."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(self._prefix + line for line in super().format(record).splitlines())
