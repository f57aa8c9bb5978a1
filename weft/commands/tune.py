"""``weft tune``: measures candidate schedules of kernels, and keeps the best for every later compile."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

from weft.bench.machine import machine
from weft.bench.tune import Job, Tuning, tune
from weft.bench.tune_jobs import Found, jobs_of, merged, versions_of
from weft.bench.tune_measurer import ProcessMeasurer
from weft.bench.tune_report import TuneReport, lines_of, margins_line, table_of
from weft.commands.output import JsonOption, console, progress
from weft.commands.subject import (
    FILE,
    DeviceOption,
    DtypeOption,
    GradOption,
    Subject,
    check_file,
    choose_device,
    failing,
    resolve,
    split_list,
)
from weft.options import Options
from weft.plan.tuned import TunedSchedules
from weft.runtime import tuning
from weft.runtime.cache import Cache

DEFAULT_BUDGET_S = 60.0

Subjects = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[WORKLOAD|MODEL]... | FILE.py:FUNCTION TYPE...",
        help="Whose kernels to tune; TYPEs as in 'bf16[8192,4096]' are of the FUNCTION's inputs.",
        show_default=False,
    ),
]
Shapes = Annotated[
    str | None,
    typer.Option("--shapes", help="Rows and columns of workloads, batch and sequence of models: 8192x4096,8192x1024."),
]
Budget = Annotated[float, typer.Option("--budget", help="Seconds for all kernels together.")]
Dynamic = Annotated[bool, typer.Option("--dynamic", help="Leave sizes to run time; tuned at those given.")]
Export = Annotated[Path | None, typer.Option("--export", help="Write all schedules that are kept to this file.")]
Import = Annotated[Path | None, typer.Option("--import", help="Keep the schedules of a file that --export wrote.")]
Forget = Annotated[bool, typer.Option("--forget", help="Forget what is kept: of these subjects, or all.")]


def tune_command(
    subjects: Subjects = None,
    shapes: Shapes = None,
    dtype: DtypeOption = "bf16",
    budget: Budget = DEFAULT_BUDGET_S,
    device: DeviceOption = None,
    grad: GradOption = False,
    dynamic: Dynamic = False,
    as_json: JsonOption = False,
    export: Export = None,
    import_from: Import = None,
    forget: Forget = False,
) -> None:
    """Measure the schedules that kernels can have, and keep the best for later compiles on this machine.

    Every candidate is checked before it is timed; one that is wrong is never taken, and the exit code is 1.

    weft tune rms_norm_backward layer_norm_backward --shapes 8192x4096,8192x1024 --budget 120

    weft tune model.py:block 'bf16[8192,4096]' 'bf16[4096]' --grad --export tuned.json

    weft tune --import tuned.json
    """
    options = Options.read()
    check_file(export, "--export")
    if not 0 < budget < float("inf"):
        raise typer.BadParameter(f"--budget is a number of seconds above 0, not {budget:g}")
    if not (subjects or forget or export or import_from):
        raise typer.BadParameter("name what to tune: a workload, a model or FILE.py:FUNCTION TYPE...")
    if import_from is not None:
        typer.echo(_import(import_from, options), err=True)
    if forget and not subjects:
        _kept(tuning.forget(None, options), options)
        typer.echo("all tuned schedules are forgotten", err=True)
    code = 0
    if subjects:
        chosen = choose_device(device)
        known = tuning.load(replace(options, tuned=True))
        given = _resolved(subjects, shapes, dtype, grad, chosen)
        found = merged(_jobs(label, subject, chosen, dynamic, known) for label, subject in given)
        if forget:
            _kept(tuning.forget(found.jobs, options), options)
            typer.echo(f"forgotten: what was kept of {len(found.jobs)} kernels", err=True)
        else:
            code = _report(_measured(found, budget, chosen, options), options, as_json)
    if export is not None:
        kept = tuning.load(replace(options, tuned=True))
        export.write_text(tuning.to_json(kept))
        typer.echo(f"wrote {_count(len(kept))} to {export}", err=True)
    if code:
        raise typer.Exit(code)


def _import(path: Path, options: Options) -> str:
    try:
        found = tuning.from_json(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"--import: {path}: {getattr(error, 'strerror', None) or 'is no text'}") from None
    except ValueError as error:
        raise typer.BadParameter(f"--import: {path} {error}") from None
    _kept(tuning.save(found.values(), options), options)
    machines = {(each.target, each.device) for each in found.values()}
    return f"imported {_count(len(found))} from {path}, for {', '.join(sorted(f'{t} ({d})' for t, d in machines))}"


def _kept(reason: str | None, options: Options) -> None:
    if reason is not None:
        raise typer.BadParameter(f"the cache in {options.cache_dir} cannot be changed: {reason}")


def _resolved(
    subjects: Sequence[str], shapes: str | None, dtype: str, grad: bool, device: str
) -> Iterator[tuple[str, Subject]]:
    """Every subject at every shape."""
    first, *types = subjects
    if any(FILE.fullmatch(name) for name in subjects):
        if not FILE.fullmatch(first) or any("[" not in text for text in types):
            raise typer.BadParameter("FILE.py:FUNCTION is tuned alone, and only its TYPEs follow it")
        if shapes is not None:
            raise typer.BadParameter("--shapes is for workloads; a function has TYPEs: 'bf16[8192,4096]'")
        yield first, resolve(first, types, None, dtype, grad, device)
        return
    for name in dict.fromkeys(subjects):
        for shape in dict.fromkeys(split_list(shapes, "--shapes")) if shapes is not None else [None]:
            label = " ".join((name, *((shape,) if shape else ()), dtype))
            yield label, resolve(name, shape=shape, dtype=dtype, device=device)


def _jobs(label: str, subject: Subject, device: str, dynamic: bool, known: TunedSchedules) -> Found:
    """Raises typer.BadParameter if the user's function fails on these inputs."""
    try:
        with Console(stderr=True).status(f"tracing and planning {label}"), subject.scope():
            return jobs_of(label, subject.function, subject.inputs, device, dynamic, known)
    except torch.OutOfMemoryError:
        raise typer.BadParameter(f"{label} does not fit the memory of the device") from None
    except Exception as error:
        if subject.kind != "function":
            raise
        raise failing(subject, error) from None


