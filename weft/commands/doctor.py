"""``weft doctor``: whether weft can run on this machine, and what to do where it cannot."""

from __future__ import annotations

import json

import typer
from rich.table import Table
from rich.text import Text

from weft.commands.output import JsonOption, console
from weft.explain.health import Finding, Health, examine

COLOURS = {"ok": "green", "warning": "yellow", "problem": "bold red"}


def doctor_command(as_json: JsonOption = False) -> None:
    """Look at this machine, compile one kernel, and say what is wrong and what to do.

    The output can go into a bug report as it is. The exit code is 1 if weft cannot run here.
    """
    health = examine()
    if as_json:
        typer.echo(json.dumps(health.to_dict(), indent=2))
    else:
        _print(health)
    if not health.can_run:
        raise typer.Exit(1)


def _print(health: Health) -> None:
    """Without lines or markup, so that it survives a copy; as wide as the screen if there is one."""
    screen = console()
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in health.findings:
        table.add_row(Text(finding.status, style=COLOURS[finding.status]), finding.name, Text(_text(finding)))
    with screen.capture() as shown:
        screen.print(table)
    lines = [line.rstrip() for line in shown.get().splitlines()]  # rich fills them with spaces
    typer.echo("\n".join([*lines, health.summary()]))


def _text(finding: Finding) -> str:
    return f"{finding.fact}\n-> {finding.remedy}" if finding.remedy else finding.fact
