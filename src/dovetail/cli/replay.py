"""`dovetail replay`: run what was dumped again, and compare."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dovetail.cli.output import Allow, AsJson, Dumped, Tolerance, print_json
from dovetail.cli.progress import spinner
from dovetail.inspect.replay import DIFFERS, FAILED, SKIPPED, ReplayRow, replay

_STYLES = {DIFFERS: "bold red", FAILED: "bold red", "equal": "green"}


def replay_command(dump: Dumped, rtol: Tolerance = None, as_json: AsJson = False, allow: Allow = None) -> None:
    """Run the programs of a dump again and compare their results.

    DUMP is a folder that DOVETAIL_DUMP=folder or graph_dumper_aot wrote, or one .json file in it. Each step of a
    compilation must give what the first one gives; each recorded call, what it gave then. Inputs are those of the first
    call where DOVETAIL_DUMP_CALLS=1 was set (or dump_example_input=True), else random ones of the same shapes.

    Exit status: 0 when everything agrees, 1 when something differs or fails, 2 for a folder that holds no
    dump, or no program that can be run.
    """
    with spinner("replay", quiet=as_json) as progress:
        rows = replay(dump, rtol=rtol, progress=progress, allow=allow or ())
    is_wrong = any(row.verdict in (DIFFERS, FAILED) for row in rows)
    if as_json:
        print_json([asdict(row) for row in rows])
    else:
        _print(rows)
    nothing_ran = all(row.verdict == SKIPPED for row in rows)
    raise typer.Exit(1 if is_wrong else 2 if nothing_ran else 0)


def _print(rows: list[ReplayRow]) -> None:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("program", no_wrap=True)
    table.add_column("step", no_wrap=True)
    table.add_column("nodes", justify="right")
    table.add_column("inputs", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for row in rows:
        verdict = Text(row.verdict, style=_STYLES.get(row.verdict, ""))
        table.add_row(Text(row.program), Text(row.step), str(row.nodes), row.inputs, verdict)
    console = Console()
    console.print(table)
    for row in rows:
        if row.detail:
            where = " ".join(filter(None, (row.program, row.step)))
            console.print(Text(f"{where}: {row.detail}", style=_STYLES.get(row.verdict, "")), soft_wrap=True)
    counts = Counter(row.verdict for row in rows)
    console.print(
        ", ".join(f"{count} {verdict}" for verdict, count in counts.items()) or "no programs", highlight=False
    )
