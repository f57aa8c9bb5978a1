"""``weft cache``: what is kept, whether it is whole, and out with it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from weft.commands.output import JsonOption
from weft.options import Options
from weft.runtime.cache import Cache
from weft.runtime.entries import Entry
from weft.runtime.trust import check_folder

commands = typer.Typer(help="The folder of compiled kernels.", no_args_is_help=True)

Folder = Annotated[str | None, typer.Option("--cache-dir", help="The folder, instead of the configured one.")]


@commands.command("list")
def list_entries(cache_dir: Folder = None, as_json: JsonOption = False) -> None:
    """List what is kept, the most recently used first."""
    store = _open(cache_dir)
    entries = store.entries()
    size_bytes = sum(entry.size_bytes for entry in entries)
    if as_json:
        _print_json(store, limit_bytes=store.limit_bytes, size_bytes=size_bytes, entries=[*map(_to_dict, entries)])
        return
    if entries:
        _print_table(entries)
    share = f"{decimal(size_bytes)} of at most {decimal(store.limit_bytes)}"
    typer.echo(f"{_count(entries)}, {share}, in {store.folder}")


@commands.command()
def verify(
    cache_dir: Folder = None,
    as_json: JsonOption = False,
    repair: Annotated[bool, typer.Option("--repair", help="Remove damaged files; they are compiled again.")] = False,
) -> None:
    """Compare every file with its digest. The exit code is 1 if a damaged one stays."""
    store = _open(cache_dir)
    entries, damaged = store.entries(), store.damaged()
    left = [entry for entry in damaged if not (repair and store.remove(entry))]
    if as_json:
        shown = [_to_dict(entry) | {"removed": entry not in left} for entry in damaged]
        _print_json(store, checked=len(entries), damaged=shown)
    else:
        if damaged:
            _print_table(damaged)
        fate = "" if not damaged else ", not removed" if left else ", removed"
        typer.echo(f"{_count(entries)} compared with digests, {len(damaged)} damaged{fate}, in {store.folder}")
        if left and not repair:
            typer.echo("Damaged files are never loaded; `weft cache verify --repair` removes them.")
    if left:
        raise typer.Exit(1)


@commands.command()
def clear(
    cache_dir: Folder = None,
    as_json: JsonOption = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove every file that weft keeps, and no other."""
    store = _open(cache_dir)
    if as_json and not yes:
        raise typer.BadParameter("clear --json cannot ask; give --yes as well")
    entries = store.entries()
    if entries and not yes:
        typer.confirm(f"Remove {_count(entries)} from {store.folder}?", abort=True)
    cleared = store.clear()
    size_bytes = sum(entry.size_bytes for entry in cleared.removed)
    if as_json:
        removed = {"removed": len(cleared.removed), "removed_bytes": size_bytes}
        _print_json(store, **removed, left=[*map(str, cleared.left)])
        return
    typer.echo(f"{_count(cleared.removed)} removed, {decimal(size_bytes)}, from {store.folder}")
    if cleared.left:
        typer.echo(f"Left alone, not weft's or in use: {', '.join(path.name for path in cleared.left)}")


def _open(cache_dir: str | None) -> Cache:
    """The cache that is meant. One that was never used is empty; a folder that is given and not there, or not trusted,
    is wrong input."""
    try:
        if cache_dir == "":
            raise ValueError("--cache-dir is empty")
        options = Options.read({} if cache_dir is None else {"cache_dir": cache_dir})
        store = Cache(options.cache_dir, options.cache_bytes)
        if cache_dir is None and not store.folder.exists():
            return store
        refusal = check_folder(store.folder)
    except (ValueError, OSError) as error:
        raise typer.BadParameter(str(error)) from None
    if refusal is not None:
        raise typer.BadParameter(f"{refusal.subject}: {refusal.message}")
    return store


def _print_table(entries: list[Entry]) -> None:
    table = Table("name", "kind", "last used", "key")
    table.add_column("size", justify="right")
    for entry in entries:
        used = datetime.fromtimestamp(entry.last_used).strftime("%Y-%m-%d %H:%M")
        table.add_row(entry.name, entry.kind, used, entry.key[:12], decimal(entry.size_bytes))
    Console().print(table)


def _print_json(store: Cache, **facts: Any) -> None:
    typer.echo(json.dumps({"folder": str(store.folder), **facts}, indent=2))


def _to_dict(entry: Entry) -> dict[str, Any]:
    return {
        "key": entry.key,
        "kind": entry.kind,
        "name": entry.name,
        "size_bytes": entry.size_bytes,
        "last_used": datetime.fromtimestamp(entry.last_used, UTC).isoformat(timespec="seconds"),
        "digest": entry.digest,
        "path": str(entry.path),
    }


def _count(entries: list[Entry] | tuple[Entry, ...]) -> str:
    return "1 file" if len(entries) == 1 else f"{len(entries)} files"
