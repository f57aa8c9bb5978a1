"""What weft makes of graphs as they are compiled: a report of them keeps no nodes."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from unittest.mock import patch

from weft.compiler import Compilation
from weft.integration import backend


@contextmanager
def compilations() -> Generator[list[Compilation]]:
    """Those of all graphs that are compiled meanwhile, oldest first."""
    found: list[Compilation] = []
    record = backend.record

    def keep(compilation: Compilation) -> None:
        found.append(compilation)
        record(compilation)

    with patch.object(backend, "record", keep):
        yield found
