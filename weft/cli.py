"""The command line, ``weft`` or ``python -m weft``: each group of commands is a module of ``weft.commands``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from weft import __version__
from weft.errors import OptionError


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit: 0 done, 1 the answer is no, 2 wrong input. arguments: by default those of the process."""
    try:
        sys.exit(run(arguments))
    except ModuleNotFoundError as error:
        missing = (error.name or "weft").partition(".")[0]
        if missing == "weft":
            raise
        sys.exit(_complain(f"weft: the command line needs {missing}; install it with `pip install {missing}`"))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit code."""
    import typer

    try:
        return application()(arguments, standalone_mode=False) or 0
    except OptionError as error:  # of the environment
        return _complain(f"weft: {error}")
    except typer.Abort:
        _complain("weft: nothing was done")
        return 1
    except Exception as error:
        if not hasattr(error, "format_message"):  # what typer raises for wrong input; its base class has moved
            raise
        return _complain(_explain(error))


def application() -> Any:
    """All commands; typer is imported here so that nothing else needs it."""
    import typer

    from weft.commands import bench, cache, calibrate, doctor, explain, rules, show, tune

    whole = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)
    whole.command("explain")(explain.explain_command)
    whole.command("show")(show.show_command)
    whole.command("rules")(rules.rules_command)
    whole.command("doctor")(doctor.doctor_command)
    whole.command("calibrate")(calibrate.calibrate_command)
    whole.command("bench")(bench.bench_command)
    whole.command("tune")(tune.tune_command)
    whole.add_typer(cache.commands, name="cache")

    def say_version(asked: bool) -> None:
        if asked:
            typer.echo(f"weft {__version__}")
            raise typer.Exit

    version = typer.Option(False, "--version", help="Print the version.", callback=say_version, is_eager=True)

    @whole.callback()
    def describe(version: bool = version) -> None:  # pyright: ignore[reportUnusedFunction]
        """weft, a fusion compiler for PyTorch."""

    return whole


def _explain(error: Any) -> str:
    """One line; the whole help if there was no command at all."""
    message = error.format_message()
    if message.startswith("Usage:"):
        return message
    line = " ".join(message.split()).removeprefix("Invalid value: ")
    context = getattr(error, "ctx", None)
    return f"weft: {line}" if context is None else f"weft: {line} (see `{context.command_path} --help`)"


def _complain(message: str) -> int:
    print(message, file=sys.stderr)
    return 2
