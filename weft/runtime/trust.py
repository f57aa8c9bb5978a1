"""Which folders a user can trust with code that will be run."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from weft.errors import Refusal


def place_of(folder: str | Path) -> Path:
    """A folder from the root on; as it was given where nothing says where that is, which ``reason_against`` tells."""
    path = Path(folder)
    try:
        return path.expanduser().absolute()
    except (OSError, RuntimeError):
        return path


def check_folder(folder: Path) -> Refusal | None:
    """A folder is trusted if it is this user's, and nobody else can write to it or put another one in its place."""

    def refused(message: str, have: str | None = None, limit: str | None = None) -> Refusal:
        return Refusal("cache_folder", str(folder), message, have, limit)

    user = os.geteuid()
    for place in (folder, *folder.parents):
        status = place.lstat()
        if stat.S_ISLNK(status.st_mode) and status.st_uid not in (0, user):
            return refused(f"{place} is a link of another user", f"owner {status.st_uid}", f"owner {user}")
    real = folder.resolve()
    status = real.stat()
    if not stat.S_ISDIR(status.st_mode):
        return refused("it is no folder")
    if status.st_uid != user:
        return refused("it belongs to another user", f"owner {status.st_uid}", f"owner {user}")
    if status.st_mode & 0o022:
        return refused("other users can write to it", f"mode {stat.S_IMODE(status.st_mode):03o}", "mode 755")
    for parent in real.parents:
        mode = parent.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            have = f"mode {stat.S_IMODE(mode):03o}"
            return refused(f"every user can put another folder in its place, through {parent}", have, "mode 1777")
    return None


def reason_against(folder: Path) -> str | None:
    """Why a folder, as ``place_of`` returns it, cannot be used; it is created, for this user alone, if it is not
    there."""
    if not folder.is_absolute():
        home = folder.parts[:1] and folder.parts[0].startswith("~")
        return "its user has no home folder" if home else "it is relative, and the working directory is gone"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        refusal = check_folder(folder)
    except OSError as error:
        return str(error)
    if refusal is None:
        return None
    return refusal.message if refusal.have is None else f"{refusal.message} ({refusal.have})"
