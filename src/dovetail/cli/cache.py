"""`dovetail cache`: what native code is kept on disk, and how to get rid of it."""

from __future__ import annotations

import sys
from dataclasses import asdict
from datetime import datetime

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dovetail.cli.output import AsJson, print_json
from dovetail.execute.native.cache import cache_folder, made_for, state

cache_app = typer.Typer(help="The native code that is kept on disk: list it, or clear it.", no_args_is_help=True)


@cache_app.command("list")
def list_command(as_json: AsJson = False) -> None:
    """List what is kept, what was used last first. *Here* says whether it is valid on this machine, with this torch."""
    folder = cache_folder()
    entries = folder.entries() if folder is not None else []
    if as_json:
        print_json({"state": state(), "entries": [{**asdict(e), "here": e.made_for == made_for()} for e in entries]})
        return
    console = Console()
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("kind", "what", "bytes", "last used", "here"):
        table.add_column(heading, justify="right" if heading == "bytes" else "left")
    for entry in entries:
        used = datetime.fromtimestamp(entry.used).strftime("%Y-%m-%d %H:%M")
        here = "yes" if entry.made_for == made_for() else "no"
        table.add_row(entry.kind, Text(entry.what), f"{entry.size:,}", used, here)
    if entries:
        console.print(table)
    console.print(Text(state()), soft_wrap=True)


@cache_app.command("clear")
def clear_command(as_json: AsJson = False) -> None:
    """Remove all that is kept, whatever it was made for. A folder that is not used is left alone, and it says why."""
    folder = cache_folder()
    count = folder.clear() if folder is not None else 0
    if as_json:
        print_json({"state": state(), "removed": count})
        return
    sys.stdout.write(f"{count} entries removed\n")
    if folder is None or folder.problem():
        sys.stdout.write(f"{state()}\n")