def _measured(found: Found, budget_s: float, device: str, options: Options) -> TuneReport:
    """What was measured is kept."""
    if device == "cuda":  # what was traced is not needed any more, and others need the memory
        gc.collect()
        torch.cuda.empty_cache()
    jobs, start, where = list(found.jobs.values()), time.monotonic(), machine(device)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with progress(*columns) as bar, ProcessMeasurer(options) as measurer:
        task = bar.add_task("measuring", total=None)

        def tell(job: Job, done: int, total: int) -> None:
            shown = f"{job.kernel.name} ({jobs.index(job) + 1} of {len(jobs)})"
            bar.update(task, description=shown, completed=done, total=total)

        tunings = tune(jobs, budget_s, measurer, tell)
    seconds, versions = time.monotonic() - start, versions_of(options, device)
    kept = _save(tunings, versions, options)
    spent = round(seconds, 1)
    return TuneReport(where, versions, device, budget_s, spent, tuple(tunings), found.refusals, kept)


def _save(tunings: Sequence[Tuning], versions: dict[str, str], options: Options) -> str | None:
    records = [record for each in tunings if (record := each.record(versions)) is not None]
    return tuning.save(records, options) if records else None


def _report(report: TuneReport, options: Options, as_json: bool) -> int:
    """The exit code: 1 if a schedule was wrong, or nothing could be kept."""
    if as_json:
        typer.echo(report.to_json())
        return int(report.wrong or report.not_kept is not None)
    where = report.machine.get("gpu") or f"{report.machine['cpu']}, {report.machine['threads']} threads"
    typer.echo(f"{where}; {report.seconds:g} s of {report.budget_s:g} s")
    if report.tunings:
        console().print(table_of(report.tunings), highlight=False, markup=False)
    for line in _what(report, options):
        typer.echo(line)
    return int(report.wrong or report.not_kept is not None)


def _what(report: TuneReport, options: Options) -> list[str]:
    lines = lines_of(report)
    if any(t.margin is not None for t in report.tunings):
        lines.append(margins_line(report.tunings))
        kept = sum(t.final is not None for t in report.tunings)
        place = Cache(options.cache_dir, options.cache_bytes).folder
        where = f"kept in {place}: {_count(kept)}" if report.not_kept is None else f"NOT kept: {report.not_kept}"
        lines.append(where if options.tuned else f"{where}; not used while WEFT_TUNED is 0")
    return lines


def _count(number: int) -> str:
    return "1 schedule" if number == 1 else f"{number} schedules"
