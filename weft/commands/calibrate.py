"""``weft calibrate``: measure the GPU at hand, for a model that there are no fitted constants of."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, NoReturn

import torch
import typer

from weft.commands.output import JsonOption
from weft.errors import BuildError
from weft.options import Options
from weft.runtime import calibration
from weft.target import Target


def calibrate_command(
    as_json: JsonOption = False,
    show: Annotated[bool, typer.Option("--show", help="Say what was measured before; measure nothing.")] = False,
) -> None:
    """Measure the GPU at hand again, and plan with what is found from now on.

    A GPU whose model weft has no fitted constants of is measured when it is first compiled for: copies, and a few
    kernels, for some seconds. Repeat it when nothing else runs on it. The exit code is 1 if there is no GPU, or nothing
    was measured or kept.
    """
    if not torch.cuda.is_available():
        _end("torch sees no GPU here; figures of CPUs come with weft")
    device = torch.device("cuda", torch.cuda.current_device())
    try:
        known, options = Target.current(device), Options.read()
        found, unkept = (calibration.kept(known, options), None) if show else calibration.measure_again(device, options)
    except (ValueError, BuildError, RuntimeError) as error:
        _end(" ".join(str(error).split()))
    if as_json:
        typer.echo(
            json.dumps({"target": known.name, "calibration": None if found is None else asdict(found)}, indent=2)
        )
    elif found is not None:
        typer.echo(f"{found.device}: {found}")
    if found is None:
        _end(f"{known.device} was never measured" + (f": {known.origin}" if known.measured else ""))
    if unkept is not None:
        _end(f"this is not kept: {unkept}")


def _end(message: str) -> NoReturn:
    typer.echo(f"weft: {message}", err=True)
    raise typer.Exit(1)
