"""``weft explain``: which operations share a kernel, which do not, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from weft.commands.output import JsonOption
from weft.commands.subject import (
    DtypeOption,
    GradOption,
    Name,
    ShapeOption,
    Subject,
    TargetOption,
    Types,
    failing,
    parse_target,
    resolve,
)
from weft.explain.explained import PLAN_ONLY
from weft.explain.explanation import Explanation, explain
from weft.target import Target


def explain_command(
    name: Name,
    types: Types = None,
    shape: ShapeOption = None,
    dtype: DtypeOption = "bf16",
    target: TargetOption = "current",
    grad: GradOption = False,
    measure: Annotated[
        bool, typer.Option("--measure", help="Time each region beside TorchInductor's code, on the machine at hand.")
    ] = False,
    as_json: JsonOption = False,
    html: Annotated[Path | None, typer.Option("--html", help="Write a page that stands alone to this file.")] = None,
) -> None:
    """Say which operations share a kernel, which do not, and the one reason why.

    weft explain rms_norm_backward --shape 8192x4096 --target h200

    weft explain model.py:block 'bf16[8192,4096]' 'bf16[4096]' --grad --json

    weft explain layer_norm_backward --measure
    """
    if measure and target != "current":
        raise typer.BadParameter(f"only the machine at hand can be measured; leave --target {target} out")
    chosen = parse_target(target)
    found = explained(resolve(name, types or (), shape, dtype, grad), chosen, measure)
    if html is not None:
        try:
            found.to_html(html)
        except OSError as error:
            raise typer.BadParameter(f"{html}: {error.strerror}") from None
    if as_json:
        typer.echo(found.to_json())
    elif html is not None:
        typer.echo("\n".join([found.summary(), *([PLAN_ONLY] if found.plan_only else []), f"wrote {html}"]))
    else:
        typer.echo(found.text())


def explained(subject: Subject, target: Target, measure: bool = False) -> Explanation:
    """Raises typer.BadParameter if the user's function fails on these inputs."""
    what = "planning, building and timing" if measure else "planning"
    given: dict[str, Any] = {"measure": True} if measure else {"target": target}
    try:
        with Console(stderr=True).status(f"tracing and {what} {subject.name}"), subject.scope():
            return explain(subject.function, *subject.inputs, name=subject.name, **given)
    except Exception as error:
        if subject.kind != "function":
            raise
        raise failing(subject, error) from None
