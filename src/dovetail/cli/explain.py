"""`dovetail explain`: what a compilation decided, from its dump."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli.output import Allow, AsJson, DumpFolder
from dovetail.errors import ReportNotWritten
from dovetail.inspect.explain_dump import explain_dump
from dovetail.inspect.explanation import Explanation


def explain_command(
    dump: DumpFolder,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the report as an HTML page.")] = None,
    trace: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a trace for Perfetto.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Print every row instead of groups of equal ones.")] = False,
    measure_time: Annotated[bool, typer.Option(help="Also run it and eager mode on random inputs, for times.")] = False,
    as_json: AsJson = False,
    allow: Allow = None,
) -> None:
    """Say what is needed, who holds it at the peak, what was decided, and why.

    Exit status: 0, or 2 for a folder that is not a dump and a file that cannot be written.
    """
    found = explain_dump(dump, allow=allow or (), measure_time=measure_time)
    for path in (html, trace):
        if path is not None:
            _check_one(found, path)
    if html is not None:
        found[0].html(html)
    if trace is not None:
        found[0].trace(trace)
    if as_json:
        sys.stdout.write("[" + ",\n".join(explanation.to_json() for explanation in found) + "]\n")
    elif html is None and trace is None:
        sys.stdout.write("\n\n".join(explanation.text(full=everything) for explanation in found) + "\n")


def _check_one(found: list[Explanation], path: Path) -> None:
    """A file has room for one explanation."""
    if len(found) > 1:
        names = ", ".join(explanation.name for explanation in found)
        raise ReportNotWritten(path=path, reason=f"the dump has {len(found)} compilations ({names}); name one folder")
