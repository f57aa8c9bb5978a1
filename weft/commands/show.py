"""``weft show``: a stage of the compiler as text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args

import typer

from weft.backends.listed import backend_of
from weft.commands.explain import explained
from weft.commands.output import JsonOption
from weft.commands.subject import (
    DtypeOption,
    GradOption,
    Name,
    ShapeOption,
    TargetOption,
    Types,
    parse_target,
    resolve,
)
from weft.compiler import CompiledRegion
from weft.explain.explanation import Explanation
from weft.integration.backend import supports_cuda
from weft.plan.kernel import Kernel

Stage = Literal["program", "plan", "nest", "source"]


def show_command(
    name: Name,
    types: Types = None,
    stage: Annotated[str, typer.Option("--stage", help=f"Which: {', '.join(get_args(Stage))}.")] = "program",
    shape: ShapeOption = None,
    dtype: DtypeOption = "bf16",
    target: TargetOption = "current",
    grad: GradOption = False,
    as_json: JsonOption = False,
) -> None:
    """Print what a stage of the compiler makes of every region.

    weft show rms_norm_backward --stage plan --shape 8192x4096 --target h200

    weft show model.py:block 'f32[512,1024]' --stage source

    weft show layer_norm_backward --stage nest --target h200
    """
    if stage not in get_args(Stage):
        raise typer.BadParameter(f"no stage {stage!r}; one of {', '.join(get_args(Stage))}")
    chosen = parse_target(target)
    if stage == "source" and chosen.kind == "gpu" and not supports_cuda():
        raise typer.BadParameter(f"code for {chosen.name} needs Triton, `pip install triton`; or use --target cpu")
    found = explained(resolve(name, types or (), shape, dtype, grad), chosen)
    texts = _texts(found, stage)
    if as_json:
        typer.echo(json.dumps({"name": found.name, "target": chosen.name, "stage": stage, "regions": texts}, indent=2))
        return
    for entry in texts:
        typer.echo("\n".join(entry["texts"]))
    if not texts:
        typer.echo(found.text())


def _texts(found: Explanation, stage: str) -> list[dict[str, Any]]:
    """The texts of each region, equal ones once."""
    return [
        {"graph": g.graph.kind, "times": len(g.places), "texts": _of(g.first, stage)} for g in found.equal_regions()
    ]


def _of(compiled: CompiledRegion, stage: str) -> list[str]:
    if stage == "program":
        return [str(compiled.program)]
    if stage == "nest":
        return [text for kernel in compiled.plan.kernels for text in _nests(kernel)]
    return [str(compiled.plan)] if stage == "plan" else [source.text for source in compiled.sources]


def _nests(kernel: Kernel) -> Iterator[str]:
    """What the functions of a kernel do, and on a GPU what they are started with."""
    backend = backend_of(kernel)
    yield from map(str, backend.lower(kernel))
    if backend.kind == "gpu":
        yield str(backend.abi(kernel))
