"""``weft rules``: what the rules in a report mean."""

from __future__ import annotations

import textwrap
from typing import Annotated

import typer

from weft.rules import RULES, Rule, markdown

WIDTH = 100
Names = Annotated[list[str] | None, typer.Argument(metavar="[RULE]...", help="Which rules; by default all.")]


def rules_command(
    names: Names = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="One table, as in docs/refusals.md.")] = False,
) -> None:
    """Print why weft leaves something out, what the figures are, and what you can do.

    weft rules outer_dependency
    """
    if unknown := [name for name in names or () if name not in RULES]:
        raise typer.BadParameter(f"no rule {unknown[0]!r}; one of {', '.join(RULES)}")
    chosen = [RULES[name] for name in names or RULES]
    typer.echo(markdown(chosen) if as_markdown else "\n\n".join(map(_paragraph, chosen)))


def _paragraph(rule: Rule) -> str:
    lines = [rule.meaning]
    if rule.figures is not None:
        lines += [f"have: {rule.figures.have}", f"limit: {rule.figures.limit}"]
    lines.append(f"What you can do: {rule.action}")
    shown = (
        textwrap.fill(x, WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False) for x in lines
    )
    return "\n".join([f"{rule.name} ({rule.stage})", *shown])
