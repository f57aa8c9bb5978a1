"""Makes the pictures of the documentation: ``python docs/pictures.py`` needs Chromium (``CHROMIUM`` names it).

The page of ``weft explain residual_mix --target h200`` is taken at 1400 and at 400 pixels, its beginning.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from weft.commands.explain import explained
from weft.commands.subject import resolve
from weft.target import Target

FOLDER = Path(__file__).parent / "pictures"
SIZES = {1400: 1500, 400: 1500}
"""Heights in pixels of what is shown, by width."""
NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-sync"),
    *("--disable-quic", "--disable-background-networking", "--disable-component-update"),
)


def main() -> int:
    """Write the pictures; 2 if there is no browser."""
    browser = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if browser is None:
        print(f"none of {', '.join(NAMES)} is installed; CHROMIUM can name another", file=sys.stderr)
        return 2
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        page = explained(resolve("residual_mix"), Target.named("h200")).to_html(Path(folder) / "page.html")
        for width, height in SIZES.items():
            photograph(browser, page, FOLDER / f"explain_{width}.png", width, height)
    return 0


def photograph(browser: str, page: Path, picture: Path, width: int, height: int) -> None:
    """A frame shows the page as a screen of its width does; windows cannot be as narrow as telephones."""
    frame = page.with_name(f"frame_{width}.html")
    style = f"border:0;width:{width}px;height:{height}px"
    frame.write_text(f'<!doctype html><body style="margin:0"><iframe src="{page.name}" style="{style}"></iframe>')
    with tempfile.TemporaryDirectory() as profile:
        window = [f"--window-size={width},{height}", f"--screenshot={picture}", f"--user-data-dir={profile}"]
        if width < 500:
            window[0] = f"--window-size=500,{height}"
        subprocess.run([browser, *FLAGS, *window, frame.as_uri()], check=True, capture_output=True)
    if width < 500:
        crop(picture, width)


def crop(picture: Path, width: int) -> None:
    """Keep the left of a picture."""
    from matplotlib import image

    image.imsave(picture, image.imread(picture)[:, :width])


if __name__ == "__main__":
    raise SystemExit(main())
