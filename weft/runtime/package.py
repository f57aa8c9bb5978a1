"""Which weft this is."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources


@cache
def package_digest() -> str:
    """Digest of weft's own sources and data files."""
    digest = hashlib.sha256()
    pending = [resources.files("weft")]
    while pending:
        entry = pending.pop()
        if entry.is_dir():
            pending.extend(sorted(entry.iterdir(), key=lambda e: e.name, reverse=True))
        elif entry.name.endswith((".py", ".h", ".cuh", ".cpp", ".json")):
            digest.update(entry.name.encode())
            digest.update(entry.read_bytes())
    return digest.hexdigest()
