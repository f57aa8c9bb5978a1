"""Makes the picture of the documentation that a browser takes: ``python docs/pictures.py``.

It is the beginning of the page of ``weft explain scale_shift_table --target h200``, 1400 pixels wide. The picture says
what page it was taken of. Where that is the page of today nothing is done; else Chromium is needed, which ``CHROMIUM``
can name.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from weft.commands.explain import explained
from weft.commands.subject import resolve
from weft.target import Target

FOLDER = Path(__file__).parent / "pictures"
EXPLANATION = FOLDER / "explain_1400.png"
SUBJECT, TARGET = "scale_shift_table", "h200"
WIDTH, HEIGHT = 1400, 1500
"""Pixels of what is shown."""
NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-sync"),
    *("--disable-quic", "--disable-background-networking", "--disable-component-update"),
)
SOURCE = "Source"
"""The key of a PNG file under which it has the digest of what it shows."""


def main() -> int:
    """Write the picture if it is stale; 2 if there is no browser."""
    text = explanation()
    if source_of(EXPLANATION) == digest(text):
        return 0
    browser = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if browser is None:
        print(f"none of {', '.join(NAMES)} is installed; CHROMIUM can name another", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(text)
        photograph(browser, page, EXPLANATION)
    keep_source(EXPLANATION, digest(text))
    return 0


def explanation() -> str:
    """The page that the picture shows."""
    # schedules that were tuned here are none of other machines'
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, {"WEFT_TUNED": "0"}):
        return explained(resolve(SUBJECT), Target.named(TARGET)).to_html(Path(folder) / "page.html").read_text()


def digest(text: str) -> str:
    """Of what a picture shows."""
    return hashlib.sha256(text.encode()).hexdigest()


def source_of(picture: Path) -> str:
    """The digest of what a picture showed when it was made; empty if there is none."""
    if not picture.exists():
        return ""
    with Image.open(picture) as image:
        return str(image.info.get(SOURCE, ""))


def keep_source(picture: Path, source: str) -> None:
    """Write a digest into a picture."""
    kept = PngInfo()
    kept.add_text(SOURCE, source)
    with Image.open(picture) as image:
        image.load()
        image.save(picture, pnginfo=kept, optimize=True)


def photograph(browser: str, page: Path, picture: Path) -> None:
    """Take a page as a screen shows it."""
    with tempfile.TemporaryDirectory() as profile:
        window = [f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={picture}", f"--user-data-dir={profile}"]
        subprocess.run([browser, *FLAGS, *window, page.as_uri()], check=True, capture_output=True)


if __name__ == "__main__":
    raise SystemExit(main())
