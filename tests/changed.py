"""Which files a checkout has changed, as git knows it: some tests need to run only where these have."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

MAIN = ("origin/HEAD", "origin/main", "main")
"""What was landed last, by the first of these names that there is."""


def have_changed(paths: Sequence[str], root: Path) -> bool:
    """Whether files under these paths are others than where this branch left what was landed; where nothing has been
    committed since, than before the last commit. True where git cannot say."""
    try:
        changed = _git(root, "diff", "--name-only", _base(root), "--", *paths)
        return bool(changed or _git(root, "ls-files", "--others", "--exclude-standard", "--", *paths))
    except (OSError, subprocess.CalledProcessError):
        return True


def _base(root: Path) -> str:
    head = _git(root, "rev-parse", "HEAD")
    known = [name for name in MAIN if _git(root, "for-each-ref", f"refs/heads/{name}", f"refs/remotes/{name}")]
    base = _git(root, "merge-base", "HEAD", known[0]) if known else head
    return _git(root, "rev-parse", "HEAD^") if base == head else base


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout.strip()
