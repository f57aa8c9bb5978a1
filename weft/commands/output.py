"""How commands print: tables as wide as the screen, or 120 characters in a pipe, and progress on a screen."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, ProgressColumn

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
PIPED_WIDTH = 120


def console() -> Console:
    return Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)


def progress(*columns: ProgressColumn) -> Progress:
    """A bar on standard error, which goes when it is done."""
    shown = Console(stderr=True)
    return Progress(*columns, console=shown, transient=True, disable=not shown.is_terminal)
