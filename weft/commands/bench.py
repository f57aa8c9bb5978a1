"""``weft bench``: how fast weft's kernels are, beside those of others and a copy of the same bytes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer

from weft.bench.case import Case, function_case, workload_case
from weft.bench.correctness import tensors_of
from weft.bench.machine import machine, versions
from weft.bench.measure import PEERS, Protocol, measure
from weft.bench.models import MODELS
from weft.bench.report import Benchmark, Row, heading, print_rows, write_csv
from weft.bench.workloads import WORKLOADS
from weft.commands.output import JsonOption, console, progress
from weft.commands.subject import (
    FILE,
    DeviceOption,
    Shape,
    Subject,
    check_file,
    choose_device,
    failing,
    parse_shape,
    resolve,
    split_list,
)
from weft.explain.calls import call
from weft.ir.dtypes import TORCH_DTYPES
from weft.options import Options
from weft.runtime.timing import LEAST_ROUNDS

DEFAULT_WORKLOADS = (
    *("rms_norm_forward", "rms_norm_backward", "layer_norm_backward_bias"),
    *("softmax_forward", "cross_entropy_forward", "row_column_sum"),
)
CPU_SHAPE: Shape = (4096, 4096)
DTYPES = ("bf16", "f16", "f32")
EVERY_PEER = ",".join(PEERS)
DOUBLES = 6
"""Copies of all inputs in float64 that the check needs at its worst: a backward's intermediates and its results."""

Subjects = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[WORKLOAD]... | FILE.py:FUNCTION TYPE...",
        help="What to time; TYPEs as in 'bf16[8192,4096]' are of the FUNCTION's inputs.",
        show_default=False,
    ),
]
Shapes = Annotated[
    str | None,
    typer.Option("--shapes", help="Rows and columns of workloads, 8192x4096,8192x1024. On a CPU by default 4096x4096."),
]
Dtypes = Annotated[str | None, typer.Option("--dtype", help=f"Of workloads: {', '.join(DTYPES)}, or several.")]
Against = Annotated[str, typer.Option("--against", help=f"Any of {', '.join(PEERS)}; all by default.")]
Rounds = Annotated[int, typer.Option("--rounds", help="Samples of each candidate.")]
Csv = Annotated[Path | None, typer.Option("--csv", help="Write a line a candidate to this file.")]
Plot = Annotated[Path | None, typer.Option("--plot", help="Draw the fraction of copy over the columns: FILE.png.")]


def bench_command(
    subjects: Subjects = None,
    shapes: Shapes = None,
    dtype: Dtypes = None,
    against: Against = EVERY_PEER,
    as_json: JsonOption = False,
    csv: Csv = None,
    plot: Plot = None,
    rounds: Rounds = Protocol.rounds,
    device: DeviceOption = None,
) -> None:
    """Time weft beside eager PyTorch, TorchInductor and others, and a copy of the same bytes.

    Every candidate is checked against float64 first; one that is wrong is not timed, and the exit code is 1.

    weft bench rms_norm_backward softmax_forward --shapes 4096x1024,4096x4096 --dtype bf16,f32

    weft bench model.py:block 'bf16[8192,4096]' 'bf16[4096]' --json
    """
    chosen = choose_device(device)
    peers = _listed(against, "--against", PEERS, "peer")
    if rounds < LEAST_ROUNDS:
        raise typer.BadParameter(f"--rounds is at least {LEAST_ROUNDS}, not {rounds}; fewer have no quartiles")
    check_file(csv, "--csv", "")
    check_file(plot, "--plot", ".png")
    makers = _cases(subjects or (), shapes, dtype, chosen)
    options, protocol = Options.read(), Protocol(rounds)
    where = machine(chosen)
    rows = _measured(makers, lambda case: measure(case, peers, options, protocol))
    found = Benchmark(where, versions(options), asdict(protocol) | {"device": chosen}, rows)
    for path, write in ((csv, write_csv), (plot, _draw)):
        if path is not None:
            write(path, rows)
    if as_json:
        typer.echo(found.to_json())
    else:
        _print(found, [path for path in (csv, plot) if path is not None])
    if any(figures.wrong is not None for row in rows for figures in row.candidates):
        raise typer.Exit(1)


def _cases(
    subjects: Sequence[str], shapes: str | None, dtype: str | None, device: str
) -> list[tuple[str, Callable[[], Case]]]:
    """What to measure, made when its turn comes. Everything is looked at before anything is timed."""
    files = [name for name in subjects if FILE.fullmatch(name)]
    if files:
        return [_of_file(files, subjects, shapes, dtype, device)]
    dtypes = _listed(dtype or "bf16", "--dtype", DTYPES, "dtype")
    sizes = [parse_shape(text) for text in split_list(shapes, "--shapes")] if shapes is not None else None
    made: list[tuple[str, Callable[[], Case]]] = []
    for name in dict.fromkeys(subjects or DEFAULT_WORKLOADS):
        if name in MODELS:
            raise typer.BadParameter(f"{name} is a model; weft bench times workloads and functions of a file")
        for rows, columns in dict.fromkeys(sizes or [_default_shape(name, device)]):
            for short in dtypes:
                text = f"{rows}x{columns}"
                subject = resolve(name, shape=text, dtype=short)
                _check_workload(subject, text, device)
                make = partial(workload_case, WORKLOADS[name], (rows, columns), TORCH_DTYPES[short], device)
                made.append((f"{name} {text} {short}", make))
    return made


def _of_file(
    files: Sequence[str], subjects: Sequence[str], shapes: str | None, dtype: str | None, device: str
) -> tuple[str, Callable[[], Case]]:
    name, *types = subjects
    others = [text for text in types if "[" not in text]
    if len(files) > 1 or files[0] != name or any(text in WORKLOADS for text in others):
        raise typer.BadParameter("FILE.py:FUNCTION is timed alone, and only its TYPEs follow it")
    if shapes is not None or dtype is not None:
        raise typer.BadParameter("--shapes and --dtype are for workloads; a function has TYPEs: 'bf16[8192,4096]'")
    if not types:
        raise typer.BadParameter(f"{name} needs the TYPEs of its inputs, as in 'bf16[8192,4096]'")
    if wide := [text for text in types if text.startswith("f64")]:
        raise typer.BadParameter(f"{wide[0]}: results are checked against float64, so data is f32, f16 or bf16")
    subject = resolve(name, types)
    if empty := [text for text, t in zip(types, subject.inputs, strict=True) if t.numel() == 0]:
        raise typer.BadParameter(f"{empty[0]} has no elements to time")
    _check_memory(subject, name, device)
    inputs = [tensor.to(device) for tensor in subject.inputs]
    function = subject.function.to(device) if isinstance(subject.function, torch.nn.Module) else subject.function
    before = [tensor._version for tensor in inputs]
    try:
        with torch.no_grad():
            results = tensors_of(call(function, inputs))
    except Exception as error:
        raise failing(subject, error) from None
    if not results:
        raise typer.BadParameter(f"{subject.name} returns no tensor, so there is nothing to check")
    if before != [tensor._version for tensor in inputs]:
        raise typer.BadParameter(f"{subject.name} changes its inputs, so that no two calls of it do the same")
    return subject.name, partial(function_case, subject.name, function, inputs)


def _check_workload(subject: Subject, shape: str, device: str) -> None:
    if all(tensor.numel() == 0 for tensor in subject.inputs) or subject.inputs[0].numel() == 0:
        raise typer.BadParameter(f"{subject.name} {shape} has no elements to time")
    _check_memory(subject, f"{subject.name} {shape}", device)


def _check_memory(subject: Subject, shown: str, device: str) -> None:
    needed = DOUBLES * 8 * sum(tensor.numel() for tensor in subject.inputs)
    there = (
        torch.cuda.mem_get_info()[0] if device == "cuda" else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    )
    if needed > there:
        gib = f"about {needed / 2**30:.0f} GiB to be checked in float64, and there are {there / 2**30:.0f}"
        raise typer.BadParameter(f"{shown} needs {gib}")


def _default_shape(name: str, device: str) -> Shape:
    return CPU_SHAPE if device == "cpu" or name not in WORKLOADS else WORKLOADS[name].default_shape


def _measured(makers: Sequence[tuple[str, Callable[[], Case]]], run: Callable[[Case], Row]) -> tuple[Row, ...]:
    rows: list[Row] = []
    with progress() as bar:
        task = bar.add_task("measuring", total=len(makers))
        for name, make in makers:
            bar.update(task, description=name)
            rows.append(run(make()))
            bar.advance(task)
    return tuple(rows)


def _print(found: Benchmark, written: Iterable[Path]) -> None:
    typer.echo(heading(found))
    print_rows(console(), found.rows)
    for path in written:
        typer.echo(f"wrote {path}")


def _draw(path: Path, rows: Sequence[Row]) -> None:
    from weft.bench.plots import draw_fractions

    draw_fractions(rows, path)


def _listed(text: str, option: str, known: Sequence[str], what: str) -> list[str]:
    """A list with commas, every entry once."""
    found = split_list(text, option)
    if unknown := [entry for entry in found if entry not in known]:
        why = "; results are checked against float64" if unknown[0] == "f64" else ""
        raise typer.BadParameter(f"{option}: no {what} {unknown[0]!r}; any of {', '.join(known)}{why}")
    return list(dict.fromkeys(found))
